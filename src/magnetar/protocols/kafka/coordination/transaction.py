"""One transactional id: which producer has it, and how its transaction goes. Keeps nothing.

Each function is given what is stored of the id (``TransactionRecord``, None: nothing), and answers
with what the client is told and what is to be stored before that (``TransactionVerdict``). Whoever
asks stores it, one request of an id after the other.

Invariants:

* An id has at most one transaction at a time, and a transaction one outcome: once ``PREPARE_*`` is
  stored nothing but that outcome's markers follows, and the next transaction waits for all of them.
* A partition takes a transaction's records only after it was stored here that it is part of it: a
  later coordinator knows whom to send markers to.
* Of the producers that began with an id only the last one is heard. ``begin`` gives a greater epoch
  than any before; an open transaction of an earlier one is first aborted, with a greater epoch in
  its markers, so that partitions refuse what the earlier one still sends.
* A transaction that is open for longer than its time-out is aborted likewise: its producer is
  fenced, since it may not know. That one itself, by id and former epoch, is given the greater epoch
  when it asks to go on (KIP-588), unless another has begun.

Epochs end at ``EPOCH_MAX``; an id whose epochs are used up goes on under a new producer id, which a
producer that did not hear of it is told when it asks again with the old one, as of a new epoch.

Source: Kafka's design of transactions (KIP-98, KIP-360, KIP-588). States: ``transaction_states``.
Why: docs/adr/0117-transactions.md.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from magnetar.protocols.kafka.coordination.transaction_states import (
    NEXT,
    TransactionEvent,
    TransactionState,
)
from magnetar.wire.kafka.errors import ErrorCode

EPOCH_MAX: Final = 0x7FFF
NO_PRODUCER: Final = -1
NO_EPOCH: Final = -1

Place = tuple[str, int]
"""A topic's name and a partition's number."""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """What is stored of a transactional id. ``former_id``, ``former_epoch``: those before, if the
    producer itself asked for others, and may ask again because it did not hear, or if its
    transaction timed out; else -1. ``started_ms``: when its transaction began; -1: it has none."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: tuple[Place, ...] = ()
    started_ms: int = -1
    changed_ms: int = 0
    former_epoch: int = NO_EPOCH
    former_id: int = NO_PRODUCER

    @property
    def commits(self) -> bool:
        return self.state is TransactionState.PREPARE_COMMIT

    @property
    def ending(self) -> bool:
        """Its outcome is stored, and not every partition has its marker."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def ongoing(self) -> bool:
        return self.state is TransactionState.ONGOING

    def moved(self, event: TransactionEvent, now_ms: int, **changes: Any) -> TransactionRecord:
        return replace(self, state=NEXT[self.state, event], changed_ms=now_ms, **changes)


class TransactionVerdict(NamedTuple):
    """What the client is told; ``record``: what is stored first, None: nothing changes."""

    error: ErrorCode
    record: TransactionRecord | None = None


FENCED: Final = TransactionVerdict(ErrorCode.PRODUCER_FENCED)
UNDER_WAY: Final = TransactionVerdict(ErrorCode.CONCURRENT_TRANSACTIONS)


class Beginning(NamedTuple):
    """What InitProducerId says. ``producer_id``, ``epoch``: those that the producer has and wants
    another epoch of, or -1."""

    timeout_ms: int
    producer_id: int = NO_PRODUCER
    epoch: int = NO_EPOCH


def needs_producer_id(record: TransactionRecord | None) -> bool:
    """Whether ``begin`` gives a new producer id."""
    return record is None or (not record.ongoing and record.epoch >= EPOCH_MAX - 1)


def begin(
    record: TransactionRecord | None, said: Beginning, new_producer_id: int, now_ms: int
) -> TransactionVerdict:
    """InitProducerId. ``new_producer_id``: one that nobody has, if ``needs_producer_id``. With
    error ``NONE`` the producer is told what is stored: the verdict's record, or ``record``."""
    if record is None:
        made = TransactionRecord(new_producer_id, 0, said.timeout_ms, changed_ms=now_ms)
        return TransactionVerdict(ErrorCode.NONE, made)
    asks_on, asker = said.producer_id != NO_PRODUCER, (said.producer_id, said.epoch)
    goes_on = asks_on and asker == (record.former_id, record.former_epoch)
    if asks_on and not goes_on and asker != (record.producer_id, record.epoch):
        return FENCED
    if goes_on and record.ongoing:
        return FENCED
    if record.ending:
        return UNDER_WAY
    if goes_on and record.epoch < EPOCH_MAX:  # behind the last one is none for a marker
        return TransactionVerdict(ErrorCode.NONE)
    if record.ongoing:
        return TransactionVerdict(
            ErrorCode.CONCURRENT_TRANSACTIONS, _fenced(record, _REPLACED, now_ms)
        )
    if needs_producer_id(record):
        producer_id, epoch = new_producer_id, 0
    else:
        producer_id, epoch = record.producer_id, record.epoch + 1
    begun = record.moved(
        TransactionEvent.INITIALISED,
        now_ms,
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=said.timeout_ms,
        partitions=(),
        started_ms=-1,
        # As it names itself, if it asks again: also where it is given another producer id.
        former_id=said.producer_id,
        former_epoch=said.epoch if asks_on else NO_EPOCH,
    )
    return TransactionVerdict(ErrorCode.NONE, begun)


_REPLACED: Final = TransactionEvent.REPLACED
_NO_FORMER: Final = MappingProxyType({"former_id": NO_PRODUCER, "former_epoch": NO_EPOCH})


def _fenced(record: TransactionRecord, event: TransactionEvent, now_ms: int) -> TransactionRecord:
    """Its open transaction is aborted, and its producer not heard any more."""
    return record.moved(event, now_ms, epoch=record.epoch + 1, **_NO_FORMER)


def check(record: TransactionRecord | None, producer_id: int, epoch: int) -> ErrorCode:
    """Whether it is the id's producer who asks."""
    if record is None or record.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.NONE if record.epoch == epoch else ErrorCode.PRODUCER_FENCED


def add(
    record: TransactionRecord | None,
    producer_id: int,
    epoch: int,
    places: Iterable[Place],
    now_ms: int,
) -> TransactionVerdict:
    """AddPartitionsToTxn, AddOffsetsToTxn."""
    error = check(record, producer_id, epoch)
    if record is None or error is not ErrorCode.NONE:
        return TransactionVerdict(error)
    if record.ending:
        return UNDER_WAY
    known = record.partitions if record.ongoing else ()
    more = tuple(place for place in dict.fromkeys(places) if place not in known)
    if record.ongoing and not more:
        return TransactionVerdict(ErrorCode.NONE)
    added = record.moved(
        TransactionEvent.ADDED,
        now_ms,
        partitions=known + more,
        started_ms=record.started_ms if record.ongoing else now_ms,
        **_NO_FORMER,
    )
    return TransactionVerdict(ErrorCode.NONE, added)


_OUTCOMES: Final = {
    TransactionState.PREPARE_COMMIT: True,
    TransactionState.COMPLETE_COMMIT: True,
    TransactionState.PREPARE_ABORT: False,
    TransactionState.COMPLETE_ABORT: False,
}


def end(
    record: TransactionRecord | None, producer_id: int, epoch: int, commits: bool, now_ms: int
) -> TransactionVerdict:
    """EndTxn. The same outcome asked for again, because the answer was not heard, is no error."""
    error = check(record, producer_id, epoch)
    if record is None or error is not ErrorCode.NONE:
        return TransactionVerdict(error)
    if record.ongoing:
        event = TransactionEvent.COMMITTED if commits else TransactionEvent.ABORTED
        return TransactionVerdict(ErrorCode.NONE, record.moved(event, now_ms))
    if _OUTCOMES.get(record.state) is not commits:
        return TransactionVerdict(ErrorCode.INVALID_TXN_STATE)
    return UNDER_WAY if record.ending else TransactionVerdict(ErrorCode.NONE)


def time_out(record: TransactionRecord, open_ms: int, now_ms: int) -> TransactionRecord | None:
    """What is to be stored of a transaction that is open for too long; ``open_ms``: for how long.
    ``now_ms`` may jump, and says nothing of that."""
    if not record.ongoing or open_ms < record.timeout_ms:
        return None
    aborted = _fenced(record, TransactionEvent.TIMED_OUT, now_ms)
    # Who has it may ask for the next one.
    return replace(aborted, former_id=record.producer_id, former_epoch=record.epoch)


def marked(record: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Every partition has its marker."""
    return record.moved(TransactionEvent.MARKED, now_ms, partitions=(), started_ms=-1)


def takes_part(
    record: TransactionRecord | None, producer_id: int, epoch: int, place: Place
) -> ErrorCode:
    """Whether records of that producer may be appended to that partition now."""
    error = check(record, producer_id, epoch)
    if record is None or error is not ErrorCode.NONE:
        return error
    return ErrorCode.NONE if record.ongoing and place in record.partitions else _NOT_PART


_NOT_PART: Final = ErrorCode.INVALID_TXN_STATE


# -- what is stored ---------------------------------------------------------------------------


def to_json(record: TransactionRecord) -> list[Any]:
    return [
        record.producer_id,
        record.epoch,
        record.timeout_ms,
        record.state.value,
        [list(place) for place in record.partitions],
        record.started_ms,
        record.changed_ms,
        record.former_epoch,
        record.former_id,
    ]


def from_json(fields: list[Any]) -> TransactionRecord:
    """Raises ``ValueError``, ``TypeError``."""
    producer_id, epoch, timeout_ms, state, places, started_ms, changed_ms, former, *more = fields
    # Records of before there was one are of producers that had the same id.
    former_id = more[0] if more else (producer_id if int(former) != NO_EPOCH else NO_PRODUCER)
    return TransactionRecord(
        int(producer_id),
        int(epoch),
        int(timeout_ms),
        TransactionState(state),
        tuple((str(topic), int(index)) for topic, index in places),
        int(started_ms),
        int(changed_ms),
        int(former),
        int(former_id),
    )
