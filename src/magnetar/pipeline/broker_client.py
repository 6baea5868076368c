"""A small blocking Pulsar client for the pipeline: whole entries, exact positions.

The official client hands out single messages without an entry's shape; planning and splitting
need entries (how many messages each holds, where each lies) and a driver needs the last position
without leaving a subscription behind. So reads speak the protocol directly, through
``wire.pulsar``: lookup, a non-durable reader, flow, messages. Nothing is created on the broker by
a read. One connection serves one reader; a broken one fails its task, and Spark runs it again.

Every wait has a deadline (``timeout_s``); errors are ``BrokerError`` or ``ProtocolError`` and name
the address and the topic.
"""

from __future__ import annotations

import socket
import uuid
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

from magnetar.model.errors import BrokerError, ConfigError, ProtocolError, TopicNotFoundError
from magnetar.pipeline.losses import UNKNOWN_MS, LogExtent
from magnetar.pipeline.places import START, Place, after_entry
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import PROTOCOL_VERSION, decode_command, encode_command
from magnetar.wire.pulsar.hot import signed64, verify_checksum
from magnetar.wire.pulsar.metadata import batch_size, publish_time_ms
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandGetLastMessageIdResponse,
    CommandSubscribe,
    MessageIdData,
)

FRAME_BYTES_MAX = 64 << 20
RECEIVE_BYTES = 256 * 1024
PERMITS = 2000
REDIRECTS_MAX = 10
EARLIEST_ID = (2**64 - 1, 2**64 - 1)
LATEST_ID = (2**63 - 1, 2**63 - 1)


class StoredEntry(NamedTuple):
    """An entry as the producer sent it (metadata and data), and where it lies."""

    ledger_id: int
    entry_id: int
    payload: memoryview


class ReceivedFrame(NamedTuple):
    """One frame: its command, and what follows it (a message's payload, else empty)."""

    command: BaseCommand
    payload: memoryview


class BrokerConnection:
    """A connected and greeted socket to one broker."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._buffer = bytearray()
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise BrokerError(
                f"cannot connect to the broker at {self}: {error}; is it running?"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._greet()

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def _greet(self) -> None:
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = "magnetar-pipeline"
        command.connect.protocol_version = PROTOCOL_VERSION
        self.send(command)
        answer = self.receive().command
        if answer.type != BaseCommand.CONNECTED:
            raise BrokerError(f"{self} refused the connection: {answer.error.message}")

    def send(self, command: BaseCommand) -> None:
        self._socket.sendall(encode_command(command))

    def receive(self) -> ReceivedFrame:
        """The next frame; pings are answered on the way."""
        while True:
            body = self._frame()
            view = memoryview(body)
            command = decode_command(view, 0, len(view))
            if command.type == BaseCommand.PING:
                self.send(_pong())
                continue
            size = int.from_bytes(view[:4], "big")
            return ReceivedFrame(command, view[4 + size :])

    def _frame(self) -> bytes:
        self._fill(4)
        size = int.from_bytes(self._buffer[:4], "big")
        if size > FRAME_BYTES_MAX:
            raise ProtocolError(f"frame of {size} bytes from {self}: not a Pulsar endpoint?")
        self._fill(4 + size)
        body = bytes(memoryview(self._buffer)[4 : 4 + size])
        del self._buffer[: 4 + size]
        return body

    def _fill(self, count: int) -> None:
        while len(self._buffer) < count:
            try:
                chunk = self._socket.recv(max(RECEIVE_BYTES, count - len(self._buffer)))
            except TimeoutError as error:
                raise BrokerError(f"no answer from {self} in {self._timeout_s} s") from error
            except OSError as error:
                raise BrokerError(f"connection to {self} broke: {error}") from error
            if not chunk:
                raise BrokerError(f"{self} closed the connection")
            self._buffer += chunk

    def call(self, command: BaseCommand) -> BaseCommand:
        """Send and wait for the next answer that is no message."""
        self.send(command)
        while True:
            answer = self.receive().command
            if answer.type == BaseCommand.ERROR:
                raise _refused(answer.error.error, f"{self}: {answer.error.message}")
            if answer.type not in (BaseCommand.MESSAGE, BaseCommand.ACTIVE_CONSUMER_CHANGE):
                return answer

    def close(self) -> None:
        self._socket.close()


def _pong() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PONG)
    command.pong.SetInParent()
    return command


def _refused(code: int, text: str) -> BrokerError:
    if code == ServerError.TOPIC_NOT_FOUND:
        return TopicNotFoundError(text)
    return BrokerError(text)


def parse_service_url(url: str) -> tuple[str, int]:
    """``pulsar://host:port`` -> (host, port); the first of several hosts."""
    parts = urlsplit(url.split(",", 1)[0])
    if parts.scheme != "pulsar" or not parts.hostname:
        raise ConfigError(f"service url {url!r} is not of the form pulsar://host:port")
    return parts.hostname, parts.port or 6650


class BrokerClient:
    """Look-ups and readers against a cluster's service URL."""

    def __init__(self, service_url: str, timeout_s: float = 60.0) -> None:
        self._address = parse_service_url(service_url)
        self._timeout_s = timeout_s

    def partitions(self, topic: str) -> list[str]:
        """The names of the topic's partitions; the topic itself when it has none."""
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        command.partitionMetadata.topic = topic
        command.partitionMetadata.request_id = 1
        answer = self._ask(command).partitionMetadataResponse
        if answer.response == answer.Failed:
            raise _refused(answer.error, f"topic {topic}: {answer.message}")
        if not answer.partitions:
            return [topic]
        return [f"{topic}-partition-{number}" for number in range(answer.partitions)]

    def _ask(self, command: BaseCommand) -> BaseCommand:
        connection = BrokerConnection(self._address, self._timeout_s)
        try:
            return connection.call(command)
        finally:
            connection.close()

    def owner(self, topic: str) -> tuple[str, int]:
        """The address of the broker that serves a topic (partition)."""
        address, authoritative = self._address, False
        for _ in range(REDIRECTS_MAX):
            command = BaseCommand(type=BaseCommand.LOOKUP)
            command.lookupTopic.topic = topic
            command.lookupTopic.request_id = 1
            command.lookupTopic.authoritative = authoritative
            connection = BrokerConnection(address, self._timeout_s)
            try:
                answer = connection.call(command).lookupTopicResponse
            finally:
                connection.close()
            if answer.response == answer.Failed:
                raise _refused(answer.error, f"topic {topic}: {answer.message}")
            if answer.proxy_through_service_url:
                return self._address
            address = parse_service_url(answer.brokerServiceUrl)
            if answer.response == answer.Connect:
                return address
            authoritative = answer.authoritative
        raise BrokerError(f"topic {topic}: more than {REDIRECTS_MAX} redirects")

    def open(self, topic: str, place: Place = START) -> TopicReader:
        """A reader of a topic partition from the entry of ``place`` on."""
        return TopicReader(BrokerConnection(self.owner(topic), self._timeout_s), topic, place)

    def extent(self, topic: str) -> LogExtent:
        """From where to where a topic partition's log reaches now."""
        with self.open(topic, START) as reader:
            return reader.extent()

    def place_at(self, topic: str, time_ms: int, now_ms: int) -> Place:
        """The place before the first entry published at ``time_ms`` or later.

        Publish times are the producers': the broker is asked to go back to a little before, and
        the entries from there on are looked at one by one.
        """
        back_s = max(1, (now_ms - time_ms) // 1000 + 10)
        connection = BrokerConnection(self.owner(topic), self._timeout_s)
        with TopicReader(connection, topic, START, rollback_s=back_s) as reader:
            return reader.first_published_since(time_ms)


class TopicReader:
    """A non-durable reader of one topic partition: entries in order, from a place on."""

    def __init__(
        self, connection: BrokerConnection, topic: str, place: Place, rollback_s: int = 0
    ) -> None:
        self.topic = topic
        self._connection = connection
        self._place = place
        self._permits = 0
        self._early: deque[ReceivedFrame] = deque()  # messages that came before an answer did
        try:
            self._subscribe(place, rollback_s)
        except BaseException:
            connection.close()
            raise

    def _subscribe(self, place: Place, rollback_s: int) -> None:
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic = self.topic
        subscribe.subscription = f"pipeline-{uuid.uuid4().hex[:10]}"
        subscribe.subType = CommandSubscribe.Exclusive
        subscribe.consumer_id = 1
        subscribe.request_id = 1
        subscribe.durable = False
        subscribe.force_topic_creation = False
        self._start_at(subscribe.start_message_id, place)
        subscribe.initialPosition = CommandSubscribe.Earliest
        if rollback_s:
            subscribe.start_message_rollback_duration_sec = rollback_s
        self._connection.call(command)

    @staticmethod
    def _start_at(start: MessageIdData, place: Place) -> None:
        """Name the start so that the broker sends the place's own entry first.

        A reader starts *after* the id it gives, but at its entry when the id has a batch index.
        """
        if place <= START:
            start.ledgerId, start.entryId = EARLIEST_ID
            return
        start.ledgerId, start.entryId, start.batch_index = place.ledger_id, place.entry_id, 0

    def extent(self) -> LogExtent:
        """From where to where the log reaches now. A broker that does not say what was deleted (one
        that is no Magnetar, or older) is taken to have deleted all before its first ledger, which
        only a reader from ``START`` on can tell."""
        return self._extent_of(self._last_message_id())

    def _extent_of(self, answer: CommandGetLastMessageIdResponse) -> LogExtent:
        first = self._passed(answer) if self._place <= START else START
        kept_from, created_ms = first, UNKNOWN_MS
        if answer.HasField("log_extent"):
            log = answer.log_extent
            kept_from = after_entry(log.trimmed_ledger_id, log.trimmed_entry_id)
            created_ms = log.created_ms
        last = answer.last_message_id
        empty = signed64(last.entryId) < 0
        end = kept_from if empty else after_entry(signed64(last.ledgerId), signed64(last.entryId))
        return LogExtent(kept_from, first, end, created_ms)

    def _last_message_id(self) -> CommandGetLastMessageIdResponse:
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        command.getLastMessageId.consumer_id = 1
        command.getLastMessageId.request_id = 2
        self._connection.send(command)
        while True:
            frame = self._connection.receive()
            answer = frame.command
            if answer.type == BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE:
                return answer.getLastMessageIdResponse
            if answer.type == BaseCommand.MESSAGE:
                self._early.append(frame)
            else:
                self._check(answer)

    @staticmethod
    def _passed(answer: CommandGetLastMessageIdResponse) -> Place:
        """The place after what lies before this reader."""
        if not answer.HasField("consumer_mark_delete_position"):
            return START
        mark = answer.consumer_mark_delete_position
        return after_entry(signed64(mark.ledgerId), signed64(mark.entryId))

    def entries(self) -> Iterator[StoredEntry]:
        """Entries as they come, without end; raises ``BrokerError`` when none comes in time."""
        while True:
            self._ask_for_more()
            frame = self._early.popleft() if self._early else self._connection.receive()
            if frame.command.type == BaseCommand.MESSAGE:
                payload = frame.payload
                verify_checksum(payload, 0, len(payload))
                self._permits -= batch_size(payload)
                place = frame.command.message.message_id
                yield StoredEntry(place.ledgerId, place.entryId, payload)
            else:
                self._check(frame.command)

    def _check(self, command: BaseCommand) -> None:
        """Raise what the broker says instead of what was asked for, if it is an ending."""
        if command.type == BaseCommand.CLOSE_CONSUMER:
            raise BrokerError(f"topic {self.topic} moved while it was read; try again")
        if command.type == BaseCommand.ERROR:
            raise _refused(command.error.error, f"topic {self.topic}: {command.error.message}")

    def _ask_for_more(self) -> None:
        if self._permits > PERMITS // 2:
            return
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = 1
        command.flow.messagePermits = PERMITS
        self._connection.send(command)
        self._permits += PERMITS

    def first_published_since(self, time_ms: int) -> Place:
        """The place before the first entry from here on that was published at ``time_ms`` or
        later; the end if there is none."""
        answer = self._last_message_id()
        end = self._extent_of(answer).end
        if self._passed(answer) >= end:
            return end
        for entry in self.entries():
            if publish_time_ms(entry.payload) >= time_ms:
                return Place(entry.ledger_id, entry.entry_id, 0)
            if Place(entry.ledger_id, entry.entry_id + 1, 0) >= end:
                break
        return end

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
