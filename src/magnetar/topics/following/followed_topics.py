"""The registry of followed topics: those that a read-only broker serves subscriptions of.

A topic is followed once, however many ask for it at a time. It is followed no more when nobody has
used it for a while and it is bound to nothing. It does not exist because of us: whoever wants one
that is not there has its owner asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.topic_name import TopicName
from magnetar.config import BrokerConfig
from magnetar.env.flush_timer import FlushTimer
from magnetar.env.tasks import TaskScope, awaited, shared_result
from magnetar.log.seam import FollowedReadableLog, LogStore
from magnetar.model.errors import (
    NoSuchLogError,
    ServiceNotReadyError,
    TooManyConnectionsError,
    TopicNotFoundError,
)
from magnetar.topics.consuming.binding_rules import patience_s
from magnetar.topics.consuming.subscription import limits_of
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.following.followed_topic import FollowedTopic
from magnetar.topics.following.remote_acks import CursorOwners
from magnetar.topics.policies_in_force import PoliciesInForce
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.traffic import Traffic

log = structlog.get_logger(__name__)


class FollowedTopics:
    """Followed topics by name."""

    def __init__(
        self,
        config: BrokerConfig,
        store: LogStore,
        control: ControlPlane,
        policies: PoliciesInForce,
        owners: CursorOwners,
        scope: TaskScope,
        traffic: Traffic,
        entry_format: EntryFormat,
        now_ms: Callable[[], int],
    ) -> None:
        self.policies = policies
        self._config = config
        self._limits = limits_of(config)
        self._store = store
        self._control = control
        self._owners = owners
        self._scope = scope
        self._traffic = traffic
        self._format = entry_format
        self._now_ms = now_ms
        self._ack_timer = FlushTimer(config.bound_ack_interval_ms)
        """One for all: what is to be told to an owner is told together."""
        self._open: dict[TopicName, FollowedTopic] = {}
        self._loading: dict[TopicName, asyncio.Task[FollowedTopic]] = {}
        self._closing: dict[TopicName, asyncio.Task[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def loaded(self) -> list[FollowedTopic]:
        """The followed topics, in the order in which they were opened."""
        return list(self._open.values())

    def find(self, name: TopicName) -> FollowedTopic | None:
        """The topic if it is followed."""
        return self._open.get(name)

    async def get(self, name: TopicName, create: bool) -> SubscribableTopic:
        """The topic, followed from now on if need be; with ``create`` its owner makes it if it does
        not exist and topics are created on first use. Raises ``TopicNotFoundError``,
        ``NotAllowedError``, ``TooManyConnectionsError``, ``LogError``."""
        while True:
            topic = self._open.get(name)
            if topic is not None:
                return topic
            loading = self._loading.get(name)
            if loading is None:
                return await shared_result(self._begin_following(name, create))
            try:
                return await shared_result(loading)
            except TopicNotFoundError:
                if not create:
                    raise
                await asyncio.sleep(0)  # others have looked for it only; they are done now

    def _begin_following(self, name: TopicName, create: bool) -> asyncio.Task[FollowedTopic]:
        self._check_load(name)
        following = self._follow(name, create)
        loading = self._scope.spawn(following, f"follow {name}", awaited(by="get"))
        self._loading[name] = loading
        loading.add_done_callback(lambda _: self._loading.pop(name, None))
        return loading

    def _check_load(self, name: TopicName) -> None:
        if self._closed:
            raise ServiceNotReadyError(f"topic {name} cannot be opened now; look it up again")
        if len(self._open) + len(self._loading) >= self._config.open_topics_max:
            raise TooManyConnectionsError(
                f"topic {name} is not followed: {len(self._open)} are, the most allowed "
                "(broker.open_topics_max); try again later"
            )

    async def _follow(self, name: TopicName, create: bool) -> FollowedTopic:
        closing = self._closing.get(name)
        if closing is not None:
            await asyncio.shield(closing)
        await self._control.namespaces.check(name)
        changes = self.policies.changes
        policy = await self.policies.of(name)
        source = await self._open_log(name, create)
        if self._closed:
            await source.close()
            raise ServiceNotReadyError(f"topic {name} cannot be opened now; look it up again")
        config = self._config
        topic = FollowedTopic(
            name,
            source,
            self._limits,
            self._scope,
            self._traffic,
            self._format,
            policy,
            self._now_ms,
            self._owners,
            self._ack_timer,
            patience_s(config.binding_silence_ms / 1000),
            config.binding_idle_ms / 1000,
            self._retire,
            self._look_later,
        )
        self._open[name] = topic
        self.policies.opened(name, changes)
        self._look_later(topic)
        return topic

    async def _open_log(self, name: TopicName, create: bool) -> FollowedReadableLog:
        try:
            return await self._store.follow(name.log_name)
        except NoSuchLogError:
            # Its owner says whether it may be made, and makes it; also a partition that nobody has
            # used yet.
            await self._owners.open_topic(name, create)
        return await self._store.follow(name.log_name)

    # -- topics that nobody uses --------------------------------------------------------------

    def _look_later(self, topic: FollowedTopic) -> None:
        if topic.idle and self._config.idle_topic_unload_ms and not self._closed:
            delay_s = self._config.idle_topic_unload_ms / 1000
            look = self._scope.guarded(lambda: self._look(topic), f"look at {topic.name}")
            asyncio.get_running_loop().call_later(delay_s, look)

    def _look(self, topic: FollowedTopic) -> None:
        if topic.idle and not topic.closed:
            topic.stop()  # in this turn: nobody comes between
            self._retire(topic)

    def _retire(self, topic: FollowedTopic) -> None:
        """Close a topic; whoever follows it again waits for that."""
        name = topic.name
        if self._open.get(name) is not topic:
            return
        del self._open[name]
        closing = self._scope.spawn(topic.close(), f"close {name}")
        self._closing[name] = closing
        closing.add_done_callback(lambda _: self._closing.pop(name, None))

    async def close(self) -> None:
        """Give all subscriptions back, and send everybody away."""
        self._closed = True
        for topic in self.loaded():
            self._retire(topic)
        under_way = [*self._loading.values(), *self._closing.values()]
        if under_way:
            await asyncio.wait(under_way)
        self._ack_timer.close()
