"""What an executor does in an audit: some ledgers of a log, every copy at every bookie.

The broker says where the ledgers lie and where bookies listen; the copies are read, and judged, by
the code that ``magnetar ledger verify`` uses (``repair.insight.verifying``). On the way each entry
is looked into once: who sent it, with which sequence ids, how many messages it holds and which of
the log's they are. What is found goes back as values; nothing is kept here.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.config import LedgerConfig
from magnetar.env.loop_thread import LoopThread
from magnetar.ledger.connecting import connection_options
from magnetar.ledger.connections.channel import Address
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.model.errors import (
    BookieUnavailableError,
    BrokerError,
    MetadataFormatError,
    NoSuchLedgerError,
    ProtocolError,
    TopicNotFoundError,
)
from magnetar.model.ids import NO_ENTRY, BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.log_watch import LogWatch
from magnetar.pipeline.jobs.sequences import EntryAt, EntryHead, IdRun, IdRuns, IdSteps
from magnetar.pipeline.losses import LedgerFacts
from magnetar.repair.insight.verifying import NOBODY, Unchecked, Verified, Verifier
from magnetar.repair.throttle import Throttle
from magnetar.wire.bookie.metadata import decode_ledger_metadata
from magnetar.wire.kafka.batches import BatchHeader, is_batch, read_batch_header
from magnetar.wire.pulsar.broker_metadata import header_bytes, read_header
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

ENTRY_BYTES_MAX: Final = 64 << 20
FAULTS_MAX: Final = 10_000
"""Of one kind, in one ledger, that are told; what is beyond is counted."""


@dataclass(frozen=True)
class AuditPiece:
    """Some ledgers of a topic partition. Of the last one, entries from ``stop_entry_id`` on are not
    counted: they came while the audit ran. ``bytes_per_s`` 0: no bound."""

    service_url: str
    topic: str
    ledgers: tuple[LedgerFacts, ...]
    stop_ledger_id: int
    stop_entry_id: int
    bytes_per_s: int
    timeout_s: float


@dataclass
class CountFault:
    """A number that disagrees. ``at``: the entry; -1: the ledger as a whole."""

    entry_id: int
    why: str


@dataclass
class LedgerFound:
    """Of one ledger. ``messages``: those that its entries hold. ``unreadable``: entries that are
    sound and no message of a protocol that is known."""

    verified: Verified
    messages: int = 0
    counts: list[CountFault] = field(default_factory=list)
    unreadable: int = 0
    first_unreadable: int = -1


@dataclass
class PieceFound:
    """``untidy``: producers of more runs than are told; those have none in ``runs``."""

    topic: str
    ledgers: list[LedgerFound] = field(default_factory=list)
    runs: list[IdRun] = field(default_factory=list)
    untidy: dict[str, IdSteps] = field(default_factory=dict)


def audit_piece(piece: AuditPiece) -> PieceFound:
    """Read it all. What the broker does not tell any more is *unchecked*, and ledgers of a topic
    that was deleted meanwhile are gone: what was found elsewhere is not lost with it. Raises
    ``MetadataError``."""
    client = BrokerClient(piece.service_url, piece.timeout_s)
    logs = LogWatch(client, piece.timeout_s)
    logs.be_patient()
    loop = LoopThread("magnetar-audit", "the audit")
    try:
        return loop.run(_audit(piece, logs))
    finally:
        loop.end(_nothing())
        logs.close()


async def _nothing() -> None:
    """There is nothing to end beside the loop."""


async def _audit(piece: AuditPiece, logs: LogWatch) -> PieceFound:
    told = _TopicLedgers(piece.topic, logs)
    config = replace(LedgerConfig(), read_timeout_ms=int(piece.timeout_s * 1000))
    pool = ConnectionPool(
        told.resolve, told.available, None, connection_options(config, ENTRY_BYTES_MAX)
    )
    heard = _Heard(piece)
    throttle = Throttle(piece.bytes_per_s)
    verifier = Verifier(told, pool, throttle, piece.timeout_s, contents=heard)
    found = PieceFound(piece.topic)
    runs = IdRuns()
    try:
        await told.ask([each.ledger_id for each in piece.ledgers])
        for facts in piece.ledgers:
            verified = await verifier.verify(facts.ledger_id)
            heard.finish(runs)
            one = LedgerFound(
                verified, heard.messages, heard.counts, heard.unreadable, heard.first_unreadable
            )
            if not verified.gone:
                one.counts += _of_the_broker(facts, verified, told.metadata_of(facts.ledger_id))
            found.ledgers.append(one)
    except BrokerError as error:
        found.ledgers += map(_not_read(error), piece.ledgers[len(found.ledgers) :])
    finally:
        await pool.close()
    found.runs, found.untidy = runs.all(), runs.untidy
    return found


def _not_read(error: BrokerError) -> Callable[[LedgerFacts], LedgerFound]:
    def found(facts: LedgerFacts) -> LedgerFound:
        if isinstance(error, TopicNotFoundError):
            return LedgerFound(Verified(facts.ledger_id, gone=True))
        why = Unchecked(0, NO_ENTRY, NOBODY, str(error))
        return LedgerFound(Verified(facts.ledger_id, unchecked=[why]))

    return found


def _of_the_broker(
    facts: LedgerFacts, verified: Verified, metadata: LedgerMetadata | None
) -> list[CountFault]:
    """What the broker's record of a ledger says otherwise than the ledger."""
    found = []
    if not facts.closed or metadata is None or not metadata.closed:
        if verified.entries < facts.entries and not verified.unchecked:
            why = f"the broker serves {facts.entries} entries, bookies confirm {verified.entries}"
            found.append(CountFault(-1, why))
        return found
    if facts.entries != metadata.last_entry_id + 1:
        why = f"the broker counts {facts.entries} entries, its ledger {metadata.last_entry_id + 1}"
        found.append(CountFault(-1, why))
    if facts.stored_bytes != metadata.length:
        why = f"the broker counts {facts.stored_bytes} bytes, its ledger {metadata.length}"
        found.append(CountFault(-1, why))
    return found


class _TopicLedgers:
    """The topic's ledgers and bookies, as its broker tells (``verifying.KnownLedgers``)."""

    def __init__(self, topic: str, logs: LogWatch) -> None:
        self._told: dict[int, bytes] = {}
        self._topic = topic
        self._logs = logs
        self._bookies: Mapping[str, Address] = {}
        self._fresh: set[int] = set()

    async def ask(self, ledger_ids: Sequence[int]) -> None:
        question = LogQuestion(stored_ledgers=ledger_ids)
        answer = await asyncio.to_thread(self._logs.ask, self._topic, question)
        self._bookies = answer.bookies
        for ledger_id in ledger_ids:
            self._told.pop(ledger_id, None)
        self._told.update(answer.stored_ledgers)
        self._fresh.update(ledger_ids)

    def metadata_of(self, ledger_id: int) -> LedgerMetadata | None:
        """As they were told last; None: they were not, or cannot be read."""
        try:
            return self._decoded(ledger_id)
        except MetadataFormatError:
            return None

    def _decoded(self, ledger_id: int) -> LedgerMetadata | None:
        told = self._told.get(ledger_id)
        return None if told is None else decode_ledger_metadata(ledger_id, told)

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, Any]:
        """What was just asked for all is told once; after that the broker is asked anew."""
        if ledger_id not in self._fresh:
            await self.ask([ledger_id])
        self._fresh.discard(ledger_id)
        found = self._decoded(ledger_id)  # one that is damaged keeps no other from being read
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} is not of {self._topic} any more")
        return found, zlib.crc32(self._told[ledger_id])

    async def resolve(self, bookie_id: BookieId) -> Address:
        address = self._bookies.get(str(bookie_id))
        if address is None:
            raise BookieUnavailableError(f"bookie {bookie_id} is not registered")
        return address

    async def available(self) -> list[BookieId]:
        return sorted(BookieId(name) for name in self._bookies)


class _Heard:
    """What the entries of one ledger after the other hold (``verifying.Contents``)."""

    def __init__(self, piece: AuditPiece) -> None:
        self._stop = piece.stop_ledger_id, piece.stop_entry_id
        self._ledger_id = -1
        self._heads: list[tuple[EntryId, EntryHead]] = []
        self._next_offset = -1
        self.messages = 0
        self.unreadable = 0
        self.first_unreadable = -1
        self.counts: list[CountFault] = []

    def begin(self, ledger_id: int) -> None:
        self._ledger_id = ledger_id
        self._heads = []
        self._next_offset = -1
        self.messages = self.unreadable = 0
        self.first_unreadable = -1
        self.counts = []

    def look(self, payload: memoryview) -> EntryHead | None:
        try:
            return head_of(payload)
        except ProtocolError:
            return None

    def take(self, ledger_id: int, entry_id: EntryId, seen: EntryHead | None) -> None:
        if (ledger_id, entry_id) >= self._stop:
            return
        if seen is None:
            self.first_unreadable = self.first_unreadable if self.unreadable else entry_id
            self.unreadable += 1
            self._next_offset = -1
            return
        self._heads.append((entry_id, seen))
        self.messages += seen.messages
        if seen.last_offset < 0:
            return
        first = seen.last_offset - seen.messages + 1
        known = self._next_offset >= 0 and self._heads[-2][0] == entry_id - 1
        if known and first != self._next_offset and len(self.counts) < FAULTS_MAX:
            why = f"it holds the log's message {first} on, and the one before ends before message "
            self.counts.append(CountFault(entry_id, f"{why}{self._next_offset}"))
        self._next_offset = seen.last_offset + 1

    def finish(self, runs: IdRuns) -> None:
        """The ledger has been looked at for good."""
        for entry_id, head in self._heads:
            runs.add(head, EntryAt(self._ledger_id, entry_id))
        self._heads = []


def _of_kafka(batch: BatchHeader, last_offset: int) -> EntryHead:
    """Markers have no sequence, nor has what a producer sent that is not idempotent."""
    count, first = batch.last_offset_delta + 1, batch.base_sequence
    if batch.producer_id < 0 or first < 0:
        return EntryHead("", 0, 0, count, False, 0, last_offset)
    producer = f"kafka-{batch.producer_id}.{batch.producer_epoch}"
    at_ms = batch.max_timestamp_ms
    return EntryHead(
        producer, first, first + count - 1, count, False, at_ms, last_offset, wraps=True
    )


def head_of(payload: memoryview) -> EntryHead:
    """Raises ``ProtocolError`` for what is neither a message of Pulsar's nor a record batch."""
    header = read_header(payload)
    last_offset = -1 if header is None else header.last_offset
    behind = payload[header_bytes(payload) :]
    if is_batch(behind):
        return _of_kafka(read_batch_header(behind), last_offset)
    meta = entry_metadata(payload)
    later = meta.num_chunks > 1 and meta.chunk_id > 0
    first, may_last = meta.sequence_id, -1
    if not meta.highest_sequence_id and meta.num_messages > 1:
        may_last = first + meta.num_messages - 1
    return EntryHead(
        meta.producer_name,
        first,
        max(first, meta.highest_sequence_id),
        meta.num_messages,
        later,
        meta.publish_time_ms,
        last_offset,
        may_last,
    )
