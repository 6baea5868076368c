"""The states of a group of Kafka's, and what moves it from one to another: the table, as data.

* ``EMPTY``: no members; offsets may be there.
* ``PREPARING``: a rebalance has begun; members are to join again.
* ``COMPLETING``: all have joined; the leader is to say who gets what, which is then stored.
* ``STABLE``: everybody has their assignment.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class GroupState(StrEnum):
    """As Kafka names them to admins."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class GroupEvent(StrEnum):
    MEMBER_CAME = "a member came, or has changed what it says"
    MEMBER_LEFT = "a member left, or was silent for too long"
    ALL_JOINED = "all that are to join have"
    NOBODY_JOINED = "nobody is left to join"
    ASSIGNED = "the leader has said who gets what, and it is stored"
    NOT_STORED = "what the leader said could not be stored"
    RESTORED = "the log has its members"


class GroupTransition(NamedTuple):
    state: GroupState
    event: GroupEvent
    then: GroupState


_S, _E = GroupState, GroupEvent
TRANSITIONS: Final = (
    GroupTransition(_S.EMPTY, _E.MEMBER_CAME, _S.PREPARING),
    GroupTransition(_S.EMPTY, _E.RESTORED, _S.STABLE),
    GroupTransition(_S.PREPARING, _E.MEMBER_CAME, _S.PREPARING),
    GroupTransition(_S.PREPARING, _E.MEMBER_LEFT, _S.PREPARING),
    GroupTransition(_S.PREPARING, _E.ALL_JOINED, _S.COMPLETING),
    GroupTransition(_S.PREPARING, _E.NOBODY_JOINED, _S.EMPTY),
    GroupTransition(_S.COMPLETING, _E.MEMBER_CAME, _S.PREPARING),
    GroupTransition(_S.COMPLETING, _E.MEMBER_LEFT, _S.PREPARING),
    GroupTransition(_S.COMPLETING, _E.ASSIGNED, _S.STABLE),
    GroupTransition(_S.COMPLETING, _E.NOT_STORED, _S.PREPARING),
    GroupTransition(_S.STABLE, _E.MEMBER_CAME, _S.PREPARING),
    GroupTransition(_S.STABLE, _E.MEMBER_LEFT, _S.PREPARING),
)
NEXT: Final[Mapping[tuple[GroupState, GroupEvent], GroupState]] = MappingProxyType(
    {(each.state, each.event): each.then for each in TRANSITIONS}
)
