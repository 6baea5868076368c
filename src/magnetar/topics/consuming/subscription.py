"""A subscription: a cursor, its consumers, and who of them is served.

It seats consumers and elects the active one; entries go out through its ``dispatcher``, and
acknowledgements come in through ``acknowledging``. It knows consumers, and of their connections
what ``ConsumerClient`` says.

Rules:

* Exclusive: one consumer. Failover: many, one active. When a better one comes, the active one is
  told, nobody is active for ``SWITCH_DELAY_S`` (its acknowledgements on the way arrive), then the
  new one starts after the mark-delete position. Never two at once.
* Shared: each unacknowledged entry is out at one consumer; when that one leaves, or refuses the
  entry, it goes to any other, before new entries. One that is not due yet waits (``delays``).
* Key_Shared: as shared, but by key (``dispatch.keyed``).
* An acknowledgement of something outside of the log, or by a consumer that was closed, has no
  effect.
* While it is bound to another broker it has no consumers here, and nothing is dispatched: from
  before the binding is stored until its end is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from magnetar.config import BrokerConfig
from magnetar.env.tasks import TaskScope, nothing
from magnetar.log.seam import Binding, Cursor, ReadableLog
from magnetar.model.errors import BoundElsewhereError, ConsumerBusyError, NotAllowedError
from magnetar.model.ids import Position
from magnetar.topics.consuming.acknowledging import Acked, Acknowledging
from magnetar.topics.consuming.binding_rules import over
from magnetar.topics.consuming.bound import BoundSubscription, SeatsTaken
from magnetar.topics.consuming.consumer import Consumer, ConsumerNews
from magnetar.topics.consuming.delays import Delays
from magnetar.topics.consuming.dispatcher import Dispatcher
from magnetar.topics.dispatch.delayed import DelayPolicy
from magnetar.topics.dispatch.key_policy import KeyPolicy
from magnetar.topics.dispatch.key_waiting import LookAhead
from magnetar.topics.dispatch.keyed import KeyShared
from magnetar.topics.dispatch.shared import SharedRoundRobin
from magnetar.topics.dispatch.single_active import Change, SingleActive
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.rate_limits import ANY, NO_RATE, RateLimit
from magnetar.topics.throttle import Published, TopicThrottle, throttle_of
from magnetar.topics.traffic import Traffic

SWITCH_DELAY_S: Final = 1.0


class Kind(IntEnum):
    """Values are those of Pulsar's ``SubType``."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def shares(self) -> bool:
        """Several are served at a time, and each entry is acknowledged for itself."""
        return self in (Kind.SHARED, Kind.KEY_SHARED)


def check_seats(subscription: str, kind: Kind, seats: SeatsTaken) -> None:
    """Raise ``ConsumerBusyError`` if a consumer of ``kind`` cannot join those."""
    if not seats.consumers:
        return
    if kind != seats.kind:
        raise ConsumerBusyError(
            f"{subscription} is {Kind(seats.kind).name.lower()} and has {seats.consumers} "
            f"consumers; it cannot be {kind.name.lower()} at once"
        )
    if kind is Kind.EXCLUSIVE:
        # Pulsar's words, for programs that look for them: its clients tell no more of the code.
        raise ConsumerBusyError(
            f"{subscription}: Exclusive consumer is already connected, {seats.taken_by}"
        )


class Limits(NamedTuple):
    """``delayed_entries_max``: that wait until they are due, before nothing more is read.
    ``look_ahead``: of all Key_Shared subscriptions of the broker."""

    consumers_max: int
    delayed_entries_max: int
    look_ahead: LookAhead


def limits_of(config: BrokerConfig) -> Limits:
    """For all subscriptions of a broker."""
    return Limits(
        config.consumers_per_subscription_max,
        config.delayed_entries_per_subscription_max,
        LookAhead(
            config.key_shared_waiting_per_consumer_max,
            config.key_shared_waiting_per_subscription_max,
            config.key_shared_waiting_max,
        ),
    )


class Subscription:
    """One subscription of one topic; see the module's text."""

    def __init__(
        self,
        name: str,
        source: ReadableLog,
        cursor: Cursor,
        partition: int,
        limits: Limits,
        scope: TaskScope,
        traffic: Traffic,
        entry_format: EntryFormat,
        delays: DelayPolicy,
        now_ms: Callable[[], int],
        compacted: ReadableLog | None = None,
    ) -> None:
        """``compacted``: the log's compacted view, if it has one here."""
        self.name = name
        self.cursor = cursor
        self.partition = partition
        self.consumers: list[Consumer] = []
        self._untold: list[Consumer] = []
        self.kind = Kind.EXCLUSIVE
        self.keyed: KeyShared[Consumer] | None = None
        """Who has which hashes, while it is Key_Shared."""
        self._shares = False
        self.lock = asyncio.Lock()
        """Held by whatever changes the subscription as a whole: subscribe, seek, unsubscribe."""
        self._idle_since_s = asyncio.get_running_loop().time()
        """When the last consumer left, or since when it is open here."""
        self.last_asked_ms = 0
        """When a consumer last said how much it takes; 0: never since it is open here."""
        self.last_acked_ms = 0
        self.sought_by: object = None
        """Of a reader: whose seek it waits for to come back."""
        self.seeks = 0
        """Of a reader: how often it has sought."""
        self.doubtful = False
        """Deleting it failed: nobody may be told that it is there before its cursor is stored."""
        self._log_name = source.name
        self._format = entry_format
        self._source = source
        self._compacted = compacted
        self._positions = source.positions
        self._limits = limits
        self._now_ms = now_ms
        self._delay_policy = delays
        self._delays: Delays | None = None
        self._loop = asyncio.get_running_loop()
        self._single: SingleActive[Consumer] = SingleActive(partition)
        self._switch: asyncio.TimerHandle | None = None
        self._after_delay = scope.guarded(self._delay_over, f"switch {name}")
        self.dispatcher = Dispatcher(
            source, cursor, scope, traffic, entry_format, self._single, now_ms
        )
        self._unacked_max = ANY
        self._rate_limit = NO_RATE
        self._throttle: TopicThrottle | None = None
        lending = cursor.lending
        self.bound: BoundSubscription | None = None
        """Who serves it in our place."""
        if lending is not None and lending.binding:
            self.bound = BoundSubscription(lending.binding, self._loop.time)
        self._acknowledging = Acknowledging(name, source, cursor, scope, entry_format)

    @property
    def durable(self) -> bool:
        return self.cursor.durable

    @property
    def active(self) -> Consumer | None:
        """The active consumer of an exclusive or failover subscription."""
        return self._single.active.owner if self._single.active else None

    @property
    def chosen(self) -> Consumer | None:
        """As ``active``; while that passes to another, the one who gets it."""
        return self._single.chosen.owner if self._single.chosen else None

    @property
    def in_use(self) -> bool:
        """Somebody is connected, or another broker that serves it; or a reader may come back."""
        connected = self.bound is not None and self.bound.client is not None
        return bool(self.consumers) or not self.durable or connected

    # -- being served by another broker -------------------------------------------------------

    def check_served_here(self) -> None:
        """Raises ``BoundElsewhereError``."""
        if self.bound is not None:
            binding = self.bound.binding
            raise BoundElsewhereError(
                f"subscription {self.name} on {self._log_name} is served by the broker at "
                f"{binding.service_url}",
                binding.service_url,
            )

    async def bind(self, binding: Binding) -> BoundSubscription:
        """Another broker serves it from now on, and nobody here: its consumers are told where to
        go. When it raises, the binding is in doubt, and is taken to hold until it is ended.
        Requires the lock. Raises what storing it does."""
        lending = self.cursor.lending
        assert lending is not None, "a durable cursor of ours"
        if self.bound is None:
            self.dispatcher.hold()
        else:
            self.bound.end()
        # Before it is stored: from then on the other one may dispatch.
        bound = self.bound = BoundSubscription(binding, self._loop.time)
        for consumer in self.detach_all():
            consumer.client.tell_closed(binding.service_url)
        await lending.bind(binding)
        return bound

    async def end_binding(self) -> None:
        """It is served here again. Requires the lock. Raises what storing that does, and stays
        bound."""
        lending, bound = self.cursor.lending, self.bound
        if bound is None or lending is None:
            return
        # Stored first: who owns the log next must not take for bound what was dispatched here.
        await lending.bind(over(bound.binding))
        self.bound = None
        bound.end()
        self._idle_since_s = asyncio.get_running_loop().time()
        self.dispatcher.rewind()
        self.dispatcher.release()
        if bound.client is not None:
            bound.client.tell_ended(bound.binding)

    # -- consumers ----------------------------------------------------------------------------

    def check_room(self, kind: Kind, key_policy: KeyPolicy | None = None) -> None:
        """Raise ``ConsumerBusyError`` or ``ConsumerAssignError`` if a consumer of ``kind`` cannot
        join."""
        check_seats(f"subscription {self.name} on {self._log_name}", kind, self.seats)
        if self.consumers and self.keyed is not None and key_policy is not None:
            self.keyed.check(f"subscription {self.name} on {self._log_name}", key_policy)
        if len(self.consumers) >= self._limits.consumers_max:
            raise ConsumerBusyError(
                f"subscription {self.name} on {self._log_name} has {len(self.consumers)} "
                "consumers, the most that are allowed"
            )

    @property
    def seats(self) -> SeatsTaken:
        """Who is connected here."""
        first = self.consumers[0] if self.consumers else None
        taken_by = "" if first is None else f"{first.name} ({first.client.peer})"
        return SeatsTaken(self.kind, len(self.consumers), taken_by)

    def add(self, consumer: Consumer, kind: Kind) -> None:
        """Seat ``consumer``; ``check_room`` has passed, in the same loop turn. Call ``announce``
        once it has been told of its success."""
        if not self.consumers:
            self._begin(kind, consumer.seat.key_policy)
        self.consumers.append(consumer)
        self.dispatcher.machine.add(consumer.seat)
        self.dispatcher.follow_connection(consumer)

    def _begin(self, kind: Kind, key_policy: KeyPolicy | None) -> None:
        """The next consumer is the first: serve as ``kind`` asks, from the cursor on."""
        former = self.keyed
        self.kind, self._shares, self.keyed = kind, kind.shares, None
        self._cancel_switch()
        self._single = SingleActive(self.partition)
        policy = None if self._shares else key_policy
        self.dispatcher.only(None if policy is None else policy.takes)
        if self._shares:
            self._begin_shared(kind, key_policy)
        else:
            self.dispatcher.begin(self._single)
        if former is not None:
            former.end()  # now: what waits in it may have been carried over

    def _begin_shared(self, kind: Kind, key_policy: KeyPolicy | None) -> None:
        self.dispatcher.feed.read_from(self._source)
        limits, dispatcher = self._limits, self.dispatcher
        if self._delays is None:
            self._delays = Delays(
                f"{self.name} of {self._log_name}",
                limits.delayed_entries_max,
                self._delay_policy,
                self._now_ms,
                dispatcher.wake,
            )
        if kind is Kind.SHARED:
            dispatcher.begin(SharedRoundRobin(self._unacked_max), self._delays)
            return
        entry_format = self._format  # not by way of this, which has what is made here
        keyed = self.keyed = KeyShared(
            self._unacked_max,
            limits.look_ahead,
            key_policy or KeyPolicy(),
            lambda entry: entry_format.key_hash(entry.payload),
            dispatcher.wake,
        )
        dispatcher.begin(keyed, self._delays, keyed.waiting)

    def set_delays(self, policy: DelayPolicy) -> None:
        """How delayed entries are served, from now on."""
        self._delay_policy = policy
        if self._delays is not None:
            self._delays.set_policy(policy)

    def limit_unacked(self, each: int, together: int) -> None:
        """How many messages a consumer, and all of them together, may have that they have not
        acknowledged, if it is shared; 0: any number."""
        self._unacked_max = each or ANY
        machine = self.dispatcher.machine
        if isinstance(machine, SharedRoundRobin | KeyShared):
            machine.limit_unacked(self._unacked_max)
        self.dispatcher.limit_unacked(together)

    def limit_rate(
        self, topic: TopicThrottle | None, limit: RateLimit, published: Published | None
    ) -> None:
        """From now on what is sent passes the topic's throttle, if it has one, and one of the
        subscription's own by that limit."""
        if limit != self._rate_limit:
            self._rate_limit, before = limit, self._throttle
            self._throttle = throttle_of(limit, published)
            if before is not None:
                before.close()
        both = (topic, self._throttle)
        self.dispatcher.limit_rate(tuple(each for each in both if each is not None))

    def announce(self, consumer: Consumer) -> None:
        """``consumer`` has been told that it is subscribed: it may be active and get entries."""
        if self._shares:
            self.dispatcher.wake()
            return
        self._change(self._single.elect())
        self.dispatcher.look_for_end()
        if self.kind is Kind.FAILOVER and self.active is not consumer and not consumer.closed:
            consumer.client.tell(ConsumerNews.PASSIVE)

    def remove(self, consumer: Consumer) -> bool:
        """``consumer`` left; what it had not acknowledged goes to others. True if nobody is
        left by it."""
        if consumer.closed:
            return False
        consumer.closed = True
        self.consumers.remove(consumer)
        dispatcher = self.dispatcher
        dispatcher.remove(consumer)
        if not self._shares:
            self._change(self._single.elect())
        consumer.seat.leave()
        if self.consumers:
            return False
        self._idle_since_s = asyncio.get_running_loop().time()
        dispatcher.rest()
        return True

    @property
    def idle_ms(self) -> int:
        """For how long nobody uses it, if nobody does now; by a clock that nobody sets, or one that
        is set ahead would have all that rest deleted at once."""
        return int((asyncio.get_running_loop().time() - self._idle_since_s) * 1000)

    def detach_all(self) -> list[Consumer]:
        """Close every consumer here; whoever calls tells their clients."""
        consumers, self.consumers = self.consumers, []
        self._idle_since_s = asyncio.get_running_loop().time()
        self._cancel_switch()
        for consumer in consumers:
            consumer.closed = True
            consumer.client.forget()
        self._single = SingleActive(self.partition)
        self.dispatcher.end(self._single)
        for consumer in consumers:
            consumer.seat.leave()
        return consumers

    def detach_untold(self) -> None:
        """As ``detach_all``; the clients are told when what begins now is over, or by whoever ends
        the topic before that (``take_untold``)."""
        self._untold += self.detach_all()

    def take_untold(self) -> list[Consumer]:
        """Those of ``detach_untold``; whoever calls tells them."""
        untold, self._untold = self._untold, []
        return untold

    # -- failover -----------------------------------------------------------------------------

    def _change(self, change: Change[Consumer]) -> None:
        """Do what an election decided."""
        deposed, activated = change
        if deposed is not None:
            deposed.owner.client.tell(ConsumerNews.PASSIVE)
            self._switch = self._loop.call_later(SWITCH_DELAY_S, self._after_delay)
        if activated is not None:
            # Before it is told: what it gets begins after what is acknowledged now.
            self.dispatcher.feed.read_from(self._view_of(activated.owner))
            self.dispatcher.feed.rewind()
            if self.kind is Kind.FAILOVER:
                activated.owner.client.tell(ConsumerNews.ACTIVE)
            self.dispatcher.wake()

    def _view_of(self, consumer: Consumer) -> ReadableLog:
        compacted = self._compacted
        return compacted if compacted is not None and consumer.read_compacted else self._source

    def _delay_over(self) -> None:
        self._switch = None
        self._change(self._single.delay_over())

    def _cancel_switch(self) -> None:
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None

    # -- what consumers say -------------------------------------------------------------------

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.last_asked_ms = self.last_asked_ms = self._now_ms()
        self.dispatcher.machine.flow(consumer.seat, permits)
        self.dispatcher.wake()

    def acknowledge(self, consumer: Consumer, ids: Sequence[Acked]) -> None:
        """Acknowledge ``ids`` one by one. Raises ``NotAllowedError`` if some cannot be; all others
        are acknowledged then."""
        settled, refusal = self._acknowledging.each(ids)
        if self._shares:
            self.dispatcher.settle(settled)
        self._note_acked(consumer, len(ids))
        if refusal is not None:
            raise refusal

    def acknowledge_whole(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Acknowledge entries, at least one."""
        settled = self._acknowledging.whole(positions)
        if self._shares:
            self.dispatcher.settle(settled)
        self._note_acked(consumer, len(positions))

    def acknowledge_until(self, consumer: Consumer, last: Acked) -> None:
        """Acknowledge everything up to ``last``. Raises ``NotAllowedError`` if the subscription is
        shared."""
        if self._shares:
            raise NotAllowedError(
                f"subscription {self.name} is shared: acknowledge messages one by one"
            )
        self._acknowledging.until(last)
        self._note_acked(consumer, 1)

    def _note_acked(self, consumer: Consumer, count: int) -> None:
        consumer.acknowledged += count
        consumer.last_acked_ms = self.last_acked_ms = self._now_ms()
        self.dispatcher.look_for_end()

    def answer_stored(self, consumer: Consumer, request_id: int) -> None:
        """Answer an acknowledgement once it, and everything before it, is stored."""
        self._acknowledging.answer_stored(consumer.client, request_id)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Send again what ``consumer`` has not acknowledged: those, or all if none are named."""
        if self._shares:
            self.dispatcher.take_back(consumer, positions)
        elif consumer is self.active:
            self.dispatcher.feed.rewind()
            self.dispatcher.wake()

    def is_full(self, consumer: Consumer) -> bool:
        """Whether the consumer gets no more until it acknowledges something."""
        return self.dispatcher.machine.is_full(consumer.seat)

    def follow_connection(self, consumer: Consumer) -> None:
        """The consumer's connection can take no more, or more again."""
        self.dispatcher.follow_connection(consumer)
        self.dispatcher.wake()

    # -- the whole subscription ---------------------------------------------------------------

    def expire(self, stop: Position) -> int:
        """What lies before ``stop`` counts as acknowledged from now on, wherever it is; returns how
        many entries that were."""
        last = self._positions.previous_position(stop)
        if last <= self.cursor.mark_delete:
            return 0
        before = self.cursor.backlog_entries()
        self.pass_over(last)
        return before - self.cursor.backlog_entries()

    def begin_later(self) -> None:
        """Records were deleted at the log's front: what of them is out, or waits, is forgotten."""
        self.pass_over(self._positions.previous_position(self._positions.first))

    def pass_over(self, last: Position) -> None:
        """All up to ``last`` counts as acknowledged from now on, wherever it is."""
        self.cursor.acknowledge_cumulative(last)
        self.dispatcher.settle_until(last)
        if self.bound is not None and self.bound.client is not None:
            lending = self.cursor.lending
            assert lending is not None, "what is bound can be lent"
            epoch = lending.reset_epoch
            self.bound.client.tell_moved(self.bound.binding, self.cursor.mark_delete, epoch)

    def release(self) -> None:
        """Dispatch again after ``dispatcher.hold``; from after the mark-delete position if nobody
        is connected."""
        if not self.consumers:
            self.dispatcher.rewind()
        if self.bound is None:
            self.dispatcher.release()

    def close(self) -> None:
        """The subscription ends here: its topic closes or it was deleted."""
        self.dispatcher.close()
        if self._throttle is not None:
            self._throttle.close()
        self._cancel_switch()
        self._after_delay = nothing  # it leads back here, which would be a cycle
        if self.keyed is not None:
            self.keyed.end()
