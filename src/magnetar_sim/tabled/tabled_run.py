"""One run of ring 2 with tables: the run of ``broker_run``, in which jobs take the topics' closed
ledgers into tables, and bookies soon forget them. What must hold: ``table_watch``, and all that
``topic_history`` says.

Topics have their tables before the first message: nothing ever leaves their logs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from magnetar.log.managed.history import ProcessHistory
from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError
from magnetar_sim.brokers.broker_moves import BrokerMoves
from magnetar_sim.brokers.broker_run import FAULTS_FROM_S, HEAL_S, BrokerRun
from magnetar_sim.brokers.pulsar_client import PulsarClient
from magnetar_sim.brokers.topic_history import Subscription, Topic
from magnetar_sim.cluster.faults import Faults, Host
from magnetar_sim.tabled.table_faults import WarehouseFaults
from magnetar_sim.tabled.table_jobs import JobPlan, TableJob
from magnetar_sim.tabled.table_keepers import Eraser, TableKeeper
from magnetar_sim.tabled.table_watch import TableWatch
from magnetar_sim.tabled.warehouse import Warehouse
from magnetar_sim.tabled.warehouse_history import WarehouseHistory
from magnetar_sim.world.loop import SimLoop, SimProcess, run_in, until
from magnetar_sim.world.planned_faults import PlannedFaults
from magnetar_sim.world.trace import Trace

ERASED_SHARE: Final = 0.8
RETRY_S: Final = 0.2
FOR_EVER_S: Final = 1000.0


class _Supervised:
    """Jobs of one machine, one after the other; as a host that faults befall, that of the
    moment."""

    def __init__(self) -> None:
        self.jobs: list[TableJob] = []

    @property
    def name(self) -> str:
        return self.jobs[-1].name if self.jobs else "no job"

    @property
    def process(self) -> SimProcess | None:
        return self.jobs[-1].client.process if self.jobs else None


class TabledRun(BrokerRun):
    """The run of ``seed``."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(seed, loop, trace, metrics)
        self._table_random = rng = random.Random(f"{seed}/tables")
        self._deletes = False  # the table of a topic that is made anew is another story
        self.watch.trims = False
        ledger = replace(
            self.cluster.plan.ledger,
            ledger_entries_max=rng.choice((3, 8, 30)),
            tabled_ledger_ms_least=rng.choice((0, 0, 300, 2000)),
            tail_cache_bytes=random.Random(f"{seed}/tails").choice((1024, 1 << 20, 1 << 20)),
        )
        self.cluster.plan = replace(self.cluster.plan, ledger=ledger)
        self.warehouse = Warehouse(loop, random.Random(f"{seed}/warehouse"))
        self.tables = TableWatch(
            self.topics,
            self.warehouse,
            self.watch.topic,
            self.cluster.has_ledger,
            self.cluster.broken,
            self.cluster.count,
        )
        for broker in self.brokers:
            broker.make_history = self._history
        self._plan = JobPlan(
            pause_s=rng.choice((0.05, 0.4, 1.5)),
            dies=rng.choice((0.0, 0.02, 0.1)),
            sleeps=rng.choice((0.0, 0.02, 0.1)),
            unfit=rng.choice((0.0, 0.0, 0.1, 0.5)),
            spread=rng.choice((1, 2)),
            group_rows=rng.choice((1, 4, 1000)),
            kept_ms=rng.choice((None, 0, 0, 300, 1500)),
        )
        self._supervised = [_Supervised() for _ in range(rng.choice((1, 2, 2)))]
        self._keeper: TableKeeper | None = None
        self._eraser: Eraser | None = None
        self._calm = False
        self._tasks: list[asyncio.Task[None]] = []

    def _history(self) -> ProcessHistory:
        return WarehouseHistory(self.warehouse, self.loop)

    def _watch_owners(self, also: Callable[[str, bytes | None, bytes | None], None]) -> None:
        def written(path: str, before: bytes | None, after: bytes | None) -> None:
            also(path, before, after)
            self.tables.written(path, before, after)

        super()._watch_owners(written)

    def hosts(self) -> Sequence[Host]:
        return [*self.brokers, *self._supervised]

    # -- jobs ---------------------------------------------------------------------------------

    def _job(self, name: str) -> TableJob:
        rng = self._table_random
        hosts = [broker.name for broker in self.brokers]
        rng.shuffle(hosts)
        seed = random.Random(f"{rng.random()}")
        job = TableJob(self.cluster, self.warehouse, name, hosts, self._plan, seed)
        job.calm = self._calm
        return job

    async def _make_partitions(self) -> None:
        await super()._make_partitions()
        job = self._job("setup")
        job.calm = True
        await run_in(job.client.process, self._attach(job), "attach")

    async def _attach(self, job: TableJob) -> None:
        for topic in self.topics:
            while True:
                try:
                    await job.attach(topic)
                    break
                except MagnetarError as error:
                    job.note(f"cannot attach a table yet: {error}")
                    await asyncio.sleep(RETRY_S)
        await job.asker.leave()

    def _populate(self) -> None:
        super()._populate()
        rng = self._table_random
        for number, each in enumerate(self._supervised):
            self._begin(self._supervise(each, f"j{number + 1}"))
        keeps = self._job("keeper")
        keeps.calm = True
        every_s = rng.choice((0.2, 1.0, FOR_EVER_S))
        self._keeper = TableKeeper(keeps, self.topics, every_s, rng.random() < 0.5)
        keeps.client.process.spawn(self._keeper.run(), "upkeep")
        if rng.random() < ERASED_SHARE:
            erases = self._job("eraser")
            erases.calm = True
            tables = self.tables
            self._eraser = Eraser(erases, tables.choose, tables.erasing, tables.told)
            erases.client.process.spawn(
                self._eraser.run(rng.choice((3, 12)), rng.choice((0.3, 1.0))), "erasure"
            )

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self.loop.create_task(work))

    async def _supervise(self, supervised: _Supervised, name: str) -> None:
        """Start a job, and another one when it ends or is taken for dead. Runs as nobody."""
        rng, loop = self._table_random, self.loop
        while True:
            job = self._job(f"{name}.{len(supervised.jobs) + 1}")
            supervised.jobs.append(job)
            job.client.process.spawn(job.run(self.topics), "table job")
            lives_s = rng.choice((1.0, 3.0, FOR_EVER_S)) * rng.uniform(0.3, 1.0)
            ends_s = loop.time() + lives_s
            process = job.client.process
            await until(
                lambda p=process, s=ends_s: not p.alive or (not self._calm and loop.time() > s),  # type: ignore[misc]
                0.05,
            )
            if job.client.process.alive:
                self.cluster.count("jobs that had another one beside them")
            await asyncio.sleep(rng.uniform(0.05, 0.4))

    def _plan_faults(self, begin_s: float) -> list[Faults | PlannedFaults | BrokerMoves]:
        planned = super()._plan_faults(begin_s)
        rng = self._table_random
        faults = WarehouseFaults(self.cluster, rng, self.warehouse, self._table_hosts)
        faults.plan(rng.choice((0, 3, 8)), begin_s + FAULTS_FROM_S, begin_s + HEAL_S - 1)
        return [*planned, faults]

    def _table_hosts(self) -> list[str]:
        """Who reads or writes tables."""
        followers = [each.client.name for each in self.followers]
        return [host.name for host in self.hosts()] + followers

    # -- the last look ------------------------------------------------------------------------

    async def _last_look(self, rng: random.Random) -> None:
        self._calm = True
        self.warehouse.heal()
        if self._eraser is not None:
            self._eraser.over = True
        for each in self._supervised:
            for job in each.jobs:
                job.calm = True
                if job is not each.jobs[-1]:
                    job.client.kill()
        await until(self._calmed, 0.2)
        await super()._last_look(rng)

    def _calmed(self) -> bool:
        """Owners know of all that is closed, and what is being erased is gone."""
        self.check()
        return self.tables.behind() is None and (self._eraser is None or not self._eraser.busy)

    def _audit(self, last: PulsarClient, topic: Topic, subscription: Subscription) -> None:
        self.tables.forbid_erased()
        super()._audit(last, topic, subscription)

    def check(self) -> None:
        super().check()
        for task in self._tasks:
            if task.done():
                task.result()

    def _unfinished(self) -> str | None:
        return super()._unfinished() or self.tables.behind()
