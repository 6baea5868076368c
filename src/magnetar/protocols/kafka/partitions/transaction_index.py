"""Transactions in one partition's log: which are open, which were aborted, what is taken.

``StoredTransactions`` is what readers need: it learns of each transactional batch and marker when
it is confirmed, in the order of the log. ``TransactionWriters`` is what decides whether the next
batch or marker is taken: it learns of each when it is appended.

Rules:

* Nothing at or after the first offset of the oldest open transaction is *stable*; who reads what is
  committed reads stable batches only, and is told which of them were aborted.
* A batch is taken if its producer, of that epoch, has an open transaction here, or if the
  transaction's coordinator has said that this partition is part of it (``allow``). A marker ends
  both. So what comes late, after the marker, opens no transaction that nobody will ever end.
* A smaller epoch than the producer's last is refused, in batches and in markers; a marker of a
  coordinator that has been replaced is refused.
* What was aborted is known from ``seen_from`` on. What lies before it is found by reading on until
  the markers (``AbortedAhead``).

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import Final, NamedTuple

from magnetar.model.ids import Position
from magnetar.wire.kafka.batches import CONTROL, TRANSACTIONAL, BatchHeader
from magnetar.wire.kafka.errors import ErrorCode

ABORTED_KEPT: Final = 20_000
"""Of one partition, and half as many at times."""
PRODUCERS_MAX: Final = 10_000
"""Without an open transaction, of one partition; who was silent for the longest time gives way."""


class Aborted(NamedTuple):
    """An aborted transaction: its first batch, its marker, and what was stable with the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


class Begun(NamedTuple):
    offset: int
    position: Position


class StoredTransactions:
    """See the module's text. ``seen_from``: the offset from which on it knows all."""

    def __init__(self, seen_from: int = 0) -> None:
        self.seen_from = seen_from
        self._open: dict[int, Begun] = {}  # by offset, since they come in the log's order
        self._aborted: list[Aborted] = []

    @property
    def first_open(self) -> Begun | None:
        return next(iter(self._open.values()), None)

    def stable_offset(self, end_offset: int) -> int:
        """The end of what is stable, in a log that ends there."""
        first = self.first_open
        return end_offset if first is None else min(first.offset, end_offset)

    def batch(self, header: BatchHeader, position: Position) -> None:
        """Records of a transaction are stored."""
        self._open.setdefault(header.producer_id, Begun(header.base_offset, position))

    def marker(self, header: BatchHeader, commits: bool) -> None:
        begun = self._open.pop(header.producer_id, None)
        if commits or begun is None:
            return
        offset = header.base_offset
        stable = self.stable_offset(offset + 1)
        self._aborted.append(Aborted(header.producer_id, begun.offset, offset, stable))
        if len(self._aborted) > ABORTED_KEPT:
            gone = self._aborted[: ABORTED_KEPT // 2]
            del self._aborted[: len(gone)]
            self.seen_from = gone[-1].last_offset + 1

    def aborted_between(self, first_offset: int, end_offset: int) -> list[Aborted]:
        """Those with batches in [first_offset, end_offset), which is stable and not before
        ``seen_from``."""
        found: list[Aborted] = []
        at = bisect_left(self._aborted, first_offset, key=lambda each: each.last_offset)
        for each in self._aborted[at:]:
            if each.first_offset < end_offset:
                found.append(each)
            if each.stable_offset >= end_offset:
                break  # what was aborted later begins later
        return found

    def open_producers(self) -> list[int]:
        return list(self._open)

    def open_from(self, producer_id: int) -> int:
        """The first offset of its open transaction; -1: it has none."""
        begun = self._open.get(producer_id)
        return -1 if begun is None else begun.offset


class AbortedAhead:
    """Which batches of an answer were aborted, found by reading on: ``look`` at all batches of the
    answer, then at those after it until nothing ``waits``."""

    def __init__(self) -> None:
        self.aborted: list[Aborted] = []
        self._open: dict[int, int] = {}

    @property
    def waits(self) -> bool:
        return bool(self._open)

    def look(self, header: BatchHeader, commits: bool | None, answered: bool) -> None:
        """``commits`` of a marker; None: records. ``answered``: it is of the answer."""
        producer_id = header.producer_id
        if commits is None:
            if answered:
                self._open.setdefault(producer_id, header.base_offset)
            return
        begun = self._open.pop(producer_id, None)
        if begun is not None and not commits:
            offset = header.base_offset
            self.aborted.append(Aborted(producer_id, begun, offset, offset + 1))


class TransactionWriter:
    """A producer of transactions. ``open``: its last batch came after its last marker; ``allowed``:
    its first one may come; ``ends``: how many markers came."""

    __slots__ = ("allowed", "coordinator_epoch", "ends", "epoch", "open")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.open = False
        self.allowed = False
        self.ends = 0


class TransactionWriters:
    """See the module's text."""

    def __init__(self) -> None:
        self._writers: OrderedDict[int, TransactionWriter] = OrderedDict()

    def _of(self, producer_id: int, epoch: int) -> TransactionWriter:
        found = self._writers.get(producer_id)
        if found is None:
            self._bound()
            found = self._writers[producer_id] = TransactionWriter(epoch)
        self._writers.move_to_end(producer_id)
        found.epoch = max(found.epoch, epoch)
        return found

    def _bound(self) -> None:
        """Make place for one more, which is not there yet: it may be the only one without an open
        transaction."""
        if len(self._writers) < PRODUCERS_MAX:
            return
        oldest = next((number for number, each in self._writers.items() if not each.open), None)
        if oldest is not None:
            del self._writers[oldest]

    def of(self, producer_id: int) -> TransactionWriter | None:
        """What is known of it."""
        return self._writers.get(producer_id)

    def takes(self, header: BatchHeader) -> bool:
        """Its producer has a transaction here: nobody need be asked. (Of another epoch its
        coordinator knows: one that nobody has given would open what no marker of its own ends.)"""
        found = self._writers.get(header.producer_id)
        known = found is not None and found.epoch == header.producer_epoch
        return found is not None and known and (found.open or found.allowed)

    def check(self, header: BatchHeader) -> ErrorCode:
        """Whether a batch of a transaction is taken."""
        found = self._writers.get(header.producer_id)
        if found is not None and header.producer_epoch < found.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.NONE if self.takes(header) else ErrorCode.INVALID_TXN_STATE

    def ends(self, producer_id: int) -> int:
        """Changes with every marker of the producer."""
        found = self._writers.get(producer_id)
        return -1 if found is None else found.ends

    def allow(self, producer_id: int, epoch: int, ends: int) -> None:
        """The coordinator has said so, asked after ``ends`` was asked for: if a marker came
        meanwhile, what it said may be no longer true."""
        if self.ends(producer_id) == ends:
            self._of(producer_id, epoch).allowed = True

    def batch(self, header: BatchHeader) -> None:
        """Records are appended."""
        self._of(header.producer_id, header.producer_epoch).open = True

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> ErrorCode:
        found = self._writers.get(producer_id)
        if found is None:
            return ErrorCode.NONE
        if coordinator_epoch < found.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.INVALID_PRODUCER_EPOCH if epoch < found.epoch else ErrorCode.NONE

    def marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> bool:
        """A marker is there; whether it ends something, and so is appended."""
        writer = self._of(producer_id, epoch)
        was_open, writer.open, writer.allowed = writer.open, False, False
        writer.coordinator_epoch = max(writer.coordinator_epoch, coordinator_epoch)
        writer.ends += 1
        return was_open


def is_part(header: BatchHeader) -> bool:
    """It is of a transaction, as records or as a marker."""
    return bool(header.attributes & (TRANSACTIONAL | CONTROL))
