"""A topic that another broker owns, as a read-only broker serves it.

Owns: the followed log (whose end its owner tells, ``told_end``), the subscriptions that it was
bound to here (each with a cursor that the owner keeps, ``remote_acks``), and readers.

Rules:

* A subscription is here only while its binding holds: the binding is asked for when the first
  consumer comes, and given back when nobody has used it for a while, or the topic closes.
* Whoever is sent away because a binding ended looks the topic up again, and finds who serves it.
* What is given back is stored first, and consumers are told last: when they come back, whoever
  serves them next knows all that they have acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.env.flush_timer import FlushTimer
from magnetar.env.keyed_locks import KeyedLocks
from magnetar.env.tasks import TaskScope
from magnetar.log.acknowledgements import AckState
from magnetar.log.seam import Cursor, Cursors, FollowedReadableLog
from magnetar.model.errors import (
    CursorNotFoundError,
    LogError,
    MagnetarError,
    ServiceNotReadyError,
)
from magnetar.model.ids import Position
from magnetar.topics.consuming.bound import SeatsTaken
from magnetar.topics.consuming.subscription import Kind, Limits, Subscription
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.following.remote_acks import (
    RELEASE_S,
    Borrowed,
    CursorOwners,
    LentCursor,
    NewsKind,
    OwnerNews,
    RemoteAckStore,
)
from magnetar.topics.following.told_end import ToldEnd
from magnetar.topics.policy import TopicPolicy
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.traffic import Traffic

log = structlog.get_logger(__name__)

LOOKS_PER_IDLE_TIME: Final = 4
SEEN_S: Final = 20.0
"""How long a new binding waits until the log is seen as far as it is acknowledged."""


class _Opening:
    """A subscription that is just being bound. ``early``: what was told of it meanwhile."""

    def __init__(self) -> None:
        self.early: list[OwnerNews] = []
        self.over = asyncio.Event()


class BorrowedCursors:
    """``log.seam.Cursors`` of a followed topic: each is kept by the topic's owner.

    ``ended`` is called with the name of a subscription whose binding was ended by others, ``moved``
    when the owner has acknowledged something of it, ``wanted`` when it is to be given back.
    ``seats``: who is connected to it."""

    def __init__(
        self,
        topic: TopicName,
        source: FollowedReadableLog,
        owners: CursorOwners,
        scope: TaskScope,
        timer: FlushTimer,
        patience_s: float,
        ended: Callable[[str, MagnetarError], None],
        moved: Callable[[str, Position], None],
        wanted: Callable[[str], None],
        seats: Callable[[str], Awaitable[SeatsTaken | None]],
    ) -> None:
        self._topic = topic
        self._log = source
        self._owners = owners
        self._scope = scope
        self._timer = timer
        self._patience_s = patience_s
        self._ended = ended
        self._moved = moved
        self._wanted = wanted
        self._seats = seats
        self._open: dict[str, Cursor] = {}
        self._stores: dict[str, RemoteAckStore] = {}
        self._opening: dict[str, _Opening] = {}
        """Subscriptions that are just being bound."""
        self._closing: dict[str, asyncio.Event] = {}
        """Subscriptions that are being given back."""
        self._closed = False

    async def open(
        self, name: str, start: Position, properties: Mapping[str, str] | None = None
    ) -> Cursor:
        """Be bound to the subscription, if that is not so. One that is being given back is asked
        for anew. Raises ``ServiceNotReadyError`` when all is given back meanwhile, and what binding
        does."""
        while (closing := self._closing.get(name)) is not None:
            await closing.wait()
        found = self._open.get(name)
        if found is not None:
            return found
        self._check_open(name)
        opening = self._opening[name] = _Opening()
        try:
            told = partial(self._told, name)
            bound = await self._owners.bind(self._topic, name, start, properties or {}, told)
            cursor = await self._begin(name, bound)
        finally:
            del self._opening[name]
            opening.over.set()
        for news in opening.early:
            self._told(name, news)
        if name not in self._open:
            raise ServiceNotReadyError(f"the binding of subscription {name} just ended; try again")
        if OwnerNews(NewsKind.WANTED, bound.cursor.epoch) in opening.early:  # it is told once
            await self.close(name)
            raise ServiceNotReadyError(
                f"subscription {name} of {self._topic} is wanted back; look it up again"
            )
        return cursor

    def _check_open(self, name: str) -> None:
        if self._closed:
            raise ServiceNotReadyError(
                f"subscription {name} of {self._topic} is not bound: the topic closes here; look "
                "it up again"
            )

    async def _begin(self, name: str, bound: Borrowed) -> Cursor:
        try:
            self._check_open(name)  # it may have closed while the owner was asked
            async with asyncio.timeout(SEEN_S):
                keep = partial(self._keep, bound)
                cursor = await self._log.cursors.lent(name, bound.image, bound.properties, keep)
        except (MagnetarError, TimeoutError) as error:
            await self._give_back(bound.cursor)
            if isinstance(error, MagnetarError):
                raise
            raise ServiceNotReadyError(
                f"log {self._log.name} is not seen as far as {bound.image.last}, to where {name} "
                "is acknowledged; try again"
            ) from error
        self._open[name] = cursor
        return cursor

    def _keep(self, bound: Borrowed, state: AckState) -> RemoteAckStore:
        name = bound.cursor.subscription
        self._check_open(name)  # or while the log was looked at: nobody would end the store
        store = RemoteAckStore(
            bound,
            state,
            self._owners,
            self._scope,
            self._timer,
            self._patience_s,
            partial(self._over, name),
        )
        self._stores[name] = store
        return store

    async def _give_back(self, cursor: LentCursor) -> None:
        self._owners.forget(self._topic, cursor.subscription)
        try:
            await self._owners.release(cursor)
        except MagnetarError as error:  # it ends as an abandoned one
            log.info("a binding is not given back", topic=str(self._topic), error=str(error))

    # -- news of the owner --------------------------------------------------------------------

    def _told(self, name: str, news: OwnerNews) -> None:
        store = self._stores.get(name)
        if store is None:
            if name in self._opening:
                self._opening[name].early.append(news)
        elif news.what is NewsKind.SAY_AGAIN:
            store.say_again()
        elif news.epoch != store.cursor.epoch:
            return  # of a binding before this one
        elif news.what is NewsKind.ENDED:
            store.fail(ServiceNotReadyError(f"the owner has ended the binding of {name}"))
        elif news.what is NewsKind.WANTED:
            self._wanted(name)
        elif news.what is NewsKind.ASKED:
            store.keep(self._seats(name))
        elif news.mark_delete is not None and store.knows_reset(news.reset_epoch):
            self._moved(name, news.mark_delete)

    def _over(self, name: str, error: MagnetarError) -> None:
        self._drop(name)
        self._ended(name, error)

    def _drop(self, name: str) -> None:
        self._open.pop(name, None)
        self._stores.pop(name, None)

    # -- the rest of the seam -----------------------------------------------------------------

    def reader(self, name: str, start: Position) -> Cursor:
        return self._log.cursors.reader(name, start)

    async def delete(self, name: str) -> None:
        store = self._stores.get(name)
        if store is None:
            raise CursorNotFoundError(f"subscription {name} of {self._topic} is not bound here")
        await store.mark_deleted()
        self._drop(name)

    def durable(self) -> Mapping[str, Cursor]:
        return dict(self._open)

    def abandon(self, error: MagnetarError) -> None:
        """Send nothing any more. What is bound ends as an abandoned binding, or with the topic."""
        for store in self._stores.values():
            store.end(error)

    async def close(self, name: str) -> None:
        """Store what changed, and give the subscription back."""
        store = self._stores.get(name)
        if store is None:
            return
        self._drop(name)  # first: whoever comes now must not be served by it
        over = self._closing[name] = asyncio.Event()
        try:
            await store.close()
        except MagnetarError as error:
            log.warning("binding not given back in order", error=str(error))
        finally:
            del self._closing[name]
            over.set()

    async def close_all(self) -> None:
        """Give everything back, also what is just being bound: nothing is bound from now on, and
        who has asked for it gives it back as soon as the owner has answered."""
        self._closed = True
        await asyncio.gather(*map(self.close, list(self._open)))
        for over in list(self._closing.values()):  # what was being given back by then
            await over.wait()
        try:
            # The next who follows the topic comes after this, and must not find its own binding
            # given back. No longer than an owner is waited for: the answer may never come.
            async with asyncio.timeout(RELEASE_S):
                for opening in list(self._opening.values()):
                    await opening.over.wait()
        except TimeoutError:
            log.info("bindings are given back later", topic=str(self._topic))


class FollowedTopic(SubscribableTopic):
    """See the module's text. ``idle_s``: how long a binding is kept when nobody is connected;
    ``patience_s``: while no owner answers.
    ``on_closed`` takes the topic out of the registry, which closes it; ``on_released`` is told that
    perhaps nobody uses it any more."""

    def __init__(
        self,
        name: TopicName,
        source: FollowedReadableLog,
        limits: Limits,
        scope: TaskScope,
        traffic: Traffic,
        entry_format: EntryFormat,
        policy: TopicPolicy,
        now_ms: Callable[[], int],
        owners: CursorOwners,
        ack_timer: FlushTimer,
        patience_s: float,
        idle_s: float,
        on_closed: Callable[[FollowedTopic], None],
        on_released: Callable[[FollowedTopic], None],
    ) -> None:
        super().__init__(name, source, limits, scope, traffic, entry_format, policy, now_ms)
        self._source = source
        self._owners = owners
        self._idle_s = idle_s
        self._unused_since_s: dict[str, float] = {}
        self._look: asyncio.TimerHandle | None = None
        self._opening: KeyedLocks[str] = KeyedLocks()
        self._on_closed = on_closed
        self._on_released = on_released
        self._cursors = BorrowedCursors(
            name,
            source,
            owners,
            self._scope,
            ack_timer,
            patience_s,
            self._binding_ended,
            self._moved,
            self._wanted_back,
            self._live_seats,
        )
        source.watch_ended(self._log_ended)
        self._told_end = ToldEnd(name, owners, self._scope, source.told_end)

    @property
    def cursors(self) -> Cursors:
        return self._cursors

    def _released(self) -> None:
        self._on_released(self)

    def _has_failed(self) -> None:
        self._on_closed(self)

    def _log_ended(self, error: LogError) -> None:
        """It was deleted, most likely: what is acknowledged of it is of no use to anybody."""
        self._cursors.abandon(error)
        self.fail(error)

    @property
    def idle(self) -> bool:
        """Nobody uses it, and it is bound to nothing."""
        return not self.in_use and not self.subscriptions

    @property
    def makes_subscriptions(self) -> bool:
        """Whether there is one, and may be, its owner knows."""
        return True

    @property
    def subscriptions_max(self) -> int:
        """Its owner makes them, and counts them."""
        return 0

    def opening(self, name: str) -> AbstractAsyncContextManager[None]:
        """Each for itself: bindings are asked for side by side. One that has to wait until another
        broker has given it back keeps none of the others."""
        return self._opening.held(name)

    async def see_end(self) -> None:
        """What is readable here trails what the owner has told others: where the end matters, it
        says where that is."""
        last = await self._owners.open_topic(self.name, create=False)
        try:
            async with asyncio.timeout(SEEN_S):
                await self._source.wait_seen(last)
        except TimeoutError:
            raise ServiceNotReadyError(
                f"log {self._source.name} is not seen up to {last} yet; try again"
            ) from None

    def _watch_while_subscribed(self) -> None:
        super()._watch_while_subscribed()
        self._told_end.want(bool(self.subscriptions) and not self.closed)

    # -- bindings that end --------------------------------------------------------------------

    def _binding_ended(self, name: str, error: MagnetarError) -> None:
        subscription = self.subscriptions.pop(name, None)
        self._unused_since_s.pop(name, None)
        log.info("binding ended", topic=str(self.name), subscription=name, reason=str(error))
        if subscription is None:
            return
        consumers = subscription.detach_all()
        subscription.close()
        self._watch_while_subscribed()
        for consumer in consumers:
            consumer.client.tell_closed()
        self._released()

    def _moved(self, name: str, mark_delete: Position) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            subscription.expire(self.readable.positions.next_position(mark_delete))
        elif (cursor := self._cursors.durable().get(name)) is not None:  # it is just being made
            cursor.acknowledge_cumulative(mark_delete)

    async def _live_seats(self, name: str) -> SeatsTaken | None:
        """The owner refuses whom there is no room for; not for the sake of one who is dead."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            return None
        if subscription.kind is Kind.EXCLUSIVE:
            await self.drop_dead(subscription)
        return subscription.seats

    # -- bindings that nobody uses ------------------------------------------------------------

    def add_subscription(self, cursor: Cursor) -> Subscription:
        made = super().add_subscription(cursor)
        self._plan_look()
        return made

    def _plan_look(self) -> None:
        """One timer for all: consumers leave in many ways, and some never come."""
        if self._look is None and not self.closed:
            due = self._scope.guarded(self._look_for_unused, "unused bindings")
            self._look = self._loop.call_later(self._idle_s / LOOKS_PER_IDLE_TIME, due)

    def _look_for_unused(self) -> None:
        self._look = None
        now_s = self._loop.time()
        for name, subscription in list(self.subscriptions.items()):
            if subscription.consumers or not subscription.durable:
                self._unused_since_s.pop(name, None)
            elif now_s - self._unused_since_s.setdefault(name, now_s) >= self._idle_s:
                giving = self._give_back(subscription, only_unused=True)
                self._scope.spawn(giving, f"give back {name}")
        if self.subscriptions:
            self._plan_look()

    async def _give_back(self, subscription: Subscription, only_unused: bool) -> None:
        name = subscription.name
        async with subscription.lock:
            if self.subscriptions.get(name) is not subscription:
                return
            if only_unused and subscription.consumers:
                return  # somebody came meanwhile
            # Out of reach first: who comes from now on asks for a binding of his own.
            del self.subscriptions[name]
            self._unused_since_s.pop(name, None)
            consumers = subscription.detach_all()
            subscription.close()
            self._watch_while_subscribed()
            with self.held():  # an idle topic could be closed, and this with it
                try:
                    await self._cursors.close(name)
                finally:  # whatever ends this: nobody else knows of them any more
                    for consumer in consumers:
                        consumer.client.tell_closed()
        self._released()

    def _wanted_back(self, name: str) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is not None and not self.closed:
            self._scope.spawn(self._give_back(subscription, only_unused=False), f"give back {name}")

    # -- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Give everything back, send everybody away, close the log, end the topic's tasks."""
        self.stop()
        if self._look is not None:
            self._look.cancel()
        tell = self.detach()
        await self._cursors.close_all()
        for each in tell:
            each("")
        await self._source.close()
        await self._scope.close()
