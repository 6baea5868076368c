"""Starting on what a crash, a power loss or bad hardware left behind."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.bookie import FENCE, RECOVERY, Bookie
from magnetar.bookie.space import upkeep
from magnetar.bookie.storage.entry_log_format import HEADER_BYTES, RECORD_HEADER_BYTES
from magnetar.bookie.storage.ledger_record import decode_record
from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.config import BookieConfig
from magnetar.env.files.disk import RealDisk
from magnetar.metrics import Metrics
from magnetar.model.errors import (
    BookieIOError,
    FencedError,
    NoEntryError,
    NoLedgerError,
    UnauthorizedError,
    UnknownLedgerStateError,
)
from tests.memory_bookie import until
from tests.unit.bookie.storage_kit import (
    KEY,
    OTHER_KEY,
    WatchedDisk,
    add,
    crashed,
    entry,
    flip_bit,
    ids_of,
    journal_files,
    running,
    settings,
)


async def filled(
    config: BookieConfig, root: Path, batches: Sequence[Sequence[int]] = ((0, 1), (2, 3), (4, 5))
) -> BookieConfig:
    """Ledger 1 with one commit per batch, killed before any flush: settings of the remains."""
    async with running(config) as bookie:
        for batch in batches:
            await add(bookie, 1, batch, entries=[entry(1, i, size=900) for i in batch])
        return crashed(config, root)


async def survivors(bookie: Bookie, ledger_id: int, count: int) -> list[int]:
    found = []
    for entry_id in range(count):
        try:
            data = await bookie.read_entry(ledger_id, entry_id)
        except (NoEntryError, UnknownLedgerStateError):
            continue
        assert data == entry(ledger_id, entry_id, size=900)
        found.append(entry_id)
    return found


def test_replay_after_a_kill_gives_everything_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        remains = await filled(settings(tmp_path), tmp_path)
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert bookie.report.entries == 6
            assert bookie.report.torn_tails == bookie.report.damages == ()
            assert await survivors(bookie, 1, 7) == list(range(6))
            with pytest.raises(UnauthorizedError):
                await add(bookie, 1, [6], key=OTHER_KEY)
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert bookie.report.entries == 0
            assert await survivors(bookie, 1, 7) == list(range(6))

    asyncio.run(scenario())


def test_a_replay_takes_no_more_memory_than_the_write_cache(tmp_path: Path) -> None:
    """What the journal has may be much more than that, after flushes that failed for long."""

    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=64 << 20)
        ids = range(120)
        async with running(config) as bookie:
            for entry_id in ids:
                await add(bookie, 1, [entry_id], entries=[entry(1, entry_id, size=50_000)])
            remains = crashed(config, tmp_path)
        async with running(replace(remains, write_cache_bytes=1 << 20)) as bookie:
            assert bookie.report is not None
            assert bookie.report.entries == len(ids)
            assert bookie.info().write_cache_bytes < 2 << 20
            for entry_id in ids:
                assert await bookie.read_entry(1, entry_id) == entry(1, entry_id, size=50_000)

    asyncio.run(scenario())


def test_a_replay_knows_the_last_entry_in_whatever_order_they_came(tmp_path: Path) -> None:
    """A repair adds earlier ones behind it."""

    async def scenario() -> None:
        config = settings(tmp_path / "bookie")
        async with running(config) as bookie:
            await add(bookie, 1, [4, 5])
            await add(bookie, 1, [2], flags=RECOVERY)
            remains = crashed(config, tmp_path / "bookie")
        async with running(remains) as bookie:
            assert await bookie.read_entry(1, -1) == entry(1, 5)
            assert ids_of(await bookie.list_entries(1)) == [2, 4, 5]
            assert await bookie.read_batch(1, 4, 9, 1 << 20) == [entry(1, 4), entry(1, 5)]

    asyncio.run(scenario())


@pytest.mark.parametrize("cut_bytes", [512, 1024, 1536])
@pytest.mark.parametrize("how", ["truncated", "one byte less", "zeroed", "garbage"])
def test_a_torn_tail_costs_only_the_last_commit_and_is_no_damage(
    tmp_path: Path, cut_bytes: int, how: str
) -> None:
    async def scenario() -> None:
        remains = await filled(settings(tmp_path), tmp_path)
        path = journal_files(remains)[-1]
        data = path.read_bytes()
        tail = {
            "truncated": b"",
            "one byte less": data[-cut_bytes:-1],
            "zeroed": bytes(cut_bytes),
            "garbage": b"\xa5" * cut_bytes,
        }[how]
        path.write_bytes(data[:-cut_bytes] + tail)
        for _ in range(2):  # what was torn at one start is no damage at the next
            async with running(remains) as bookie:
                assert bookie.report is not None
                assert bookie.report.damages == ()
                assert not bookie.report.limbo
                found = await survivors(bookie, 1, 6)
                assert found[:4] == [0, 1, 2, 3]
                with pytest.raises(NoEntryError):
                    await bookie.read_entry(1, 6)

    asyncio.run(scenario())


@pytest.mark.parametrize("back", [2000, 1500, 900, 300, 20])
def test_a_flipped_bit_in_the_last_commit_is_no_torn_tail(tmp_path: Path, back: int) -> None:
    async def scenario() -> None:
        remains = await filled(settings(tmp_path), tmp_path)
        path = journal_files(remains)[-1]
        flip_bit(path, path.stat().st_size - back)
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert bookie.report.torn_tails == ()
            found = await survivors(bookie, 1, 6)
            assert set(found) >= set(range(4))
            if back == 20:  # padding
                assert found == list(range(6))
                return
            assert bookie.report.limbo
            for entry_id in set(range(7)) - set(found):
                with pytest.raises(UnknownLedgerStateError):
                    await bookie.read_entry(1, entry_id)

    asyncio.run(scenario())


def test_a_torn_tail_seen_by_two_kills_in_a_row_stays_torn(tmp_path: Path) -> None:
    async def scenario() -> None:
        remains = await filled(settings(tmp_path), tmp_path)
        path = journal_files(remains)[-1]
        path.write_bytes(path.read_bytes()[:-700])
        root = path.parent.parent
        bookie_config = remains
        for life in range(3):
            async with running(bookie_config) as bookie:
                assert bookie.report is not None
                assert bookie.report.damages == ()
                await add(bookie, 2, [life], entries=[entry(2, life, size=900)])
                bookie_config = crashed(bookie_config, root, f"again{life}")
            root = bookie_config.journal.directories[0].parent
        async with running(bookie_config) as bookie:
            assert await survivors(bookie, 2, 3) == [0, 1, 2]

    asyncio.run(scenario())


def test_a_flipped_bit_in_the_middle_is_told_and_never_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        remains = await filled(settings(tmp_path), tmp_path)
        path = journal_files(remains)[-1]
        flip_bit(path, path.read_bytes().index(entry(1, 2, size=900)[:300]) + 200)
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert len(bookie.report.damages) == 1
            assert bookie.report.damages[0].path == str(path)
            assert bookie.report.limbo
            assert await survivors(bookie, 1, 6) == [0, 1, 3, 4, 5]
            await in_limbo(bookie)
            bookie.ledgers_are_new_from(5)
            await add(bookie, 5, range(3))  # a ledger begun now is certain
            with pytest.raises(NoEntryError):
                await bookie.read_entry(5, 3)
        async with running(remains) as bookie:  # remembered
            assert bookie.report is not None
            assert bookie.report.damages == ()
            await in_limbo(bookie)
            with pytest.raises(NoEntryError):
                await bookie.read_entry(5, 3)
            await bookie.leave_limbo()
        async with running(remains) as bookie:
            with pytest.raises(NoEntryError):
                await bookie.read_entry(1, 6)

    async def in_limbo(bookie: Bookie) -> None:
        assert bookie.info().limbo
        for ledger_id, entry_id in ((1, 2), (1, 6), (9, 0)):
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(ledger_id, entry_id)
        with pytest.raises(UnknownLedgerStateError):
            await bookie.read_entry(10, 0, FENCE, KEY)

    asyncio.run(scenario())


def test_a_journal_that_ends_before_the_mark_is_damage(tmp_path: Path) -> None:
    """What came after the mark is gone with it: it must not be denied."""

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=30)
        async with running(config) as bookie:
            await add(bookie, 1, range(6), entries=[entry(1, i, size=900) for i in range(6)])
            await until(lambda: bookie._storages[0].marks.positions[0].offset > 1024)
            await add(bookie, 1, [6, 7])
            remains = crashed(config, tmp_path)
        (path,) = journal_files(remains)
        with path.open("r+b") as file:
            file.truncate(1024)
        async with running(remains) as bookie:
            assert bookie.report is not None
            (damage,) = bookie.report.damages
            assert (damage.path, damage.damage.start) == (str(path), 1024)
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(1, 6)

    asyncio.run(scenario())


@pytest.mark.parametrize("damage", ["zeros", "garbage", "older", "a stamp"])
def test_a_journal_without_the_commit_before_its_mark_is_damage(
    tmp_path: Path, damage: str
) -> None:
    """Overwritten, or an older copy: as long as it was, and nothing is behind the mark."""

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=30)
        async with running(config) as bookie:
            await add(bookie, 1, [0])
            older = journal_files(config)[0].read_bytes()
            for one in range(1, 6):
                await add(bookie, 1, [one], entries=[entry(1, one, size=900)])
            await until(lambda: bookie._storages[0].marks.positions[0].offset > 4096)
            mark = bookie._storages[0].marks.positions[0].offset
            if damage != "a stamp":
                await add(bookie, 1, [6, 7])
            remains = crashed(config, tmp_path)
        path = journal_files(remains)[0]
        size = path.stat().st_size
        if damage == "a stamp":
            flip_bit(path, mark - 512)
        elif damage == "older":
            path.write_bytes(older.ljust(size, b"\0"))
        else:
            path.write_bytes(bytes(size) if damage == "zeros" else random.Random(1).randbytes(size))
        async with running(remains) as bookie:
            assert bookie.report is not None
            if damage == "a stamp":
                assert not bookie.report.damages
                return
            (found,) = bookie.report.damages
            assert (found.path, found.damage.end) == (str(path), mark)
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(1, 6)

    asyncio.run(scenario())


def test_a_missing_journal_file_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(3))
        for path in config.journal.directories[0].iterdir():
            path.unlink()
        async with running(config) as bookie:
            assert bookie.report is not None
            assert len(bookie.report.damages) == 1
            assert await bookie.read_entry(1, 2) == entry(1, 2)
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(1, 3)

    asyncio.run(scenario())


def test_what_a_killed_process_left_to_the_kernel_is_made_durable(tmp_path: Path) -> None:
    """It is served from now on, fences too: a power cut must not take it away again."""

    async def scenario() -> None:
        remains = await filled(settings(tmp_path), tmp_path)
        (journal,) = journal_files(remains)
        disk = WatchedDisk()
        async with running(remains, disk) as bookie:
            assert ("sync", journal.name) in disk.events
            assert await bookie.read_entry(1, 0)

    asyncio.run(scenario())


def test_a_missing_file_between_two_others_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=64 << 20)
        async with running(config) as bookie:
            for i in range(60):
                await add(bookie, 1, [i], entries=[entry(1, i, size=60_000)])
            remains = crashed(config, tmp_path)
        files = journal_files(remains)
        assert len(files) >= 4
        files[1].unlink()
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert bookie.report.damages
            assert await bookie.read_entry(1, 0) == entry(1, 0, size=60_000)
            assert await bookie.read_entry(1, 59) == entry(1, 59, size=60_000)
            lost = []
            for i in range(60):
                try:
                    assert await bookie.read_entry(1, i) == entry(1, i, size=60_000)
                except UnknownLedgerStateError:
                    lost.append(i)
            assert lost == list(range(lost[0], lost[-1] + 1))
            assert 0 < len(lost) < 25

    asyncio.run(scenario())


def test_a_lost_tail_of_a_file_that_was_rolled_is_damage_not_a_torn_tail(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=64 << 20)
        async with running(config) as bookie:
            for i in range(40):
                await add(bookie, 1, [i], entries=[entry(1, i, size=60_000)])
            remains = crashed(config, tmp_path)
        first = journal_files(remains)[0]
        data = first.read_bytes().rstrip(b"\0")
        first.write_bytes(data[:-50_000])
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert len(bookie.report.damages) == 1
            assert bookie.report.limbo

    asyncio.run(scenario())


def test_recycled_files_replay_only_their_present_life(tmp_path: Path) -> None:
    """Journals turn over many times; the remains of a kill replay to exactly what was added,
    though every file is full of sealed records of earlier lives."""

    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=2 << 20, flush_interval_ms=20)
        rng = random.Random(3)
        async with running(config) as bookie:
            for i in range(0, 700, 5):
                ids = range(i, i + 5)
                await add(bookie, 1, ids, entries=[entry(1, j, size=9_000) for j in ids])
                if rng.random() < 0.3:
                    await asyncio.sleep(0.005)
            await bookie.delete_ledger(1)
            await asyncio.sleep(0.1)
            await add(bookie, 2, range(3))
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert bookie.report.damages == ()
            assert await bookie.ledgers() == [2]
            assert ids_of(await bookie.list_entries(2)) == [0, 1, 2]

    asyncio.run(scenario())


def test_a_corrupt_entry_in_an_entry_log_is_an_error_and_its_neighbours_are_served(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(5), entries=[entry(1, i, size=900) for i in range(5)])
        path = config.ledger_directories[0] / "00000001.log"
        record = RECORD_HEADER_BYTES + len(entry(1, 0, size=900))
        flip_bit(path, HEADER_BYTES + 2 * record + 400)
        async with running(config) as bookie:
            offset = HEADER_BYTES + 2 * record
            for _ in range(2):
                with pytest.raises(BookieIOError, match=f"{path}.*offset {offset}"):
                    await bookie.read_entry(1, 2)
            for i in (0, 1, 3, 4):
                assert await bookie.read_entry(1, i) == entry(1, i, size=900)
            assert len(await bookie.read_batch(1, 0, 10, 1 << 20)) == 2
        path.rename(path.with_suffix(".gone"))
        async with running(config) as bookie:
            with pytest.raises(BookieIOError, match="should lie in"):
                await bookie.read_entry(1, 0)

    asyncio.run(scenario())


def test_a_fence_survives_a_flush_with_nothing_else_to_flush(tmp_path: Path) -> None:
    """The mark passes the fence record with an empty write cache; a crash right after."""

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=20)
        async with running(config) as bookie:
            await bookie.read_lac(4, FENCE, KEY)
            before = bookie._storages[0].marks.positions
            await until(lambda: bookie._storages[0].marks.positions > before)
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            assert bookie.report is not None
            with pytest.raises(FencedError):
                await add(bookie, 4, [0])
            with pytest.raises(UnauthorizedError):
                await add(bookie, 4, [0], key=OTHER_KEY)

    asyncio.run(scenario())


@pytest.mark.parametrize("crash", [True, False])
def test_what_becomes_of_a_ledger_that_the_index_knows_outlives_the_journal(
    tmp_path: Path, crash: bool
) -> None:
    """The index has ledgers as an earlier life left them. What has been journaled of them since, a
    fence above all, is in the index when the mark has passed it: from a replay, too."""

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            for ledger_id in (1, 2, 3):
                await add(bookie, ledger_id, range(3))
        async with running(config) as bookie:
            await bookie.read_lac(1, FENCE, KEY)
            await add(bookie, 2, [3])
            await bookie.write_lac(3, KEY, 2, b"told")
            remains = crashed(config, tmp_path) if crash else config
        if crash:
            async with running(remains) as bookie:
                assert bookie.report is not None
                assert bookie.report.entries == 1
        async with running(remains) as bookie:  # ended in order before: nothing is replayed
            assert bookie.report is not None
            assert bookie.report.entries == 0
            with pytest.raises(FencedError):
                await add(bookie, 1, [3])
            assert await bookie.read_entry(2, -1) == entry(2, 3)
            assert await bookie.read_entry(2, 3) == entry(2, 3)
            told = await bookie.read_lac(3)
            assert (told.last_add_confirmed, told.explicit_lac) == (2, b"told")

    asyncio.run(scenario())


def test_a_directory_that_cannot_flush_holds_the_journal_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ledger directories on one journal: one flushes often, the other's disk refuses. No
    entry of the other may be lost by the first one's marks."""
    monkeypatch.setattr(upkeep, "FLUSH_FAILURES_MAX", 1 << 30)  # however long the adds take

    class HalfBroken(RealDisk):
        def open(self, path: Path, *, create: bool = False):  # type: ignore[no-untyped-def]
            if path.parent.name == "ledgers1" and path.suffix == ".log":
                raise OSError(5, "refused")
            return super().open(path, create=create)

    async def scenario() -> None:
        config = settings(tmp_path, ledgers=2, write_cache_bytes=32 << 20, flush_interval_ms=20)
        async with running(config, HalfBroken()) as bookie:
            for i in range(150):
                await add(bookie, 0, [i], entries=[entry(0, i, size=20_000)])
                if i % 10 == 0:
                    await add(bookie, 1, [i // 10], entries=[entry(1, i // 10, size=900)])
            own, other = bookie._storages
            await until(lambda: own.marks.positions[0].file_id > other.marks.positions[0].file_id)
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            assert await survivors(bookie, 1, 15) == list(range(15))
            assert bookie.report is not None
            assert bookie.report.damages == ()
            assert await bookie.read_entry(0, 149) == entry(0, 149, size=20_000)

    asyncio.run(scenario())


def test_marks_move_forward_and_spent_files_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=2 << 20, flush_interval_ms=30)
        seen = []
        async with running(config) as bookie:
            for i in range(400):
                await add(bookie, 1, [i], entries=[entry(1, i, size=20_000)])
                seen.append(bookie._storages[0].marks.positions[0])
        assert seen == sorted(seen)
        assert len(set(seen)) > 3
        assert len(journal_files(config)) <= 5

    asyncio.run(scenario())


def test_a_new_disk_under_an_old_journal_starts_empty_but_replays(tmp_path: Path) -> None:
    async def scenario() -> None:
        remains = await filled(settings(tmp_path), tmp_path)
        shutil.rmtree(remains.ledger_directories[0])
        async with running(remains) as bookie:
            assert await survivors(bookie, 1, 6) == list(range(6))
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(2, 0)

    asyncio.run(scenario())


def test_random_damage_to_a_journal_never_invents_or_hides(tmp_path: Path) -> None:
    """Whatever is overwritten: a start succeeds, what is served is what was added, and if an
    acknowledged entry of a commit before the last is gone, the bookie says so."""

    async def scenario() -> None:
        batches = [range(i, i + 3) for i in range(0, 30, 3)]
        remains = await filled(settings(tmp_path), tmp_path, batches)
        source = remains.journal.directories[0].parent
        rng = random.Random(11)
        for number in range(12):
            config = crashed(remains, source, f"damage{number}")
            path = journal_files(config)[-1]
            data = bytearray(path.read_bytes())
            start = rng.randrange(len(data))
            size = min(rng.choice((1, 40, 512, 3000)), len(data) - start)
            data[start : start + size] = rng.randbytes(size)
            path.write_bytes(data)
            async with running(config) as bookie:
                assert bookie.report is not None
                found = await survivors(bookie, 1, 31)
                if not set(range(27)) <= set(found):
                    assert bookie.report.limbo

    asyncio.run(scenario())


async def flushed(root: Path) -> BookieConfig:
    """Ledger 1 with entries 0 to 5, fenced, all of it flushed, ended in peace."""
    config = settings(root)
    async with running(config) as bookie:
        await add(bookie, 1, range(6), entries=[entry(1, i, size=900) for i in range(6)])
        with pytest.raises(NoEntryError):
            await bookie.read_entry(1, 6, FENCE, KEY)
    return config


def test_in_limbo_a_writer_whose_fence_may_be_lost_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        remains = await filled(settings(tmp_path), tmp_path)
        flip_bit(journal_files(remains)[-1], 3600)  # in the second of three commits
        async with running(remains) as bookie:
            assert bookie.info().limbo
            # 7: perhaps it was known here once; 8: perhaps it was fenced before its first entry
            for ledger_id, entry_id in ((1, 6), (7, 3), (8, 0)):
                with pytest.raises(UnknownLedgerStateError, match="write elsewhere"):
                    await add(bookie, ledger_id, [entry_id])
                await add(bookie, ledger_id, [entry_id], flags=RECOVERY)
                # A repair's copy says nothing of what else was here.
                with pytest.raises(UnknownLedgerStateError):
                    await bookie.read_entry(ledger_id, 9)
            bookie.ledgers_are_new_from(20)  # striped, the first entry goes to others
            for ledger_id, entry_id in ((18, 0), (19, 1)):
                with pytest.raises(UnknownLedgerStateError):
                    await add(bookie, ledger_id, [entry_id])
            await add(bookie, 20, [1])
            await add(bookie, 20, [2])
            with pytest.raises(NoEntryError):
                await bookie.read_entry(20, 3)
            await bookie.leave_limbo()
            await add(bookie, 1, [6])

    asyncio.run(scenario())


def test_a_bookie_without_its_location_index_does_not_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = await flushed(tmp_path)
        shutil.rmtree(config.ledger_directories[0] / "index")
        for _ in range(2):
            with pytest.raises(BookieIOError, match=r"index .* is empty, but .* is in use"):
                await Bookie(config, Metrics()).start()

    asyncio.run(scenario())


def test_an_index_that_lost_durable_changes_means_limbo(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = await flushed(tmp_path)
        index = config.ledger_directories[0] / "index"
        shutil.copytree(index, tmp_path / "older")
        async with running(config) as bookie:
            await add(bookie, 2, range(3))
        shutil.rmtree(index)
        shutil.copytree(tmp_path / "older", index)
        for _ in range(2):
            async with running(config) as bookie:
                assert await bookie.read_entry(1, 5) == entry(1, 5, size=900)
                with pytest.raises(UnknownLedgerStateError):
                    await bookie.read_entry(2, 0)

    asyncio.run(scenario())


def test_limbo_for_an_index_that_lost_changes_ends_for_good(tmp_path: Path) -> None:
    """Once others have given back what was lost; and ledgers that came since are certain."""

    async def scenario() -> None:
        config = await flushed(tmp_path)
        index = config.ledger_directories[0] / "index"
        shutil.copytree(index, tmp_path / "older")
        async with running(config) as bookie:
            for ledger_id in range(2, 80):
                await add(bookie, ledger_id, [0])
        shutil.rmtree(index)
        shutil.copytree(tmp_path / "older", index)
        async with running(config) as bookie:
            assert bookie.info().limbo
            await bookie.leave_limbo()
        async with running(config) as bookie:
            assert not bookie.info().limbo
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(2, 0)

    asyncio.run(scenario())


def test_an_index_that_lost_changes_is_known_for_one_after_a_start_that_was_cut_short(
    tmp_path: Path,
) -> None:
    """What a start writes to it makes up, in number, for what is missing."""

    class Killed(LocationIndex):
        def separate_deleted(self) -> int:
            rows = [(ledger_id, encoded) for ledger_id, encoded in self.ledgers()]
            for _ in range(1000):
                self.put_ledgers(rows)
            raise BookieIOError("killed")

    async def scenario() -> None:
        config = await flushed(tmp_path)
        index = config.ledger_directories[0] / "index"
        shutil.copytree(index, tmp_path / "older")
        async with running(config) as bookie:
            await add(bookie, 2, range(3))
        shutil.rmtree(index)
        shutil.copytree(tmp_path / "older", index)
        with pytest.raises(BookieIOError, match="killed"):
            await Bookie(config, Metrics(), open_index=Killed).start()
        async with running(config) as bookie:
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(2, 0)

    asyncio.run(scenario())


def test_a_lost_mark_means_limbo_past_every_epoch(tmp_path: Path) -> None:
    async def scenario(damage: Callable[[Path], None]) -> None:
        config = await flushed(tmp_path)
        damage(config.ledger_directories[0] / "lastmark")
        async with running(config) as bookie:
            assert bookie.info().limbo
            assert await bookie.read_entry(1, 5) == entry(1, 5, size=900)
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(1, 6)
            bookie.ledgers_are_new_from(2)
            await add(bookie, 2, range(3))
        damage(config.ledger_directories[0] / "lastmark")
        async with running(config) as bookie:
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(2, 3)
        shutil.rmtree(tmp_path / "ledgers0")
        shutil.rmtree(tmp_path / "journal0")

    asyncio.run(scenario(Path.unlink))
    asyncio.run(scenario(lambda path: flip_bit(path, 20)))


def test_limbo_without_a_mark_is_past_what_ledgers_say(tmp_path: Path) -> None:
    """Those that began in the limbo before it may have lost something now."""

    async def scenario() -> None:
        config = await flushed(tmp_path)
        index = LocationIndex(config.ledger_directories[0] / "index")
        record = index.ledger(1)
        assert record is not None
        index.put_ledgers([(1, decode_record(1, record)._replace(epoch=5).encode())])
        index.close()
        (config.ledger_directories[0] / "lastmark").unlink()
        async with running(config) as bookie:
            assert bookie._storages[0].marks.epoch > 5
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(1, 6)

    asyncio.run(scenario())


def test_a_journal_that_is_gone_before_the_first_flush_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        remains = await filled(settings(tmp_path), tmp_path)
        for path in journal_files(remains):
            path.unlink()
        async with running(remains) as bookie:
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(1, 0)

    asyncio.run(scenario())


def test_a_ledger_directory_that_was_emptied_is_noticed_by_its_journal(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = await flushed(tmp_path)
        async with running(config):  # the journal's first file is not needed any more
            pass
        shutil.rmtree(config.ledger_directories[0])
        async with running(config) as bookie:
            with pytest.raises(UnknownLedgerStateError):
                await bookie.read_entry(1, 0)

    asyncio.run(scenario())
