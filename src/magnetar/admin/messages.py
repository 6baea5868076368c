"""Single messages over HTTP: the entry of an id, and the n-th one that a subscription has not
acknowledged. Nothing is delivered or acknowledged by it.

Pulsar's form: the body is the entry's data, uncompressed; a batch goes out whole, as
``[size u32][SingleMessageMetadata][value]`` repeated, and clients take it apart. All else is in
headers ``X-Pulsar-...`` (source of the names: Pulsar's admin clients, which read them). Encrypted
data goes out as it is. An entry of Kafka's is shown as Pulsar's consumers get it, whatever comes of
its transaction.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from magnetar.admin.topics import TopicService
from magnetar.admin.views import MessageIdView
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    BrokerError,
    ConfigError,
    NoEntryError,
    ProtocolError,
)
from magnetar.model.ids import Position
from magnetar.topics.entry_format import EntryFormat, describe
from magnetar.topics.topic import Topic
from magnetar.wire.crossing.kafka_to_pulsar import pulsar_entry
from magnetar.wire.kafka.batches import is_batch
from magnetar.wire.pulsar.broker_metadata import BrokerMetadata, header_before
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import decompress
from magnetar.wire.pulsar.metadata import EntryMetadata, entry_metadata

PEEKED_MAX: Final = 10_000
"""How far behind what is acknowledged one may look, in entries that are not."""
STEP_ENTRIES: Final = 100
STEP_BYTES: Final = 1 << 20
LOOKED_AT_MAX: Final = 50_000
"""Entries that one request reads: between those that are not acknowledged many others may lie."""


class UnreadableEntryError(BrokerError):
    """The entry's bytes are no message that can be shown; says why."""


class ShownEntry(NamedTuple):
    """An answer's headers and body."""

    headers: Mapping[str, str]
    body: bytes


class MessageService:
    """``topics`` opens them."""

    def __init__(self, topics: TopicService, entry_format: EntryFormat) -> None:
        self._topics = topics
        self._format = entry_format
        self._showing = asyncio.Lock()

    async def by_id(self, topic: str, position: Position) -> ShownEntry:
        """Raises ``TopicNotFoundError``, ``NoEntryError`` (the topic does not have it, or not any
        more), ``UnreadableEntryError``, ``ServedElsewhereError``."""
        opened = await self._topics.opened(topic)
        with opened.held():
            if position.ledger_id < 0 or position.entry_id < 0:
                raise _not_there(opened, position)
            found = await opened.log.read(position, 1, 1)
            if not found or found[0].position != position:
                raise _not_there(opened, position)
            return await self._shown(found[0])

    async def peek(self, topic: str, subscription: str, number: int) -> ShownEntry:
        """Entry ``number`` (from 1 on) of those that the subscription has not acknowledged. Raises
        as ``by_id``.

        A subscription that is not there has not acknowledged anything. Pulsar's brokers make one at
        the topic's first message then, and its admin clients count on an answer; a GET makes
        nothing here.
        """
        opened = await self._topics.opened(topic)
        with opened.held():
            found = await self._find(opened, subscription, number)
            return await self._shown(found)

    async def _find(self, topic: Topic, subscription: str, number: int) -> Entry:
        positions, there = topic.log.positions, topic.subscriptions.get(subscription)
        start = (
            positions.first if there is None else positions.next_position(there.cursor.mark_delete)
        )
        at, left, looked_at = start, number, 0
        while looked_at < LOOKED_AT_MAX:
            entries = await topic.log.read(at, STEP_ENTRIES, STEP_BYTES)
            if not entries:
                break
            for entry in entries if there is None else there.cursor.unacknowledged(entries):
                if not self._is_marker(entry):
                    left -= 1
                    if not left:
                        return entry
            looked_at += len(entries)
            last = entries[-1]
            at = positions.next_position(last.position)
        what = f"subscription {subscription} of {topic.name}"
        if there is None:
            what = f"topic {topic.name} has no subscription {subscription}; one from its start on"
        raise NoEntryError(
            f"{what} has {number - left} entries that are not acknowledged, in the {looked_at} "
            f"from {start} on; there is no number {number}"
        )

    def _is_marker(self, entry: Entry) -> bool:
        """The end of a transaction is no message."""
        try:
            part = describe(entry, self._format).transaction
        except ProtocolError:
            return False  # to be shown as what it is
        return part is not None and part.commits is not None

    async def _shown(self, entry: Entry) -> ShownEntry:
        if self._is_marker(entry):
            raise NoEntryError(
                f"{entry.ledger_id}:{entry.entry_id} is the end of a transaction, and no message"
            )
        try:
            async with self._showing:  # a frame unpacks to a quarter of a gigabyte at most
                return await asyncio.to_thread(shown_entry, entry)
        except (ProtocolError, ConfigError) as error:
            raise UnreadableEntryError(
                f"entry {entry.ledger_id}:{entry.entry_id} cannot be shown: {error}"
            ) from error

    async def id_at(self, topic: str, time_ms: int) -> MessageIdView:
        """Of the first entry that was published then or later; of the place after the last if there
        is none. Raises ``TopicNotFoundError``, ``ServedElsewhereError``."""
        opened = await self._topics.opened(topic)
        with opened.held():
            return _id(opened, await opened.log.first_at(time_ms))

    async def last_id(self, topic: str) -> MessageIdView:
        """Of the last message that consumers get. Raises as ``id_at``."""
        opened = await self._topics.opened(topic)
        with opened.held():
            last = await opened.last_delivered()
            return _id(opened, last, await opened.last_index_at(last))


def _id(topic: Topic, position: Position, batch_index: int = -1) -> MessageIdView:
    return MessageIdView(
        ledger_id=position.ledger_id,
        entry_id=position.entry_id,
        partition_index=topic.name.partition,
        batch_index=batch_index,
    )


def _not_there(topic: Topic, position: Position) -> NoEntryError:
    return NoEntryError(
        f"topic {topic.name} has no entry {position}: it has been deleted, or never was in it"
    )


def shown_entry(entry: Entry) -> ShownEntry:
    """Pure, but for the codecs' libraries. Raises ``ProtocolError``, ``ConfigError``."""
    payload = entry.payload
    data = pulsar_entry(payload, compressed=False) if is_batch(payload) else payload
    meta = entry_metadata(data)
    body = memoryview(data)[meta.data_start :]
    if not meta.encrypted:
        body = memoryview(decompress(body, meta.compression, meta.uncompressed_size))
    headers = {
        "X-Pulsar-Message-ID": f"{entry.ledger_id}:{entry.entry_id}",
        **_headers(meta, len(body)),
        **_broker_headers(header_before(entry.data, entry.payload_offset)),
    }
    return ShownEntry(headers, bytes(body))


def _headers(meta: EntryMetadata, data_bytes: int) -> dict[str, str]:
    found = {
        "X-Pulsar-publish-time": _time(meta.publish_time_ms),
        "X-Pulsar-producer-name": _plain(meta.producer_name),
        "X-Pulsar-sequence-id": str(meta.sequence_id),
        "X-Pulsar-Is-Encrypted": str(meta.encrypted).lower(),
    }
    if meta.properties:
        found["X-Pulsar-PROPERTY"] = json.dumps(dict(meta.properties))
    if meta.highest_sequence_id:
        found["X-Pulsar-highest-sequence-id"] = str(meta.highest_sequence_id)
    if meta.event_time_ms:
        found["X-Pulsar-event-time"] = _time(meta.event_time_ms)
    if meta.deliver_at_time_ms:
        found["X-Pulsar-deliver-at-time"] = _time(meta.deliver_at_time_ms)
    if meta.batched and not meta.encrypted:  # else it cannot be taken apart
        found["X-Pulsar-num-batch-message"] = str(meta.num_messages)
        found["X-Pulsar-batch-size"] = str(data_bytes)
    if meta.null_value:
        found["X-Pulsar-null-value"] = "true"
    if meta.compression != Compression.NONE:
        found["X-Pulsar-compression"] = meta.compression.name
        found["X-Pulsar-uncompressed-size"] = str(meta.uncompressed_size)
    if meta.partition_key is not None:
        found["X-Pulsar-partition-key"] = _plain(meta.partition_key)
        found["X-Pulsar-partition-key-b64-encoded"] = str(meta.partition_key_b64_encoded).lower()
    if meta.ordering_key is not None:
        found["X-Pulsar-Base64-ordering-key"] = b64encode(meta.ordering_key).decode()
    if meta.schema_version is not None:
        found["X-Pulsar-Base64-schema-version-b64encoded"] = b64encode(meta.schema_version).decode()
    if meta.num_chunks > 1:
        found["X-Pulsar-uuid"] = _plain(meta.chunk_uuid)
        found["X-Pulsar-chunk-id"] = str(meta.chunk_id)
        found["X-Pulsar-num-chunks-from-msg"] = str(meta.num_chunks)
        found["X-Pulsar-total-chunk-msg-size"] = str(meta.chunked_message_bytes)
    return found


def _broker_headers(found: BrokerMetadata | None) -> dict[str, str]:
    if found is None:
        return {}
    headers = {}
    if found.timestamp_ms >= 0:
        headers["X-Pulsar-Broker-Entry-METADATA-timestamp"] = _time(found.timestamp_ms)
    if found.last_offset >= 0:
        headers["X-Pulsar-Broker-Entry-METADATA-index"] = str(found.last_offset)
    return headers


def _time(time_ms: int) -> str:
    """Raises ``ProtocolError`` for a time that no calendar has."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ProtocolError(f"{time_ms} ms since 1970 is no time: {error}") from error
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: str) -> str:
    """Text as a header can carry it: in UTF-8, without what would end the header."""
    printable = "".join(each if each.isprintable() else "?" for each in value)
    return printable.encode().decode("latin-1")
