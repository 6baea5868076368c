"""What a replica knows of idempotent producers and of their transactions.

Owns the rules of sequences, the last stable offset, and the bytes of ``.snapshot`` and
``.txnindex``. Pure.

Rules:

* A leader takes a batch of a producer only by the rules of ``log.sequences``; a repeat is answered
  with the offset that it has, and stored once. Followers and recovery take what the leader took.
* A transaction is open from its first batch to its marker. Nothing at or after the first batch of
  the oldest open one is stable. Until then a leader takes nothing of its producer that is no part
  of it, as in Kafka: whoever sends that believes that it is, and an abort would not take it back.
* What is known is lost with the process; it is made again from the latest snapshot and the batches
  after it. So a snapshot says up to which offset it counts, in its name, and one that fails its
  checksum is passed over.
* A snapshot has each producer's last batch alone (so has Kafka's), and a client may have
  ``BATCHES_KEPT`` under way whose answers a restart took: those before the last are read from the
  log's end (``earlier_batches``).

``NNN.snapshot``, big-endian: version 2 (``1``), CRC-32C 4 of what follows it, count 4, then 46
bytes for each producer: id 8, epoch 2, last sequence 4, last offset 8, offset delta 4 (last less
first sequence of its last batch), time 8, coordinator epoch 4, first offset of its open transaction
8 or -1. ``.txnindex``: 34 bytes for each aborted transaction: version 2 (``0``), producer id 8,
first offset 8, last offset 8 (the marker's), last stable offset 8. Source: Kafka's
``ProducerStateManager``, ``ProducerSnapshot`` and ``AbortedTxn``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from magnetar.log.partition.batch_header import BatchHead
from magnetar.log.sequences import BATCHES_KEPT, SEQUENCES, KnownProducer, find_repeated
from magnetar.model.errors import MetadataFormatError, OpenTransactionError
from magnetar.wire.checksum import crc32c
from magnetar.wire.kafka.batches import NO_PRODUCER

_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">qhiqiqiq")
_ABORTED: Final = struct.Struct(">hqqqq")
_SNAPSHOT_VERSION, _ABORTED_VERSION = 1, 0


class KeptBatch(NamedTuple):
    """A batch that a producer may send again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    time_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """Of one producer id. ``open_from``: its open transaction's first offset, -1 without one."""

    epoch: int
    batches: tuple[KeptBatch, ...] = ()
    coordinator_epoch: int = -1
    open_from: int = -1
    time_ms: int = -1


@dataclass(slots=True)
class ProducerStates:
    """Of one replica's log, up to ``end_offset``."""

    end_offset: int = 0
    producers: MutableMapping[int, ProducerState] = field(default_factory=dict)

    def check(self, header: BatchHead) -> KeptBatch | None:
        """For a leader, before it appends: the batch that ``header`` repeats, None if it is new.
        Raises ``OutOfOrderSequenceError``, ``StaleProducerEpochError``,
        ``OpenTransactionError``."""
        state = self.producers.get(header.producer_id)
        if header.producer_id == NO_PRODUCER or state is None or header.control:
            return None  # of a producer that is not known any more any sequence is taken
        repeated = find_repeated(header, state.epoch, state.batches)
        if repeated is None and state.open_from >= 0 and not header.transactional:
            raise OpenTransactionError(
                f"producer {header.producer_id} has had a transaction open since offset "
                f"{state.open_from}, and sends a batch that is no part of it"
            )
        return repeated

    def appended(
        self, header: BatchHead, marker: tuple[bool, int] | None = None
    ) -> AbortedTransaction | None:
        """A batch is in the log. ``marker`` of a control batch: (it commits, coordinator epoch).
        The transaction that it aborts, if it does."""
        self.end_offset = header.next_offset
        if header.producer_id == NO_PRODUCER:
            return None
        state = self.producers.get(header.producer_id)
        if state is None or header.producer_epoch > state.epoch:
            open_from = state.open_from if state is not None else -1
            state = ProducerState(header.producer_epoch, open_from=open_from)
        if header.control:
            return self._ended(header, state, marker)
        open_from = state.open_from
        if header.transactional and open_from < 0:
            open_from = header.base_offset
        self.producers[header.producer_id] = replace(
            state,
            batches=(*state.batches, _kept(header))[-BATCHES_KEPT:],
            open_from=open_from,
            time_ms=header.max_timestamp_ms,
        )
        return None

    def _ended(
        self, header: BatchHead, state: ProducerState, marker: tuple[bool, int] | None
    ) -> AbortedTransaction | None:
        commits, coordinator_epoch = marker or (True, state.coordinator_epoch)
        self.producers[header.producer_id] = replace(
            state,
            open_from=-1,
            coordinator_epoch=coordinator_epoch,
            time_ms=header.max_timestamp_ms,
        )
        if commits or state.open_from < 0:
            return None
        # As it is once the marker counts, which is what readers of the index compare with.
        stable = self.first_open()
        return AbortedTransaction(
            header.producer_id,
            state.open_from,
            header.last_offset,
            header.next_offset if stable is None else stable,
        )

    def recall(self, heads: Iterable[BatchHead]) -> bool:
        """Of a snapshot, which has each producer's last batch alone: ``heads`` of batches that lie
        before ``end_offset``, in order up to it, tell the ones before that. Whether every producer
        that is among them has all of its own: nothing further back is wanted."""
        found: dict[int, list[KeptBatch]] = {}
        for head in heads:
            state = self.producers.get(head.producer_id)
            if state is not None and head.producer_epoch == state.epoch and not head.control:
                found.setdefault(head.producer_id, []).append(_kept(head))
        whole = True
        for producer_id, batches in found.items():
            state = self.producers[producer_id]
            # A snapshot that says otherwise than the log is believed.
            if state.batches and state.batches[-1][:2] == batches[-1][:2]:
                kept = tuple(batches[-BATCHES_KEPT:])
                self.producers[producer_id] = replace(state, batches=kept)
                whole = whole and (len(kept) == BATCHES_KEPT or kept[0].first_sequence == 0)
        return whole

    def known(self) -> list[KnownProducer]:
        return [
            KnownProducer(
                producer_id,
                state.epoch,
                state.batches[-1].last_sequence if state.batches else -1,
                state.time_ms,
                state.coordinator_epoch,
                state.open_from,
            )
            for producer_id, state in self.producers.items()
        ]

    def first_open(self) -> int | None:
        """The first offset of the oldest open transaction."""
        starts = [each.open_from for each in self.producers.values() if each.open_from >= 0]
        return min(starts, default=None)

    def expire(self, before_ms: int, before_offset: int) -> None:
        """Producers without an open transaction that were last heard of before that time, and
        whose last batch is before that offset, are forgotten. (Times are of batches, and so may be
        those of whatever a producer copies just now.)"""
        self.producers = {
            producer_id: state
            for producer_id, state in self.producers.items()
            if state.open_from >= 0
            or state.time_ms >= before_ms
            or (state.batches and state.batches[-1].last_offset >= before_offset)
        }


def _kept(header: BatchHead) -> KeptBatch:
    return KeptBatch(
        header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp_ms
    )


# -- bytes --------------------------------------------------------------------------------------


def encode_snapshot(producers: Mapping[int, ProducerState]) -> bytes:
    body = bytearray(_COUNT.pack(len(producers)))
    for producer_id, state in producers.items():
        last = state.batches[-1] if state.batches else KeptBatch(-1, -1, 0, -1)
        body += _PRODUCER.pack(
            producer_id,
            state.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            state.time_ms,
            state.coordinator_epoch,
            state.open_from,
        )
    return _HEAD.pack(_SNAPSHOT_VERSION, crc32c(bytes(body))) + bytes(body)


def decode_snapshot(data: bytes, name: str) -> dict[int, ProducerState]:
    """Raises ``MetadataFormatError``, which names ``name``."""
    body = memoryview(data)[_HEAD.size :]
    if len(body) < _COUNT.size or (len(body) - _COUNT.size) % _PRODUCER.size:
        raise MetadataFormatError(f"{name} has {len(data)} bytes: it is no snapshot of producers")
    version, crc = _HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION or crc32c(body) != crc:
        raise MetadataFormatError(f"{name} (version {version}) fails its checksum or is too new")
    found = {}
    for fields in _PRODUCER.iter_unpack(body[_COUNT.size :]):
        producer_id, epoch, sequence, offset, delta, time_ms, coordinator, open_from = fields
        kept = (KeptBatch(sequence, offset, delta, time_ms),) if offset >= 0 else ()
        found[producer_id] = ProducerState(epoch, kept, coordinator, open_from, time_ms)
    return found


def encode_aborted(transactions: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ABORTED.pack(_ABORTED_VERSION, *each) for each in transactions)


def decode_aborted(data: bytes) -> list[AbortedTransaction]:
    """Whole ones; a torn last one is left out: its marker is read again from the log."""
    whole = len(data) - len(data) % _ABORTED.size
    return [AbortedTransaction._make(each[1:]) for each in _ABORTED.iter_unpack(data[:whole])]
