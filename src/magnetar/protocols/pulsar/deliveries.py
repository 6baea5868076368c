"""What a consumer's client is told: MESSAGE, ACK_RESPONSE, ACTIVE_CONSUMER_CHANGE, CLOSE_CONSUMER.

The stored payload of an entry goes out as it came in, behind a small header: frames of a run are
built as one piece, those of large entries are a header and a view each. A record batch of a Kafka
producer is converted here (``wire.crossing.kafka_to_pulsar``).

A batch has up to a million records, which take seconds. Those of one run that are more than the
loop has the time for, and all that is behind them, go out later, in order: a large batch is
converted on a thread, one of the broker at a time, and the consumer gets nothing more meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from magnetar.env.network.framed import JOIN_BYTES_MAX
from magnetar.env.tasks import fails
from magnetar.model.entry import Entry
from magnetar.model.errors import MagnetarError, MessageTooLargeError
from magnetar.protocols.entry_work import TO_PULSAR, EntryWork, batch_work
from magnetar.protocols.pulsar.clients import hears_end_of_topic
from magnetar.protocols.pulsar.session import Session
from magnetar.speedups import join_messages
from magnetar.topics.consuming.consumer import ConsumerNews
from magnetar.topics.dispatch.redelivery import Key
from magnetar.topics.subscribable import Subscribed
from magnetar.wire.crossing.kafka_to_pulsar import pulsar_entry, sealed_entry
from magnetar.wire.kafka.batches import is_batch
from magnetar.wire.pulsar.errors import server_error
from magnetar.wire.pulsar.hot import MessageHeaderEncoder
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.pulsar.replies import ack_response

log = structlog.get_logger(__name__)

PULSAR_BEGIN: Final = b"\x0e"
"""Of entries that Pulsar's clients wrote, but for very old ones."""

NO_EPOCH: Final = -1

COMPRESSED_WORK: Final = 50
"""What decompression adds to a batch's, in records."""
BYTES_AT_ONCE: Final = 128 << 10
"""Of a batch that is converted so, when it is not compressed any more: little may become much."""

ACTIVE_CHANGE_VERSION: Final = 12
"""The protocol version from which on clients know ACTIVE_CONSUMER_CHANGE."""


class _Later(NamedTuple):
    """An entry that waits to be delivered, and what its header says."""

    entry: Entry
    redeliveries: int
    ack_set: Sequence[int]
    epoch: int


class SessionConsumer:
    """A session's client as one of its consumers knows it: a ``ConsumerClient``.

    ``partition``: of the consumer's topic, or -1. ``epoch``: which its messages say, below 0: none
    (``handlers.consumers``)."""

    __slots__ = ("_encode", "_later", "_partition", "_session", "consumer_id", "epoch")

    def __init__(
        self, session: Session, consumer_id: int, partition: int, epoch: int = NO_EPOCH
    ) -> None:
        self.consumer_id = consumer_id
        self.epoch = epoch
        self._session = session
        self._partition = partition
        self._encode = MessageHeaderEncoder(consumer_id, partition).encode
        self._later: deque[_Later] | None = None
        """What goes out once it is converted; None: nothing, as for most consumers."""

    @property
    def peer(self) -> str:
        return self._session.peer

    @property
    def writable(self) -> bool:
        return self._session.writable and self._later is None

    @property
    def crowded(self) -> bool:
        session = self._session
        if self._later is not None:
            return True
        return session.unsent_bytes > session.services.connections.turn_bytes

    def deliver(
        self,
        entries: Sequence[Entry],
        counts: Mapping[Key, int],
        ack_sets: Mapping[Key, Sequence[int]],
    ) -> int:
        if self._later is not None:
            return self._put_off(entries, counts, ack_sets)
        special = bool(counts or ack_sets)
        if not special:
            bytes_max = 2 * JOIN_BYTES_MAX * len(entries)
            frames = join_messages(
                self.consumer_id, self._partition, self.epoch, entries, bytes_max
            )
            if frames is not None:
                self._session.write(frames)
                return len(frames)
        parts: list[bytes | memoryview] = []
        total = put_off = 0
        encode, epoch, work_left = self._encode, self.epoch, TO_PULSAR.at_once
        for index, entry in enumerate(entries):
            ledger_id, entry_id, data = entry.ledger_id, entry.entry_id, entry.data
            offset = entry.payload_offset
            if data[offset : offset + 1] != PULSAR_BEGIN and is_batch(entry.payload):
                work = batch_work(entry.payload)
                work_left -= _weight(work)
                converted = self._converted_now(entry, work) if work_left >= 0 else None
                if converted is None:
                    put_off = self._put_off(entries[index:], counts, ack_sets)
                    break
                data, offset = converted, 0
            payload_bytes = len(data) - offset
            if special:
                key = (ledger_id, entry_id)
                count, ack_set = counts.get(key, 0), ack_sets.get(key, ())
                header = encode(ledger_id, entry_id, payload_bytes, count, ack_set, epoch)
            else:
                header = encode(ledger_id, entry_id, payload_bytes, 0, None, epoch)
            parts.append(header)
            parts.append(memoryview(data)[offset:])
            total += len(header) + payload_bytes
        self._session.write_parts(parts, total)
        return total + put_off

    # -- what is delivered later --------------------------------------------------------------

    def _put_off(
        self,
        entries: Sequence[Entry],
        counts: Mapping[Key, int],
        ack_sets: Mapping[Key, Sequence[int]],
    ) -> int:
        """Deliver them once they are converted; returns their bytes as they are stored."""
        if self._later is None:
            self._later = deque()
            scope, what = self._session.services.scope, f"{self.peer} converted batches"
            scope.spawn(self._deliver_later(self._later), what, fails(self._failed))
        byte_count = 0
        for entry in entries:
            key = (entry.ledger_id, entry.entry_id)
            count, ack_set = counts.get(key, 0), ack_sets.get(key, ())
            self._later.append(_Later(entry, count, ack_set, self.epoch))
            byte_count += len(entry.payload)
        return byte_count

    async def _deliver_later(self, later: deque[_Later]) -> None:
        session = self._session
        try:
            while later:
                entry, count, ack_set, epoch = later.popleft()
                payload: bytes | memoryview = entry.payload
                if _is_records(entry):
                    payload = await self._converted(entry)
                await session.until_taken()
                if self._subscribed() is None:
                    return  # others get what was out at it
                size = len(payload)
                header = self._encode(
                    entry.ledger_id, entry.entry_id, size, count, ack_set or None, epoch
                )
                session.write_parts([header, memoryview(payload)], len(header) + size)
        finally:
            self._later = None
        found = self._subscribed()
        if found is not None:
            found.subscription.follow_connection(found.consumer)

    def _failed(self, _task: str, _error: BaseException) -> None:
        """The client must not wait for what does not come."""
        self._session.abort()

    def _subscribed(self) -> Subscribed | None:
        """None once the consumer is closed, or its client gone."""
        found = self._session.consumers.get(self.consumer_id)
        return found if found is not None and found.consumer.client is self else None

    def _converted_now(self, entry: Entry, work: EntryWork) -> bytes | None:
        """None if that takes longer than ``_weight`` says."""
        bytes_max = self._session.payload_bytes_max
        if work.certain:
            return _converted(entry, bytes_max)
        try:
            found = pulsar_entry(entry.payload, uncompressed_bytes_max=BYTES_AT_ONCE)
        except MagnetarError:
            return None
        return found if len(found) <= bytes_max else None

    async def _converted(self, entry: Entry) -> bytes:
        work = batch_work(entry.payload)
        if _weight(work) <= TO_PULSAR.at_once:
            await asyncio.sleep(0)
            found = self._converted_now(entry, work)
            if found is not None:
                return found
        async with self._session.services.conversions:
            return await asyncio.to_thread(_converted, entry, self._session.payload_bytes_max)

    def answer_ack(self, request_id: int, error: MagnetarError | None) -> None:
        code, text = (None, "") if error is None else (server_error(error), str(error))
        self._session.write(ack_response(self.consumer_id, request_id, code, text))

    def tell(self, news: ConsumerNews) -> None:
        if news is ConsumerNews.ENDED:
            self._tell_end()
        else:
            self._tell_active(news is ConsumerNews.ACTIVE)

    def _tell_active(self, active: bool) -> None:
        if self._session.protocol_version < ACTIVE_CHANGE_VERSION:
            return
        command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
        command.active_consumer_change.consumer_id = self.consumer_id
        command.active_consumer_change.is_active = active
        self._session.send_command(command)

    def _tell_end(self) -> None:
        if not hears_end_of_topic(self._session.client_version):
            return
        command = BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC)
        command.reachedEndOfTopic.consumer_id = self.consumer_id
        self._session.send_command(command)

    def tell_closed(self, service_url: str = "") -> None:
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = self.consumer_id
        command.close_consumer.request_id = 0
        if service_url:
            command.close_consumer.assignedBrokerServiceUrl = service_url
            tls_url = self._session.services.known_tls_url(service_url)
            if tls_url:
                command.close_consumer.assignedBrokerServiceUrlTls = tls_url
        self._session.send_command(command)

    def forget(self) -> None:
        session = self._session
        found = session.consumers.get(self.consumer_id)
        if found is not None and found.consumer.client is self:
            del session.consumers[self.consumer_id]

    async def is_alive(self) -> bool:
        return await self._session.is_alive()

    def abort(self) -> None:
        self._session.abort()


def _is_records(entry: Entry) -> bool:
    offset = entry.payload_offset
    return entry.data[offset : offset + 1] != PULSAR_BEGIN and is_batch(entry.payload)


def _weight(work: EntryWork) -> int:
    """Of a batch that is converted, in records; one that does not say what it unpacks to is tried,
    up to ``BYTES_AT_ONCE``."""
    return work.weight(TO_PULSAR) + (0 if work.certain else COMPRESSED_WORK)


def _converted(entry: Entry, bytes_max: int) -> bytes:
    """A record batch as Pulsar's clients read it. One that cannot be taken apart, or whose codec's
    library is not installed, or that becomes larger than ``bytes_max`` (many records that are
    small: each costs more as a message), goes out whole as one message that says so: its consumer
    can acknowledge or dead-letter it. Clients drop the connection over a frame that is too large,
    and would get it again on the next."""
    try:
        found = pulsar_entry(entry.payload)
        if len(found) > bytes_max:
            raise MessageTooLargeError(
                f"it is {len(found)} bytes as messages, and clients take {bytes_max}"
            )
        return found
    except MagnetarError as error:
        log.warning(
            "record batch not converted",
            ledger=entry.ledger_id,
            entry=entry.entry_id,
            error=str(error),
        )
        return sealed_entry(entry.payload, str(error))
