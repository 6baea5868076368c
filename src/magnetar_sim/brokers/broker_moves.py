"""What operators do with topics and their owners, by the seed: unload topics and bundles, cut
bundles, drain brokers, and ask about topics at any broker, which must not move them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Protocol

from magnetar.admin.elsewhere import ServedElsewhereError
from magnetar.admin.topics import TopicService
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import MagnetarError
from magnetar_sim.brokers.brokers import BrokerMachine
from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.world.loop import call_from_outside

DRAINED_S = (0.2, 1.0, 3.0)
AGAIN_S = 0.5
SMALLEST_HASHES = 1 << 24
"""A bundle of fewer is not cut any more."""


class Unloads(Protocol):
    """Is told what an operator unloads: how often it is under way, by topic, and when topics, by a
    test of their names, were closed."""

    @property
    def unloading(self) -> Counter[str]: ...

    def closed(self, is_closed: Callable[[str], bool]) -> None: ...


class BrokerMoves:
    """Of one run; each ends by itself or when the run heals."""

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        brokers: Sequence[BrokerMachine],
        topics: Sequence[str],
        watch: Unloads,
    ) -> None:
        self.over = False
        self._watch = watch
        self._cluster = cluster
        self._random = rng
        self._brokers = brokers
        self._topics = topics

    def plan(self, count: int, begin_s: float, end_s: float) -> None:
        rng = self._random
        kinds = (self._release, self._release, self._unload, self._drain, self._ask, self._ask)
        favourites = rng.sample(kinds, rng.choice((1, 3, len(kinds))))
        for _ in range(count):
            self._at(rng.uniform(begin_s, end_s), rng.choice(favourites))

    def plan_cuts(self, rng: random.Random, count: int, begin_s: float, end_s: float) -> None:
        """``rng`` is theirs alone."""
        for _ in range(count):
            self._at(rng.uniform(begin_s, end_s), partial(self._cut, rng))

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        call_from_outside(self._cluster.loop, when_s, act, lambda: self.over)

    def _broker(self) -> BrokerMachine:
        return self._random.choice(list(self._brokers))

    def _begin(
        self, broker: BrokerMachine, what: str, act: Callable[[], Awaitable[object]]
    ) -> None:
        """In the broker's process, as a request does."""
        process = broker.process
        if process is None or not process.running or broker.topics is None:
            return

        async def acting() -> None:
            self._cluster.trace.note(broker.name, f"is to {what}")
            try:
                await act()
            except MagnetarError as error:
                self._cluster.trace.note(broker.name, f"does not {what}: {error}")

        process.spawn(acting(), what)

    # -- what they do -------------------------------------------------------------------------

    def _release(self) -> None:
        broker = self._broker()
        bundles = broker.bundles
        owned = [] if bundles is None else bundles.owned()
        if bundles is not None and owned:
            bundle = self._random.choice(owned)
            self._begin(broker, f"release {bundle}", lambda: bundles.release(bundle))

    def _cut(self, rng: random.Random) -> None:
        """At its middle, or between topics; half of the time both parts are given away then."""
        broker = rng.choice(list(self._brokers))
        bundles = broker.bundles
        owned = [] if bundles is None else bundles.owned()
        if bundles is None or not owned:
            return
        bundle, given_away = rng.choice(owned), rng.random() < 0.5
        topics = [parse_topic(each) for each in self._topics]
        boundary = rng.choice((bundle.middle(), bundle.median(topics)))
        if bundle.high - bundle.low < SMALLEST_HASHES:
            return

        async def cut() -> None:
            if await bundles.cut(bundle, boundary) and given_away:
                for half in bundle.halves(boundary):
                    await bundles.release(half)

        self._begin(broker, f"cut {bundle}", cut)

    def _unload(self) -> None:
        broker, topic = self._broker(), self._random.choice(list(self._topics))
        service = broker.topics
        if service is not None:
            self._begin(broker, f"unload {topic}", lambda: self._unload_at(service, topic))

    async def _unload_at(self, service: TopicService, topic: str) -> None:
        self._watch.unloading[topic] += 1
        here = True
        try:
            await service.unload(topic)
        except ServedElsewhereError:
            here = False  # nothing was closed
            raise
        finally:
            if here:
                self._watch.closed(lambda name: name == topic)
            self._watch.unloading[topic] -= 1

    def _drain(self) -> None:
        broker = self._broker()
        bundles = broker.bundles
        if bundles is None or len(self._brokers) == 1:
            return
        self._begin(broker, "hand everything over", bundles.drain)
        lasts_s = self._random.choice(DRAINED_S)
        loop = self._cluster.loop
        loop.call_later(lasts_s, self._undrain, broker, bundles, context=Context())

    def _undrain(self, broker: BrokerMachine, bundles: SharedTopics) -> None:
        """Also when the run has healed: drained brokers would take nothing for ever. An operator
        asks one that is paused until it answers."""
        process = broker.process
        if broker.bundles is not bundles or process is None:
            return
        if process.running:
            self._begin(broker, "take topics again", bundles.undrain)
        elif process.alive:
            loop = self._cluster.loop
            loop.call_later(AGAIN_S, self._undrain, broker, bundles, context=Context())

    def _ask(self) -> None:
        broker, topic = self._broker(), self._random.choice(list(self._topics))
        service = broker.topics
        if service is not None:
            self._cluster.count("questions about topics")
            self._begin(broker, f"tell of {topic}", self._question(service, topic))

    def _question(self, service: TopicService, topic: str) -> Callable[[], Awaitable[object]]:
        questions: list[Callable[[], Awaitable[object]]] = [
            lambda: service.stats(topic),
            lambda: service.internal_stats(topic),
            lambda: service.lookup(topic),
            lambda: service.subscriptions(topic),
            lambda: service.names("public/default"),
        ]
        return self._random.choice(questions)
