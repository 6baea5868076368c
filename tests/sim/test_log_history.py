"""What the simulator takes for a broken log, and what not."""

from __future__ import annotations

from typing import cast

from magnetar.log.seam import Cursor
from magnetar.model.ids import Position
from magnetar_sim.cluster.log_workload import LogHistory


class Acknowledging:
    """The part of a cursor that is looked at."""

    def __init__(self, *positions: Position) -> None:
        self._positions = positions

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        return Position(ledger_id, entry_id) in self._positions


def problem(stored_before: list[Position], stored: list[Position], *found: Position) -> str | None:
    history = LogHistory()
    for position in stored:
        history.confirmed[position] = b"0/0"
    history.acknowledged.update(dict.fromkeys(stored))
    history.stored.update(dict.fromkeys(stored))
    history.check_cursor("o1", cast(Cursor, Acknowledging(*found)), stored_before)
    return history.problem


FIRST, SECOND = Position(2, 0), Position(2, 8)


def test_a_new_owner_knows_what_was_stored_before_it_began() -> None:
    assert problem([FIRST], [FIRST], FIRST) is None
    assert problem([FIRST], [FIRST]) == ("log: o1: the stored acknowledgement of 2:0 is forgotten")


def test_an_owner_that_was_paused_while_it_opened_the_log_may_have_lost_it() -> None:
    """Another has the log by then, and stores acknowledgements."""
    assert problem([FIRST], [FIRST, SECOND], FIRST) is None
