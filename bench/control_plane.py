"""What a cluster of many brokers and topics asks of its metadata store. Only the control plane: the
very code that owns bundles, on the simulator's clock and metadata store; no topic is opened.

    python -m bench.control_plane [--topics N] [--brokers N] [--namespaces N] [--bundles N]

Every topic is looked up once, at a broker chosen by chance, as clients behind one address do; then
nothing is asked for a while; then one broker is killed, and for each of its topics somebody asks
brokers by chance until one of them says that it serves it.

Counted are nodes of the owners and registrations, watches, requests of each kind, and seconds of
simulated time. The store answers after 0.3 to 4 ms and bears any number of requests: whether a real
one bears them is for the reader to compare (docs/performance.md).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from bench import results
from bench.measure import machine
from magnetar.cluster.bundles import Bundle
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import Here
from magnetar.cluster.reports import BrokerReport
from magnetar.cluster.sharing import SharedTopics
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import MagnetarError
from magnetar_sim.loop import SimLoop, SimProcess
from magnetar_sim.metadata import MetadataServer, SimMetadataStore

SESSION_S = 10.0
QUIET_S = 60.0
ASKING = 2000
"""Topics that are asked for at once."""
AGAIN_S = (0.1, 1.0)
"""Until a client asks again, growing."""
SETTLE_S = 2.0


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
    """As far as it owns bundles."""

    def __init__(self, number: int, loop: SimLoop, server: MetadataServer, asked: Any) -> None:
        self.name = f"k{number}"
        self.process: SimProcess = loop.new_process(self.name)
        self.process.context.run(self._build, number, server, asked)

    def _build(self, number: int, server: MetadataServer, asked: Counter[str]) -> None:
        self.store = CountedStore(server, self.process)
        self.store.asked = asked
        self.scope = TaskScope(self.name, awaited(by="the measurement"))
        self.namespaces = Namespaces(self.store)
        self.topics = SharedTopics(self.store, self.scope, self.namespaces)
        url, http_url = f"pulsar://{self.name}:6650", f"http://{self.name}:8080"
        self.report = BrokerReport(self.name, number + 1, url, http_url)

    async def begin(self) -> None:
        await self.topics.begin(self.report, int(SESSION_S * 1000), _close, _lost)

    async def locate(self, name: TopicName, authoritative: bool) -> Any:
        """As this process; what belongs to it may die with it."""
        return await self.process.spawn(self.topics.locate(name, authoritative), "lookup")


async def _close(_bundle: Bundle) -> Callable[[str], None]:
    return lambda _url: None


def _lost(why: str) -> None:
    raise SystemExit(f"a broker lost its session: {why}")


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
            Broker(number, self.loop, self.server, self.asked) for number in range(options.brokers)
        ]
        self.by_url = {broker.report.service_url: broker for broker in self.brokers}
        each = options.topics // options.namespaces
        self.names = [
            parse_topic(f"persistent://public/n{space}/t{number}")
            for space in range(options.namespaces)
            for number in range(each)
        ]
        self.rows: list[dict[str, object]] = []

    async def run(self) -> None:
        first = self.brokers[0]
        await first.process.spawn(self._make_namespaces(first), "namespaces")
        await self._phase("brokers register", self._begin())
        await self._phase("every topic is looked up", self._look(self.names, self.brokers))
        await self._phase("every topic is looked up again", self._look(self.names, self.brokers))
        await self._phase(f"nothing is asked for {QUIET_S:.0f} s", asyncio.sleep(QUIET_S))
        dead = self.brokers[len(self.brokers) // 2]
        owned = set(dead.topics.owned())
        layouts = [await dead.topics.layout(f"public/n{n}") for n in range(self.options.namespaces)]
        by_namespace = {layout.namespace: layout for layout in layouts}
        orphans = [
            name for name in self.names if by_namespace[name.namespace].bundle_of(name) in owned
        ]
        living = [broker for broker in self.brokers if broker is not dead]
        dead.process.kill()
        await self._phase(
            f"one is killed with {len(owned)} bundles, {len(orphans)} topics",
            self._look(orphans, living, but=dead),
        )

    async def _make_namespaces(self, broker: Broker) -> None:
        await broker.namespaces.prepare()
        for number in range(self.options.namespaces):
            policies = {"bundles": {"numBundles": self.options.bundles}}
            await broker.namespaces.create_namespace(f"public/n{number}", policies)

    async def _begin(self) -> None:
        for broker in self.brokers:
            await broker.process.spawn(broker.begin(), "begin")

    async def _look(
        self, names: Sequence[TopicName], brokers: Sequence[Broker], but: Broker | None = None
    ) -> None:
        """Look each one up until a broker other than ``but`` says that it serves it."""
        left = iter(names)

        async def some() -> None:
            for name in left:
                await self._until_served(name, brokers, but)

        await asyncio.gather(*(some() for _ in range(ASKING)))

    async def _until_served(
        self, name: TopicName, brokers: Sequence[Broker], but: Broker | None
    ) -> None:
        again_s = AGAIN_S[0]
        while True:
            asked, authoritative = self.random.choice(brokers), False
            for _ in range(5):
                try:
                    found = await asked.locate(name, authoritative)
                except MagnetarError:
                    break
                if isinstance(found, Here):
                    return
                asked, authoritative = self.by_url[found.service_url], True
                if asked is but:
                    break
                if not found.candidate:
                    return  # it serves the topic by now, and that is all that is asked
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
        print(row, f"{time.perf_counter() - wall_s:.0f} s", file=sys.stderr)
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
