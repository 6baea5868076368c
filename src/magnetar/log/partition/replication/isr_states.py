"""How a leader's in-sync set changes, and which part a replica plays: two tables, as data.

``leader.py`` and ``replica.py`` take their next states from them, docs/machines.md shows them, and
a test walks the machines at random: every step they take is in a table, and every line is met.

Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from magnetar.model.transitions import Transition, next_states


class IsrState(Enum):
    STORED = "as stored"
    CHANGING = "a change is being stored"


class IsrEvent(Enum):
    CAUGHT_UP = "a replica has caught up"
    FELL_BEHIND = "replicas in sync have fallen behind"
    LEARNT = "the stored state is known"
    IN_DOUBT = "the store has refused, or not answered"


def _isr(
    state: IsrState, event: IsrEvent, following: IsrState, effect: str
) -> Transition[IsrState, IsrEvent]:
    return Transition(state, event, following, effect)


ISR_TRANSITIONS: Final = (
    _isr(
        IsrState.STORED, IsrEvent.CAUGHT_UP, IsrState.CHANGING,
        "nothing is committed without it from now on; it does not count as in sync yet",
    ),
    _isr(
        IsrState.STORED, IsrEvent.FELL_BEHIND, IsrState.CHANGING,
        "nothing is committed without them until the store has let them go",
    ),
    _isr(
        IsrState.STORED, IsrEvent.LEARNT, IsrState.STORED,
        "the in-sync set is that of the store; the high watermark may move",
    ),
    _isr(
        IsrState.CHANGING, IsrEvent.LEARNT, IsrState.STORED,
        "the in-sync set is that of the store; the high watermark may move",
    ),
    _isr(
        IsrState.CHANGING, IsrEvent.IN_DOUBT, IsrState.CHANGING,
        "both sets count until the stored state is known",
    ),
    _isr(
        IsrState.STORED, IsrEvent.IN_DOUBT, IsrState.STORED,
        "nothing: what the store holds was learnt before the answer came",
    ),
)  # fmt: skip

NEXT_ISR: Final = next_states(ISR_TRANSITIONS)


class RoleState(Enum):
    IDLE = "nobody leads"
    LEADING = "leading"
    FOLLOWING = "following"


class RoleEvent(Enum):
    ELECTED = "this start of this broker is elected"
    ANOTHER = "another replica is elected"
    NOBODY = "nobody is elected, or a former start of this broker"
    SAME_EPOCH = "the same leader, another in-sync set"


def _role(
    state: RoleState, event: RoleEvent, following: RoleState, effect: str
) -> Transition[RoleState, RoleEvent]:
    return Transition(state, event, following, effect)


_LEADS: Final = "its epoch begins at the log's end; the high watermark stays where it was known"
_FOLLOWS: Final = "it fetches at its log's end and cuts what the leader does not have"
_ENDS: Final = "appends that wait are refused: the next leader may not have them"

ROLE_TRANSITIONS: Final = (
    _role(RoleState.IDLE, RoleEvent.ELECTED, RoleState.LEADING, _LEADS),
    _role(RoleState.IDLE, RoleEvent.ANOTHER, RoleState.FOLLOWING, _FOLLOWS),
    _role(RoleState.IDLE, RoleEvent.NOBODY, RoleState.IDLE, "nothing"),
    _role(RoleState.FOLLOWING, RoleEvent.ELECTED, RoleState.LEADING, _LEADS),
    _role(RoleState.FOLLOWING, RoleEvent.ANOTHER, RoleState.FOLLOWING, _FOLLOWS),
    _role(RoleState.FOLLOWING, RoleEvent.NOBODY, RoleState.IDLE, "answers under way are dropped"),
    _role(RoleState.FOLLOWING, RoleEvent.SAME_EPOCH, RoleState.FOLLOWING, "nothing"),
    _role(RoleState.LEADING, RoleEvent.ELECTED, RoleState.LEADING, _LEADS),
    _role(RoleState.LEADING, RoleEvent.ANOTHER, RoleState.FOLLOWING, f"{_ENDS}; {_FOLLOWS}"),
    _role(RoleState.LEADING, RoleEvent.NOBODY, RoleState.IDLE, _ENDS),
    _role(RoleState.LEADING, RoleEvent.SAME_EPOCH, RoleState.LEADING, "see the in-sync set"),
)

NEXT_ROLE: Final = next_states(ROLE_TRANSITIONS)
