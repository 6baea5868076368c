"""What it costs to open a topic, in requests to the metadata store and in round trips to it.

Real parts of two brokers (control plane, topics, managed logs, ledger client) over the simulated
store; each request takes ``ROUND_TRIP_S`` of simulated time, and nothing else takes any. A bound is
what it takes today. When a thousand topics come to a broker at once, a request more is a thousand.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.bundles import Bundle
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.ownership import Here, TellClients
from magnetar.cluster.schemas.policies import SchemaPolicy
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.config import BrokerConfig, LedgerConfig
from magnetar.env.tasks import TaskScope, awaited
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.seam import Run
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import EARLIEST
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.opening import open_durable
from magnetar.topics.registry import Topics
from magnetar.topics.topic import Topic
from magnetar.topics.traffic import Traffic
from magnetar_sim.world.loop import SimLoop, SimProcess
from magnetar_sim.world.metadata import SimMetadataServer, SimMetadataStore
from tests.doubles.memory_values import MemoryValues
from tests.unit.ledger.doubles import MemoryPool

ROUND_TRIP_S = 1.0
SESSION_S = 1e6
HOUSEKEEPING_S = 60.0
LEDGERS = LedgerConfig(ensemble_size=1, write_quorum=1, ack_quorum=1)


class CountedStore(SimMetadataStore):
    """Notes what is asked of it."""

    asked: list[str]

    async def _ask(self, run: Callable[[], Any], what: str) -> Any:
        self.asked.append(what)
        return await super()._ask(run, what)


class Part:
    """A broker without its port."""

    def __init__(
        self, name: str, loop: SimLoop, server: SimMetadataServer, pool: MemoryPool
    ) -> None:
        self.process: SimProcess = loop.new_process(name)
        self.process.context.run(self._build, name, server, pool)

    def _build(self, name: str, server: SimMetadataServer, pool: MemoryPool) -> None:
        self.name = name
        self.store = CountedStore(server, self.process)
        self.store.asked = []
        self.server = server
        scope = TaskScope(name, awaited(by="the test"))
        share = partial(SharedTopics, self.store, scope)
        self.control = ControlPlane.over(
            self.store, MemoryValues(), "sim", SchemaPolicy(), _now_ms, share
        )
        ledgers = LedgerClient(LedgerManager(self.store), pool, LEDGERS, lambda: 1.0)
        logs = ManagedLogStore(self.store, ledgers, LEDGERS, now_ms=_now_ms)
        self.topics = Topics(
            BrokerConfig(), logs, self.control, scope, Traffic(), PulsarEntryFormat(), _now_ms
        )

    @property
    def bundles(self) -> SharedTopics:
        found = self.control.bundles
        assert isinstance(found, SharedTopics)
        return found

    async def begin(self, number: int) -> None:
        report = BrokerReport(self.name, number, f"pulsar://{self.name}:1", f"http://{self.name}:2")
        await self.bundles.begin(report, int(SESSION_S * 1000), self._close_topics, _lost)

    async def _close_topics(self, bundle: Bundle) -> TellClients:
        return await self.topics.hand_over(bundle.holds)

    async def use(self, name: TopicName, subscriptions: Sequence[str]) -> Topic:
        """The topic with an entry that each subscription has acknowledged, and stored that."""
        topic = await self.topics.get(name, create=True)
        for each in subscriptions:
            await open_durable(topic, each, EARLIEST, {})
        done: asyncio.Future[Sequence[Run]] = asyncio.get_running_loop().create_future()

        def appended(error: MagnetarError | None, runs: Sequence[Run]) -> None:
            done.set_result(runs)
            assert error is None

        topic.publish([b"payload"], appended)
        await done
        for subscription in topic.subscriptions.values():
            subscription.cursor.acknowledge_cumulative(topic.log.positions.readable)
            await subscription.cursor.wait_stored()
        return topic

    def die(self) -> None:
        """As ``kill -9``, and its session is over at once."""
        self.process.kill()
        self.server.end_session(self.store._session_id)


def _now_ms() -> int:
    return 1_700_000_000_000


def _lost(why: str) -> None:
    raise AssertionError(why)


class Costs:
    """Of one question to a broker."""

    def __init__(self, asked: Sequence[str], seconds: float) -> None:
        self.asked = asked
        self.requests = len(asked)
        self.round_trips = round(seconds / ROUND_TRIP_S)

    def __str__(self) -> str:
        return f"{self.round_trips} round trips: " + "; ".join(self.asked)


async def costs_of(part: Part, question: Callable[[], Awaitable[object]]) -> Costs:
    loop = asyncio.get_running_loop()
    part.store.asked.clear()
    begun_s = loop.time()
    await part.process.spawn(_asked(question), "asked")
    return Costs(list(part.store.asked), loop.time() - begun_s)


async def _asked(question: Callable[[], Awaitable[object]]) -> object:
    return await question()


Scenario = Callable[[Part, Part], Awaitable[None]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    """Two brokers of one cluster, in which nothing has happened yet."""
    monkeypatch.setattr("magnetar_sim.world.metadata.DELAY_S", (ROUND_TRIP_S / 2, ROUND_TRIP_S / 2))

    def run_one(scenario: Scenario) -> None:
        loop = SimLoop(random.Random(1))
        server = SimMetadataServer(loop, random.Random(2), SESSION_S)
        pool = MemoryPool(1)

        async def main() -> None:
            parts = [Part(name, loop, server, pool) for name in ("a", "b")]
            await parts[0].process.spawn(parts[0].control.namespaces.prepare(), "prepare")
            await parts[0].process.spawn(LedgerManager(parts[0].store).initialize(), "ledgers")
            for number, part in enumerate(parts):
                await part.process.spawn(part.begin(number + 1), "begin")
            await scenario(*parts)

        try:
            loop.run_until_complete(main())
        finally:
            loop.finish()

    return run_one


async def alike(part: Part) -> tuple[TopicName, TopicName]:
    """Two topics of one bundle, of which the second asks for no policy that the first did not."""
    layout = await part.process.spawn(part.bundles.layout("public/default"), "layout")
    first = parse_topic("first")
    bucket = part.control.policies.path_of(first)
    for number in range(10_000):
        other = parse_topic(f"t{number}")
        same = layout.bundle_of(other) == layout.bundle_of(first)
        if same and part.control.policies.path_of(other) == bucket:
            return first, other
    raise AssertionError("there are many")


async def moved(a: Part, b: Part, subscriptions: Sequence[str], dies: bool = False) -> TopicName:
    """A topic that ``a`` had and that ``b`` is to open next; ``b`` has the bundle by now."""
    first, name = await alike(a)
    for each in (first, name):
        await a.process.spawn(a.use(each, subscriptions), "use")
    bundle = await a.process.spawn(a.bundles.layout("public/default"), "layout")
    if dies:
        a.die()
    else:
        await a.process.spawn(a.bundles.release(bundle.bundle_of(name)), "release")
    await b.process.spawn(b.topics.get(first, create=True), "get")
    await asyncio.sleep(HOUSEKEEPING_S)  # what the first has left over is gone
    return name


@pytest.mark.parametrize("subscriptions", [["s"], [f"s{n}" for n in range(10)]])
def test_a_topic_that_was_handed_over(
    run: Callable[[Scenario], None], subscriptions: list[str]
) -> None:
    """Whose bundle it is, its record, and the record written; the cursors are in it."""

    async def scenario(a: Part, b: Part) -> None:
        name = await moved(a, b, subscriptions)
        costs = await costs_of(b, lambda: b.topics.get(name, create=True))
        topic = b.topics.find(name)
        assert topic is not None
        assert sorted(topic.subscriptions) == sorted(subscriptions)
        assert all(each.cursor.backlog_entries() == 0 for each in topic.subscriptions.values())
        assert (costs.requests, costs.round_trips) <= (3, 2), str(costs)

    run(scenario)


def test_a_topic_whose_owner_has_died(run: Callable[[Scenario], None]) -> None:
    """Beside that: its last ledger and its cursor's ledger are recovered (three requests each) side
    by side, and the cursors listed twice (with the list's stamp), read, and taken."""

    async def scenario(a: Part, b: Part) -> None:
        name = await moved(a, b, ["s"], dies=True)
        costs = await costs_of(b, lambda: b.topics.get(name, create=True))
        topic = b.topics.find(name)
        assert topic is not None
        assert topic.subscriptions["s"].cursor.backlog_entries() == 0
        assert costs.requests <= 15, str(costs)
        assert costs.round_trips <= 7, str(costs)

    run(scenario)


def test_more_cursors_are_recovered_side_by_side(run: Callable[[Scenario], None]) -> None:
    async def scenario(a: Part, b: Part) -> None:
        name = await moved(a, b, [f"s{n}" for n in range(10)], dies=True)
        costs = await costs_of(b, lambda: b.topics.get(name, create=True))
        assert costs.requests <= 15 + 9 * 5, str(costs)
        assert costs.round_trips <= 7, str(costs)

    run(scenario)


def test_a_topic_that_is_new(run: Callable[[Scenario], None]) -> None:
    """It is looked for, and is not there; is it partitioned; it is made as its owner's; and
    is its namespace still there."""

    async def scenario(a: Part, b: Part) -> None:
        first, name = await alike(a)
        await a.process.spawn(a.use(first, ["s"]), "use")
        costs = await costs_of(a, lambda: a.topics.get(name, create=True))
        assert costs.requests <= 5, str(costs)
        assert costs.round_trips <= 4, str(costs)

    run(scenario)


def test_a_topic_that_is_new_and_whose_partitions_its_client_has_asked_for(
    run: Callable[[Scenario], None],
) -> None:
    """As clients do, with a lookup, before they connect a producer."""

    async def scenario(a: Part, b: Part) -> None:
        first, name = await alike(a)
        await a.process.spawn(a.use(first, ["s"]), "use")
        assert await a.process.spawn(a.topics.partitions(name, create=True), "partitions") == 0
        costs = await costs_of(a, lambda: a.topics.get(name, create=True))
        assert costs.requests <= 4, str(costs)
        assert costs.round_trips <= 3, str(costs)

    run(scenario)


def test_a_subscription_that_is_new(run: Callable[[Scenario], None]) -> None:
    """Its node is made as its owner's; is the log still ours."""

    async def scenario(a: Part, b: Part) -> None:
        first, _ = await alike(a)
        topic = await a.process.spawn(a.use(first, ["s"]), "use")
        costs = await costs_of(a, lambda: open_durable(topic, "another", EARLIEST, {}))
        assert costs.requests <= 2, str(costs)
        assert costs.round_trips <= 2, str(costs)

    run(scenario)


def test_its_first_entry_costs_a_ledger(run: Callable[[Scenario], None]) -> None:
    async def scenario(a: Part, b: Part) -> None:
        name = await moved(a, b, ["s"])
        await b.process.spawn(b.topics.get(name, create=True), "get")
        costs = await costs_of(b, lambda: b.use(name, []))
        ledger = [each for each in costs.asked if "cursor" not in each]
        assert len(ledger) <= 10, str(costs)

    run(scenario)


def test_handing_a_topic_over(run: Callable[[Scenario], None]) -> None:
    """Its ledger is closed, the cursor stored in its node and the cursor's ledger ended, the record
    written; and the bundle's node looked at and deleted, once for all of its topics."""

    async def scenario(a: Part, b: Part) -> None:
        _, name = await alike(a)
        await a.process.spawn(a.use(name, ["s"]), "use")
        layout = await a.process.spawn(a.bundles.layout("public/default"), "layout")
        await b.process.spawn(b.control.ownership.locate(name), "locate")
        costs = await costs_of(a, lambda: a.bundles.release(layout.bundle_of(name)))
        topic = [each for each in costs.asked if "/namespace/" not in each]
        topic = [each for each in topic if "/loadbalance/" not in each]
        assert len(topic) <= 4, str(costs)
        assert costs.round_trips <= 5, str(costs)

    run(scenario)


def test_a_warm_lookup_asks_nothing(run: Callable[[Scenario], None]) -> None:
    async def scenario(a: Part, b: Part) -> None:
        name = await moved(a, b, ["s"])
        assert await b.process.spawn(b.control.ownership.locate(name), "locate") == Here()
        costs = await costs_of(b, lambda: b.control.ownership.locate(name))
        assert costs.requests == 0, str(costs)

    run(scenario)


def test_the_names_of_many_topics(run: Callable[[Scenario], None]) -> None:
    """A record each, many of them at a time: one after the other, 10 000 took seconds."""

    async def scenario(a: Part, b: Part) -> None:
        topics = [parse_topic(f"t{n}") for n in range(100)]
        for each in topics:
            await a.process.spawn(a.topics.get(each, create=True), "get")
        costs = await costs_of(a, lambda: a.topics.names("public/default"))
        found = await a.process.spawn(a.topics.names("public/default"), "names")
        assert found == sorted(topics, key=str)
        assert costs.requests <= 100 + 5, str(costs)
        assert costs.round_trips <= 10, str(costs)

    run(scenario)
