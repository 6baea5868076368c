"""A topic as its consumers know it: a log that is read, and the subscriptions of it.

The owner's topic (``topic.Topic``) has producers besides; one that another broker owns
(``followed_topic.FollowedTopic``) has nothing else.

Rules:

* Entries reach subscriptions only once the log says that they may be read (``watch_readable``).
* A topic says when it is let go (``_released``): a consumer left, or something that was done with
  it has ended (``held``). So whoever keeps count of unused topics looks at those only that were let
  go, and need not look again at one that is ``in_use``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.log.seam import Cursor, Cursors, ReadableLog
from magnetar.model.errors import (
    ConsumerBusyError,
    EntryDamagedError,
    MagnetarError,
    NoEntryError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TooManyConnectionsError,
)
from magnetar.model.ids import Position
from magnetar.topics.consuming.bound import BoundSubscription
from magnetar.topics.consuming.consumer import Consumer
from magnetar.topics.consuming.giving_back import once_given_back
from magnetar.topics.consuming.subscription import Limits, Subscription
from magnetar.topics.consuming.transaction_view import Given, given_between, last_delivered
from magnetar.topics.entry_format import EntryFormat, last_index
from magnetar.topics.policy import NO_RATES, TopicPolicy, TopicRates
from magnetar.topics.positions import PublishTime
from magnetar.topics.rate_limits import TimesOfEach
from magnetar.topics.throttle import Published, throttle_of
from magnetar.topics.traffic import Traffic

log = structlog.get_logger(__name__)

SUBSCRIPTIONS_MAX: Final = 10_000
LINGER_S: Final = 60.0
"""How long a reader's subscription waits for its client to come back after a seek."""


class SubscribableTopic:
    """See the module's text."""

    # Topics are many, and have more attributes than instances share the keys of: a dict of its own
    # would be 1.5 KiB for each.
    __slots__ = (
        "__weakref__", "_end_watch", "_format", "_held", "_limits", "_loop", "_now_ms", "_scope",
        "_traffic", "closed", "compacted", "dispatch_throttle", "lock", "name", "policy",
        "readable", "subscribes", "subscriptions",
    )  # fmt: skip

    def __init__(
        self,
        name: TopicName,
        source: ReadableLog,
        limits: Limits,
        scope: TaskScope,
        traffic: Traffic,
        entry_format: EntryFormat,
        policy: TopicPolicy,
        now_ms: Callable[[], int],
    ) -> None:
        self.name = name
        self.readable: ReadableLog = source
        self.compacted: ReadableLog | None = None
        """The log's compacted view; None where it is not served."""
        self.subscriptions: dict[str, Subscription] = {}
        self.lock = asyncio.Lock()
        """Held while the set of producers or of subscriptions changes with a wait in between."""
        self.closed = False
        self.policy = policy
        self._limits = limits
        self._now_ms = now_ms
        self._scope = scope.inner(f"topic {name}", fails(self._task_failed))
        self._traffic = traffic
        self._format = entry_format
        self._held = 0
        self._loop = asyncio.get_running_loop()
        self._end_watch: Callable[[], None] | None = None
        self.dispatch_throttle = throttle_of(policy.rates.dispatched, self.published)
        """What all that is sent of it to consumers passes; None: its rate has no limit."""
        self.subscribes = _times(policy.rates)

    # -- what the two kinds do each in its way ------------------------------------------------

    @property
    def cursors(self) -> Cursors:
        """Of the subscriptions."""
        raise NotImplementedError

    @property
    def format(self) -> EntryFormat:
        """What its entries mean."""
        return self._format

    def now_ms(self) -> int:
        """By a wall clock, since 1970."""
        return self._now_ms()

    @property
    def published(self) -> Published | None:
        """Counts what is published to it; None where that is not known."""
        return None

    @property
    def makes_subscriptions(self) -> bool:
        """A durable subscription that is not there is made by its first consumer."""
        return self.policy.makes_subscriptions

    @property
    def subscriptions_max(self) -> int:
        """That it may have; 0: any number."""
        return self.policy.limits.subscriptions

    @property
    def in_use(self) -> bool:
        """Somebody is connected, or may come back to a reader's subscription, or the topic is held.
        ``_released`` is called when that ends."""
        return bool(self._held) or any(each.in_use for each in self.subscriptions.values())

    def _released(self) -> None:
        """Perhaps nobody uses the topic any more."""
        raise NotImplementedError

    def _has_failed(self) -> None:
        """The topic cannot go on here; everybody was sent away."""
        raise NotImplementedError

    def let_go(self) -> None:
        """What was connected to it has been found to be gone."""
        self._released()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The topic is in use as long as the ``with`` lasts: something is done with it that waits,
        while perhaps nobody is connected."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """As ``held``, until ``release``, which must come once for each."""
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        self._released()

    def opening(self, name: str) -> AbstractAsyncContextManager[None]:
        """Held while the durable subscription of that name is looked for, and made if need be."""
        return self.lock

    async def see_end(self) -> None:
        """What was stored before the call is readable when it returns. Raises what finding out
        does."""

    def set_policy(self, policy: TopicPolicy) -> None:
        """From now on."""
        before, self.policy = self.policy, policy
        if policy.delays != before.delays:
            for subscription in self.subscriptions.values():
                subscription.set_delays(policy.delays)
        if policy.rates != before.rates:
            self._limit_rates(before.rates)
        if policy.limits != before.limits:
            for subscription in self.subscriptions.values():
                subscription.limit_unacked(policy.limits.unacked_each, policy.limits.unacked_all)

    def _limit_rates(self, before: TopicRates) -> None:
        """As the policy says it now."""
        old, rates = self.dispatch_throttle, self.policy.rates
        if rates.subscribed != before.subscribed:
            self.subscribes = _times(rates)
        if rates.dispatched != before.dispatched:
            self.dispatch_throttle = throttle_of(rates.dispatched, self.published)
        for subscription in self.subscriptions.values():
            limit = rates.to(subscription.name)
            subscription.limit_rate(self.dispatch_throttle, limit, self.published)
        if old is not None and old is not self.dispatch_throttle:
            old.close()

    def look(self) -> None:
        """Some time has passed."""

    # -- reading ------------------------------------------------------------------------------

    async def last_delivered(self, view: ReadableLog | None = None) -> Position:
        """The last entry that consumers get, or those of another view of the log; the place before
        the first if there is none. Raises as reading a log."""
        return await last_delivered(self.readable if view is None else view, self._format)

    async def last_index_at(self, place: Position, view: ReadableLog | None = None) -> int:
        """The batch index of the last message of the entry there, -1 if it is no batch: clients
        compare ids, and every message of a batch is after the batch's own id. An entry that is lost
        is told by that alone: where the log ends does not depend on it. Raises as reading a log."""
        if place.entry_id < 0:
            return -1
        source = self.readable if view is None else view
        try:
            found = await source.read(place, 1, 1)
        except (EntryDamagedError, NoEntryError):
            return -1
        return last_index(found[0], self._format) if found else -1

    async def given_between(self, first: Position, stop: Position) -> Given:
        """As ``transaction_view.given_between``."""
        return await given_between(self.readable, self._format, first, stop)

    async def position_at(self, time: PublishTime) -> Position:
        """The position of the entry that ``time`` names; the place after the last one if there is
        none."""
        return await self.readable.first_at(time.time_ms)

    def _watch_while_subscribed(self) -> None:
        """Hear of new entries while there is a subscription: else nobody is to be woken, and a
        topic that is only published to would pay a call of the loop for each append."""
        if self.subscriptions and self._end_watch is None:
            self._end_watch = self.readable.watch_readable(self._wake)
        elif self._end_watch is not None and not self.subscriptions:
            self._end_watch()
            self._end_watch = None

    def _wake(self) -> None:
        """The log has grown."""
        for subscription in self.subscriptions.values():
            subscription.dispatcher.wake()

    # -- subscriptions ------------------------------------------------------------------------

    def subscription(self, name: str) -> Subscription:
        """Raises ``SubscriptionNotFoundError``."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFoundError(f"topic {self.name} has no subscription {name}")
        return found

    def check_subscriptions(self) -> None:
        """Raise ``TooManyConnectionsError`` if there can be no further subscription, and
        ``NotAllowedError`` if there may be none."""
        most = self.subscriptions_max
        if most and len(self.subscriptions) >= most:
            raise NotAllowedError(
                f"topic {self.name} has {len(self.subscriptions)} subscriptions, and by its policy "
                f"{most} at most (max subscriptions per topic)"
            )
        if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise TooManyConnectionsError(
                f"topic {self.name} has {SUBSCRIPTIONS_MAX} subscriptions, the most allowed"
            )

    def check_consumers(self, subscription: Subscription) -> None:
        """Raise ``ConsumerBusyError`` if the subscription may have no further consumer."""
        limits, there = self.policy.limits, len(subscription.consumers)
        if limits.consumers_each and there >= limits.consumers_each:
            raise ConsumerBusyError(
                f"subscription {subscription.name} of {self.name} reached max consumers limit: it "
                f"has {there}, and by the topic's policy {limits.consumers_each} at most"
            )
        if not limits.consumers:
            return
        there = sum(len(each.consumers) for each in self.subscriptions.values())
        if there >= limits.consumers:
            raise ConsumerBusyError(
                f"topic {self.name} reached max consumers limit: it has {there}, and by its policy "
                f"{limits.consumers} at most"
            )

    def check_subscribe_rate(self, consumer: Hashable) -> None:
        """The consumer subscribes. Raise ``NotAllowedError`` if it did so too often."""
        if self.subscribes is not None and not self.subscribes.admits(consumer, self._loop.time()):
            limit = self.policy.rates.subscribed
            raise NotAllowedError(
                f"this consumer has subscribed to {self.name} {limit.messages} times in "
                f"{limit.period_s} s, as often as it may; try again later"
            )

    def add_subscription(self, cursor: Cursor) -> Subscription:
        """A subscription over a cursor that was just opened."""
        self.check_subscriptions()
        made = self._subscription(cursor)
        self.subscriptions[cursor.name] = made
        self._watch_while_subscribed()
        return made

    def _subscription(self, cursor: Cursor) -> Subscription:
        made = Subscription(
            cursor.name,
            self.readable,
            cursor,
            self.name.partition,
            self._limits,
            self._scope,
            self._traffic,
            self._format,
            self.policy.delays,
            self._now_ms,
            self.compacted,
        )
        limits = self.policy.limits
        made.limit_unacked(limits.unacked_each, limits.unacked_all)
        if self.policy.rates != NO_RATES:
            limit = self.policy.rates.to(cursor.name)
            made.limit_rate(self.dispatch_throttle, limit, self.published)
        return made

    def remove_consumer(self, subscription: Subscription, consumer: Consumer) -> None:
        """The consumer's client left. A reader's subscription goes with its last consumer."""
        if subscription.remove(consumer):
            self.drop_reader(subscription)
            self._released()

    async def drop_dead(self, subscription: Subscription, but: Sequence[Consumer] = ()) -> bool:
        """Remove consumers whose connections are dead; those of ``but`` are not asked. True if
        there were any."""
        others = [consumer for consumer in subscription.consumers if consumer not in but]
        alive = await asyncio.gather(*(consumer.client.is_alive() for consumer in others))
        dead = [consumer for consumer, lives in zip(others, alive, strict=True) if not lives]
        for consumer in dead:
            consumer.client.abort()
            consumer.client.forget()
            self.remove_consumer(subscription, consumer)
        return bool(dead)

    def drop_reader(self, subscription: Subscription) -> None:
        """A reader's subscription goes when it has no consumer."""
        if subscription.durable or subscription.consumers:
            return
        if self.subscriptions.get(subscription.name) is subscription:
            subscription.close()
            del self.subscriptions[subscription.name]
            self._watch_while_subscribed()
            self._released()

    def send_away(self, subscription: Subscription, service_url: str) -> None:
        """Another broker is to serve the subscription: the one at that URL; empty: where a lookup
        says. Its consumers hear of it at once; what they say for it means nothing from now on."""
        subscription.dispatcher.hold()
        for consumer in subscription.detach_all():
            consumer.client.tell_closed(service_url)
        subscription.release()
        self.drop_reader(subscription)
        self._released()

    def linger(self, subscription: Subscription) -> None:
        """A seek sent its consumers away; drop a reader's subscription if none comes back."""
        if not subscription.durable:
            subscription.seeks += 1
            self._loop.call_later(LINGER_S, self._end_lingering, subscription, subscription.seeks)

    def _end_lingering(self, subscription: Subscription, seeks: int) -> None:
        """It is a while ago that the reader sought. One that has just sought again may not be back
        yet."""
        if subscription.seeks == seeks:
            self.drop_reader(subscription)

    async def delete_subscription(
        self, name: str, force: bool, asker: BoundSubscription | None = None
    ) -> None:
        """A broker that serves it gives it back first, but for the ``asker``: its consumers would
        get messages of what is deleted. Raises ``SubscriptionNotFoundError``, ``NotAllowedError``
        (consumers are connected and ``force`` is not set), and what deleting the cursor failed
        with: the subscription stays."""
        subscription = self.subscription(name)
        with self.held():
            await once_given_back(
                subscription,
                self.name,
                partial(self._delete_subscription, subscription),
                check=partial(self._check_deletable, subscription, force),
                asker=asker,
            )

    def _check_deletable(self, subscription: Subscription, force: bool) -> None:
        name, bound = subscription.name, subscription.bound
        if self.subscription(name) is not subscription:
            raise ServiceNotReadyError(f"subscription {name} of {self.name} just ended")
        if subscription.consumers and not force:
            raise NotAllowedError(
                f"subscription {name} of {self.name} has {len(subscription.consumers)} "
                "consumers connected; close them first, or force it"
            )
        if bound is not None and not force:  # with consumers that are not known here
            raise NotAllowedError(
                f"subscription {name} of {self.name} is served by the broker at "
                f"{bound.binding.service_url}; close its consumers first, or force it"
            )

    async def _delete_subscription(self, subscription: Subscription) -> None:
        name = subscription.name
        await subscription.end_binding()
        subscription.dispatcher.hold()
        for consumer in subscription.detach_all():
            consumer.client.tell_closed()
        try:
            if subscription.durable:
                await self.cursors.delete(name)
        except MagnetarError:
            subscription.doubtful = True
            subscription.release()
            raise
        subscription.close()
        if self.subscriptions.get(name) is subscription:
            del self.subscriptions[name]
            self._watch_while_subscribed()

    # -- the end ------------------------------------------------------------------------------

    def _task_failed(self, task: str, error: BaseException) -> None:
        """Reading or dispatching for a subscription, or answering acknowledgements, has ended by a
        defect: clients come back to a topic that is loaded anew. Other topics go on."""
        self.fail(defect(task, error))

    def fail(self, error: MagnetarError) -> None:
        """The topic cannot go on here: everybody is sent away, and it can be loaded again."""
        if self.closed:
            return
        log.warning("topic closed: it cannot go on here", topic=str(self.name), error=str(error))
        self.disconnect()
        self._has_failed()

    def disconnect(self) -> None:
        """Send everybody away and take nobody new."""
        self.stop()
        for tell in self.detach():
            tell("")

    def stop(self) -> None:
        """Take nobody new, and dispatch nothing more. Those who are connected are not told."""
        self.closed = True
        for subscription in self.subscriptions.values():
            subscription.close()
        if self.dispatch_throttle is not None:
            self.dispatch_throttle.close()

    def detach(self) -> list[Callable[[str], None]]:
        """End everybody here, without a word. What is returned tells each client, which comes back
        at once: to the broker at that URL, or, if it is empty, where a lookup says."""
        tell: list[Callable[[str], None]] = []
        for subscription in self.subscriptions.values():
            gone = (*subscription.take_untold(), *subscription.detach_all())
            tell += [each.client.tell_closed for each in gone]
            if subscription.bound is not None and subscription.bound.client is not None:
                tell.append(subscription.bound.client.tell_closed)
        return tell


def _times(rates: TopicRates) -> TimesOfEach | None:
    return TimesOfEach(rates.subscribed) if rates.subscribed.limits else None


class Subscribed(NamedTuple):
    """A consumer, and what it is subscribed to."""

    topic: SubscribableTopic
    subscription: Subscription
    consumer: Consumer

    @property
    def name(self) -> str:
        return self.consumer.name

    @property
    def properties(self) -> Mapping[str, str]:
        return self.consumer.properties

    def leave(self) -> None:
        """The consumer's client left."""
        self.topic.remove_consumer(self.subscription, self.consumer)
