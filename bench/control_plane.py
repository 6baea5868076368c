"""What a cluster of many brokers and topics asks of its metadata store. Only the control plane: the
very code that owns bundles, on the simulator's clock and metadata store; no topic is opened.

    python -m bench.control_plane [--topics N] [--brokers N] [--namespaces N] [--bundles N]

Topics are looked up, each at a broker chosen by chance, as clients behind one address do, so many a
second; then nothing is asked for a while; then one broker is killed, and a client for each of its
topics asks again at once, until it is told of one that serves it.

A broker answers for all topics of a bundle from what it knows of the bundle. So of those that come
to the same broker one is looked up, and the others are counted: every bundle is taken, watched by
every broker that is asked for one of its topics, and failed over, as with each topic by itself.

Counted are nodes of the owners and registrations, watches, requests of each kind, and seconds of
simulated time. The store answers after 0.3 to 4 ms and bears any number of requests: whether a real
one bears them is for the reader to compare (docs/performance/brokers.md).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import structlog

from bench import results
from bench.measure import machine
from magnetar.cluster.brokers.reporting import Load
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.bundles import Bundle, Layout, even_boundaries
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import Here
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.cluster.topic_name import TopicName
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import MagnetarError
from magnetar.topics.steering import LOOK_S
from magnetar_sim.world.loop import SimLoop, SimProcess
from magnetar_sim.world.metadata import MetadataServer, SimMetadataStore

SESSION_S = 10.0
QUIET_S = 60.0
LOOKUPS_PER_S = 100
"""At each broker."""
AGAIN_S = (0.1, 1.0)
"""Until a client asks again, growing."""
SETTLE_S = 2.0
HOPS_MAX = 5


class CountedStore(SimMetadataStore):
    """``asked``: over all brokers, by kind."""

    asked: Counter[str]

    async def _ask(self, run: Callable[[], Any], what: str) -> Any:
        self.asked[what.split(" ")[0]] += 1
        return await super()._ask(run, what)

    @property
    def watches(self) -> int:
        return len(self._watches.paths())


class Broker:
    """As far as it owns bundles. ``connect``: whether a broker takes connections."""

    def __init__(
        self,
        number: int,
        loop: SimLoop,
        server: MetadataServer,
        asked: Counter[str],
        connect: Callable[[str], Awaitable[bool]],
    ) -> None:
        self.name = f"k{number}"
        self.process: SimProcess = loop.new_process(self.name)
        self.process.context.run(self._build, number, server, asked, connect)

    def _build(
        self,
        number: int,
        server: MetadataServer,
        asked: Counter[str],
        connect: Callable[[str], Awaitable[bool]],
    ) -> None:
        self.store = CountedStore(server, self.process)
        self.store.asked = asked
        self.scope = TaskScope(self.name, awaited(by="the measurement"))
        self.namespaces = Namespaces(self.store)
        self.topics = SharedTopics(self.store, self.scope, self.namespaces, connect)
        url, http_url = f"pulsar://{self.name}:6650", f"http://{self.name}:8080"
        self.report = BrokerReport(self.name, number + 1, url, http_url)

    async def begin(self) -> None:
        await self.topics.begin(self.report, int(SESSION_S * 1000), _close, _lost)
        self.scope.spawn(self.topics.run(_load), "report")
        self.scope.spawn(self._look_at_others(), "look")

    async def _look_at_others(self) -> None:
        """As steering and balancing do."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.topics.reports()

    async def take(self, name: TopicName) -> Any:
        """As this process; what belongs to it may die with it."""
        return await self.process.spawn(self.topics.locate_reachable(name, True), "lookup")


async def _close(_bundle: Bundle) -> Callable[[str], None]:
    return lambda _url: None


def _load() -> Load:
    return Load(0, 0.0, 0.0)


def _lost(why: str) -> None:
    raise SystemExit(f"a broker lost its session: {why}")


class Asked(NamedTuple):
    """Topics of one bundle, looked up at one broker; ``name`` is one of them."""

    broker: Broker
    name: TopicName


class Plane:
    """Brokers, topics, and clients that look them up."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.loop = SimLoop(random.Random(f"{options.seed}/loop"))
        self.loop.steps_max = 1 << 62
        self.server = MetadataServer(self.loop, random.Random(f"{options.seed}/store"), SESSION_S)
        self.asked: Counter[str] = Counter()
        self.brokers = [
            Broker(number, self.loop, self.server, self.asked, self._connects)
            for number in range(options.brokers)
        ]
        self.by_url = {broker.report.service_url: broker for broker in self.brokers}
        self.topics = self._topics()
        self.rows: list[dict[str, object]] = []

    async def _connects(self, url: str) -> bool:
        await asyncio.sleep(0.001)
        return self.by_url[url].process.alive

    def _topics(self) -> dict[Bundle, list[TopicName]]:
        """By bundle."""
        found: dict[Bundle, list[TopicName]] = {}
        each = self.options.topics // self.options.namespaces
        for space in range(self.options.namespaces):
            layout = Layout(f"public/n{space}", even_boundaries(self.options.bundles))
            for number in range(each):
                name = TopicName("public", f"n{space}", f"t{number}", -1)
                found.setdefault(layout.bundle_of(name), []).append(name)
        return found

    def _questions(self, bundles: Iterable[Bundle], brokers: Sequence[Broker]) -> list[Asked]:
        """One for each topic, but for those that come to the same broker for the same bundle."""
        asked = []
        for bundle in bundles:
            names = self.topics[bundle]
            chosen = dict(zip(self.random.choices(brokers, k=len(names)), names, strict=True))
            asked += [Asked(broker, name) for broker, name in chosen.items()]
        self.random.shuffle(asked)
        return asked

    async def run(self) -> None:
        first = self.brokers[0]
        await first.process.spawn(self._make_namespaces(first), "namespaces")
        await self._phase("brokers register", self._begin())
        questions = self._questions(self.topics, self.brokers)
        await self._phase("all topics are looked up", self._in_turn(questions))
        await self._phase("looked up again", self._in_turn(questions))
        await self._phase(f"nothing is asked for {QUIET_S:.0f} s", asyncio.sleep(QUIET_S))
        dead = self.brokers[len(self.brokers) // 2]
        owned = [bundle for bundle in dead.topics.owned() if bundle in self.topics]
        topics = sum(len(self.topics[bundle]) for bundle in owned)
        living = [broker for broker in self.brokers if broker is not dead]
        orphans = self._questions(owned, living)
        dead.process.kill()
        await self._phase(
            f"one is killed: {len(owned)} bundles, {topics} topics", self._at_once(orphans)
        )
        left = [bundle for bundle in owned if not any(bundle in b.topics.owned() for b in living)]
        assert not left, f"nobody serves {left}"

    async def _make_namespaces(self, broker: Broker) -> None:
        await broker.namespaces.prepare()
        for number in range(self.options.namespaces):
            policies = {"bundles": {"numBundles": self.options.bundles}}
            await broker.namespaces.create_namespace(f"public/n{number}", policies)

    async def _begin(self) -> None:
        for broker in self.brokers:
            await broker.process.spawn(broker.begin(), "begin")

    async def _in_turn(self, questions: Iterable[Asked]) -> None:
        """``LOOKUPS_PER_S`` at each broker."""
        by_broker: dict[Broker, list[TopicName]] = {broker: [] for broker in self.brokers}
        for each in questions:
            by_broker[each.broker].append(each.name)

        async def ask(broker: Broker, names: Sequence[TopicName]) -> None:
            begun_s = self.loop.time()
            for number, name in enumerate(names):
                await asyncio.sleep(begun_s + number / LOOKUPS_PER_S - self.loop.time())
                await self._until_served(broker, name)

        tasks = [b.process.spawn(ask(b, names), "clients") for b, names in by_broker.items()]
        await asyncio.wait(tasks)

    async def _at_once(self, questions: Iterable[Asked]) -> None:
        tasks = [
            broker.process.spawn(self._until_served(broker, name), "client")
            for broker, name in questions
        ]
        await asyncio.wait(tasks)

    async def _until_served(self, first: Broker, name: TopicName) -> None:
        """Within the process of ``first``."""
        again_s = AGAIN_S[0]
        while True:
            try:
                found = await first.topics.locate_reachable(name)
                for _ in range(HOPS_MAX):
                    if isinstance(found, Here) or not found.candidate:
                        break
                    found = await self.by_url[found.service_url].take(name)
                else:
                    continue
            except MagnetarError:
                pass
            else:
                if isinstance(found, Here) or self.by_url[found.service_url].process.alive:
                    return
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, AGAIN_S[1])

    async def _phase(self, name: str, work: Awaitable[object]) -> None:
        begun_s, wall_s = self.loop.time(), time.perf_counter()
        self.asked.clear()
        await work
        took_s = self.loop.time() - begun_s
        await asyncio.sleep(SETTLE_S)
        watches = [broker.store.watches for broker in self.brokers if broker.process.alive]
        row: dict[str, object] = {
            "phase": name,
            "seconds": round(took_s, 2),
            "reads": self.asked["read"],
            "lists": self.asked["list"],
            "writes": sum(self.asked[kind] for kind in ("create", "put", "delete")),
            "requests_per_s": round(sum(self.asked.values()) / (took_s + SETTLE_S)),
            "nodes": len(self.server.paths()),
            "watches": sum(watches),
            "most_of_one": max(watches),
        }
        print(row, f"{time.perf_counter() - wall_s:.0f} s", file=sys.stderr, flush=True)
        self.rows.append(row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--brokers", type=int, default=200)
    parser.add_argument("--namespaces", type=int, default=100)
    parser.add_argument("--bundles", type=int, default=64, help="of each namespace")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    where = machine()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    plane = Plane(options)
    plane.loop.run_until_complete(plane.run())
    told = (
        f"{options.topics} topics in {options.namespaces} namespaces of {options.bundles} bundles, "
        f"{options.brokers} brokers, session {SESSION_S:.0f} s; seconds are simulated.\n\n"
    )
    columns = list(plane.rows[0])
    table = results.table(columns, [[row[name] for name in columns] for row in plane.rows])
    results.store("control_plane", {"rows": plane.rows}, told + table, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
