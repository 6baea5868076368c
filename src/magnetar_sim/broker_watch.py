"""Watches all connections of all brokers, on the brokers' side, and holds what passes against what
must hold (``topic_history``). It knows the protocol and nothing of the broker behind it.

The order of what passes is the broker's own: what it has read before it wrote, it could know. In
one instant of virtual time that is not so: what is written at the end of a turn of the loop was
decided a little earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from magnetar.model.ids import Position
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandMessage,
    CommandSeek,
    CommandSendReceipt,
    CommandSubscribe,
    MessageIdData,
)
from magnetar_sim.loop import SimProcess
from magnetar_sim.topic_history import (
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

SHARED, FAILOVER = CommandSubscribe.Shared, CommandSubscribe.Failover


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


@dataclass(eq=False)
class Consuming:
    """A consumer on one connection. ``last``: the entry that it was sent last."""

    who: str
    topic: Topic
    subscription: Subscription
    kind: int
    process: int
    permits: int = 0
    active: bool = False
    last: Position | None = None


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


class BrokerWatch:
    """Of one run. ``broken`` is told what does not hold, ``count`` what has happened."""

    def __init__(
        self,
        now_s: Callable[[], float],
        broken: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        self.now_s = now_s
        self.count = count
        self.topics: dict[str, Topic] = {}
        self.trims = False
        self._broken = broken
        self._processes: dict[SimProcess, int] = {}
        self.consumers: dict[Consuming, None] = {}
        self.out: dict[tuple[int, Subscription], dict[Position, Consuming]] = {}
        self.lingering: dict[tuple[int, str, str], Subscription] = {}
        """Of readers that have sought and are not back yet, by process, topic and name."""
        self.refused: dict[tuple[int, Subscription], dict[Position, int]] = {}

    def topic(self, name: str) -> Topic:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = Topic(name, self._broken)
            found.trims = self.trims
        return found

    def forget(self, name: str) -> None:
        """The topic was deleted."""
        self.topics.pop(name, None)

    def connection(self, process: SimProcess) -> WatchedConnection:
        """A new one, accepted by ``process``. Later processes have higher numbers."""
        number = self._processes.setdefault(process, len(self._processes))
        return WatchedConnection(self, number, process.name)

    # -- consumers that come and go -----------------------------------------------------------

    def peers(self, consumer: Consuming) -> list[Consuming]:
        """Those of the same subscription at the same broker, with this one."""
        return [
            each
            for each in self.consumers
            if each.subscription is consumer.subscription and each.process == consumer.process
        ]

    def gone(self, consumer: Consuming) -> None:
        if self.consumers.pop(consumer, self) is not None:
            return
        key = consumer.process, consumer.subscription
        out = self.out.get(key, {})
        for position in [p for p, holder in out.items() if holder is consumer]:
            del out[position]
        if not self.peers(consumer):
            self.out.pop(key, None)
            self.refused.pop(key, None)

    # -- what was sent ------------------------------------------------------------------------

    def message(self, consumer: Consuming, command: CommandMessage, content: Content) -> None:
        """Invariants 1 and 3 to 9, of one MESSAGE."""
        topic, subscription = consumer.topic, consumer.subscription
        position = position_of(command.message_id)
        topic.stands_at(position, content, consumer.who)
        bits = bits_of(command.ack_set, len(content.texts))
        self.count("entries that consumers were sent")
        if consumer.permits <= 0:
            topic.broken(f"{consumer.who} is sent {position} without a permit")
        consumer.permits -= max(1, len(content.texts))
        if consumer.kind == SHARED:
            self._shared(consumer, position, command.redelivery_count)
        else:
            self._single(consumer, position)
        if not subscription.vague:
            self._check_place(consumer, position, content)
            self._check_acks(consumer, position, bits, content)
        if subscription.audited is not None:
            known = subscription.audited.get(position, 0)
            subscription.audited[position] = known | bits

    def _shared(self, consumer: Consuming, position: Position, count: int) -> None:
        key = consumer.process, consumer.subscription
        out = self.out.setdefault(key, {})
        holder = out.get(position)
        if holder is not None:
            consumer.topic.broken(
                f"{consumer.who} is sent {position} of {consumer.subscription.name}, which is out "
                f"at {holder.who}"
            )
        out[position] = consumer
        refused = self.refused.get(key, {}).get(position, 0)
        if count != refused:
            consumer.topic.broken(
                f"{consumer.who} is sent {position} as redelivered {count} times; it was refused "
                f"{refused} times"
            )

    def _single(self, consumer: Consuming, position: Position) -> None:
        """Of a failover, an exclusive consumer or a reader."""
        topic, subscription, last = consumer.topic, consumer.subscription, consumer.last
        if consumer.kind == FAILOVER and not consumer.active:
            topic.broken(f"{consumer.who} is sent {position} and is not active")
        if consumer.kind != FAILOVER and len(self.peers(consumer)) > 1:
            topic.broken(f"{consumer.who} is exclusive and not alone")
        if last is not None and position <= last:
            topic.broken(f"{consumer.who} is sent {position} after {last}")
        consumer.last = position
        if subscription.vague:
            return
        after = subscription.lower if last is None else Position(last.ledger_id, last.entry_id + 1)
        for left_out in topic.between(after, position):
            if topic.owed(subscription, left_out):
                topic.broken(
                    f"{consumer.who} of {subscription.name} is sent {position}, and not "
                    f"{left_out}, which nobody acknowledged"
                )

    def _check_place(self, consumer: Consuming, position: Position, content: Content) -> None:
        subscription = consumer.subscription
        early = position < subscription.not_before
        at_ms = subscription.sought_ms
        if early and (at_ms is None or content.publish_time_ms < at_ms):
            consumer.topic.broken(
                f"{consumer.who} of {subscription.name} is sent {position}, and was to begin at "
                f"{subscription.not_before}"
            )

    def _check_acks(
        self, consumer: Consuming, position: Position, bits: int, content: Content
    ) -> None:
        subscription, now_s = consumer.subscription, self.now_s()
        known = list(subscription.confirmed.get(position, ()))
        for to, at_s, process in subscription.confirmed_to:
            if position <= to:
                known.append(Confirmed(content.all_bits, at_s, process))
        for each in known:
            if bits & each.bits and each.at_s < now_s and each.process <= consumer.process:
                consumer.topic.broken(
                    f"{consumer.who} of {subscription.name} is sent {position} "
                    f"(messages {bits:b}), and was told at {each.at_s:.3f} that its "
                    f"acknowledgement of {each.bits:b} is stored"
                )
                return
        acked = subscription.acked.get(position, 0)
        if position > subscription.acked_to and (content.all_bits & ~bits) & ~acked:
            consumer.topic.broken(
                f"{consumer.who} of {subscription.name} is sent {position} with messages "
                f"{bits:b}, and {acked:b} were acknowledged"
            )


class WatchedConnection:
    """``network.Tap`` of one connection, on the broker's side."""

    def __init__(self, watch: BrokerWatch, process: int, broker: str) -> None:
        self._watch = watch
        self._process = process
        self._name = broker
        self._in, self._out = Frames(), Frames()
        self._producers: dict[int, Producing] = {}
        self._consumers: dict[int, Consuming] = {}
        self._requests: dict[int, object] = {}
        self._acks: dict[tuple[int, int], Acked] = {}
        self._handlers_in: dict[int, Callable[[BaseCommand, memoryview], None]] = {
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
            if answer.topic_epoch <= topic.epoch:
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
        if position <= producer.last:
            topic.broken(f"{producer.name} has a receipt for {position} after {producer.last}")
        producer.last = position
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
        self._producers.pop(command.close_producer.producer_id, None)

    # -- consumers ----------------------------------------------------------------------------

    def _subscribe(self, command: BaseCommand, _payload: memoryview) -> None:
        request = command.subscribe
        topic = self._watch.topic(request.topic)
        floor = topic.last
        if request.durable and request.subscription not in topic.subscriptions:
            # an earlier request may have made it, and never been answered
            floor = topic.asked_at.setdefault(request.subscription, floor)
        self._requests[request.request_id] = Subscribing(request, floor)

    def _subscribed(self, asked: Subscribing) -> None:
        request, watch = asked.request, self._watch
        if request.consumer_id in self._consumers:
            return  # it was asked for twice
        topic = watch.topic(request.topic)
        key = self._process, request.topic, request.subscription
        subscription = watch.lingering.pop(key, None)
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
            f"consumer {request.consumer_name}", topic, subscription, request.subType, self._process
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
            consumer.last = None
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
        consumer.last = None
        key = consumer.process, consumer.subscription
        out = self._watch.out.get(key, {})
        named = [position_of(each) for each in request.message_ids] or list(out)
        refused = self._watch.refused.setdefault(key, {})
        for position in named:
            if out.get(position) is consumer:
                del out[position]
                refused[position] = refused.get(position, 0) + 1

    # -- acknowledgements ---------------------------------------------------------------------

    def _ack(self, command: BaseCommand, _payload: memoryview) -> None:
        ack = command.ack
        consumer = self._consumers.get(ack.consumer_id)
        if consumer is None:
            return
        subscription, topic = consumer.subscription, consumer.topic
        cumulative = ack.ack_type == CommandAck.Cumulative
        entries = {}
        for each in ack.message_id:
            position = position_of(each)
            content = topic.content.get(position)
            size = len(content.texts) if content is not None else 1
            left = bits_of(each.ack_set, size) if each.ack_set else 0
            entries[position] = ((1 << size) - 1) & ~left
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
        """What is acknowledged as a whole is out at nobody."""
        key = consumer.process, consumer.subscription
        out, refused = self._watch.out.get(key, {}), self._watch.refused.get(key, {})
        for position in entries:
            content = consumer.topic.content.get(position)
            if content is None or consumer.subscription.is_acked(position, content.all_bits):
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
            known.append(Confirmed(bits, at_s, self._process))
        if told.to > LOWEST:
            subscription.confirmed_to.append((told.to, at_s, self._process))

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
        if not subscription.durable:  # its client comes back to it, whatever start it names
            self._watch.lingering[self._process, topic.name, subscription.name] = subscription
        if request.HasField("message_id"):
            lower, since = _start(topic, request.message_id)
            floor = _after(asked.floor) if lower == HIGHEST else lower
            subscription.move(LOWEST if lower == HIGHEST else lower, floor, since, None)
            return
        at_ms = request.message_publish_time
        late = [p for p in topic.positions if topic.content[p].publish_time_ms >= at_ms]
        known = [each for each in late if each <= asked.floor]
        if known:
            subscription.move(known[0], known[0], 0, at_ms)
        else:
            subscription.move(LOWEST, _after(asked.floor), topic.sends, at_ms)

    def _unsubscribe(self, command: BaseCommand, _payload: memoryview) -> None:
        consumer = self._consumers.get(command.unsubscribe.consumer_id)
        if consumer is None:
            return
        consumer.subscription.vague = True
        self._requests[command.unsubscribe.request_id] = consumer

    def _success(self, command: BaseCommand, _payload: memoryview) -> None:
        asked = self._requests.pop(command.success.request_id, None)
        if isinstance(asked, Subscribing):
            self._subscribed(asked)
        elif isinstance(asked, Seeking):
            self._sought(asked)
        elif isinstance(asked, Consuming):
            found = asked.topic.subscriptions.get(asked.subscription.name)
            if found is asked.subscription:
                del asked.topic.subscriptions[asked.subscription.name]
            self._watch.count("subscriptions that ended")

    def _error(self, command: BaseCommand, _payload: memoryview) -> None:
        self._requests.pop(command.error.request_id, None)


def _partial(ids: object) -> bool:
    return any(each.ack_set for each in ids)  # type: ignore[attr-defined]


def _after(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)


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
            made.not_before, made.since = _after(floor), since
        else:
            # Its client leaves out what it has seen: the entry itself may come, or not.
            made.lower, made.not_before = _after(lower) if lower > LOWEST else lower, lower
    elif request.initialPosition == CommandSubscribe.Latest:
        made.not_before, made.since = _after(floor), topic.sends
    return made
