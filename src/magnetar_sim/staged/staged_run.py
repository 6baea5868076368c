"""One run of ring 2 with queries that write by staged ledgers, beside brokers, producers, consumers
and faults as in ``broker_run``. What must hold: ``staged_world``, and all that ``topic_history``
says.

A subscription of its own reads all of each topic, from before the first row on, and never fails:
so each entry is seen before it may be trimmed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextvars import Context
from dataclasses import replace
from typing import NamedTuple

from magnetar.log.managed.records import NAME_PARTS
from magnetar.log.managed.records import ROOT as LOGS
from magnetar.metrics import Metrics
from magnetar.staging.records import ROOT
from magnetar_sim.brokers.broker_moves import BrokerMoves
from magnetar_sim.brokers.broker_run import EXCLUSIVE, FAULTS_FROM_S, HEAL_S, TOPIC, BrokerRun
from magnetar_sim.brokers.brokers import BrokerMachine
from magnetar_sim.brokers.topic_consumers import ConsumerPlan, TopicConsumer
from magnetar_sim.cluster.cluster import Client
from magnetar_sim.cluster.faults import Faults, Host
from magnetar_sim.staged.staged_actors import Engine, QueryPlan, Reach, Sweeper
from magnetar_sim.staged.staged_faults import StagedFaults
from magnetar_sim.staged.staged_world import StagedWorld
from magnetar_sim.world.loop import SimLoop, SimProcess, until
from magnetar_sim.world.planned_faults import PlannedFaults
from magnetar_sim.world.trace import Trace

KEEPER = "keeper"
CROWDED_SHARE = 0.2
"""Of the runs: with all clients that a run of brokers has. In the others each topic has but a
producer and the keeper: what is taken in is what is looked at."""
BEHIND_SHARE = 0.3
"""Of the runs: owners are behind with what is committed, and lose topics then (``staged_faults``).
These have two brokers or more, and queries that commit all the time, for two topics."""
BEHIND_BATCHES = 12

BY_BROKERS_SHARE = 0.6
"""Of the queries: brokers read and write their records for them."""

LOG_DEPTH = LOGS.count("/") + NAME_PARTS
"""Below a log are its cursors."""


class _Losses(NamedTuple):
    """How likely it is that an owner is lost as a query's record, or a log's, is written."""

    at_commits: float
    at_records: float


class _Whoever:
    """The driver of the moment, as a host that faults befall."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def name(self) -> str:
        current = self._engine.current
        return "no driver" if current is None else current.name

    @property
    def process(self) -> SimProcess | None:
        current = self._engine.current
        return None if current is None else current.process


class StagedRun(BrokerRun):
    """The run of ``seed``."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(seed, loop, trace, metrics)
        self._staged_random = rng = random.Random(f"{seed}/staged")
        self.world = StagedWorld(self.watch.topic, self.cluster.broken, self.cluster.count)
        self.engines: list[Engine] = []
        self.workers: list[Client] = []
        self._sweeper: Sweeper | None = None
        self._queries = rng.choice((1, 1, 2))
        self._workers_lost = rng.choice((0, 0, 1, 3))
        # By a generator of its own: runs without such losses stay what they were.
        self._loss_random = losses = random.Random(f"{seed}/owners")
        self._losses = _Losses(losses.choice((0.0, 0.1, 0.4)), losses.choice((0.0, 0.03, 0.2)))
        self._losses_left = losses.choice((0, 2, 6))
        self._owners_lost_until_s = 0.0
        # Likewise; its number leaves those seeds as they were that tests hold on to.
        self._staged_faults: StagedFaults | None = None
        behind = random.Random(f"{seed}/behind 343")
        if behind.random() < BEHIND_SHARE:
            self._staged_faults = self._owners_behind(seed, behind)
            self._losses_left = 0
        self._reach_random = random.Random(f"{seed}/reach")  # likewise
        self._crowded = False
        self._deletes = False  # what is taken in afterwards makes the topic anew
        self._supervisors: list[asyncio.Task[None]] = []

    def _owners_behind(self, seed: int, rng: random.Random) -> StagedFaults:
        if len(self.brokers) == 1:
            config = self.brokers[0].config
            machine = BrokerMachine(self.cluster, "k2", config, random.Random(f"{seed}/k1"))
            self.add_brokers([machine])
        if len(self.topics) == 1:
            self.topics.append(TOPIC.format("t2"))
        return StagedFaults(self.cluster, rng, self.brokers, self.world, self.watch.owners.owner_of)

    def hosts(self) -> Sequence[Host]:
        drivers: list[Host] = [_Whoever(engine) for engine in self.engines]
        return [*self.brokers, *drivers, *self.workers]

    def _populate(self) -> None:
        cluster, rng = self.cluster, self._staged_random
        self._crowded = rng.random() < CROWDED_SHARE
        if self._crowded:
            super()._populate()
        else:
            client = self._client("c1")
            for topic in self.topics:
                self._produce(client, topic, exclusive=False)
        checked = cluster.metadata.written

        def written(path: str, before: bytes | None, after: bytes | None) -> None:
            checked(path, before, after)
            self.world.written(path, before, after)
            self._maybe_lose_owner(path)
            if self._staged_faults is not None and path.startswith(f"{ROOT}/"):
                self._staged_faults.record_written()

        cluster.metadata.written = written
        self._owners_lost_until_s = self.loop.time() + HEAL_S - 1
        keeper = self._client(KEEPER)
        for topic in self.topics:
            plan = ConsumerPlan(topic, KEEPER, EXCLUSIVE, earliest=True, queue=50, think_s=0.0)
            self.consumers.append(TopicConsumer(keeper, f"{topic} {KEEPER}", plan, rng))
        self.workers = [cluster.client(f"w{i + 1}") for i in range(2)]
        self._sweeper = Sweeper(cluster.client("sweeper"), rng.choice((0.2, 1.0, 4.0)))
        for number in range(self._queries):
            self._query(f"q{number + 1}")
        for _ in range(self._workers_lost):
            at_s = self.loop.time() + rng.uniform(FAULTS_FROM_S, HEAL_S - 1)
            self.loop.call_at(at_s, self._lose_worker)

    def _plan_faults(self, begin_s: float) -> list[Faults | PlannedFaults | BrokerMoves]:
        """More often than elsewhere: owners that go in the middle of taking in, and answers of the
        metadata store that are lost."""
        planned = super()._plan_faults(begin_s)
        rng, end_s = self._staged_random, begin_s + HEAL_S - 1
        for _ in range(rng.choice((0, 0, 2, 5))):
            self.loop.call_at(rng.uniform(begin_s + FAULTS_FROM_S, end_s), self._lose_owner)
        for _ in range(rng.choice((0, 0, 1, 4))):
            at_s = rng.uniform(begin_s, end_s)
            self.loop.call_at(at_s, self._lose_answers, rng.choice((0.1, 0.4)))
        if self._staged_faults is not None:
            self._staged_faults.plan(begin_s)
            planned.append(self._staged_faults)
        return planned

    def _plan_expiry(self, begin_s: float) -> None:
        """Nothing expires: what the keeper has not seen yet would be gone with it."""

    def _maybe_lose_owner(self, path: str) -> None:
        """Where it hurts: when something is to be taken in, and when the log's record is written in
        the middle of that. Faults by the clock alone seldom come just then."""
        rng, losses = self._loss_random, self._losses
        at_commit = path.startswith(ROOT)
        if not at_commit and not (path.startswith(LOGS) and path.count("/") == LOG_DEPTH):
            return
        if not self.world.taking_in or self.loop.time() > self._owners_lost_until_s:
            return
        chance = losses.at_commits if at_commit else losses.at_records
        if self._losses_left and rng.random() < chance:
            self._losses_left -= 1
            delay_s = rng.choice(
                (0.0, 0.002, 0.01, 0.03, 0.1) if at_commit else (0.0, 0.001, 0.004)
            )
            self.loop.call_later(delay_s, self._lose_owner, context=Context())
            self.cluster.count("owners that were lost while they took in")

    def _lose_owner(self) -> None:
        serving = [broker for broker in self.brokers if broker.topics is not None]
        if serving:
            self._staged_random.choice(serving).kill(0.1)

    def _lose_answers(self, share: float) -> None:
        metadata = self.cluster.metadata
        metadata.lost_answers = share
        self.loop.call_later(self._staged_random.choice((0.3, 1.0)), self._answer)

    def _answer(self) -> None:
        self.cluster.metadata.lost_answers = 0.0

    def _query(self, name: str) -> None:
        rng = self._staged_random
        topics = tuple(self.topics[: rng.choice((1, 2))])
        query = self.world.add(name, topics, rng.choice((3, 6, 12)))
        plan = QueryPlan(
            tasks=rng.choice((1, 2, 4)),
            entries_max=rng.choice((2, 4) if self._crowded else (2, 6, 20, 60)),
            inline_bytes_max=rng.choice((0, 0, 200, 64 << 10)),
            batch_inline_bytes_max=rng.choice((0, 300, 64 << 10)),
            pause_s=rng.choice((0.05, 0.5, 1.0)),
            fails=rng.choice((0.0, 0.2)),
            twins=rng.choice((0.0, 0.3)),
            dies=rng.choice((0.0, 0.1, 0.3)),
            haunts=rng.choice((0.0, 0.3, 0.7)),
        )
        if self._staged_faults is not None:
            query.topics, query.batches = tuple(self.topics[:2]), BEHIND_BATCHES
            plan = replace(plan, inline_bytes_max=0, batch_inline_bytes_max=0, pause_s=0.05)
            plan = replace(plan, fails=0.0, dies=0.0, haunts=0.0)
        seed = rng.random()
        by_brokers = self._reach_random.random() < BY_BROKERS_SHARE
        reach = Reach([broker.name for broker in self.brokers] if by_brokers else ())
        engine = Engine(
            self.cluster, self.world, query, plan, self.workers, random.Random(f"{seed}"), reach
        )
        self.engines.append(engine)
        self._supervisors.append(self.loop.create_task(self._begin(engine)))

    async def _begin(self, engine: Engine) -> None:
        """When the keeper has its subscriptions: what is trimmed before nobody sees."""
        await until(self._kept, 0.05)
        await engine.supervise()

    def _kept(self) -> bool:
        topics = [self.watch.topic(name) for name in self.topics]
        return all(KEEPER in topic.subscriptions for topic in topics)

    def _lose_worker(self) -> None:
        rng = self._staged_random
        index = rng.randrange(len(self.workers))
        self.workers[index].kill()
        self.cluster.count("workers that were lost")
        name = f"w{len(self.cluster.clients)}"
        self.workers[index] = self.cluster.client(name)

    def check(self) -> None:
        super().check()
        for supervisor in self._supervisors:
            if supervisor.done():
                supervisor.result()

    async def _last_look(self, rng: random.Random) -> None:
        for engine in self.engines:
            engine.calm = True
        await until(lambda: self._staged_unfinished() is None, 0.2)
        await super()._last_look(rng)
        self.world.check_order()

    def _staged_unfinished(self) -> str | None:
        self.check()
        return self.world.unfinished()

    def _unfinished(self) -> str | None:
        return self.world.unfinished() or super()._unfinished()
