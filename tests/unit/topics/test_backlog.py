"""Backlogs count messages, and are said whatever storage does."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.log.seam import Content
from magnetar.model.errors import LogClosedError
from magnetar.model.ids import EARLIEST, Position
from magnetar.topics.consuming import backlog
from magnetar.topics.consuming.backlog import Backlog, backlogs
from tests.doubles.memory_log import MemoryLog

MESSAGES = (1, 1000, 1, 1, 1, 10)


def filled() -> MemoryLog:
    """Ledger 1 with the first five of ``MESSAGES``, ledger 2 with the last."""
    log = MemoryLog("l", 5)
    content = Content(list(MESSAGES), [0] * len(MESSAGES))
    log.append([b"x"] * len(MESSAGES), lambda error, runs: None, content)
    log.release()
    return log


def left_after(*, cumulative: Position | None = None, single: tuple[Position, ...] = ()) -> Backlog:
    async def count() -> Backlog:
        log = filled()
        cursor = log.cursors.reader("r", EARLIEST)
        if cumulative is not None:
            cursor.acknowledge_cumulative(cumulative)
        cursor.acknowledge(single)
        (found,) = await backlogs(log, [cursor])
        return found

    return asyncio.run(count())


def test_a_batch_counts_as_its_messages() -> None:
    assert left_after() == (6, 1014)
    assert left_after(cumulative=Position(1, 0)) == (5, 1013)
    assert left_after(cumulative=Position(1, 1)) == (4, 13)
    assert left_after(cumulative=Position(1, 4)) == (1, 10)
    assert left_after(cumulative=Position(2, 0)) == (0, 0)


def test_of_what_is_acknowledged_out_of_order_the_mean_is_taken() -> None:
    # Five entries after the mark-delete position hold 1013 messages; three of them are left.
    left = left_after(cumulative=Position(1, 0), single=(Position(1, 2), Position(1, 3)))
    assert left == (3, round(1013 * 3 / 5))
    # No entry is less than a message.
    left = left_after(cumulative=Position(1, 1), single=(Position(2, 0),))
    assert left == (3, round(13 * 3 / 4))


@pytest.mark.parametrize("hangs", [False, True])
def test_what_cannot_be_read_is_estimated(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def count() -> list[Backlog]:
        log = filled()
        asked: list[Position] = []

        async def offset_of(position: Position) -> int:
            asked.append(position)
            if hangs:
                await asyncio.Event().wait()
            raise LogClosedError("no bookie answers")

        monkeypatch.setattr(log.positions, "offset_of", offset_of)
        monkeypatch.setattr(log.positions, "messages_between", lambda after, last: 600)
        monkeypatch.setattr(backlog, "EXACT_WAIT_S", 0.01)
        cursors = [log.cursors.reader(f"r{index}", Position(1, 1)) for index in range(3)]
        found = await backlogs(log, cursors)
        assert len(asked) == 1, "the others do not wait as well"
        return found

    assert asyncio.run(count()) == [(5, 600)] * 3
