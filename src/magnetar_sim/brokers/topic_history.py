"""What is known of topics, from what brokers and clients have told each other.

What must hold of topics, in prose; ``Topic``, ``Subscription`` and ``broker_watch`` say the same.
A broker has *told* what it has written to a connection, whether it arrives or not.

1. *Acknowledged is there.* A message that a producer was told is stored stands at that position,
   with those bytes, whoever serves the topic; so does every message that a consumer was sent.
2. *Once, in order.* A message is in the log once, also if its producer, coming back, sent it
   again (unless the log was trimmed of it in between; where messages are deduplicated, also then,
   and also if it had been answered). Who is told that a message is stored, and not where, has it
   in the log. A producer's messages stand in the order of
   its sends, and receipts leave in that order.
3. *Everything is served.* A subscription is sent every message from its start on, but those that
   were acknowledged. An exclusive or failover consumer gets them in order, none left out.
4. *Confirmed acknowledgements stay.* What a consumer acknowledged and was told is stored is not
   sent again, by the same broker or a later one; in a batch, message by message.
5. *Nothing else is acknowledged.* What nobody acknowledged is sent again when consumers come back.
6. *One at a time.* Of a failover subscription one consumer is active, and only it gets messages; a
   shared entry is out at one consumer until it is acknowledged, refused, or its consumer is gone.
7. *Permits.* A consumer is sent an entry only while it has a permit left.
8. *Refusals are counted.* A shared entry says how often it was refused.
9. *Seeks go where they say*, and a reader starts where it asks.
10. *Exclusive producers.* Each has a higher topic epoch than any before it; one with an older epoch
    than another's does not come back.
11. *Progress.* After healing every producer gets its receipts and every consumer its messages.
12. *Deleted is gone.* Nothing that was sent before a deletion that was answered is served after it.
13. *Chunks stay together.* Of a message in chunks, a shared consumer that has one gets the next.
14. *Who follows reads the log*, in order, none left out, and gets all that was stored.
15. *Never early.* A shared consumer is sent nothing before the time that its producer gave it.
    (That it is sent then is 11.)
16. *Only what is old expires*, and only while a time to live is set: everything else is served (3,
    5), and to readers all.
17. *One broker serves a subscription.* While its cursor's record binds it to a read-only broker
    that is registered, nobody else sends its messages; while it binds it to nobody, no such broker
    does.
18. *By key.* What is out of a key on a Key_Shared subscription is out at one consumer, and nothing
    of a key is sent for the first time after what lies behind it; what has come back goes before
    what is new (``key_watch``).

An old broker that does not know yet that it has lost its topics may send again what its successor
has acknowledgements of (4).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from magnetar.model.errors import ProtocolError
from magnetar.model.ids import Position
from magnetar.wire.pulsar.batches import split_entry
from magnetar.wire.pulsar.hot import signed64
from magnetar.wire.pulsar.metadata import Buffer, entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import MessageIdData

LOWEST = Position(-1, -1)
AUDIT = "audit"
"""The reader of the last look: it is sent all that is there."""
HIGHEST = Position(2**63 - 1, 2**63 - 1)


@dataclass(frozen=True)
class Content:
    """An entry, as its producer sent it. Texts are ``<producer>/<index>``, each sent by one
    producer as one message."""

    producer: str
    sequence_id: int
    publish_time_ms: int
    texts: tuple[str, ...]
    message: str = ""
    """Of a chunk: the message that it is of; of all else empty."""
    chunk: int = 0
    deliver_at_ms: int = 0
    key: str = ""
    """Empty: none."""

    @property
    def all_bits(self) -> int:
        return (1 << len(self.texts)) - 1


def content_of(payload: memoryview) -> Content:
    """What ``payload`` (of a SEND or a MESSAGE) says. Raises ``ProtocolError``."""
    meta = entry_metadata(payload)
    head = meta.producer_name, meta.sequence_id, meta.publish_time_ms
    due_ms, key = meta.deliver_at_time_ms, meta.partition_key or ""
    if meta.num_chunks > 1:
        text = _text(payload[meta.data_start :])
        return Content(*head, (text,), meta.chunk_uuid, meta.chunk_id, due_ms, key)
    texts = tuple(_text(value) for value in split_entry(payload, meta).values)
    return Content(*head, texts, deliver_at_ms=due_ms, key=key)


def _text(value: Buffer) -> str:
    return bytes(value).split(b" ", 1)[0].decode()


def position_of(data: MessageIdData) -> Position:
    return Position(signed64(data.ledgerId), signed64(data.entryId))


def bits_of(words: Sequence[int], size: int) -> int:
    """An ack set as one number: bit 1 = not acknowledged. No words: all of ``size``."""
    whole = (1 << size) - 1
    if not words:
        return whole
    return whole & sum((word & 0xFFFF_FFFF_FFFF_FFFF) << (64 * i) for i, word in enumerate(words))


@dataclass
class Confirmed:
    """Acknowledged and told so: which messages of an entry, when, and in which owner's term."""

    bits: int
    at_s: float
    term: int


@dataclass
class Expiry:
    """When messages may expire; times are milliseconds since 1970. Nobody knows from which look on
    they have. ``until_ms``: the last at which a broker may believe that a time to live is set."""

    ttl_ms: int = 0
    until_ms: float = math.inf

    def may_have(self, published_ms: int, now_ms: float) -> bool:
        return self.ttl_ms > 0 and published_ms + self.ttl_ms <= min(now_ms, self.until_ms)


@dataclass(eq=False)
class Subscription:
    """Of one topic. Expected is what lies at ``lower`` or after it and was first sent by its
    producer after number ``since`` of all sends; nothing before ``not_before`` is served."""

    name: str
    durable: bool = True
    lower: Position = LOWEST
    since: int = 0
    not_before: Position = LOWEST
    sought_ms: int | None = None
    vague: bool = False
    """A seek or an unsubscribe was not answered: nobody knows where it stands."""
    epoch: int = 0
    acked: dict[Position, int] = field(default_factory=dict)
    """Of these entries these messages were acknowledged by somebody, one way or the other."""
    acked_to: Position = LOWEST
    confirmed: dict[Position, list[Confirmed]] = field(default_factory=dict)
    confirmed_to: list[tuple[Position, float, int]] = field(default_factory=list)
    audited: dict[Position, int] | None = None
    """In the last look: what was sent since it began."""

    def is_acked(self, position: Position, all_bits: int) -> bool:
        return position <= self.acked_to or not all_bits & ~self.acked.get(position, 0)

    def move(self, lower: Position, not_before: Position, since: int, at_ms: int | None) -> None:
        """A seek has been answered."""
        self.lower, self.not_before, self.since, self.sought_ms = lower, not_before, since, at_ms
        self.vague = False
        self.epoch += 1
        self.acked.clear()
        self.acked_to = LOWEST
        self.confirmed.clear()
        self.confirmed_to.clear()


class Topic:
    """One topic or partition, from its making to its deletion."""

    def __init__(
        self,
        name: str,
        broken: Callable[[str], None],
        may_have_expired: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.name = name
        self._may_have_expired = may_have_expired
        self.trims = False
        """What every subscription has acknowledged may be gone."""
        self.deduplicates = False
        """What was sent before is not stored again, whatever was trimmed."""
        self.vague = False
        """It may have been deleted, or not."""
        self.content: dict[Position, Content] = {}
        self.receipted: dict[Position, None] = {}
        self.positions: list[Position] = []
        self.exempt: dict[Position, None] = {}
        """May have been trimmed before somebody came who would have wanted them."""
        self.where: dict[str, Position] = {}
        self.erased: dict[Position, None] = {}
        """May be gone, since somebody erases them from the topic's table."""
        self.gone: dict[Position, None] = {}
        """Are gone for whoever begins to read now."""
        self.repeats: dict[str, None] = {}
        """Producers that have sent again what was gone by then."""
        self.told_stored: dict[str, None] = {}
        """Texts of which a producer was told that they are stored, and not where."""
        self.first_sent: dict[str, int] = {}
        self.sends = 0
        self.subscriptions: dict[str, Subscription] = {}
        self.audited: dict[Position, int] | None = None
        """What the last look's reader was sent."""
        self.asked_at: dict[str, Position] = {}
        """Subscriptions that somebody wanted: the last known entry when it was first asked for."""
        self.epoch = -1
        self.epoch_of = ""
        self._broken = broken

    def broken(self, what: str) -> None:
        if not self.vague:
            self._broken(f"{self.name}: {what}")

    # -- the log ------------------------------------------------------------------------------

    def sent(self, content: Content) -> None:
        """A producer has sent it, perhaps not for the first time."""
        self.sends += 1
        for text in content.texts:
            self.first_sent.setdefault(text, self.sends)

    def stands_at(self, position: Position, content: Content, who: str) -> None:
        """Invariants 1 and 2: a broker has told that ``content`` is stored there."""
        known = self.content.get(position)
        if known is not None:
            if known != content:
                self.broken(f"{who} is told that {position} is {content}, and it was {known}")
            return
        self.content[position] = content
        insort(self.positions, position)
        for text in content.texts:
            other = self.where.setdefault(text, position)
            if other != position and not self._repeats_what_is_gone(other, content):
                self.broken(f"{text} is stored twice, at {other} and {position}")
        if content.texts and content.texts[0] not in self.first_sent:
            self.broken(f"{who} is told of {content} at {position}, which nobody has sent")

    def _repeats_what_is_gone(self, other: Position, content: Content) -> bool:
        """A broker knows repeats by what the log holds, and by what it remembers of whole messages
        where they are deduplicated. Else, where the first of what a producer sends again was
        trimmed meanwhile, it and all after it are taken for new."""
        if self.deduplicates and not content.message:
            return False
        if self.may_be_gone(other):
            self.repeats[content.producer] = None
        return content.producer in self.repeats

    def check_order(self) -> None:
        """Invariant 2, of everything that is known of the log."""
        last: dict[str, int] = {}
        for position in self.positions:
            if self.content[position].producer in self.repeats:
                continue
            for text in self.content[position].texts:
                producer, index = text.rsplit("/", 1)
                if int(index) <= last.get(producer, -1):
                    self.broken(f"{text} at {position} stands behind {producer}/{last[producer]}")
                last[producer] = int(index)

    def between(self, first: Position, stop: Position) -> Iterable[Position]:
        """Known positions in [first, stop)."""
        begin = bisect_left(self.positions, first)
        return self.positions[begin : bisect_left(self.positions, stop)]

    @property
    def last(self) -> Position:
        return self.positions[-1] if self.positions else LOWEST

    def may_be_gone(self, position: Position) -> bool:
        if position in self.erased:
            return True
        if not self.trims:
            return False
        if position in self.exempt:
            return True
        bits = self.content[position].all_bits
        return all(
            each.vague
            or each.is_acked(position, bits)
            or not self.expects(each, position)
            or self.expired(each, position)
            for each in self.subscriptions.values()
        )

    def exempt_now(self) -> None:
        """Somebody is about to want what is there: some of it may be gone already."""
        if self.trims:
            self.exempt.update({each: None for each in self.positions if self.may_be_gone(each)})

    # -- subscriptions ------------------------------------------------------------------------

    def expects(self, subscription: Subscription, position: Position) -> bool:
        """Whether the entry is to be served, acknowledged or not. Requires that it is known."""
        if position < subscription.lower:
            return False
        texts = self.content[position].texts
        return not texts or self.first_sent.get(texts[0], 0) > subscription.since

    def expired(self, subscription: Subscription, position: Position) -> bool:
        """Whether it may have. What lies before it has waited for nothing, else it would not be
        taken for acknowledged."""
        if not subscription.durable:
            return False
        return self._may_have_expired(self.content[position].publish_time_ms)

    def owed(self, subscription: Subscription, position: Position) -> bool:
        """Whether the subscription is to be sent the entry: nobody has acknowledged all of it."""
        return (
            self.expects(subscription, position)
            and not subscription.is_acked(position, self.content[position].all_bits)
            and not self.expired(subscription, position)
            and not self.may_be_gone(position)
        )

    def begin_audit(self) -> None:
        self.audited = {}
        for subscription in self.subscriptions.values():
            subscription.audited = {}

    def unread(self) -> Position | None:
        """Invariant 1: an entry that the last look's reader is still to be sent."""
        audited = self.audited
        if audited is None or self.vague:
            return None
        unread = (p for p in self.receipted if p not in audited and not self.may_be_gone(p))
        return next(unread, None)

    def unseen(self) -> str | None:
        """Invariant 2: what is stored, as a producer was told, and the last look's reader is still
        to be sent. Of a log that is trimmed nobody may ever have been told where it was."""
        if self.audited is None or self.vague or self.trims:
            return None
        return next((text for text in self.told_stored if text not in self.where), None)

    def missing(self, subscription: Subscription) -> Position | None:
        """Invariants 3 and 5: an entry that the last look is still to be sent."""
        audited = subscription.audited
        if audited is None or subscription.vague:
            return None
        for position in self.positions:
            if position <= subscription.acked_to or not self.expects(subscription, position):
                continue
            if self.expired(subscription, position):
                continue
            bits = self.content[position].all_bits & ~subscription.acked.get(position, 0)
            if bits & ~audited.get(position, 0) and not self.may_be_gone(position):
                return position
        return None


def decoded(payload: memoryview) -> Content | None:
    """None for what is no message of ours."""
    try:
        return content_of(payload)
    except (ProtocolError, ValueError):
        return None
