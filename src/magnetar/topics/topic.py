"""A topic (or one partition of one) at its owner: its log, its producers and its subscriptions
(``subscribable``).

Rules:

* A log that fails an append is not trusted with the next one right away: all producers are sent
  away (clients come back by themselves and send again what was not answered) and new ones are
  refused for a while that doubles up to ``COOL_DOWN_S_MAX``, else clients would come back ten
  times a second. If it is for want of space they are told so, and what they have pending fails:
  an application should hear of a full disk, not wait for its time-outs.
* A log that was fenced or closed ends the topic, also one that has consumers only: they would get
  nothing more, and what they acknowledge would be lost. The registry loads it again.
* Where messages are deduplicated an append that fails ends the topic here, too: what of it is
  stored is certain when the log is opened again, and not before. Turning that on or off sends
  producers away, and is done when none of their sends is under way.
* A producer that sent what can never be accepted is condemned: clients resend the same bytes after
  every reconnection, so the same incarnation is told to stop for good (fenced) when it comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.env.tasks import TaskScope
from magnetar.log.seam import Cursors, WritableLog
from magnetar.model.errors import (
    LogClosedError,
    LogTerminatedError,
    MagnetarError,
    NoSpaceError,
    NotAllowedError,
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
    StorageFullError,
    TooManyConnectionsError,
)
from magnetar.model.ids import Position
from magnetar.staging.marks import SENDER_PREFIX
from magnetar.topics.consuming.subscription import Limits
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.followers import Follower, Followers
from magnetar.topics.policy import TopicPolicy, TopicRates
from magnetar.topics.publishing import access
from magnetar.topics.publishing.access import AccessMode, Incarnation, Verdict
from magnetar.topics.publishing.deduplicating import DEDUPLICATION, TopicDeduplication
from magnetar.topics.publishing.intake import TopicIntake
from magnetar.topics.publishing.producer import Producer, SendLimits
from magnetar.topics.publishing.resend import KeptFrames, Resends, StoredFrames
from magnetar.topics.quotas import Exceeded
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.throttle import Published, throttle_of
from magnetar.topics.traffic import Traffic

log = structlog.get_logger(__name__)

COOL_DOWN_S: Final = 0.5
COOL_DOWN_S_MAX: Final = 30.0
COOL_DOWN_FULL_S_MAX: Final = 2.0
"""A look whether there is space again costs little."""
CONDEMNED_MAX: Final = 1024
OPEN_TRANSACTIONS: Final = "__open-transactions"
"""The cursor that stays before the oldest transaction of Kafka's clients that has no outcome: no
subscription, though it is durable (``protocols.kafka.partition_transactions``)."""
NO_SUBSCRIPTIONS: Final = (OPEN_TRANSACTIONS, DEDUPLICATION)
"""Durable cursors that are none."""


class Topic(SubscribableTopic):
    """An open topic; see the module's text. ``on_closed`` takes it out of the registry, which
    closes the log; ``on_released`` is told that perhaps nobody uses it any more."""

    __slots__ = (
        "_condemned", "_cool_down_s", "_cool_until", "_failed", "_full", "_leaving", "_on_closed",
        "_on_released", "_producers_max", "bytes_in", "deduplication", "entries_in", "epoch",
        "followers", "frames", "intake", "last_published_ms", "loaded_at_ms", "log", "messages_in",
        "oldest_known", "over_quota", "producers", "publish", "publish_throttle", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        name: TopicName,
        source: WritableLog,
        limits: Limits,
        producers_max: int,
        scope: TaskScope,
        traffic: Traffic,
        entry_format: EntryFormat,
        kept: KeptFrames,
        policy: TopicPolicy,
        deduplication: TopicDeduplication,
        now_ms: Callable[[], int],
        on_closed: Callable[[Topic], None],
        on_released: Callable[[Topic], None],
    ) -> None:
        super().__init__(name, source, limits, scope, traffic, entry_format, policy, now_ms)
        self.log = source
        self.compacted = source.compaction.view
        self.publish = source.append  # bound here: a call less for every append
        self.producers: dict[str, Producer] = {}
        self.waiting: list[tuple[Producer, asyncio.Future[None]]] = []
        self.epoch: int | None = None
        """Of the exclusive producer that it had last, 0: it has had none; None: nobody has needed
        it here, and it was not asked for."""
        self.loaded_at_ms = 0
        """Since when the counts run."""
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.last_published_ms = 0
        """When something was last stored of what producers send; milliseconds since 1970, 0: not
        since it was loaded."""
        self.over_quota: Exceeded | None = None
        """The backlog quota for which producers are refused, as was last seen."""
        self.oldest_known: tuple[Position, int] | None = None
        """The first entry that is not acknowledged, and its publish time, as was last seen."""
        self._producers_max = producers_max
        self.publish_throttle = throttle_of(policy.rates.published, None)
        """What all that is published to it passes; None: its rate has no limit."""
        self.frames = StoredFrames(source, entry_format, kept)
        """What producers that come back may send again (``resend``)."""
        self.intake = TopicIntake(str(name), source, entry_format, self.entries_confirmed)
        """What queries write beside the topic, on its way in."""
        self.deduplication = deduplication
        self.followers = Followers(source, self._scope)
        """Read-only brokers, which serve subscriptions of it."""
        self._on_closed = on_closed
        self._on_released = on_released
        self._cool_until = 0.0
        self._cool_down_s = COOL_DOWN_S
        self._full = False
        self._failed = ""  # why, of the last append that was
        """While it cools down: for want of this space."""
        self._condemned: dict[str, str] = {}
        self._leaving: dict[str, Producer] = {}
        for cursor in source.cursors.durable().values():
            if cursor.name in NO_SUBSCRIPTIONS:
                continue
            self.subscriptions[cursor.name] = self._subscription(cursor)
        self._watch_while_subscribed()
        source.watch_lost(self.fail)
        if self.intake.left_behind:
            self._scope.spawn(self._load_intake(), "staged entries")

    @property
    def cursors(self) -> Cursors:
        return self.log.cursors

    @property
    def published(self) -> Published:
        return self._published

    def _published(self) -> tuple[int, int]:
        return self.messages_in, self.bytes_in

    def _released(self) -> None:
        self._on_released(self)

    def _has_failed(self) -> None:
        self._on_closed(self)

    async def _load_intake(self) -> None:
        """Until it is known what a former owner has taken in, its checkpoint keeps ledgers from
        being trimmed. Whoever takes something in loads as well; so a failure is no more than
        late."""
        try:
            await self.intake.load()
        except MagnetarError as error:
            log.warning("staged entries not looked at yet", topic=str(self.name), error=str(error))

    # -- policy -------------------------------------------------------------------------------

    def set_policy(self, policy: TopicPolicy) -> None:
        """From now on; the log deletes soon what it keeps no longer."""
        if policy.log != self.policy.log:
            self.log.set_policy(policy.log)
        if not policy.backlog_quotas.limited:
            self.over_quota = None
        super().set_policy(policy)
        self._limit_sends()
        if self.producers or self.deduplication.left:  # else the next producer sees to it
            self._change_deduplication()

    def _limit_rates(self, before: TopicRates) -> None:
        super()._limit_rates(before)
        if self.policy.rates.published == before.published:
            return
        old, self.publish_throttle = (
            self.publish_throttle,
            throttle_of(self.policy.rates.published, None),
        )
        self._limit_sends()
        if old is not None:
            old.close()

    def _send_limits(self) -> SendLimits | None:
        bytes_max = self.policy.limits.message_bytes
        if self.publish_throttle is None and not bytes_max:
            return None
        return SendLimits(self.publish_throttle, bytes_max)

    def _limit_sends(self) -> None:
        limits = self._send_limits()
        for producer in self.producers.values():
            producer.limits = limits

    def _change_deduplication(self) -> None:
        if not self.deduplication.settled(self.policy.deduplicates):
            self._scope.spawn(self._settle_later(), "deduplication")

    async def _settle_later(self) -> None:
        """What fails is tried again by the next producer, and by the next look."""
        try:
            async with self.lock:
                await self.settle_deduplication()
        except MagnetarError as error:
            log.warning("deduplication not changed", topic=str(self.name), error=str(error))

    async def settle_deduplication(self) -> None:
        """Messages are deduplicated, or are not, as the policy says. To be called under ``lock``.
        Raises as ``TopicDeduplication.begin`` and ``end``."""
        deduplication = self.deduplication
        if self.closed or deduplication.settled(self.policy.deduplicates):
            return
        self.disconnect_producers()
        for producer in list(self._leaving.values()):
            await producer.wait_drained()
        if self.closed:
            return
        await (deduplication.begin() if self.policy.deduplicates else deduplication.end())

    async def drained(self, name: str) -> None:
        """Wait until no send of a producer of that name that is gone is under way."""
        before = self._leaving.get(name)
        if before is not None:
            await before.wait_drained()

    async def see_end(self) -> None:
        """See the base class: a replica may have been elected before it could know that the last of
        its log is committed."""
        await self.log.opening.wait_whole()

    def look(self) -> None:
        """Some time has passed."""
        if self.deduplication.on:
            self._cover()
            self.deduplication.forget(self.producers)
        if self.deduplication.left:
            self._change_deduplication()

    def _cover(self) -> None:
        """Deduplication stores what it remembers. Where no send is under way that speaks of the
        whole log: also of what others than its producers have appended since."""
        sending = (*self.producers.values(), *self._leaving.values())
        self.deduplication.snapshot(whole=not any(each.pending for each in sending))

    @property
    def expires_later(self) -> bool:
        """Something here goes by itself as time passes, if the topic stays open: messages that are
        not acknowledged, or subscriptions."""
        evicts = self.policy.backlog_quotas.evicts_by_age
        ttl_ms, expiry_ms = self.policy.message_ttl_ms, self.policy.subscription_expiry_ms
        if not (ttl_ms or expiry_ms or evicts):
            return False
        durable = [each for each in self.subscriptions.values() if each.durable]
        if expiry_ms and durable:
            return True
        return any(each.cursor.backlog_entries() for each in durable)

    # -- being used ---------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Somebody is connected, waits to be, or may come back to a reader's subscription; sends
        are under way; another broker follows the log for its consumers; or the topic is held.
        ``on_released`` is called when that ends."""
        connected = bool(self.producers or self.waiting or self._leaving or self.followers)
        return connected or super().in_use

    def follow(self, key: Hashable, follower: Follower) -> Position:
        """``follower`` is told how far the log may be read, as long as the topic is open here;
        returns how far that is now. Raises ``ServiceNotReadyError``."""
        if self.closed:
            raise ServiceNotReadyError(f"topic {self.name} is closing here; look it up again")
        return self.followers.add(key, follower)

    def unfollow(self, key: Hashable) -> None:
        """Fine if it does not follow."""
        self.followers.remove(key)
        self._on_released(self)

    # -- publishing ---------------------------------------------------------------------------

    @property
    def delay_ms_max(self) -> int:
        """The longest delay that a message may ask for; 0: any."""
        return self.policy.delays.delay_ms_max

    def entries_confirmed(self, count: int, byte_count: int, message_count: int) -> None:
        self.entries_in += count
        self.messages_in += message_count
        self._traffic.entries_in += count
        self.bytes_in += byte_count
        self.last_published_ms = self._now_ms()
        self._cool_down_s = COOL_DOWN_S

    def append_failed(self, error: MagnetarError) -> None:
        """An append failed; see the module's text. Called once per append that fails."""
        if self.closed:
            return
        if isinstance(error, LogTerminatedError):  # it was not stored, and nothing more will be
            self.end_producers()
            return
        if isinstance(error, LogClosedError) or self.deduplication.on:
            self.fail(error)
            return
        if self._loop.time() >= self._cool_until:
            log.warning(
                "append failed; producers sent away", topic=str(self.name), error=str(error)
            )
            self._full = isinstance(error, NoSpaceError)
            self._failed = str(error) or type(error).__name__
            self._cool_until = self._loop.time() + self._cool_down_s
            longest_s = COOL_DOWN_FULL_S_MAX if self._full else COOL_DOWN_S_MAX
            self._cool_down_s = min(self._cool_down_s * 2, longest_s)
        self.disconnect_producers()

    # -- producers ----------------------------------------------------------------------------

    def admit(self, name: str, new: Incarnation) -> Verdict:
        """What to do with a new producer of that name; raises the reason to refuse it. The old
        producer that a new incarnation replaces is disconnected here."""
        self._check_usable()
        if name.startswith(SENDER_PREFIX):
            raise NotAllowedError(
                f"no producer may be named {name}: names that begin with {SENDER_PREFIX!r} are "
                "those of staged writes"
            )
        self._check_condemned(name, new.epoch)
        if new.mode is not AccessMode.SHARED:
            assert self.epoch is not None, "it is asked for before"
            # Before names: who is fenced is told so, whoever has its name by now.
            access.check_claim(str(self.name), self.epoch, new.claimed_epoch)
        old = self.producers.get(name)
        if old is not None:
            if access.replaces(new, old.incarnation, self.epoch):
                self.disconnect_producer(old, tell=False)
            elif not access.bears_namesake(new.mode):
                raise ProducerBusyError(
                    f"producer {name} is connected to {self.name} (from {old.client.peer}); close "
                    "it or use another name"
                )
        waiting = len(self.waiting)
        most = self.policy.limits.producers
        if most and len(self.producers) + waiting >= most:
            raise ProducerBusyError(
                f"topic {self.name} reached max producers limit: it has "
                f"{len(self.producers) + waiting}, and by its policy {most} at most"
            )
        if len(self.producers) + waiting >= self._producers_max:
            raise TooManyConnectionsError(
                f"topic {self.name} has {len(self.producers)} producers and {waiting} that wait, "
                f"together the most allowed ({self._producers_max})"
            )
        modes = {producer.name: producer.mode for producer in self.producers.values()}
        return access.decide(str(self.name), new.mode, modes, waiting)

    @property
    def cooling_down(self) -> bool:
        """An append failed a moment ago; new producers are refused for a while."""
        return self._loop.time() < self._cool_until

    @property
    def storage_problem(self) -> str:
        """Why that append failed; empty: none has a moment ago."""
        return self._failed if self.cooling_down else ""

    def _check_usable(self) -> None:
        if self.closed:
            raise ServiceNotReadyError(f"topic {self.name} is closing here; look it up again")
        self.check_takes()
        if self.cooling_down:
            if self._full:
                raise self.full(self._failed)
            raise ServiceNotReadyError(
                f"topic {self.name} could not store messages a moment ago; try again shortly "
                f"({self._failed})"
            )

    def check_takes(self) -> None:
        """Raises ``LogTerminatedError`` if it takes no messages any more."""
        if self.log.end.terminated:
            raise LogTerminatedError(
                f"topic {self.name} is terminated: it takes no more messages, for good"
            )

    def end_producers(self) -> None:
        """It takes no messages any more."""
        self.turn_away(LogTerminatedError, f"topic {self.name} is terminated: nobody's turn comes")

    def turn_away(self, kind: type[MagnetarError], why: str) -> None:
        """Producers are sent away, to be refused when they come back; those that wait are refused
        now, with an error of that kind."""
        for _, turn in self.waiting:
            if not turn.done():
                turn.set_exception(kind(why))
        self.waiting.clear()
        self.disconnect_producers()

    def full(self, why: object) -> StorageFullError:
        """What whoever would publish is told when there is no space."""
        return StorageFullError(f"topic {self.name} takes no messages for want of space: {why}")

    def _check_condemned(self, name: str, epoch: int) -> None:
        reason = self._condemned.get(name)
        if reason is None:
            return
        if epoch > 0:
            raise ProducerFencedError(f"producer {name} was refused for good: {reason}")
        del self._condemned[name]  # a new producer of that name, which may do better

    def condemn(self, producer: Producer, reason: str) -> None:
        """The producer sent what cannot be accepted; it is refused if it reconnects (bounded)."""
        if len(self._condemned) >= CONDEMNED_MAX:
            del self._condemned[next(iter(self._condemned))]
        self._condemned[producer.name] = reason

    def add_producer(self, producer: Producer) -> None:
        producer.limits = self._send_limits()
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """The producer's client left. The first that waits for exclusive access is let in."""
        producer.closed = producer.gone = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
            producer.left()
            if producer.pending:
                self._leaving[producer.name] = producer
        for waiter, turn in self.waiting:
            if waiter is producer:
                turn.cancel()
        self.waiting = [item for item in self.waiting if item[0] is not producer]
        if self.waiting and not self.producers and not self.closed:
            turn = self.waiting[0][1]
            if not turn.done():
                turn.set_result(None)
        self._on_released(self)

    def forget_leaving(self, producer: Producer) -> None:
        """The last send of a producer that is gone has its outcome."""
        if self._leaving.get(producer.name) is producer:
            del self._leaving[producer.name]
            self._on_released(self)

    async def find_resends(self, name: str) -> Resends:
        """What an earlier incarnation of the producer stored, also by an append that failed."""
        await self.drained(name)
        await self.frames.catch_up()  # mostly all that is to be known: see there
        return Resends(self.frames, name)

    def disconnect_producer(self, producer: Producer, tell: bool = True) -> None:
        """End a producer from this side; ``tell``: its client is told to look up again."""
        self.remove_producer(producer)
        producer.client.drop(tell)

    def disconnect_producers(self) -> None:
        for producer in list(self.producers.values()):
            self.disconnect_producer(producer)

    def fence_producers(self, taker: str) -> None:
        """The producer of that name takes the topic: connected ones are told to look up again and
        will find themselves fenced; waiting ones are refused, also one whose turn has just come
        (``check_in_line``)."""
        for _, turn in self.waiting:
            if not turn.done():
                turn.set_exception(self._taken())
        self.waiting.clear()
        for producer in list(self.producers.values()):
            if producer.name != taker:  # else the taker is refused when it comes back
                self.condemn(producer, "another producer took the topic for itself")
            self.disconnect_producer(producer)

    def check_in_line(self, producer: Producer) -> None:
        """``producer``'s turn to have the topic for itself has come: raise if it was fenced, or the
        topic closed, before it had the lock."""
        if self.closed:  # nobody is in line any more, and nobody has taken it
            raise ServiceNotReadyError(f"topic {self.name} is closing here; look it up again")
        if all(waiter is not producer for waiter, _ in self.waiting):
            raise self._taken()

    def _taken(self) -> ProducerFencedError:
        return ProducerFencedError(f"topic {self.name} was taken by another producer")

    def check_unused(self) -> None:
        """Raise ``NotAllowedError`` if somebody is connected, here or to a broker that serves a
        subscription of it: that one gives it back soon after its last consumer has left."""
        for item in self.subscriptions.values():
            if item.bound is not None:
                raise NotAllowedError(
                    f"subscription {item.name} of {self.name} is served by the broker at "
                    f"{item.bound.binding.service_url}; close its consumers first, or force it"
                )
        consumers = sum(len(item.consumers) for item in self.subscriptions.values())
        if self.producers or consumers:
            raise NotAllowedError(
                f"topic {self.name} has {len(self.producers)} producers and {consumers} consumers "
                "connected; close them first, or force it"
            )

    def stop_sends(self) -> bool:
        """Take no more sends; whether some are under way (``drain``)."""
        for producer in self.producers.values():
            producer.closed = True
        return any(producer.pending for producer in self.producers.values())

    async def drain(self) -> None:
        """Take no more sends and wait until those under way have their outcomes."""
        for producer in list(self.producers.values()):
            await producer.wait_drained()

    # -- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take nobody new, no more sends, and dispatch nothing more. Those who are connected are
        not told."""
        self.closed = True
        for _, turn in self.waiting:
            if not turn.done():
                turn.set_exception(ServiceNotReadyError(f"topic {self.name} is closing here"))
        self.waiting.clear()
        for producer in self.producers.values():
            producer.closed = True
        if self.publish_throttle is not None:
            self.publish_throttle.close()
        super().stop()

    def detach(self) -> list[Callable[[str], None]]:
        """As in the class above; producers first."""
        tell: list[Callable[[str], None]] = []
        for producer in list(self.producers.values()):
            self.disconnect_producer(producer, tell=False)
            tell.append(producer.client.tell_closed)
        return tell + self.followers.detach() + super().detach()

    async def close(self) -> None:
        """Send everybody away, close the log, end the topic's tasks."""
        self.disconnect()
        self.frames.close()
        if self.deduplication.on:
            self._cover()
        try:
            await self.log.close()
        except MagnetarError as error:
            log.warning("log not closed cleanly", topic=str(self.name), error=str(error))
        # Last: who waits for an acknowledgement to be stored is answered by the log's close.
        await self._scope.close()
