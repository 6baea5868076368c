"""The registry of open topics. A topic is loaded once, however many ask for it at a time, and
however many topics are asked for at a time, all are loaded in their turn (``load_queue``).

Loading opens the log (which fences any other writer), so it is the one place where a topic comes
to exist: on first use when the broker creates topics by itself, or because it is a partition of a
partitioned topic, or when an operator says so. Only the owner of a topic may load it
(``cluster.ownership``): that is looked at before the log is opened, and again before anybody gets
the topic, for it may have been given away meanwhile.

A topic that nobody uses is closed after a while (``unloading``); its next use loads it again. At
most ``open_topics_max`` are open: who loads one more has the least recently used idle one closed
first, and waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator
from enum import Enum
from functools import partial
from itertools import islice
from typing import Final

import structlog

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.stored.shared_reads import SharedReads
from magnetar.cluster.topic_name import TopicName, topic_of_log
from magnetar.config import BrokerConfig
from magnetar.env.tasks import TaskScope, awaited, shared_result
from magnetar.log.seam import ForgottenPrefixes, LogStore, WritableLog
from magnetar.model.errors import (
    InvalidTopicNameError,
    MagnetarError,
    NoSpaceError,
    NoSuchLogError,
    NotAllowedError,
    ServiceNotReadyError,
    TooManyConnectionsError,
    TooManyTopicsError,
    TopicNotFoundError,
)
from magnetar.model.ids import Position
from magnetar.topics.consuming.subscription import limits_of
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.load_queue import LoadQueue
from magnetar.topics.opening import open_durable
from magnetar.topics.policies_in_force import PoliciesInForce
from magnetar.topics.policy import TopicPolicy
from magnetar.topics.publishing.deduplicating import DeduplicationLimits, TopicDeduplication
from magnetar.topics.publishing.resend import KeptFrames
from magnetar.topics.topic import Topic
from magnetar.topics.traffic import Traffic
from magnetar.topics.unloading import Unloading

log = structlog.get_logger(__name__)

DRAIN_S: Final = 5.0
"""How long closing waits for sends under way; a log that stands still gets no more."""

CLOSES_AT_ONCE: Final = 100
"""Topics whose logs are closed at a time."""
TELLS_PER_TURN: Final = 200
"""Clients that are told, in one turn of the loop, that their topics have moved."""
LOADS_AT_ONCE: Final = 100
"""Topics that are loaded at a time; others wait for their turn (``load_queue``)."""
NAMES_PER_TURN: Final = 1000
"""Of the loop: some 3 ms."""


class _Make(Enum):
    """Whether a topic is made whose log does not exist."""

    NEVER = "never"
    IF_MAY_BE = "if that is found to be allowed"  # for everybody who creates topics by using them
    IF_MISSING = "if it is missing"


class _Deletion:
    """One that is under way. ``is_done``, once it is ``over``: it did not fail."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.is_done = False


class Topics:
    """Open topics by name."""

    def __init__(
        self,
        config: BrokerConfig,
        store: LogStore,
        control: ControlPlane,
        scope: TaskScope,
        traffic: Traffic,
        entry_format: EntryFormat,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._limits = limits_of(config)
        self._deduplication = DeduplicationLimits(
            config.deduplication_producers_max,
            config.deduplication_inactive_ms,
            config.deduplication_snapshot_entries,
        )
        self._store = store
        self._control = control
        self._scope = scope
        self._traffic = traffic
        self._format = entry_format
        self._now_ms = now_ms
        self.policies = PoliciesInForce(config, store.policy, control.policies)
        """What holds for which topic."""
        self._frames = KeptFrames()
        self._listings = SharedReads(self._list)
        self._turns = LoadQueue(LOADS_AT_ONCE)
        self._open: dict[TopicName, Topic] = {}
        self._loading: dict[TopicName, asyncio.Task[Topic]] = {}
        self._closing: dict[TopicName, asyncio.Task[None]] = {}
        self._deleting: dict[TopicName, _Deletion] = {}
        self._opening = 0
        """Loads that have their place among the open topics, and are not there yet."""
        self._closed = False
        self._unloading = Unloading(
            config.idle_topic_unload_ms, self._open, self._deleting, self._retire_now, scope
        )

    def __len__(self) -> int:
        """How many topics are open."""
        return len(self._open)

    @property
    def unloaded(self) -> int:
        """Topics that were closed because nobody used them, since the broker started."""
        return self._unloading.unloaded

    def loaded(self) -> list[Topic]:
        """The open topics, in the order in which they were loaded."""
        return list(self._open.values())

    def find(self, name: TopicName) -> Topic | None:
        """The topic if it is open here."""
        return self._open.get(name)

    async def get(self, name: TopicName, create: bool, asker: Hashable = None) -> Topic:
        """The topic, loaded if need be; with ``create`` made if it does not exist and topics are
        created on first use. ``asker``: whose turn it takes, when many are to be loaded. Raises
        ``TopicNotFoundError``, ``NotAllowedError``, ``TooManyConnectionsError``, ``LogError``."""
        topic = self._open.get(name)
        if topic is not None:
            self._unloading.touch(topic)
            return topic
        self._check_load(name)
        await self._control.ownership.claim(name)
        await self._control.namespaces.check(name)
        # That its log exists says all that is to be known of a topic. So one that comes from
        # another broker, with hundreds of others, costs no question about partitions.
        if create and self._config.auto_create_topics:
            return await self._load(name, _Make.IF_MAY_BE, asker)
        try:
            return await self._load(name, _Make.NEVER, asker)
        except NoSuchLogError:
            await self._check_may_make(name, create)
            return await self._load(name, _Make.IF_MISSING, asker)

    async def check_space(self, topic: Topic) -> None:
        """Raises ``StorageFullError`` if the topic could not store a message for want of space: so
        that who would publish hears it before the first message, which would be lost time."""
        try:
            await self._store.check_space(topic.log.name)
        except NoSpaceError as error:
            raise topic.full(error) from error

    async def exists(self, name: TopicName) -> bool:
        return name in self._open or await self._store.exists(name.log_name)

    async def created_ms(self, name: TopicName) -> int:
        """When the topic's log was made, milliseconds since 1970: one that is made anew has another
        time; 0: an older release has made it. Raises ``NoSuchLogError``, ``MetadataError``."""
        return (await self._store.stored(name.log_name)).created_ms

    async def last_epoch(self, name: TopicName) -> int:
        """Of the topic's log, of its last opening by whoever has it or had it; -1: it is not on
        ledgers. Raises ``NoSuchLogError``, ``MetadataError``."""
        return (await self._store.stored(name.log_name)).last_epoch

    async def on_ledgers(self, log_name: str) -> bool:
        """Which engine a log is on. Raises ``NoSuchLogError``, ``MetadataError``."""
        return (await self._store.stored(log_name)).last_epoch >= 0

    async def ledger_bytes(self, name: TopicName) -> int | None:
        """As ``LogStore.ledger_bytes``."""
        return await self._store.ledger_bytes(name.log_name)

    async def partitions(self, name: TopicName, create: bool) -> int:
        """The number of partitions, 0 for a topic without. ``create``: one that does not exist is
        made as a partitioned one, if brokers are set to, or may be made on its first use. Raises
        ``TopicNotFoundError`` for an unknown namespace, and for a topic that does not exist and is
        not made on this request: who writes would learn it only when all is written."""
        partitioned = self._control.partitioned
        await self._control.namespaces.check(name)
        count = await partitioned.partitions(name)
        if count or name in self._open:
            return count
        new = 0
        if create and name.partition < 0:
            allowed, new = await self.policies.creation(name)
            if allowed and not new:
                return 0
        if await self.exists(name):
            return 0
        await self._check_may_make(name, create)
        if not new:
            return 0
        await self.check_place(name, new)
        await partitioned.create(name, new)
        return await partitioned.partitions(name)

    async def create(self, name: TopicName) -> bool:
        """Make a topic because an operator says so; False when it exists. Raises
        ``InvalidTopicNameError`` for a partition that the partitioned topic does not have: whoever
        reads that would not see it, and it would be there when the topic grows."""
        await self._control.namespaces.check(name)
        await self._control.ownership.claim(name)
        if await self.exists(name):
            return False
        count, _, goes = await self._control.partitioned.topic(name.partitioned)
        if name.partition < 0 and count:
            return False
        if goes:
            raise _goes(name.partitioned)
        if 0 < count <= name.partition:
            raise InvalidTopicNameError(
                f"{name.partitioned} has {count} partitions, so {name} cannot be made; give it "
                "more (`POST .../partitions`), or choose another name"
            )
        self._check_load(name)
        if name.partition < 0:
            await self.check_place(name)
        await self._load(name, _Make.IF_MISSING, None)
        return True

    async def check_place(self, name: TopicName, count: int = 1) -> None:
        """Whether so many topics (or partitions) of that name may be made. Several that are made
        at once may be more than may be. Raises ``TooManyTopicsError``."""
        most = await self.policies.topics_max(name.namespace)
        if not most or _is_internal(name):
            return
        there = sum(not _is_internal(each) for each in await self.names(name.namespace))
        if there + count > most:
            raise TooManyTopicsError(
                f"namespace {name.namespace} has {there} topics, each partition by itself, and by "
                f"its policy {most} at most: {name} is not made with {count} more"
            )

    def _check_load(self, name: TopicName) -> None:
        if self._closed or name in self._deleting:
            raise ServiceNotReadyError(f"topic {name} cannot be opened now; look it up again")
        if len(self._loading) >= self._config.open_topics_max:
            raise TooManyConnectionsError(
                f"{len(self._loading)} topics wait to be opened, as many as may be open "
                "(broker.open_topics_max); try again later"
            )

    async def _check_may_make(self, name: TopicName, create: bool) -> None:
        """There is no such log. Raises why none is made."""
        if name.partition >= 0:
            count, _, goes = await self._control.partitioned.topic(name.partitioned)
            if goes:
                raise _goes(name.partitioned)
            if count > name.partition:
                return  # a partition of a partitioned topic exists before it is first used
            if count:
                raise TopicNotFoundError(f"{name.partitioned} has {count} partitions; no {name}")
        elif await self._control.partitioned.partitions(name):
            raise NotAllowedError(f"{name} is partitioned: connect to its partitions")
        if not (create and (await self.policies.creation(name)).allowed):
            raise TopicNotFoundError(
                f"topic {name} does not exist, and is not created on this request"
            )
        if name.partition < 0:
            await self.check_place(name)

    async def _load(self, name: TopicName, make: _Make, asker: Hashable) -> Topic:
        """Where none is made, that there is no log is a ``NoSuchLogError``."""
        while True:
            topic = self._open.get(name)
            if topic is not None:
                return topic
            loading = self._loading.get(name)
            if loading is None:
                return await shared_result(self._begin_loading(name, make, asker))
            try:
                return await shared_result(loading)
            except NoSuchLogError:
                if make is _Make.NEVER:
                    raise
                await asyncio.sleep(0)  # others have looked for it only; they are done now

    def _begin_loading(self, name: TopicName, make: _Make, asker: Hashable) -> asyncio.Task[Topic]:
        self._check_load(name)
        opening = self._open_log(name, make, asker)
        loading = self._scope.spawn(opening, f"load {name}", awaited(by="_load"))
        self._loading[name] = loading
        loading.add_done_callback(lambda _: self._loading.pop(name, None))
        return loading

    async def _open_log(self, name: TopicName, make: _Make, asker: Hashable) -> Topic:
        async with self._turns.turn(name.partitioned if asker is None else asker):
            if self._closed:
                raise ServiceNotReadyError(f"topic {name} cannot be opened now; look it up again")
            await self._make_place(name)
            self._opening += 1  # in the turn of the loop that found place: it is taken now
            try:
                return await self._open_log_now(name, make)
            finally:
                self._opening -= 1

    async def _make_place(self, name: TopicName) -> None:
        """Have idle topics closed until there is place for one more."""
        while len(self._open) + self._opening >= self._config.open_topics_max:
            if not await self._unloading.make_place():
                raise TooManyConnectionsError(
                    f"topic {name} is not opened: {len(self._open)} topics are open and "
                    f"{self._opening} opening, the most allowed are "
                    f"{self._config.open_topics_max} (broker.open_topics_max), and none of them is "
                    "idle; try again later, or raise the setting"
                )

    async def _open_log_now(self, name: TopicName, make: _Make) -> Topic:
        begun_s = asyncio.get_running_loop().time()
        closing = self._closing.get(name)
        if closing is not None:
            await asyncio.shield(closing)
        changes = self.policies.changes
        policy = await self.policies.of(name)
        ownership = self._control.ownership
        made = False

        async def permit() -> None:
            nonlocal made
            if make is _Make.IF_MAY_BE:
                await self._check_may_make(name, create=True)
            made = True

        source = await self._store.open(
            name.log_name,
            policy.log,
            create=make is not _Make.NEVER,
            guard=partial(ownership.verify, name),
            permit=permit,
        )
        try:
            if made:
                # After it is made: who deletes the namespace finds it, or is seen here.
                await self._control.namespaces.confirm(name.namespace)
            # From here until it is among the open ones there is no wait, so a release of it finds
            # it there or finds it under way.
            ownership.check(name)
        except MagnetarError as error:
            await _close_log(name, source)  # one that stays open cannot be opened again
            if made and isinstance(error, TopicNotFoundError):
                await self._store.delete(name.log_name)
                await self.forget_namespace(name.namespace)
            raise
        topic = self._open[name] = self._topic(name, source, policy)
        self.policies.opened(name, changes)
        self._unloading.touch(topic)
        took_ms = round((asyncio.get_running_loop().time() - begun_s) * 1000)
        log.debug("topic is open", topic=str(name), took_ms=took_ms)
        return topic

    def _topic(self, name: TopicName, source: WritableLog, policy: TopicPolicy) -> Topic:
        topic = Topic(
            name,
            source,
            self._limits,
            self._config.producers_per_topic_max,
            self._scope,
            self._traffic,
            self._format,
            self._frames,
            policy,
            TopicDeduplication(source, self._format, self._deduplication, self._now_ms),
            self._now_ms,
            self._retire,
            self._unloading.touch,
        )
        topic.loaded_at_ms = self._now_ms()
        return topic

    def _retire(self, topic: Topic) -> None:
        """A topic lost its log: close what is left of it before anybody opens it again."""
        if self._open.get(topic.name) is topic:
            self._retire_now(topic)

    def _retire_now(self, topic: Topic) -> asyncio.Task[None]:
        """Close an open topic; whoever loads it again waits for that."""
        name = topic.name
        del self._open[name]
        self._unloading.forget(name)
        closing = self._scope.spawn(topic.close(), f"close {name}")
        self._closing[name] = closing
        closing.add_done_callback(lambda _: self._closing.pop(name, None))
        return closing

    async def delete(
        self,
        name: TopicName,
        force: bool,
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Delete a topic for good. Raises ``TopicNotFoundError``, also if another deletion, which
        is waited for, has deleted it; ``NotAllowedError`` if somebody is connected and ``force`` is
        not set; and what ``confirm`` raises, which is asked when nothing can be made under the name
        any more, and before anything is deleted.

        A deletion that failed half way leaves a topic that does not exist and data that do: they
        are deleted too when it is asked for again."""
        while True:
            await self._control.ownership.claim(name)
            existed = await self.exists(name)
            topic = self._open.get(name)
            if topic is not None and not force:
                topic.check_unused()
            other = self._deleting.get(name)
            if other is None:
                break
            await other.over.wait()
            if other.is_done:
                # What there is by now was made after it, and is not what was to be deleted.
                raise TopicNotFoundError(f"topic {name} is deleted already")
        self._control.ownership.check(name)
        deletion = self._deleting[name] = _Deletion()
        try:
            for under_way in (self._loading.get(name), self._closing.get(name)):
                if under_way is not None:
                    existed = True  # made meanwhile, perhaps
                    await asyncio.wait([under_way])
            loaded = self._open.get(name)
            if loaded is not None and not force:
                loaded.check_unused()  # whoever it was loaded for is connected by now
            if confirm is not None:
                await confirm()
            await self._delete_now(name)
            deletion.is_done = True
        finally:
            del self._deleting[name]
            deletion.over.set()
        if not existed and topic is None:
            raise TopicNotFoundError(f"topic {name} does not exist")

    async def _delete_now(self, name: TopicName) -> None:
        await self._unload(name)
        await self._store.delete(name.log_name)
        await self._control.counters.forget_topic(name)
        if name.partition < 0:  # a partition's schema is that of them all
            await self._control.schemas.forget_topic(name)
            await self._control.policies.forget_topic(name)

    async def _unload(self, name: TopicName) -> None:
        topic = self._open.get(name)
        if topic is not None:
            # Where a bundle is given back at the same time, that waits for it.
            await shared_result(self._retire_now(topic))

    # -- giving topics to other brokers -------------------------------------------------------

    async def hand_over(self, belongs: Callable[[TopicName], bool]) -> Callable[[str], None]:
        """Close those topics; the ownership lets nobody load them from now on. Those who are
        connected hear of it by the function that is returned, called once others may have the
        topics: with the URL of the broker to go to, empty if they are to look it up."""
        topics = [topic for topic in self._open.values() if belongs(topic.name)]
        tell: list[Callable[[str], None]] = []
        for start in range(0, len(topics), CLOSES_AT_ONCE):
            batch = topics[start : start + CLOSES_AT_ONCE]
            for told in await asyncio.gather(*map(self._close_quietly, batch)):
                tell += told
        await self._wait_over(belongs)

        return partial(_tell_some, iter(tell))

    async def _wait_over(self, belongs: Callable[[TopicName], bool]) -> None:
        """What is under way with those topics: loads find that they may not."""
        for tasks in (self._loading, self._closing):
            under_way = [task for name, task in tasks.items() if belongs(name)]
            if under_way:
                await asyncio.wait(under_way)
        for deletion in [each for name, each in self._deleting.items() if belongs(name)]:
            await deletion.over.wait()

    async def _close_quietly(self, topic: Topic) -> list[Callable[[str], None]]:
        """Receipts for what was sent leave first. Returns who is to be told."""
        topic.stop()
        drain = self._scope.spawn(topic.drain(), f"drain {topic.name}")
        await asyncio.wait([drain], timeout=DRAIN_S)
        tell = topic.detach()
        if self._open.get(topic.name) is topic:
            await asyncio.shield(self._retire_now(topic))
        return tell

    async def unload(self, name: TopicName, service_url: str = "") -> bool:
        """Close a topic, which its next use loads again; False if it is not open. Whoever is
        connected comes back at once: to this broker if it says its ``service_url``, else where a
        lookup says."""
        topic = self._open.get(name)
        if topic is None:
            return False
        for tell in await self._close_quietly(topic):
            tell(service_url)
        return True

    async def names(self, namespace: str) -> list[TopicName]:
        """All topics of ``tenant/namespace``, each partition by itself, sorted by name. Who asks
        while others do has their answer."""
        return list(await self._listings.get(namespace))

    async def _list(self, namespace: str) -> list[TopicName]:
        logs = list(await self._store.names(f"{namespace}/persistent/"))
        found: dict[TopicName, None] = {}
        for start in range(0, len(logs), NAMES_PER_TURN):
            found.update(dict.fromkeys(map(topic_of_log, logs[start : start + NAMES_PER_TURN])))
            await asyncio.sleep(0)
        found.update(dict.fromkeys(await self._control.partitioned.partition_names(namespace)))
        return sorted(found, key=str)

    async def forget_namespace(self, namespace: str) -> None:
        """It was deleted, with all its topics. Raises ``MetadataError``."""
        if isinstance(self._store, ForgottenPrefixes):
            await self._store.forget_prefix(f"{namespace}/persistent")

    async def make_subscription(self, name: TopicName, subscription: str, start: Position) -> bool:
        """A durable subscription that reads ``start`` first; False if there is one of that name."""
        topic = await self.get(name, create=True)
        with topic.held():
            is_there = subscription in topic.subscriptions
            await open_durable(topic, subscription, start, {})
        return not is_there

    async def close(self) -> None:
        """Answer the sends that are under way, send everybody away and close every log, several
        at a time."""
        self._closed = True
        self._unloading.close()
        topics = list(self._open.values())
        drains = [self._scope.spawn(t.drain(), f"drain {t.name}") for t in topics if t.stop_sends()]
        if drains:
            await asyncio.wait(drains, timeout=DRAIN_S)
        for number, topic in enumerate(topics, 1):
            topic.disconnect()
            if number % TELLS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._frames.close()
        names = list(self._open)
        for start in range(0, len(names), CLOSES_AT_ONCE):
            batch = names[start : start + CLOSES_AT_ONCE]
            await asyncio.gather(*map(self._unload, batch))
        # Those that were closing already: the end of the broker's tasks would cut them off.
        if self._closing:
            await asyncio.wait(list(self._closing.values()))


def _tell_some(left: Iterator[Callable[[str], None]], service_url: str) -> None:
    """A slice of them in one turn of the loop, which others need too."""
    some = list(islice(left, TELLS_PER_TURN))
    for tell in some:
        tell(service_url)
    if some:
        asyncio.get_running_loop().call_soon(_tell_some, left, service_url)


def _is_internal(name: TopicName) -> bool:
    """It is a broker's own: those of tenants may be as many as there may be all the same."""
    return name.local.startswith("__")


def _goes(whole: TopicName) -> TopicNotFoundError:
    return TopicNotFoundError(f"{whole} is being deleted; no partition of it is made")


async def _close_log(name: TopicName, source: WritableLog) -> None:
    try:
        await source.close()
    except MagnetarError as error:
        log.warning("log not closed cleanly", topic=str(name), error=str(error))
