"""A topic (or one partition of one): its log, its producers and its subscriptions.

Rules:

* Entries reach subscriptions only once the log says that they may be read (``watch_readable``).
* A log that fails an append is not trusted with the next one right away: all producers are sent
  away (clients come back by themselves and send again what was not answered) and new ones are
  refused for a while that doubles up to ``COOL_DOWN_S_MAX``, else clients would come back ten
  times a second. If it is for want of space they are told so, and what they have pending fails:
  an application should hear of a full disk, not wait for its time-outs.
* A log that was fenced or closed ends the topic, also one that has consumers only: they would get
  nothing more, and what they acknowledge would be lost. The registry loads it again.
* A topic says when it is let go (``on_released``): a producer or a consumer left, or something that
  was done with it has ended (``held``). So whoever keeps count of unused topics looks at those only
  that were let go, and need not look again at one that is ``in_use``.
* A producer that sent what can never be accepted is condemned: clients resend the same bytes after
  every reconnection, so the same incarnation is told to stop for good (fenced) when it comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.log.seam import Cursor, WritableLog
from magnetar.model.errors import (
    LogClosedError,
    MagnetarError,
    NoSpaceError,
    NotAllowedError,
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
    StorageFullError,
    SubscriptionNotFoundError,
    TooManyConnectionsError,
)
from magnetar.model.ids import Position
from magnetar.staging.marks import SENDER_PREFIX
from magnetar.topics import access
from magnetar.topics.access import AccessMode, Verdict
from magnetar.topics.consumer import Consumer
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.intake import TopicIntake
from magnetar.topics.policy import TopicPolicy
from magnetar.topics.positions import PublishTime
from magnetar.topics.producer import Producer
from magnetar.topics.resend import KeptFrames, Resends, StoredFrames
from magnetar.topics.subscription import Limits, Subscription
from magnetar.topics.traffic import Traffic

log = structlog.get_logger(__name__)

COOL_DOWN_S: Final = 0.5
COOL_DOWN_S_MAX: Final = 30.0
COOL_DOWN_FULL_S_MAX: Final = 2.0
"""A look whether there is space again costs little."""
CONDEMNED_MAX: Final = 1024
SUBSCRIPTIONS_MAX: Final = 10_000
LINGER_S: Final = 60.0
"""How long a reader's subscription waits for its client to come back after a seek."""


class Topic:
    """An open topic; see the module's text. ``on_closed`` takes it out of the registry, which
    closes the log; ``on_released`` is told that perhaps nobody uses it any more."""

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
        now_ms: Callable[[], int],
        on_closed: Callable[[Topic], None],
        on_released: Callable[[Topic], None],
    ) -> None:
        self.name = name
        self.log = source
        self.publish = source.append  # bound here: a call less for every append
        self.producers: dict[str, Producer] = {}
        self.waiting: list[tuple[Producer, asyncio.Future[None]]] = []
        self.subscriptions: dict[str, Subscription] = {}
        self.lock = asyncio.Lock()
        """Held while the set of producers or of subscriptions changes with a wait in between."""
        self.epoch = 0
        self.closed = False
        self.loaded_at_ms = 0
        """Since when the counts run."""
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self._limits = limits
        self.policy = policy
        self._now_ms = now_ms
        self._producers_max = producers_max
        self._scope = scope.inner(f"topic {name}", fails(self._task_failed))
        self._traffic = traffic
        self.frames = StoredFrames(source, entry_format, kept)
        """What producers that come back may send again (``resend``)."""
        self._format = entry_format
        self.intake = TopicIntake(str(name), source, entry_format, self.entries_confirmed)
        """What queries write beside the topic, on its way in."""
        self._on_closed = on_closed
        self._on_released = on_released
        self._held = 0
        self._loop = asyncio.get_running_loop()
        self._cool_until = 0.0
        self._cool_down_s = COOL_DOWN_S
        self._full: str | None = None
        """While it cools down: for want of this space."""
        self._condemned: dict[str, str] = {}
        self._leaving: dict[str, Producer] = {}
        for cursor in source.cursors.durable().values():
            self.subscriptions[cursor.name] = self._subscription(cursor)
        self._end_watch: Callable[[], None] | None = None
        self._watch_while_subscribed()
        source.watch_lost(self.fail)
        if self.intake.left_behind:
            self._scope.spawn(self._load_intake(), "staged entries")

    async def _load_intake(self) -> None:
        """Until it is known what a former owner has taken in, its checkpoint keeps ledgers from
        being trimmed. Whoever takes something in loads as well; so a failure is no more than
        late."""
        try:
            await self.intake.load()
        except MagnetarError as error:
            log.warning("staged entries not looked at yet", topic=str(self.name), error=str(error))

    def _subscription(self, cursor: Cursor) -> Subscription:
        return Subscription(
            cursor.name,
            self.log,
            cursor,
            self.name.partition,
            self._limits,
            self._scope,
            self._traffic,
            self._format,
            self.policy.delays,
            self._now_ms,
        )

    # -- policy -------------------------------------------------------------------------------

    def set_policy(self, policy: TopicPolicy) -> None:
        """From now on; the log deletes soon what it keeps no longer."""
        before, self.policy = self.policy, policy
        if policy.log != before.log:
            self.log.set_policy(policy.log)
        if policy.delays != before.delays:
            for subscription in self.subscriptions.values():
                subscription.set_delays(policy.delays)

    @property
    def expires_later(self) -> bool:
        """Something here goes by itself as time passes, if the topic stays open: messages that are
        not acknowledged, or subscriptions."""
        if not self.policy.message_ttl_ms and not self.policy.subscription_expiry_ms:
            return False
        durable = [each for each in self.subscriptions.values() if each.durable]
        if self.policy.subscription_expiry_ms and durable:
            return True
        return any(each.cursor.backlog_entries() for each in durable)

    # -- being used ---------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Somebody is connected, waits to be, or may come back to a reader's subscription; sends
        are under way; or the topic is held. ``on_released`` is called when that ends."""
        return bool(
            self.producers
            or self.waiting
            or self._leaving
            or self._held
            or any(each.consumers or not each.durable for each in self.subscriptions.values())
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """The topic is in use as long as the ``with`` lasts: something is done with it that waits,
        while perhaps nobody is connected."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
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
        self._cool_down_s = COOL_DOWN_S

    def _watch_while_subscribed(self) -> None:
        """Hear of new entries while there is a subscription: else nobody is to be woken, and a
        topic that is only published to would pay a call of the loop for each append."""
        if self.subscriptions and self._end_watch is None:
            self._end_watch = self.log.watch_readable(self._wake)
        elif self._end_watch is not None and not self.subscriptions:
            self._end_watch()
            self._end_watch = None

    def _wake(self) -> None:
        """The log has grown."""
        for subscription in self.subscriptions.values():
            subscription.dispatcher.wake()

    def append_failed(self, error: MagnetarError) -> None:
        """An append failed; see the module's text. Called once per append that fails."""
        if self.closed:
            return
        if isinstance(error, LogClosedError):
            self.fail(error)
            return
        if self._loop.time() >= self._cool_until:
            log.warning(
                "append failed; producers sent away", topic=str(self.name), error=str(error)
            )
            self._full = str(error) if isinstance(error, NoSpaceError) else None
            self._cool_until = self._loop.time() + self._cool_down_s
            longest_s = COOL_DOWN_S_MAX if self._full is None else COOL_DOWN_FULL_S_MAX
            self._cool_down_s = min(self._cool_down_s * 2, longest_s)
        self.disconnect_producers()

    # -- reading ------------------------------------------------------------------------------

    async def position_at(self, time: PublishTime) -> Position:
        """The position of the entry that ``time`` names; the place after the last one if there is
        none."""
        return await self.log.first_at(time.time_ms)

    # -- producers ----------------------------------------------------------------------------

    def admit(
        self, name: str, mode: AccessMode, generated: bool, epoch: int, claimed_epoch: int | None
    ) -> Verdict:
        """What to do with a new producer of that name; raises the reason to refuse it. The old
        producer that a new incarnation replaces is disconnected here."""
        self._check_usable()
        if name.startswith(SENDER_PREFIX):
            raise NotAllowedError(
                f"no producer may be named {name}: names that begin with {SENDER_PREFIX!r} are "
                "those of staged writes"
            )
        self._check_condemned(name, epoch)
        old = self.producers.get(name)
        if old is not None:
            if not access.replaces(generated, epoch, old.generated_name, old.epoch):
                raise ProducerBusyError(
                    f"producer {name} is connected to {self.name} (from {old.client.peer}); close "
                    "it or use another name"
                )
            self.disconnect_producer(old, tell=False)
        waiting = len(self.waiting)
        if len(self.producers) + waiting >= self._producers_max:
            raise TooManyConnectionsError(
                f"topic {self.name} has {len(self.producers)} producers and {waiting} that wait, "
                f"together the most allowed ({self._producers_max})"
            )
        modes = {producer.name: producer.mode for producer in self.producers.values()}
        return access.decide(str(self.name), mode, modes, waiting, self.epoch, claimed_epoch)

    @property
    def cooling_down(self) -> bool:
        """An append failed a moment ago; new producers are refused for a while."""
        return self._loop.time() < self._cool_until

    def _check_usable(self) -> None:
        if self.closed:
            raise ServiceNotReadyError(f"topic {self.name} is closing here; look it up again")
        if self.cooling_down:
            if self._full is not None:
                raise self.full(self._full)
            raise ServiceNotReadyError(
                f"topic {self.name} could not store messages a moment ago; try again shortly"
            )

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
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """The producer's client left. The first that waits for exclusive access is let in."""
        producer.closed = producer.gone = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
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
        before = self._leaving.get(name)
        if before is not None:
            await before.wait_drained()
        await self.frames.catch_up()  # mostly all that is to be known: see there
        return Resends(self.frames, name)

    def disconnect_producer(self, producer: Producer, tell: bool = True) -> None:
        """End a producer from this side; ``tell``: its client is told to look up again."""
        self.remove_producer(producer)
        producer.client.drop(tell)

    def disconnect_producers(self) -> None:
        for producer in list(self.producers.values()):
            self.disconnect_producer(producer)

    def fence_producers(self) -> None:
        """Another takes the topic: connected producers are told to look up again and will find
        themselves fenced; waiting ones are refused, also one whose turn has just come
        (``check_in_line``)."""
        for _, turn in self.waiting:
            if not turn.done():
                turn.set_exception(self._taken())
        self.waiting.clear()
        for producer in list(self.producers.values()):
            self.condemn(producer, "another producer took the topic for itself")
            self.disconnect_producer(producer)

    def check_in_line(self, producer: Producer) -> None:
        """``producer``'s turn to have the topic for itself has come: raise if it was fenced before
        it had the lock."""
        if all(waiter is not producer for waiter, _ in self.waiting):
            raise self._taken()

    def _taken(self) -> ProducerFencedError:
        return ProducerFencedError(f"topic {self.name} was taken by another producer")

    # -- subscriptions ------------------------------------------------------------------------

    def subscription(self, name: str) -> Subscription:
        """Raises ``SubscriptionNotFoundError``."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFoundError(f"topic {self.name} has no subscription {name}")
        return found

    def check_subscriptions(self) -> None:
        """Raise ``TooManyConnectionsError`` if there can be no further subscription."""
        if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise TooManyConnectionsError(
                f"topic {self.name} has {SUBSCRIPTIONS_MAX} subscriptions, the most allowed"
            )

    def add_subscription(self, cursor: Cursor) -> Subscription:
        """A subscription over a cursor that was just opened."""
        self.check_subscriptions()
        made = self._subscription(cursor)
        self.subscriptions[cursor.name] = made
        self._watch_while_subscribed()
        return made

    def remove_consumer(self, subscription: Subscription, consumer: Consumer) -> None:
        """The consumer's client left. A reader's subscription goes with its last consumer."""
        if subscription.remove(consumer):
            self.drop_reader(subscription)
            self._on_released(self)

    def drop_reader(self, subscription: Subscription) -> None:
        """A reader's subscription goes when it has no consumer."""
        if subscription.durable or subscription.consumers:
            return
        if self.subscriptions.get(subscription.name) is subscription:
            subscription.close()
            del self.subscriptions[subscription.name]
            self._watch_while_subscribed()
            self._on_released(self)

    def linger(self, subscription: Subscription) -> None:
        """A seek sent its consumers away; drop a reader's subscription if none comes back."""
        if not subscription.durable:
            self._loop.call_later(LINGER_S, self.drop_reader, subscription)

    async def delete_subscription(self, name: str, force: bool) -> None:
        """Raises ``SubscriptionNotFoundError``, ``NotAllowedError`` (consumers are connected and
        ``force`` is not set), and what deleting the cursor failed with: the subscription stays."""
        subscription = self.subscription(name)
        with self.held():
            await self._delete_subscription(subscription, force)

    async def _delete_subscription(self, subscription: Subscription, force: bool) -> None:
        name = subscription.name
        async with subscription.lock:
            if self.subscription(name) is not subscription:
                raise ServiceNotReadyError(f"subscription {name} of {self.name} just ended")
            if subscription.consumers and not force:
                raise NotAllowedError(
                    f"subscription {name} of {self.name} has {len(subscription.consumers)} "
                    "consumers connected; close them first, or force it"
                )
            subscription.dispatcher.hold()
            for consumer in subscription.detach_all():
                consumer.client.tell_closed()
            try:
                if subscription.durable:
                    await self.log.cursors.delete(name)
            except MagnetarError:
                subscription.doubtful = True
                subscription.release()
                raise
            subscription.close()
            if self.subscriptions.get(name) is subscription:
                del self.subscriptions[name]
                self._watch_while_subscribed()

    def check_unused(self) -> None:
        """Raise ``NotAllowedError`` if somebody is connected."""
        consumers = sum(len(item.consumers) for item in self.subscriptions.values())
        if self.producers or consumers:
            raise NotAllowedError(
                f"topic {self.name} has {len(self.producers)} producers and {consumers} consumers "
                "connected; close them first, or force it"
            )

    async def drain(self) -> None:
        """Take no more sends and wait until those under way have their outcomes."""
        for producer in list(self.producers.values()):
            await producer.wait_drained()

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
        self._on_closed(self)

    def disconnect(self) -> None:
        """Send everybody away and take nobody new."""
        self.stop()
        for tell in self.detach():
            tell("")

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
        for subscription in self.subscriptions.values():
            subscription.close()

    def detach(self) -> list[Callable[[str], None]]:
        """End everybody here, without a word. What is returned tells each client, which comes back
        at once: to the broker at that URL, or, if it is empty, where a lookup says."""
        tell: list[Callable[[str], None]] = []
        for producer in list(self.producers.values()):
            self.disconnect_producer(producer, tell=False)
            tell.append(producer.client.tell_closed)
        for subscription in self.subscriptions.values():
            tell += [each.client.tell_closed for each in subscription.detach_all()]
        return tell

    async def close(self) -> None:
        """Send everybody away, close the log, end the topic's tasks."""
        self.disconnect()
        try:
            await self.log.close()
        except MagnetarError as error:
            log.warning("log not closed cleanly", topic=str(self.name), error=str(error))
        # Last: who waits for an acknowledgement to be stored is answered by the log's close.
        await self._scope.close()


class Subscribed(NamedTuple):
    """A consumer, and what it is subscribed to."""

    topic: Topic
    subscription: Subscription
    consumer: Consumer

    def leave(self) -> None:
        """The consumer's client left."""
        self.topic.remove_consumer(self.subscription, self.consumer)
