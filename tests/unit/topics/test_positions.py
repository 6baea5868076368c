"""Places as positions to read next."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.topics.positions import seek_target
from tests.doubles.memory_log import MemoryLog


@pytest.fixture
def log() -> MemoryLog:
    """Ledgers 1 and 2 with 5 entries each, ledger 3 with 2."""

    async def fill() -> MemoryLog:
        made = MemoryLog("l", 5)
        done: list[int] = []
        made.append([b"x"] * 12, lambda error, runs: done.extend(run.entries for run in runs))
        made.release()
        assert done == [5, 5, 2]
        return made

    return asyncio.run(fill())


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (EARLIEST, (1, 0)),
        (Position(0, 3), (1, 0)),
        (Position(1, -1), (1, 0)),
        (Position(2, 3), (2, 3)),
        (Position(3, 1), (3, 1)),
        (Position(3, 2), (3, 2)),
        (Position(3, 99), (3, 2)),
        (Position(9, 0), (3, 2)),
        (LATEST, (3, 2)),
    ],
)
def test_seeks_are_inclusive_and_stay_inside(
    log: MemoryLog, position: Position, expected: tuple[int, int]
) -> None:
    assert seek_target(log.positions, position) == expected


def test_an_empty_log_starts_at_its_beginning() -> None:
    async def check() -> None:
        empty = MemoryLog("l", 5)
        assert seek_target(empty.positions, EARLIEST) == (1, 0)
        assert seek_target(empty.positions, LATEST) == (1, 0)

    asyncio.run(check())
