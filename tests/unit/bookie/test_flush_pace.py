"""A flush rests while it is ahead of the half that fills meanwhile, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from magnetar.bookie.journal.journal_format import JournalPosition
from magnetar.bookie.storage.storage import (
    CHUNK_BYTES_MAX,
    PACED_FILL_MAX,
    REST_S_MAX,
    LedgerStorage,
)
from magnetar.config import BookieConfig
from magnetar.env.files.disk import RealDisk
from tests.unit.bookie.storage_kit import running, settings

HALF_BYTES = 4 * CHUNK_BYTES_MAX


def rests(tmp_path: Path, fill: Callable[[int], float], hurried: bool = False) -> list[float]:
    """How long a flush of four chunks rested; ``fill(n)`` is how full the active half is after
    its n-th rest was due."""

    async def scenario() -> list[float]:
        slept: list[float] = []
        storage = LedgerStorage(
            0, tmp_path, RealDisk(), BookieConfig(), HALF_BYTES, sleep=slept.append
        )
        storage.open(1, 1)
        storage.hurried = hurried
        for entry_id in range(4):
            entry = bytes(7) + b"\1" + entry_id.to_bytes(8, "big") + bytes(CHUNK_BYTES_MAX)
            storage.cache.active.put(1, [entry_id], [entry], len(entry))
        work = storage.take_work()
        chunks = 0
        append = storage._append

        def counted(
            chunk: list[tuple[int, int, bytes]], rows: list[tuple[int, int, int, int]]
        ) -> int:
            nonlocal chunks
            storage.cache.active.byte_count = int(fill(chunks) * HALF_BYTES)
            chunks += 1
            return append(chunk, rows)

        storage._append = counted  # type: ignore[method-assign]
        await asyncio.to_thread(storage.write, work, [JournalPosition(1, 512)], True)
        assert chunks == 4
        await storage.close()
        return slept

    return asyncio.run(scenario())


def test_with_nothing_coming_in_it_rests_after_every_step(tmp_path: Path) -> None:
    slept = rests(tmp_path, lambda chunk: 0.0)
    assert len(slept) == 5  # four chunks, one batch of locations
    assert all(0 < seconds <= REST_S_MAX for seconds in slept)


def test_it_does_not_rest_when_the_bookie_ends(tmp_path: Path) -> None:
    assert rests(tmp_path, lambda chunk: 0.0, hurried=True) == []

    async def scenario() -> None:
        async with running(settings(tmp_path / "bookie", ledgers=2)) as bookie:
            storages = bookie._storages
            assert [each.hurried for each in storages] == [False, False]
        assert [each.hurried for each in storages] == [True, True]

    asyncio.run(scenario())


def test_it_does_not_rest_when_the_other_half_fills_faster(tmp_path: Path) -> None:
    ahead = PACED_FILL_MAX / 4
    assert rests(tmp_path, lambda chunk: (chunk + 1) * ahead * 1.01) == []


def test_it_rests_again_once_it_is_ahead(tmp_path: Path) -> None:
    """Half of the room is taken at once; the flush has done more than that after three chunks."""
    slept = rests(tmp_path, lambda chunk: PACED_FILL_MAX * 0.7)
    assert len(slept) == 3
