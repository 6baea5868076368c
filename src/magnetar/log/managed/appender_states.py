"""The states of a log's appender, and what leads from one to the next, as data.

``appender.py`` takes its next state from the table, docs/machines.md shows it, and a test walks an
appender at random: every step it takes is in the table, and every line is met.

Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from magnetar.model.transitions import Transition, next_states


class AppenderState(Enum):
    IDLE = "idle"
    OPENING = "opening"
    OPEN = "open"
    ROLLING = "rolling"
    TERMINATED = "terminated"
    LOST = "lost"


class AppenderEvent(Enum):
    APPENDED = "append, and there is no ledger"
    CREATED = "the next ledger is created"
    NOTHING_WAITS = "the former ledger is closed, nothing waits"
    GIVEN_UP = "failed for good"
    FULL = "the ledger is full, or old"
    ENDING = "the log is to be terminated"
    TERMINATED = "the record says so"
    SETTLED = "all that was sent is confirmed"
    LEDGER_FAILED = "the ledger failed"
    FENCED = "another broker owns the log"


def _line(
    state: AppenderState, event: AppenderEvent, following: AppenderState, effect: str
) -> Transition[AppenderState, AppenderEvent]:
    return Transition(state, event, following, effect)


_LOST: Final = "everything open fails, and every later append"

TRANSITIONS: Final = (
    _line(
        AppenderState.IDLE,
        AppenderEvent.APPENDED,
        AppenderState.OPENING,
        "it waits; a task closes the former ledger, if any, and creates the next",
    ),
    _line(
        AppenderState.OPENING,
        AppenderEvent.CREATED,
        AppenderState.OPEN,
        "what waits is sent, in order",
    ),
    _line(
        AppenderState.OPENING,
        AppenderEvent.NOTHING_WAITS,
        AppenderState.IDLE,
        "the next append creates a ledger",
    ),
    _line(
        AppenderState.OPENING,
        AppenderEvent.GIVEN_UP,
        AppenderState.IDLE,
        "everything open fails; the next append tries again",
    ),
    _line(
        AppenderState.OPEN,
        AppenderEvent.FULL,
        AppenderState.ROLLING,
        "appends wait from here on",
    ),
    _line(
        AppenderState.OPEN,
        AppenderEvent.LEDGER_FAILED,
        AppenderState.OPENING,
        "appends wait; a task closes it, by recovery if need be",
    ),
    _line(
        AppenderState.ROLLING,
        AppenderEvent.SETTLED,
        AppenderState.OPENING,
        "a task closes it",
    ),
    _line(
        AppenderState.ROLLING,
        AppenderEvent.LEDGER_FAILED,
        AppenderState.OPENING,
        "a task closes it, by recovery if need be",
    ),
    _line(
        AppenderState.IDLE,
        AppenderEvent.ENDING,
        AppenderState.OPENING,
        "a task closes the former ledger, if any, and writes the record",
    ),
    _line(
        AppenderState.OPEN,
        AppenderEvent.ENDING,
        AppenderState.ROLLING,
        "appends wait from here on",
    ),
    _line(
        AppenderState.OPENING,
        AppenderEvent.TERMINATED,
        AppenderState.TERMINATED,
        "what waits is refused, and every later append",
    ),
    _line(AppenderState.IDLE, AppenderEvent.FENCED, AppenderState.LOST, _LOST),
    _line(AppenderState.OPENING, AppenderEvent.FENCED, AppenderState.LOST, _LOST),
    _line(AppenderState.OPEN, AppenderEvent.FENCED, AppenderState.LOST, _LOST),
    _line(AppenderState.ROLLING, AppenderEvent.FENCED, AppenderState.LOST, _LOST),
    _line(AppenderState.TERMINATED, AppenderEvent.FENCED, AppenderState.LOST, _LOST),
)

NEXT: Final = next_states(TRANSITIONS)
