"""The states of a transactional id, and what moves it from one to another: the table, as data.

``PREPARE_*``: the outcome is stored, and markers are on their way. ``COMPLETE_*``: every partition
has its marker.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class TransactionState(StrEnum):
    """With the names that Kafka's tools show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class TransactionEvent(StrEnum):
    INITIALISED = "a producer begins with the id"
    ADDED = "a partition is added"
    COMMITTED = "its producer commits"
    ABORTED = "its producer aborts"
    TIMED_OUT = "it is open for too long"
    REPLACED = "another producer begins with the id"
    MARKED = "every partition has its marker"


class TransactionTransition(NamedTuple):
    state: TransactionState
    event: TransactionEvent
    then: TransactionState


_S, _E = TransactionState, TransactionEvent
TRANSITIONS: Final = (
    TransactionTransition(_S.EMPTY, _E.INITIALISED, _S.EMPTY),
    TransactionTransition(_S.EMPTY, _E.ADDED, _S.ONGOING),
    TransactionTransition(_S.ONGOING, _E.ADDED, _S.ONGOING),
    TransactionTransition(_S.ONGOING, _E.COMMITTED, _S.PREPARE_COMMIT),
    TransactionTransition(_S.ONGOING, _E.ABORTED, _S.PREPARE_ABORT),
    TransactionTransition(_S.ONGOING, _E.TIMED_OUT, _S.PREPARE_ABORT),
    TransactionTransition(_S.ONGOING, _E.REPLACED, _S.PREPARE_ABORT),
    TransactionTransition(_S.PREPARE_COMMIT, _E.MARKED, _S.COMPLETE_COMMIT),
    TransactionTransition(_S.PREPARE_ABORT, _E.MARKED, _S.COMPLETE_ABORT),
    TransactionTransition(_S.COMPLETE_COMMIT, _E.INITIALISED, _S.EMPTY),
    TransactionTransition(_S.COMPLETE_ABORT, _E.INITIALISED, _S.EMPTY),
    TransactionTransition(_S.COMPLETE_COMMIT, _E.ADDED, _S.ONGOING),
    TransactionTransition(_S.COMPLETE_ABORT, _E.ADDED, _S.ONGOING),
)
NEXT: Final[Mapping[tuple[TransactionState, TransactionEvent], TransactionState]] = (
    MappingProxyType({(each.state, each.event): each.then for each in TRANSITIONS})
)
