"""Watches all connections of all brokers, on the brokers' side, and holds what passes against what
must hold (``topic_history``). It knows the protocol and nothing of the broker behind it.

The order of what passes is the broker's own: what it has read before it wrote, it could know. In
one instant of virtual time that is not so: what is written at the end of a turn of the loop was
decided a little earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.model.ids import Position
from magnetar.wire.pulsar.pulsar_pb2 import (
    CommandMessage,
    CommandSubscribe,
)
from magnetar_sim.brokers.binding_watch import BindingWatch
from magnetar_sim.brokers.bundle_owners import BundleOwners
from magnetar_sim.brokers.key_watch import KeyWatch
from magnetar_sim.brokers.topic_history import (
    HIGHEST,
    Confirmed,
    Content,
    Expiry,
    Subscription,
    Topic,
    bits_of,
    position_of,
)
from magnetar_sim.world.loop import SimProcess
from magnetar_sim.world.outside import SINCE_1970_S

FAILOVER, KEY_SHARED = CommandSubscribe.Failover, CommandSubscribe.Key_Shared
SHARES = (CommandSubscribe.Shared, KEY_SHARED)


class Rewind(NamedTuple):
    """What a consumer had been sent last when it asked for everything again; when; and what it was
    sent last in that instant: that may have been decided before."""

    before: Position
    at_s: float
    last: Position


@dataclass(eq=False)
class Consuming:
    """A consumer on one connection. ``last``: the entry that it was sent last."""

    who: str
    topic: Topic
    subscription: Subscription
    kind: int
    process: int
    term: int = 0
    """That of the topic's owner: later owners know what earlier ones knew."""
    permits: int = 0
    begun: set[str] = field(default_factory=set)
    """Messages in chunks of which it was sent any."""
    active: bool = False
    last: Position | None = None
    in_order: bool = True
    """A Key_Shared one that does not allow out of order delivery."""
    returns_skipped: bool = False
    """Its client gives back the permits of messages that came acknowledged."""
    rewind: Rewind | None = None
    """It has asked for everything again, and it is not seen yet that it gets it."""


class BrokerWatch:
    """Of one run. ``broken`` is told what does not hold, ``count`` what has happened;
    ``is_broker``: whether that is a broker's name."""

    def __init__(
        self,
        now_s: Callable[[], float],
        broken: Callable[[str], None],
        count: Callable[[str], None],
        is_broker: Callable[[str], bool],
        owners: type[BundleOwners] = BundleOwners,
    ) -> None:
        self.now_s = now_s
        self._ahead_s = 0.0
        self.count = count
        self.topics: dict[str, Topic] = {}
        self.trims = False
        self.deduplicates = False
        self.expiry = Expiry()
        self.unacked_max = 0
        """Messages out at a shared consumer at which it gets no more."""
        self.owners = owners(self.number_of, is_broker, broken, count, self.closed)
        self.bindings = BindingWatch(self.number_of, self.owners, count)
        self._broken = broken
        self._processes: dict[SimProcess, int] = {}
        self.consumers: dict[Consuming, None] = {}
        self.out: dict[tuple[int, Subscription], dict[Position, Consuming]] = {}
        self.left: dict[tuple[int, Subscription], dict[Position, int]] = {}
        """What is not acknowledged, as that broker knows: it was told so by the cursor, which may
        have lost what another was told, and then by its own consumers."""
        self.lingering: dict[tuple[tuple[int, object], str, str], Subscription] = {}
        """Of readers that have sought and are not back yet, by place, topic and name."""
        self.unloading: Counter[str] = Counter()
        """Topics that somebody has begun to unload."""
        self.refused: dict[tuple[int, Subscription], dict[Position, int]] = {}
        self._refused_before: dict[tuple[int, Subscription], dict[Position, int]] = {}
        """By consumers that are all gone, while one was being seated: the broker has forgotten it
        if they went first."""
        self.seating: Counter[tuple[int, str, str]] = Counter()
        """SUBSCRIBEs that are not answered: by process, topic, subscription."""
        self._torn: set[tuple[tuple[int, Subscription], str]] = set()
        """Messages in chunks whose parts went to several consumers, and rightly so."""
        self.keys = KeyWatch(now_s)
        self.looks_far_ahead = True
        """More may wait for the consumers of their keys than there is."""

    def topic(self, name: str) -> Topic:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = Topic(name, self._broken, self._may_have_expired)
            found.trims = self.trims
            found.deduplicates = self.deduplicates
        return found

    def now_ms(self) -> float:
        """Of the brokers' wall clocks, at the latest: of that which was ever furthest ahead. What
        it has given out, or let expire, stays so."""
        return (SINCE_1970_S + self.now_s() + self._ahead_s) * 1000

    def set_ahead(self, seconds: float) -> None:
        """A broker's clock is so far ahead from now on."""
        self._ahead_s = max(self._ahead_s, seconds)

    def _may_have_expired(self, published_ms: int) -> bool:
        return self.expiry.may_have(published_ms, self.now_ms())

    def forget(self, name: str) -> None:
        """The topic was deleted: nothing of it may be seen any more (invariant 12)."""
        self.topics.pop(name, None)
        self.count("topics that were deleted")

    def closed(self, is_closed: Callable[[str], bool]) -> None:
        """Those topics were closed by their owner: readers that have sought there begin anew; at a
        read-only broker, which closes nothing for that, they go on."""
        for (_, topic, _), each in self.lingering.items():
            each.vague = each.vague or is_closed(topic)

    def may_have_closed(self, process: int, name: str) -> None:
        """A broker sent a producer of the topic away, as one does that cannot go on with it: what
        it kept of readers that have sought may be gone."""
        for (place, topic, _), each in self.lingering.items():
            each.vague = each.vague or (place[0], topic) == (process, name)

    def number_of(self, process: SimProcess) -> int:
        """Later processes have higher numbers."""
        return self._processes.setdefault(process, len(self._processes))

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
            self.keys.came_back(key, position)
        if not self.peers(consumer):
            self.keys.forget(key)
            self.out.pop(key, None)
            self.left.pop(key, None)
            refused = self.refused.pop(key, {})
            seat = consumer.process, consumer.topic.name, consumer.subscription.name
            if self.seating[seat]:
                self._refused_before[key] = refused
            else:
                self._refused_before.pop(key, None)

    def behind(self) -> str | None:
        """Invariant 11: a consumer that could take something, and is still to be sent it."""
        for consumer in self.consumers:
            subscription, topic = consumer.subscription, consumer.topic
            if subscription.vague or topic.vague:
                continue
            if consumer.kind in SHARES:
                if (position := self._waits_for(consumer)) is not None:
                    return f"{consumer.who} on {topic.name} could be sent {position}"
                continue
            if consumer.kind == FAILOVER and not consumer.active:
                if not any(each.active for each in self.peers(consumer)):
                    return f"none of {subscription.name} on {topic.name} is active"
                continue
            last = consumer.last if consumer.rewind is None else None
            first = subscription.lower if last is None else following(last)
            for position in topic.between(first, HIGHEST):
                if topic.owed(subscription, position):
                    return f"{consumer.who} on {topic.name} is not sent {position}"
        return None

    def _waits_for(self, consumer: Consuming) -> Position | None:
        """What a shared consumer that has room could be sent, since it is out at nobody."""
        topic, subscription = consumer.topic, consumer.subscription
        out = self.out.get((consumer.process, subscription), {})
        mine = (position for position, holder in out.items() if holder is consumer)
        unacked = sum(len(topic.content[position].texts) for position in mine)
        if consumer.permits <= 0 or unacked >= self.unacked_max:
            return None
        if consumer.kind == KEY_SHARED:
            return self._waits_by_key(consumer)
        owed = (p for p in topic.positions if p not in out and topic.owed(subscription, p))
        return next(owed, None)

    def _waits_by_key(self, consumer: Consuming) -> Position | None:
        """What somebody could be sent, if all have room: whose its key is nobody knows here. Where
        little may wait for the consumer of its key, everything may wait for that."""
        topic, subscription = consumer.topic, consumer.subscription
        out = self.out.get((consumer.process, subscription), {})
        unacked: Counter[Consuming] = Counter()
        for position, holder in out.items():
            unacked[holder] += len(topic.content[position].texts)
        peers = self.peers(consumer)
        if any(each.permits <= 0 or unacked[each] >= self.unacked_max for each in peers):
            return None
        held = {topic.content[position].key for position in out}
        owed = [p for p in topic.positions if p not in out and topic.owed(subscription, p)]
        free = [position for position in owed if topic.content[position].key not in held]
        if not self.looks_far_ahead and len(free) < len(owed):
            return None
        return next(iter(free), None)

    # -- what was sent ------------------------------------------------------------------------

    def message(self, consumer: Consuming, command: CommandMessage, content: Content) -> None:
        """Invariants 1, 3 to 9 and 17, of one MESSAGE."""
        topic, subscription = consumer.topic, consumer.subscription
        if subscription.durable:
            other = self.bindings.wrongly_served(consumer.process, topic.name, subscription.name)
            if other is not None:
                topic.broken(f"{consumer.who} is sent a message of {subscription.name}, {other}")
        position = position_of(command.message_id)
        topic.stands_at(position, content, consumer.who)
        if position in topic.gone:
            topic.broken(f"{consumer.who} is sent {position}, which was erased")
        bits = bits_of(command.ack_set, len(content.texts))
        self.count("entries that consumers were sent")
        # Chunks go where the message has begun, whatever the permits; so does its first one again.
        if consumer.permits <= 0 and not content.chunk and content.message not in consumer.begun:
            topic.broken(f"{consumer.who} is sent {position} without a permit")
        if content.message:
            consumer.begun.add(content.message)
        paid = len(content.texts) if consumer.returns_skipped else bits.bit_count()
        consumer.permits -= max(1, paid)
        if consumer.kind in SHARES:
            self._in_time(consumer, position, content)
            self._shared(consumer, position, command.redelivery_count)
            if consumer.kind == KEY_SHARED and consumer.in_order:
                self._by_key(consumer, position)
            if content.chunk:
                self._chunk(consumer, position, content)
            left = self.left.setdefault((consumer.process, subscription), {})
            left[position] = left.get(position, bits) & bits
        else:
            self._single(consumer, position)
        if not subscription.vague:
            self._check_place(consumer, position, content)
            self._check_acks(consumer, position, bits, content)
        if subscription.audited is not None:
            known = subscription.audited.get(position, 0)
            subscription.audited[position] = known | bits

    def _in_time(self, consumer: Consuming, position: Position, content: Content) -> None:
        """Invariant 15."""
        if content.deliver_at_ms:
            self.count("delayed entries that shared consumers were sent")
        early_ms = content.deliver_at_ms - int(self.now_ms())
        if early_ms > 0:
            consumer.topic.broken(f"{consumer.who} is sent {position} {early_ms} ms too early")

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
        before = self._refused_before.get(key, {}).pop(position, 0)
        if before and count == refused + before:
            self.refused.setdefault(key, {})[position] = refused = count
        if count != refused:
            consumer.topic.broken(
                f"{consumer.who} is sent {position} as redelivered {count} times; it was refused "
                f"{refused} times"
            )

    def _by_key(self, consumer: Consuming, position: Position) -> None:
        """Invariant 18."""
        key, topic = (consumer.process, consumer.subscription), consumer.topic
        out = {at: holder.who for at, holder in self.out[key].items() if at != position}
        wrong = self.keys.sent(key, topic, position, consumer.who, out)
        self.count("entries that were sent by key")
        if wrong is not None:
            by_key = topic.content[position].key
            topic.broken(f"{consumer.who} is sent {position} of {by_key}, {wrong}")

    def _chunk(self, consumer: Consuming, position: Position, content: Content) -> None:
        """Invariant 13. What was refused goes elsewhere, and so does what comes behind too much
        that is not acknowledged; once it has, nobody can put the message together."""
        self.count("chunks that shared consumers were sent")
        key = consumer.process, consumer.subscription
        out, refused = self.out[key], self.refused.get(key, {})
        topic = consumer.topic
        held: Counter[Consuming] = Counter()  # messages, as what is not acknowledged is counted
        for other, holder in out.items():
            held[holder] += len(topic.content[other].texts)
        for other, holder in out.items():
            before = topic.content[other]
            if (before.message, before.chunk + 1) != (content.message, content.chunk):
                continue
            if holder is consumer or (key, content.message) in self._torn:
                continue
            if held[holder] >= self.unacked_max:
                self._torn.add((key, content.message))
                continue
            if refused.get(other) or refused.get(position):
                continue
            topic.broken(
                f"{consumer.who} is sent {position}, chunk {content.chunk} of {content.message}, "
                f"and {holder.who} has the one before"
            )

    def rewinds(self, consumer: Consuming) -> None:
        """It asks for everything again that it has not acknowledged."""
        if consumer.last is not None:
            consumer.rewind = Rewind(consumer.last, self.now_s(), consumer.last)
        elif consumer.rewind is not None:
            consumer.rewind = consumer.rewind._replace(at_s=self.now_s())
        consumer.last = None

    def _sent_last(self, consumer: Consuming, position: Position) -> Position | None:
        """Behind what it is sent ``position``; None: it begins anew."""
        rewind = consumer.rewind
        if rewind is None:
            return consumer.last
        if position > rewind.last and self.now_s() == rewind.at_s:
            consumer.rewind = rewind._replace(last=position)
            return rewind.last
        consumer.rewind = None
        if position <= rewind.last or rewind.last == rewind.before:
            return None
        # It goes on behind what came in that instant: then nothing was left to send again.
        topic, subscription = consumer.topic, consumer.subscription
        for left_out in topic.between(subscription.lower, following(rewind.before)):
            if not subscription.vague and topic.owed(subscription, left_out):
                topic.broken(f"{consumer.who} asked for everything, and is not sent {left_out}")
        return rewind.last

    def _single(self, consumer: Consuming, position: Position) -> None:
        """Of a failover, an exclusive consumer or a reader."""
        topic, subscription = consumer.topic, consumer.subscription
        last = self._sent_last(consumer, position)
        if consumer.kind == FAILOVER and not consumer.active:
            topic.broken(f"{consumer.who} is sent {position} and is not active")
        # One that was sent nothing may be about to be told that another broker serves it.
        served = [each for each in self.peers(consumer) if each is consumer or each.last]
        if consumer.kind != FAILOVER and len(served) > 1:
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
        for to, at_s, term in subscription.confirmed_to:
            if position <= to:
                known.append(Confirmed(content.all_bits, at_s, term))
        for each in known:
            if bits & each.bits and each.at_s < now_s and each.term <= consumer.term:
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


def following(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)
