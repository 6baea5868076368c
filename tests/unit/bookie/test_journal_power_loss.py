"""Power loss: whatever was not synced may be there, half there, or not; what was acknowledged is.

The disk here keeps each file's synced content apart from what was written since. When the power
goes, each 512-byte sector written since the last sync survives or not, by the toss of a seeded
coin. Directories are not what is tested here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from magnetar.bookie.journal.journal import Journal, Request
from magnetar.bookie.journal.journal_files import JournalDirectory
from magnetar.bookie.journal.journal_format import ENTRY, JournalPosition
from magnetar.bookie.journal.journal_scan import Record
from magnetar.bookie.replay import replay_journal
from magnetar.config import JournalConfig
from magnetar.env.files.disk import Buffer, DiskFile, RealDisk
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError, MagnetarError

SECTOR_BYTES = 512
FILE_BYTES = 1 << 20


class FadingFile:
    """Writes go through at once; ``before`` remembers what the sectors held at the last sync."""

    def __init__(self, file: DiskFile, disk: FadingDisk, before: dict[int, bytes]) -> None:
        self.path = file.path
        self._file = file
        self._disk = disk
        self._before = before

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self._remember(offset, offset + sum(map(len, parts)))
        self._file.pwritev(parts, offset)
        self._disk.use_power()

    def truncate(self, byte_count: int) -> None:
        raise AssertionError("a journal's files are never cut")

    def punch(self, byte_count: int, offset: int) -> None:
        self._remember(offset, offset + byte_count)
        self._file.punch(byte_count, offset)
        self._disk.use_power()

    def _remember(self, offset: int, end: int) -> None:
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            if sector not in self._before:
                old = self._file.pread(SECTOR_BYTES, sector * SECTOR_BYTES)
                self._before[sector] = old.ljust(SECTOR_BYTES, b"\0")

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        self.pwritev(parts, offset)
        self.datasync()

    def pread(self, byte_count: int, offset: int) -> bytes:
        return self._file.pread(byte_count, offset)

    def datasync(self) -> None:
        self._disk.use_power()
        self._before.clear()

    def close(self) -> None:
        self._file.close()


class FadingDisk(RealDisk):
    """Has power for ``operations`` writes and syncs."""

    def __init__(self, operations: int) -> None:
        self.operations = operations
        self.unsynced: dict[int, dict[int, bytes]] = {}  # inode -> sector -> old content

    def use_power(self) -> None:
        self.operations -= 1
        if self.operations < 0:
            raise OSError("the power is gone")

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        return FadingFile(file, self, self.unsynced.setdefault(path.stat().st_ino, {}))

    def forget(self, directory: Path, rng: random.Random) -> None:
        """The loss: each unsynced sector is the new one or the old one."""
        for path in sorted(directory.iterdir()):
            before = self.unsynced.get(path.stat().st_ino, {})
            with path.open("r+b") as file:
                for sector, old in sorted(before.items()):
                    if rng.random() < 0.5:
                        file.seek(sector * SECTOR_BYTES)
                        file.write(old)


class Life:
    """One life of a journal, from its replay to the loss of power."""

    def __init__(self, path: Path, disk: FadingDisk) -> None:
        self.path = path
        self.disk = disk
        self.acknowledged: list[int] = []
        self.found: list[int] = []

    def start(self, mark: JournalPosition) -> Journal:
        config = JournalConfig(
            directories=(self.path,), file_bytes=FILE_BYTES, group_bytes_max=64 << 10
        )
        directory = JournalDirectory(self.disk, self.path, FILE_BYTES, 4, sleep=lambda _: None)
        journal = Journal(0, directory, self.disk, config, Metrics())

        def apply(position: JournalPosition, record: Record) -> None:
            number = int.from_bytes(record.payload[:8], "big")
            assert record.payload == payload_of(number)
            self.found.append(number)

        result = replay_journal(directory, mark, apply)
        assert [damage for damage in result.damages if not damage.torn] == []
        journal.open([*result.spent, *result.files], result.last_id, result.next_id)
        return journal

    def done(self, error: MagnetarError | None, ids: Sequence[int]) -> None:
        if error is None:
            self.acknowledged.extend(ids)


def payload_of(number: int) -> bytes:
    return number.to_bytes(8, "big") * (5 + number * 13 % 900)


async def live(
    life: Life, mark: JournalPosition, number: int, rng: random.Random
) -> tuple[int, JournalPosition, int | None]:
    """Append until the power is gone. Returns the next number, the mark, and, if the mark was
    moved, the first number behind it."""
    journal = life.start(mark)
    behind = None
    while journal.broken is None:
        for _ in range(rng.randrange(1, 20)):
            payload = payload_of(number)
            journal.append(Request(ENTRY, [payload], len(payload), life.done, [number]))
            number += 1
        await asyncio.sleep(rng.choice((0, 0.0005)))
        if rng.random() < 0.1:
            with suppress(BookieIOError):
                await journal.barrier()
                mark, behind = journal.committed, number
                journal.trim(mark)
    await journal.close()
    return number, mark, behind


@pytest.mark.parametrize("seed", range(6))
def test_what_was_acknowledged_survives_any_loss_of_power(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        mark, number, first = JournalPosition(0, 0), 0, 0
        owed: set[int] = set()  # acknowledged, and not covered by the mark
        sent: set[int] = set()
        for _ in range(8):
            life = Life(tmp_path, FadingDisk(rng.randrange(6, 120)))
            try:
                following, mark, behind = await live(life, mark, number, rng)
            except OSError:  # lost power before it was open
                life.disk.forget(tmp_path, rng)
                continue
            check(life, owed, sent)
            sent.update(range(number, following))
            owed.update(life.acknowledged)
            first = first if behind is None else behind
            owed = {one for one in owed if one >= first}
            number = following
            life.disk.forget(tmp_path, rng)
        last = Life(tmp_path, FadingDisk(10**9))
        await last.start(mark).close()
        check(last, owed, sent)
        assert number > 100

    def check(life: Life, owed: set[int], sent: set[int]) -> None:
        assert owed <= set(life.found)
        assert set(life.found) <= sent
        assert life.found == sorted(set(life.found))

    asyncio.run(scenario())
