"""Whole entries -> topics through their brokers, at least once, in order per topic partition.

The rows of a task are made into entries by columns (``row_encoding``), so what remains to do is the
protocol: a producer per topic partition, SEND, receipts. Rules:

* An entry stays here until its receipt has come. At most ``ENTRIES_MAX`` and ``BYTES_MAX`` of all
  partitions together do; who sends more waits for the oldest.
* When a connection breaks, or the broker closes the producer (the topic moves), the owner is looked
  up again and everything without a receipt is sent again, in order, before anything new. The broker
  may hold some of it: that is where rows come twice from.
* No receipt at all for ``patience_s`` is an error, and so is a refusal that stays one.

Blocking, for one thread: a task has one thing to do. Errors are ``BrokerError``.

Why: docs/adr/0097-rows-through-brokers-are-entries.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from uuid import uuid4

from magnetar.model.errors import BrokerError
from magnetar.model.schema import TopicSchema
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.connection import (
    BrokerConnection,
    ReceivedFrame,
    refused,
    worth_another_try,
)
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import encode_command, encode_payload_command
from magnetar.wire.pulsar.metadata import batch_size
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandSendError
from magnetar.wire.pulsar.schemas import fill_wire_schema

ENTRIES_MAX = 1000
BYTES_MAX = 32 << 20
PAUSE_S, PAUSE_S_MAX = 0.05, 1.0
WAIT_S = 1.0


class _Producer:
    """Of one topic partition. ``waiting``: (sequence id, frame) of what has no receipt yet, oldest
    first. ``line`` is None until it is opened, and after it was closed."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.epoch = 0
        self.next_sequence = 0
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.line: _BrokerChannel | None = None
        self.why_lost = ""

    def lost(self, why: str) -> None:
        self.line = None
        self.why_lost = why


class _BrokerChannel:
    """A connection to one broker and the producers on it."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self.producers: dict[int, _Producer] = {}
        self.broken = False

    def fail(self, error: BrokerError) -> None:
        self.broken = True
        self.connection.close()
        for producer in self.producers.values():
            producer.lost(str(error))
        self.producers.clear()

    def send(self, frame: bytes) -> None:
        """Raises ``BrokerError`` after ``fail``."""
        try:
            self.connection.send_frame(frame)
        except BrokerError as error:
            self.fail(error)
            raise

    def receive(self, wait_s: float) -> ReceivedFrame | None:
        """Raises ``BrokerError`` after ``fail``."""
        try:
            return self.connection.receive_within(wait_s)
        except BrokerError as error:
            self.fail(error)
            raise


class EntrySender:
    """Sends entries; see the module's text. ``name``: of its producers, which no other has.
    ``schema``: what the entries' values are; None for bytes."""

    def __init__(
        self, client: BrokerClient, patience_s: float, schema: TopicSchema | None = None
    ) -> None:
        self.name = f"spark-{uuid4().hex}"
        self._client = client
        self._patience_s = patience_s
        self._schema = schema
        self._lines: dict[tuple[str, int], _BrokerChannel] = {}
        self._producers: dict[str, _Producer] = {}
        self._order: deque[tuple[_Producer, int]] = deque()
        """What was sent, oldest first: producer and sequence id. Receipts come in order for each
        producer only, so some of these may have theirs already."""
        self._entries = 0
        self._bytes = 0
        self._request_id = 0
        self._progress_s = time.monotonic()

    def entries_of(self, topic: str) -> int:
        """How many were sent to a topic partition: the sequence id of the next."""
        producer = self._producers.get(topic)
        return 0 if producer is None else producer.next_sequence

    def send(self, topic: str, entries: Sequence[bytes]) -> None:
        """Returns when they are on their way and not too many wait. Raises ``BrokerError``."""
        producer = self._producers.get(topic)
        if producer is None:
            producer = self._producers[topic] = _Producer(topic, len(self._producers) + 1)
            self._progress_s = time.monotonic()
        for entry in entries:
            self._send(producer, entry)
            while self._entries > ENTRIES_MAX or self._bytes > BYTES_MAX:
                self._wait_for_oldest()

    def finish(self) -> None:
        """Every entry has its receipt when it returns. Raises ``BrokerError``."""
        while self._entries:
            self._wait_for_oldest()

    def close(self) -> None:
        """Brokers end the producers of a connection with it."""
        for line in self._lines.values():
            line.connection.close()

    # -- sending ------------------------------------------------------------------------------

    def _send(self, producer: _Producer, entry: bytes) -> None:
        command = BaseCommand(type=BaseCommand.SEND)
        send = command.send
        send.producer_id, send.sequence_id = producer.number, producer.next_sequence
        send.num_messages = batch_size(entry)
        frame = encode_payload_command(command, entry)
        if not self._entries:
            self._progress_s = time.monotonic()  # nobody has waited until now
        producer.waiting.append((producer.next_sequence, frame))
        producer.next_sequence += 1
        self._order.append((producer, command.send.sequence_id))
        self._entries += 1
        self._bytes += len(frame)
        if producer.line is None:
            self._open(producer)  # sends all that waits, this one too
            return
        try:
            producer.line.send(frame)
        except BrokerError:
            self._open(producer)

    def _open(self, producer: _Producer) -> None:
        """Find the owner, and send it what waits. Raises ``BrokerError`` when patience ends."""
        pause_s = PAUSE_S
        while True:
            try:
                return self._try_to_open(producer)
            except BrokerError as error:
                if not worth_another_try(error) or self._late(pause_s):
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _try_to_open(self, producer: _Producer) -> None:
        line = self._line_to(self._client.owner(producer.topic))
        self._request_id += 1
        command = BaseCommand(type=BaseCommand.PRODUCER)
        request = command.producer
        request.topic, request.producer_id = producer.topic, producer.number
        request.request_id, request.producer_name = self._request_id, self.name
        # Of two with one name the later is the one: the broker may not have seen the first end.
        request.epoch, request.user_provided_producer_name = producer.epoch, False
        producer.epoch += 1
        if self._schema is not None:
            fill_wire_schema(request.schema, self._schema.kind.name, self._schema)
        line.send(encode_command(command))
        self._await_success(line, producer.topic)
        line.producers[producer.number] = producer
        producer.line = line
        for _, frame in tuple(producer.waiting):
            line.send(frame)

    def _line_to(self, address: tuple[str, int]) -> _BrokerChannel:
        line = self._lines.get(address)
        if line is None or line.broken:
            connection = BrokerConnection(address, self._client.timeout_s)
            line = self._lines[address] = _BrokerChannel(connection)
        return line

    # -- receiving ----------------------------------------------------------------------------

    def _wait_for_oldest(self) -> None:
        """Until the oldest entry of all has its receipt."""
        producer, sequence = self._order.popleft()
        while not self._has_receipt(producer, sequence):
            if self._late(0.0):
                raise BrokerError(
                    f"topic {producer.topic}: the broker has acknowledged nothing for "
                    f"{self._patience_s:.0f} s{producer.why_lost and '; '}{producer.why_lost}"
                )
            line = producer.line
            if line is None:
                self._open(producer)
                continue
            try:
                frame = line.receive(WAIT_S)
            except BrokerError:
                continue  # its producers are opened anew
            if frame is not None:
                self._take(line, frame.command)
        while self._order and self._has_receipt(*self._order[0]):
            self._order.popleft()

    @staticmethod
    def _has_receipt(producer: _Producer, sequence: int) -> bool:
        return not producer.waiting or producer.waiting[0][0] > sequence

    def _await_success(self, line: _BrokerChannel, topic: str) -> None:
        """The answer to the PRODUCER that was sent last; receipts of others come before it."""
        until_s = time.monotonic() + self._client.timeout_s
        while (frame := line.receive(max(0.0, until_s - time.monotonic()))) is not None:
            command = frame.command
            if command.type == BaseCommand.PRODUCER_SUCCESS:
                if command.producer_success.request_id == self._request_id:
                    return
            elif command.type == BaseCommand.ERROR:
                if command.error.request_id == self._request_id:
                    raise _refused(command.error.error, f"topic {topic}: {command.error.message}")
            else:
                self._take(line, command)
        error = BrokerError(f"topic {topic}: no answer from {line.connection}")
        line.fail(error)
        raise error

    def _take(self, line: _BrokerChannel, command: BaseCommand) -> None:
        if command.type == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            self._receipt(line.producers.get(receipt.producer_id), receipt.sequence_id)
        elif command.type == BaseCommand.SEND_ERROR:
            self._send_error(line, command.send_error)
        elif command.type == BaseCommand.CLOSE_PRODUCER:
            producer = line.producers.pop(command.close_producer.producer_id, None)
            if producer is not None:
                producer.lost(f"{line.connection} closed the producer")

    def _receipt(self, producer: _Producer | None, sequence: int) -> None:
        if producer is None:
            return  # closed meanwhile: sent again
        while producer.waiting and producer.waiting[0][0] <= sequence:
            _, frame = producer.waiting.popleft()
            self._entries -= 1
            self._bytes -= len(frame)
            self._progress_s = time.monotonic()

    def _send_error(self, line: _BrokerChannel, error: CommandSendError) -> None:
        """What comes after it on this producer is refused too, so all is sent again."""
        producer = line.producers.get(error.producer_id)
        if producer is None:
            return
        failure = _refused(error.error, f"topic {producer.topic}: {error.message}")
        if not worth_another_try(failure):
            raise failure
        line.fail(failure)
        time.sleep(PAUSE_S)

    def _late(self, more_s: float) -> bool:
        return time.monotonic() + more_s > self._progress_s + self._patience_s


def _refused(code: int, text: str) -> BrokerError:
    """A producer whose end the broker has not seen yet is in the way for a moment only."""
    return BrokerError(text) if code == ServerError.PRODUCER_BUSY else refused(code, text)
