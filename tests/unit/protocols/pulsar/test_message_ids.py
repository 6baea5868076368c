"""Message ids as positions, and where readers start."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.protocols.pulsar.message_ids import position_of, reader_start
from magnetar.wire.pulsar.pulsar_pb2 import MessageIdData
from tests.doubles.memory_log import MemoryLog


def message_id(ledger_id: int, entry_id: int, batch_index: int = -1) -> MessageIdData:
    mask = 2**64 - 1
    return MessageIdData(
        ledgerId=ledger_id & mask, entryId=entry_id & mask, batch_index=batch_index
    )


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


def test_special_ids() -> None:
    assert position_of(message_id(-1, -1)) == EARLIEST
    assert position_of(message_id(2**63 - 1, 2**63 - 1)) == LATEST
    assert position_of(message_id(7, -1)) == Position(7, -1)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((-1, -1, -1), EARLIEST),
        ((2**63 - 1, 2**63 - 1, -1), LATEST),
        ((1, 2, -1), (1, 2)),
        ((1, 4, -1), (1, 4)),
        ((1, 2, 0), (1, 2)),
        ((3, 1, -1), (3, 1)),
        ((3, 1, 3), (3, 1)),
        ((3, 50, -1), (3, 2)),
        ((0, 7, -1), (1, 0)),
        ((2, -1, -1), (2, 0)),
    ],
)
def test_readers_start_at_the_entry_of_their_id(
    log: MemoryLog, data: tuple[int, int, int], expected: tuple[int, int]
) -> None:
    assert reader_start(log.positions, message_id(*data)) == expected


def test_a_reader_of_an_empty_log_starts_at_its_beginning() -> None:
    async def check() -> None:
        assert reader_start(MemoryLog("l", 5).positions, message_id(1, 0)) == (1, 0)

    asyncio.run(check())
