"""One connection of a broker as it is watched: which producers and consumers it has, what they wait
for, and what each command on it means for ``topic_history``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from magnetar.model.ids import Position
from magnetar.protocols.pulsar.clients import returns_skipped
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandSeek,
    CommandSendReceipt,
    CommandSubscribe,
    MessageIdData,
)
from magnetar_sim.brokers.broker_watch import BrokerWatch, Consuming, following
from magnetar_sim.brokers.topic_history import (
    AUDIT,
    HIGHEST,
    LOWEST,
    Confirmed,
    Content,
    Subscription,
    Topic,
    bits_of,
    decoded,
    position_of,
)

PIPELINE = "pipeline-"
"""Readers whose names begin with it ask about logs, and read nothing."""


class Frames:
    """Whole frames out of a stream: command and payload."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[BaseCommand, memoryview]]:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            end = 4 + int.from_bytes(buffer[:4], "big")
            if len(buffer) < end:
                return
            frame = bytes(buffer[4:end])
            del buffer[:end]
            stop = 4 + int.from_bytes(frame[:4], "big")
            yield BaseCommand.FromString(frame[4:stop]), memoryview(frame)[stop:]


@dataclass(eq=False)
class Producing:
    """A producer on one connection. ``pending``: sent, and not answered."""

    name: str
    topic: Topic
    pending: deque[tuple[int, Content | None]] = field(default_factory=deque)
    last: Position = LOWEST


@dataclass(frozen=True)
class Acked:
    """An acknowledgement that wants a receipt."""

    consumer: Consuming
    epoch: int
    entries: dict[Position, int]
    to: Position


@dataclass(frozen=True)
class Subscribing:
    request: CommandSubscribe
    floor: Position


@dataclass(frozen=True)
class Seeking:
    consumer: Consuming
    request: CommandSeek
    floor: Position


class WatchedConnection:
    """``network.Tap`` of one connection, on the broker's side."""

    def __init__(self, watch: BrokerWatch, process: int, read_only: bool = False) -> None:
        self._watch = watch
        self._process = process
        self._lingers_at = (process, self if read_only else None)
        """Where a reader that has sought finds its place again: at an owner, or, since it may have
        sought at the owner meanwhile, by this very connection to a read-only broker."""
        self._returns_skipped = False
        self._in, self._out = Frames(), Frames()
        self._producers: dict[int, Producing] = {}
        self._consumers: dict[int, Consuming] = {}
        self._requests: dict[int, object] = {}
        self._acks: dict[tuple[int, int], Acked] = {}
        self._handlers_in: dict[int, Callable[[BaseCommand, memoryview], None]] = {
            BaseCommand.CONNECT: self._connect,
            BaseCommand.SEND: self._send,
            BaseCommand.ACK: self._ack,
            BaseCommand.FLOW: self._flow,
            BaseCommand.PRODUCER: self._open_producer,
            BaseCommand.SUBSCRIBE: self._subscribe,
            BaseCommand.CLOSE_CONSUMER: self._leave,
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self._refuse,
            BaseCommand.SEEK: self._seek,
            BaseCommand.UNSUBSCRIBE: self._unsubscribe,
        }
        self._handlers_out: dict[int, Callable[[BaseCommand, memoryview], None]] = {
            BaseCommand.SEND_RECEIPT: self._receipt,
            BaseCommand.SEND_ERROR: self._send_error,
            BaseCommand.PRODUCER_SUCCESS: self._producer_opened,
            BaseCommand.CLOSE_PRODUCER: self._producer_closed,
            BaseCommand.MESSAGE: self._message,
            BaseCommand.SUCCESS: self._success,
            BaseCommand.ERROR: self._error,
            BaseCommand.ACK_RESPONSE: self._ack_stored,
            BaseCommand.ACTIVE_CONSUMER_CHANGE: self._active,
            BaseCommand.CLOSE_CONSUMER: self._consumer_closed,
        }

    # -- network.Tap --------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        for command, payload in self._in.feed(data):
            handler = self._handlers_in.get(int(command.type))
            if handler is not None:
                handler(command, payload)

    def sent(self, data: bytes) -> None:
        for command, payload in self._out.feed(data):
            handler = self._handlers_out.get(int(command.type))
            if handler is not None:
                handler(command, payload)

    def ended(self) -> None:
        for asked in self._requests.values():
            if isinstance(asked, Seeking):  # not answered: nobody knows where it stands
                self._linger(asked.consumer)
            elif isinstance(asked, Subscribing):
                self._seated(asked)
                self._may_have_returned(asked.request)
        for consumer_id in list(self._consumers):
            self._drop(consumer_id)
        self._producers.clear()

    def _drop(self, consumer_id: int) -> None:
        consumer = self._consumers.pop(consumer_id, None)
        if consumer is not None:
            self._watch.gone(consumer)

    # -- producers ----------------------------------------------------------------------------

    def _open_producer(self, command: BaseCommand, _payload: memoryview) -> None:
        self._requests[command.producer.request_id] = command.producer

    def _producer_opened(self, command: BaseCommand, _payload: memoryview) -> None:
        """Invariant 10."""
        answer = command.producer_success
        request = self._requests.get(answer.request_id)
        if request is None or not answer.producer_ready:
            return
        del self._requests[answer.request_id]
        topic = self._watch.topic(request.topic)  # type: ignore[attr-defined]
        name, producer_id = answer.producer_name, request.producer_id  # type: ignore[attr-defined]
        self._producers[producer_id] = Producing(name, topic)
        if answer.HasField("topic_epoch"):
            claimed = request.HasField("topic_epoch")  # type: ignore[attr-defined]
            if claimed and request.topic_epoch < topic.epoch and topic.epoch_of != name:  # type: ignore[attr-defined]
                topic.broken(
                    f"{name} comes back with epoch {request.topic_epoch}, and {topic.epoch_of} "  # type: ignore[attr-defined]
                    f"has had {topic.epoch}"
                )
            kept = claimed and request.topic_epoch == answer.topic_epoch and name == topic.epoch_of  # type: ignore[attr-defined]
            if answer.topic_epoch < topic.epoch + (not kept):
                topic.broken(f"{name} has epoch {answer.topic_epoch} after {topic.epoch}")
            topic.epoch, topic.epoch_of = answer.topic_epoch, name

    def _send(self, command: BaseCommand, payload: memoryview) -> None:
        producer = self._producers.get(command.send.producer_id)
        if producer is None:
            return
        content = decoded(payload)
        producer.pending.append((command.send.sequence_id, content))
        if content is not None:
            producer.topic.sent(content)

    def _receipt(self, command: BaseCommand, _payload: memoryview) -> None:
        """Invariants 1 and 2."""
        receipt: CommandSendReceipt = command.send_receipt
        producer = self._producers.get(receipt.producer_id)
        if producer is None:
            return
        content = self._answered(producer, receipt.sequence_id)
        position = position_of(receipt.message_id)
        if content is None:
            return
        topic = producer.topic
        if position == LOWEST and topic.deduplicates:
            topic.told_stored.update(dict.fromkeys(content.texts))
            self._watch.count("repeats that are not stored again")
            return
        if position > producer.last:
            producer.last = position
        elif not (topic.deduplicates and topic.content.get(position) == content):
            # (There a repeat may be told where it stands, whatever was sent before it.)
            topic.broken(f"{producer.name} has a receipt for {position} after {producer.last}")
        topic.stands_at(position, content, producer.name)
        topic.receipted[position] = None
        self._watch.count("receipts")

    def _send_error(self, command: BaseCommand, _payload: memoryview) -> None:
        producer = self._producers.get(command.send_error.producer_id)
        if producer is not None:
            self._answered(producer, command.send_error.sequence_id)

    def _answered(self, producer: Producing, sequence_id: int) -> Content | None:
        if not producer.pending or producer.pending[0][0] != sequence_id:
            waits = producer.pending[0][0] if producer.pending else "nothing"
            producer.topic.broken(
                f"{producer.name} is answered for {sequence_id}, and {waits} comes first"
            )
            return None
        return producer.pending.popleft()[1]

    def _producer_closed(self, command: BaseCommand, _payload: memoryview) -> None:
        producer = self._producers.pop(command.close_producer.producer_id, None)
        if producer is not None:
            self._watch.may_have_closed(self._process, producer.topic.name)

    # -- consumers ----------------------------------------------------------------------------

    def _connect(self, command: BaseCommand, _payload: memoryview) -> None:
        self._returns_skipped = returns_skipped(command.connect.client_version)

    def _subscribe(self, command: BaseCommand, _payload: memoryview) -> None:
        request = command.subscribe
        if request.subscription.startswith(PIPELINE):
            return
        topic = self._watch.topic(request.topic)
        floor = topic.last
        if request.durable and request.subscription not in topic.subscriptions:
            # an earlier request may have made it, and never been answered
            floor = topic.asked_at.setdefault(request.subscription, floor)
        self._requests[request.request_id] = Subscribing(request, floor)
        self._watch.seating[self._process, request.topic, request.subscription] += 1

    def _seated(self, asked: Subscribing) -> None:
        """Or it was refused, or its client is gone."""
        request = asked.request
        self._watch.seating[self._process, request.topic, request.subscription] -= 1

    def _subscribed(self, asked: Subscribing) -> None:
        request, watch = asked.request, self._watch
        if request.consumer_id in self._consumers:
            return  # it was asked for twice
        topic = watch.topic(request.topic)
        key = self._lingers_at, request.topic, request.subscription
        subscription = watch.lingering.pop(key, None)
        if subscription is not None and watch.unloading[request.topic]:
            subscription.vague = True  # it is there still, or begins anew
        if request.durable:
            subscription = topic.subscriptions.get(request.subscription)
        if subscription is None:
            topic.exempt_now()
            subscription = _new_subscription(topic, request, asked.floor)
            if request.subscription == AUDIT:
                subscription.audited = topic.audited
            if request.durable:
                topic.subscriptions[request.subscription] = subscription
                topic.asked_at.pop(request.subscription, None)
        consumer = Consuming(
            f"consumer {request.consumer_name}",
            topic,
            subscription,
            request.subType,
            self._process,
            watch.bindings.term_of(self._process, request.topic, request.subscription),
            in_order=not request.keySharedMeta.allowOutOfOrderDelivery,
            returns_skipped=self._returns_skipped,
        )
        self._consumers[request.consumer_id] = consumer
        watch.consumers[consumer] = None

    def _flow(self, command: BaseCommand, _payload: memoryview) -> None:
        consumer = self._consumers.get(command.flow.consumer_id)
        if consumer is not None:
            consumer.permits += command.flow.messagePermits

    def _message(self, command: BaseCommand, payload: memoryview) -> None:
        consumer = self._consumers.get(command.message.consumer_id)
        content = decoded(payload)
        if consumer is not None and content is not None:
            self._watch.message(consumer, command.message, content)

    def _active(self, command: BaseCommand, _payload: memoryview) -> None:
        """Invariant 6."""
        change = command.active_consumer_change
        consumer = self._consumers.get(change.consumer_id)
        if consumer is None:
            return
        if change.is_active:
            for other in self._watch.peers(consumer):
                if other is not consumer and other.active:
                    consumer.topic.broken(f"{consumer.who} and {other.who} are active at once")
        if change.is_active != consumer.active:
            consumer.last = consumer.rewind = None
        consumer.active = change.is_active

    def _leave(self, command: BaseCommand, _payload: memoryview) -> None:
        self._drop(command.close_consumer.consumer_id)

    def _consumer_closed(self, command: BaseCommand, _payload: memoryview) -> None:
        self._drop(command.close_consumer.consumer_id)

    def _refuse(self, command: BaseCommand, _payload: memoryview) -> None:
        request = command.redeliverUnacknowledgedMessages
        consumer = self._consumers.get(request.consumer_id)
        if consumer is None:
            return
        self._watch.rewinds(consumer)
        key = consumer.process, consumer.subscription
        out = self._watch.out.get(key, {})
        named = [position_of(each) for each in request.message_ids] or list(out)
        refused = self._watch.refused.setdefault(key, {})
        for position in named:
            if out.get(position) is consumer:
                del out[position]
                self._watch.keys.came_back(key, position)
                refused[position] = refused.get(position, 0) + 1

    # -- acknowledgements ---------------------------------------------------------------------

    def _ack(self, command: BaseCommand, _payload: memoryview) -> None:
        ack = command.ack
        consumer = self._consumers.get(ack.consumer_id)
        if consumer is None:
            return
        subscription, topic = consumer.subscription, consumer.topic
        cumulative = ack.ack_type == CommandAck.Cumulative
        entries: dict[Position, int] = {}
        for each in ack.message_id:
            position = position_of(each)
            content = topic.content.get(position)
            size = len(content.texts) if content is not None else 1
            left = bits_of(each.ack_set, size) if each.ack_set else 0
            # One command may name an entry twice: it was sent again meanwhile.
            entries[position] = entries.get(position, 0) | ((1 << size) - 1) & ~left
        to = LOWEST
        if cumulative and entries:
            last = max(entries)
            whole = not _partial(ack.message_id)
            to = last if whole else Position(last.ledger_id, last.entry_id - 1)
            subscription.acked_to = max(subscription.acked_to, to)
        for position, bits in entries.items():
            subscription.acked[position] = subscription.acked.get(position, 0) | bits
        self._settle(consumer, entries)
        if ack.HasField("request_id"):
            told = Acked(consumer, subscription.epoch, entries, to)
            self._acks[ack.consumer_id, ack.request_id] = told

    def _settle(self, consumer: Consuming, entries: dict[Position, int]) -> None:
        """What is acknowledged as a whole is out at nobody; ``entries``: which messages are."""
        key = consumer.process, consumer.subscription
        out, refused = self._watch.out.get(key, {}), self._watch.refused.get(key, {})
        left = self._watch.left.setdefault(key, {})
        for position, bits in entries.items():
            content = consumer.topic.content.get(position)
            if content is not None:
                left[position] = left.get(position, content.all_bits) & ~bits
            if content is None or not left[position]:
                out.pop(position, None)
                refused.pop(position, None)

    def _ack_stored(self, command: BaseCommand, _payload: memoryview) -> None:
        answer = command.ackResponse
        told = self._acks.pop((answer.consumer_id, answer.request_id), None)
        if told is None or answer.HasField("error"):
            return
        subscription, at_s = told.consumer.subscription, self._watch.now_s()
        if subscription.epoch != told.epoch or subscription.vague:
            return
        self._watch.count("acknowledgements that were stored")
        for position, bits in told.entries.items():
            known = subscription.confirmed.setdefault(position, [])
            known.append(Confirmed(bits, at_s, told.consumer.term))
        if told.to > LOWEST:
            subscription.confirmed_to.append((told.to, at_s, told.consumer.term))

    # -- seeks and ends -----------------------------------------------------------------------

    def _seek(self, command: BaseCommand, _payload: memoryview) -> None:
        consumer = self._consumers.get(command.seek.consumer_id)
        if consumer is None:
            return
        consumer.subscription.vague = True
        consumer.subscription.epoch += 1
        seeking = Seeking(consumer, command.seek, consumer.topic.last)
        self._requests[command.seek.request_id] = seeking

    def _sought(self, asked: Seeking) -> None:
        """Invariant 9: from here on."""
        topic, subscription, request = (
            asked.consumer.topic,
            asked.consumer.subscription,
            asked.request,
        )
        topic.exempt_now()
        self._watch.count("seeks")
        self._linger(asked.consumer)
        if request.HasField("message_id"):
            lower, since = _start(topic, request.message_id)
            floor = following(asked.floor) if lower == HIGHEST else lower
            subscription.move(LOWEST if lower == HIGHEST else lower, floor, since, None)
            return
        at_ms = request.message_publish_time
        late = [p for p in topic.positions if topic.content[p].publish_time_ms >= at_ms]
        known = [each for each in late if each <= asked.floor]
        if known:
            # Of those that are gone the broker knows nothing: it begins at the first that is there,
            # or, where none is, behind all that was published before that time.
            there = next((each for each in known if not topic.may_be_gone(each)), None)
            lower, since = (LOWEST, topic.sends) if there is None else (there, 0)
            subscription.move(lower, known[0], since, at_ms)
        else:
            subscription.move(LOWEST, following(asked.floor), topic.sends, at_ms)

    def _linger(self, consumer: Consuming) -> None:
        """A reader that has sought comes back to the same place, whatever start it names."""
        topic, subscription = consumer.topic, consumer.subscription
        if not subscription.durable:
            self._watch.lingering[self._lingers_at, topic.name, subscription.name] = subscription

    def _may_have_returned(self, request: CommandSubscribe) -> None:
        """Its place after a seek may be gone with its connection."""
        key = self._lingers_at, request.topic, request.subscription
        if (subscription := self._watch.lingering.get(key)) is not None:
            subscription.vague = True

    def _unsubscribe(self, command: BaseCommand, _payload: memoryview) -> None:
        consumer = self._consumers.get(command.unsubscribe.consumer_id)
        if consumer is None:
            return
        consumer.subscription.vague = True
        self._requests[command.unsubscribe.request_id] = consumer

    def _success(self, command: BaseCommand, _payload: memoryview) -> None:
        asked = self._requests.pop(command.success.request_id, None)
        if isinstance(asked, Subscribing):
            self._seated(asked)
            self._subscribed(asked)
        elif isinstance(asked, Seeking):
            self._sought(asked)
        elif isinstance(asked, Consuming):
            found = asked.topic.subscriptions.get(asked.subscription.name)
            if found is asked.subscription:
                del asked.topic.subscriptions[asked.subscription.name]
            for consumer_id, consumer in list(self._consumers.items()):
                if consumer is asked:  # it ends with its subscription, and nobody closes it
                    self._drop(consumer_id)
            self._watch.count("subscriptions that ended")

    def _error(self, command: BaseCommand, _payload: memoryview) -> None:
        asked = self._requests.pop(command.error.request_id, None)
        if isinstance(asked, Subscribing):
            self._seated(asked)
        elif isinstance(asked, Seeking) and not asked.consumer.subscription.durable:
            # A reader that could not seek begins anew, where its client says.
            name = asked.consumer.subscription.name
            self._watch.lingering.pop((self._lingers_at, asked.consumer.topic.name, name), None)


def _partial(ids: object) -> bool:
    return any(each.ack_set for each in ids)  # type: ignore[attr-defined]


def _start(topic: Topic, data: MessageIdData) -> tuple[Position, int]:
    """Where an id says that reading begins, and after which of all sends."""
    position = position_of(data)
    if position == HIGHEST:
        return HIGHEST, topic.sends
    return position, 0


def _new_subscription(topic: Topic, request: CommandSubscribe, floor: Position) -> Subscription:
    made = Subscription(request.subscription, request.durable)
    if request.HasField("start_message_id") and not request.durable:
        lower, since = _start(topic, request.start_message_id)
        if lower == HIGHEST:
            made.not_before, made.since = following(floor), since
        else:
            # Its client leaves out what it has seen: the entry itself may come, or not.
            made.lower, made.not_before = following(lower) if lower > LOWEST else lower, lower
    elif request.initialPosition == CommandSubscribe.Latest:
        made.not_before, made.since = following(floor), topic.sends
    return made
