"""One run of ring 2: a cluster, its workload, faults; then healing, progress and the last look.
Some seeds have brokers on their cluster instead of clients of ledgers (``broker_run``).

The seed decides everything. Phases, in seconds of virtual time: faults and work until
``HEAL_S``; then every fault ends, and within ``PROGRESS_S`` all that must hold is there.

Why: docs/adr/0049-simulation-of-whole-roles.md.
"""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.config import LedgerConfig
from magnetar.metrics import Metrics
from magnetar_sim.brokers.broker_run import BrokerRun, has_brokers
from magnetar_sim.brokers.clocked_run import ClockedRun
from magnetar_sim.brokers.keyed_run import KeyedRun
from magnetar_sim.brokers.led_run import LedRun
from magnetar_sim.brokers.read_only_run import ReadOnlyRun
from magnetar_sim.brokers.steered_run import SteeredRun
from magnetar_sim.cluster.abreast_workload import CRASHED_SHARE, AbreastWriter
from magnetar_sim.cluster.cluster import Client, Cluster, plan_cluster, plan_shape
from magnetar_sim.cluster.cluster_checkers import MetadataChecker, check_copies, check_end
from magnetar_sim.cluster.compaction_workload import CompactionJob
from magnetar_sim.cluster.crossed_holes import (
    BOOKIES,
    OTHERS_FROM_S,
    CrossedHoles,
    has_crossed_holes,
    plan_quorums,
)
from magnetar_sim.cluster.directory_faults import DirectoryFaults
from magnetar_sim.cluster.faults import Faults
from magnetar_sim.cluster.ledger_workload import (
    LedgerJob,
    delete,
    follow,
    look_again,
    recover,
    write_afresh,
)
from magnetar_sim.cluster.log_workload import LogJob
from magnetar_sim.cluster.shapes import draw_shape
from magnetar_sim.cluster.upkeep_workload import UpkeepJob, has_upkeep, plan_upkeep
from magnetar_sim.kafka.kafka_run import KafkaRun
from magnetar_sim.repair.repair_run import RepairRun
from magnetar_sim.replicas.replica_run import ReplicaRun
from magnetar_sim.staged.staged_run import StagedRun
from magnetar_sim.tabled.tabled_run import TabledRun
from magnetar_sim.world.checked_run import CheckedRun
from magnetar_sim.world.loop import SimLoop, SimProcess, run_in, until
from magnetar_sim.world.scheduler import SimulationError
from magnetar_sim.world.trace import ProductLog, Trace

QUORUMS = (
    (1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 3, 3),
    (3, 2, 2), (3, 2, 2), (3, 2, 1), (4, 3, 2), (5, 3, 2),
)  # fmt: skip
HALF_FENCED_SHARE = 0.12
"""Of the runs: a part of a ledger's bookies is out of reach of who takes it. It matters most where
every copy of a write set counts."""
HANGING_SHARE = 0.1
"""Of the runs: a bookie hangs on when all else has healed, and no recovery may wait for it."""
FAULTS_FROM_S = 0.5
HEAL_S = 8.0
PROGRESS_S = 120.0
PLAIN: Final = "plain"
"""The kind of a run that has what its seed says: brokers, upkeep, deduplication, or not."""


@dataclass(frozen=True)
class ClusterOutcome:
    """How a run ended. ``failure`` names the invariant that broke, None if all held."""

    seed: int
    failure: str | None
    steps: int
    confirmed: int
    ledgers: int
    virtual_s: float
    digest: str
    trace: tuple[str, ...]
    happened: Mapping[str, int] = field(default_factory=dict)
    """How often the run met what it is to meet."""


def run_cluster(
    seed: int, metrics: Metrics | None = None, tracing: bool = False, kind: str = PLAIN
) -> ClusterOutcome:
    """Run ``seed``, plain or as one of ``KINDS``. ``metrics`` may be shared by runs; nothing reads
    them."""
    loop = SimLoop(random.Random(f"{seed}/loop"))
    trace = Trace(loop.time, tracing)
    made: type[_Run | BrokerRun | KafkaRun | RepairRun | ReplicaRun]
    if kind == PLAIN:
        made = BrokerRun if has_brokers(seed) else _Run
    else:
        made = KINDS[kind]
    run = made(seed, loop, trace, metrics or Metrics())
    failure = None
    collecting = gc.isenabled()
    gc.disable()  # what a dead process left behind must not run its finally clauses by chance
    with ProductLog(trace, run.note_bug, run.note_error), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            loop.run_until_complete(run.main())
        # Whatever broke, it belongs to this seed; what was cancelled without cause, too.
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            failure = f"{type(error).__name__}: {error}"
            trace.note("run", f"BROKEN: {error}")
        finally:
            loop.finish()
    if collecting:
        gc.enable()
    cluster = None if isinstance(run, ReplicaRun) else run.cluster
    return ClusterOutcome(
        seed,
        failure,
        loop.steps,
        run.confirmed,
        run.ledgers,
        loop.time(),
        trace.digest(),
        tuple(trace.lines),
        {} if cluster is None else cluster.happened,
    )


def plan_ledgers(rng: random.Random, half_fenced: bool = False) -> LedgerConfig:
    """The client's settings."""
    quorums = [each for each in QUORUMS if each[0] > 1 and each[1] == each[2]]
    size, write_quorum, ack_quorum = rng.choice(quorums if half_fenced else QUORUMS)
    return LedgerConfig(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        add_timeout_ms=rng.choice((800, 3000)),
        read_timeout_ms=rng.choice((500, 2000)),
        ledger_entries_max=rng.choice((15, 50, 1000)),
        cursor_flush_interval_ms=rng.choice((20, 100)),
    )


class _Run(CheckedRun):
    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(loop, trace)
        self.jobs: list[LedgerJob] = []
        self.log_job: LogJob | None = None
        self.random = rng = random.Random(seed)
        self._half_fenced = rng.random() < HALF_FENCED_SHARE
        ledger = plan_ledgers(rng, self._half_fenced)
        self._lose_disks = 0
        if ledger.ack_quorum > 1 and rng.random() < 0.3:
            self._lose_disks = rng.randint(1, ledger.ack_quorum - 1)
        bookies = ledger.ensemble_size + self._lose_disks + rng.choice((0, 0, 1, 2))
        self._crossed = not self._lose_disks and has_crossed_holes(seed)
        if self._crossed:
            ledger, bookies = plan_quorums(ledger), BOOKIES
        self._plan = plan_cluster(rng, bookies, ledger)
        self._tail_random = random.Random(f"{seed}/tail")
        self._tails: dict[LedgerJob, asyncio.Task[None]] = {}
        self._upkeep_random = random.Random(f"{seed}/upkeep")
        self._upkeep_random.random()  # that which ``has_upkeep`` looks at
        self._with_upkeep = has_upkeep(seed)
        if self._with_upkeep:
            self._plan = plan_upkeep(self._plan, self._upkeep_random)
        self.upkeep: UpkeepJob | None = None
        self.cluster: Cluster | None = None
        self._shape_random = random.Random(f"{seed}/shape")
        self._shape = draw_shape(self._shape_random, bookies, FAULTS_FROM_S, HEAL_S - 1)
        if self._shape is not None:
            self._plan = plan_shape(self._plan, self._shape)
        self._directories: DirectoryFaults | None = None
        self._seed = seed
        self._metrics = metrics

    @property
    def confirmed(self) -> int:
        """Entries that writers were told are stored."""
        return sum(job.history.confirmed for job in self.jobs if job.history is not None)

    @property
    def ledgers(self) -> int:
        return sum(job.history is not None for job in self.jobs)

    def note_error(self, who: str, what: str) -> None:
        if self.cluster is None:
            return
        for machine in self.cluster.bookies:
            if machine.name == who:
                machine.told_error(what)
                if self._directories is not None:
                    self._directories.told_error(machine, what)

    async def main(self) -> None:
        cluster = Cluster(self.loop, self._seed, self._plan, self.trace, self._metrics)
        self.cluster = cluster
        ledger = self._plan.ledger
        self.trace.note(
            "run",
            f"E={ledger.ensemble_size} Qw={ledger.write_quorum} Qa={ledger.ack_quorum} "
            f"bookies={self._plan.bookies} disks lost={self._lose_disks}",
        )
        await cluster.start()
        checker = MetadataChecker(cluster)
        if self._with_upkeep:
            self.upkeep = UpkeepJob(cluster, self._upkeep_random, checker, HEAL_S - 1)
            self.upkeep.plan_mark_trouble(random.Random(f"{self._seed}/marks"))
            self.upkeep.plan_cut_moves(random.Random(f"{self._seed}/moves"))
        if self._shape is not None:
            checker_of_upkeep = self.upkeep.checker if self.upkeep is not None else None
            self._directories = DirectoryFaults(
                cluster, self._shape, self._shape_random, checker_of_upkeep
            )
        faults = self._begin(cluster)
        checker.closed = faults.ledger_closed
        while self.loop.time() < HEAL_S:
            await asyncio.sleep(0.5)
            self._check(checker)
        faults.over = True
        if self.upkeep is not None:
            self.upkeep.heal()
        if self._directories is not None:
            self._directories.over = True
        self.trace.note("run", "all faults heal")
        cluster.heal()
        async with self.progress(PROGRESS_S):
            await self._last_look(cluster)
        self._check(checker)

    def _check(self, checker: MetadataChecker) -> None:
        self.check()
        checker.check()
        if self.cluster is not None and self.cluster.problem is not None:
            raise SimulationError(self.cluster.problem)
        if self._directories is not None:
            self._directories.check()
        for job in self.jobs:
            if job.history is not None:
                job.history.check()
        if self.log_job is not None:
            self.log_job.history.check()
        if self.upkeep is not None:
            self.upkeep.check()

    def _begin(self, cluster: Cluster) -> Faults:
        rng = self.random
        for index in range(rng.choice((1, 1, 2))):
            self.jobs.append(LedgerJob(cluster, index, rng, rng.choice((1.0, 3.0, 6.0))))
        clients = [job.client for job in self.jobs]
        if self.upkeep is not None:
            clients.append(self.upkeep.client)
        if rng.random() < 0.4:
            self.log_job = LogJob(cluster, rng, HEAL_S - 2)
            clients += self.log_job.owners
        for job in self.jobs:
            if rng.random() < 0.4:
                follower = self._client(cluster, f"t{job.name[1:]}", clients)
                self._start_tail(follower, job)
        damage = random.Random(f"{self._seed}/damage")
        ledger = self._plan.ledger
        damaged = self._lose_disks > 0 and ledger.write_quorum > ledger.ack_quorum
        faults = Faults(cluster, rng, clients, self._lose_disks - damaged)
        faults.spoils = self._shape is not None and self._shape.unreadable
        for job in self.jobs:
            if job.deferred and rng.random() < 0.8:
                job.when_forced = faults.crash_after_answers(FAULTS_FROM_S, rng)
            if self._half_fenced:
                self._plan_half_fenced(cluster, job, clients, faults)
            elif damaged and job is self.jobs[0]:
                self._plan_damaged(cluster, job, clients, faults, damage)
            elif rng.random() < 0.8:
                self._plan_takeover(cluster, job, clients, faults)
        begin_s = OTHERS_FROM_S if self._crossed else FAULTS_FROM_S
        faults.plan(rng.choice((2, 6, 12)), begin_s, HEAL_S - 1)
        if rng.random() < 0.6:
            faults.spread_out()
        if self._crossed:
            self.jobs.append(CrossedHoles(cluster, self._seed))
        return faults

    def _client(self, cluster: Cluster, name: str, clients: list[Client]) -> Client:
        client = cluster.client(name)
        clients.append(client)
        return client

    def _start_tail(self, follower: Client, job: LedgerJob) -> None:
        wait_s = self._tail_random.choice((0.3, 2.0, None))
        follows = self._tail_random.random() < 0.7

        async def run() -> None:
            await until(lambda: job.history is not None, 0.2)
            assert job.history is not None
            if follows:
                await follow(follower, job.history, wait_s)
            else:
                await look_again(follower, job.history, 0.7)

        self._tails[job] = follower.process.spawn(run(), "tail")

    def _plan_takeover(
        self, cluster: Cluster, job: LedgerJob, clients: list[Client], faults: Faults
    ) -> None:
        """Other clients open the ledger while it is written; the writer may be killed, or paused,
        or live on; the moment is a bad one for other reasons too."""
        rng, loop = self.random, self.loop
        takeover_s = rng.uniform(FAULTS_FROM_S, FAULTS_FROM_S + job.spread_s)
        if job.hesitates_s and rng.random() < 0.7:
            takeover_s = rng.uniform(FAULTS_FROM_S, FAULTS_FROM_S + 0.7 * job.hesitates_s)
        process, fate = job.client.process, rng.random()
        if fate < 0.2:
            loop.call_at(takeover_s - 0.3 * rng.random(), job.client.kill)
        elif fate < 0.4:
            loop.call_at(takeover_s - 0.3 * rng.random(), process.pause)
            loop.call_at(takeover_s + rng.choice((0.5, 3.0, 8.0)) * rng.random(), process.resume)
        elif fate < 0.65:
            loop.call_at(takeover_s - 0.1 * rng.random(), process.pause)
            faults.plan_crash_of_all(takeover_s, process.resume)
        recoveries = []
        for i in range(rng.choice((1, 1, 2, 3))):
            client = self._client(cluster, f"r{job.name[1:]}{'abc'[i]}", clients)
            recoveries.append(client)
            delay_s = rng.choice((0.0, 0.1, 2.0)) * rng.random() if i else 0.0
            self._start_recovery(client, job, takeover_s + delay_s)
        faults.plan_takeover(takeover_s, [job.client, *recoveries])

    def _plan_half_fenced(
        self, cluster: Cluster, job: LedgerJob, clients: list[Client], faults: Faults
    ) -> None:
        """Another client opens the ledger, and comes through to a part of its bookies at first."""
        working_s = FAULTS_FROM_S + job.hesitates_s
        takeover_s = self.random.uniform(working_s, working_s + 0.5 * job.spread_s)
        client = self._client(cluster, f"r{job.name[1:]}a", clients)
        self._start_recovery(client, job, takeover_s)
        faults.plan_half_fenced(takeover_s, job.client, client, job.ensemble)

    def _plan_damaged(
        self,
        cluster: Cluster,
        job: LedgerJob,
        clients: list[Client],
        faults: Faults,
        rng: random.Random,
    ) -> None:
        """Another client opens the ledger when the last entries have lost a copy."""
        working_s = FAULTS_FROM_S + job.hesitates_s
        takeover_s = rng.uniform(working_s, working_s + 0.5 * job.spread_s)
        client = self._client(cluster, f"r{job.name[1:]}a", clients)
        self._start_recovery(client, job, takeover_s)
        faults.plan_damaged_copy(takeover_s, job.client, client, job.ensemble, rng)

    def _start_recovery(self, client: Client, job: LedgerJob, when_s: float) -> None:
        async def recovery() -> None:
            await asyncio.sleep(max(0, when_s - self.loop.time()))
            if job.history is not None:
                self.trace.note(client.name, f"opens ledger {job.history.ledger_id}")
                metadata = await recover(client, job.history)
                if self.upkeep is not None and metadata is not None and deletes_after_s:
                    await asyncio.sleep(deletes_after_s)
                    if not self.upkeep.over:
                        await delete(client, job.history)

        upkeep_random = self._upkeep_random
        deletes_after_s = upkeep_random.choice((0.0, 0.0, 0.01, 1.0)) * upkeep_random.random()
        client.process.spawn(recovery(), "recovery")
        if self.random.random() < 0.3:
            self.loop.call_at(when_s + self.random.random(), client.kill)

    # -- after healing ------------------------------------------------------------------------

    def _hang_one(self, cluster: Cluster) -> SimProcess | None:
        """A bookie that hangs for good, where the quorums can do without."""
        ledger, rng = self._plan.ledger, random.Random(f"{self._seed}/hanging")
        spare = 1 < ledger.ack_quorum < ledger.write_quorum and not self._lose_disks
        if not spare or self.upkeep is not None or rng.random() > HANGING_SHARE:
            return None
        serving = [bookie for bookie in cluster.bookies if bookie.serving]
        if not serving:  # one that hangs before it is registered would be missed for good
            return None
        process = rng.choice(serving).process_now
        process.pause()
        self.trace.note("run", f"{process.name} hangs")
        return process

    async def _last_look(self, cluster: Cluster) -> None:
        hanging = self._hang_one(cluster)
        last = cluster.client("last")
        await self._wait_answers()
        if hanging is not None:
            for job in self.jobs:
                if job.history is not None:
                    await run_in(last.process, recover(last, job.history), "without one bookie")
            self.trace.note("run", f"{hanging.name} goes on")
            hanging.resume()
        await run_in(last.process, write_afresh(last), "write afresh")
        if self.log_job is not None:
            self.log_job.over = True
            await run_in(last.process, self.log_job.last_look(last), "log")
        for job in self.jobs:
            history = job.history
            if history is None:
                if job.client.process.alive:
                    raise SimulationError(f"{job.name} has not created its ledger: no progress")
                continue
            if not job.client.process.alive:
                history.answered = len(history.payloads)  # nobody was left to hear the answers
            if self.upkeep is not None and history.deleting:
                await run_in(last.process, delete(last, history), "delete")
                self.upkeep.check_deleted(history)
                continue
            metadata = await run_in(last.process, recover(last, history), "last look")
            assert metadata is not None
            check_end(history, metadata)
            await check_copies(cluster, history, metadata)
            if (tail := self._tails.get(job)) is not None:
                await until(tail.done, 0.5)
            history.check()
        if self._directories is not None:
            await self._directories.last_look()
        if self.upkeep is not None:
            await self.upkeep.last_look()
        elif not self._lose_disks:
            await self._wait_mended()

    async def _wait_mended(self) -> None:
        """Bookies that were away have got what they were missing from the clients that live."""
        for job in self.jobs:
            process, mender = job.client.process, job.client.ledgers.mender
            await until(lambda p=process, m=mender: not p.alive or not m.has_missing, 0.5)  # type: ignore[misc]

    async def _wait_answers(self) -> None:
        """Every writer that lives has heard of every append."""
        for job in self.jobs:
            await until(lambda job=job: job.settled, 0.5)  # type: ignore[misc]


class CompactedRun(_Run):
    """With a log that is compacted, trimmed and read by key (``compaction_workload``)."""

    compaction: CompactionJob | None = None

    def _begin(self, cluster: Cluster) -> Faults:
        rng = random.Random(f"{self._seed}/compaction")
        self.compaction = CompactionJob(cluster, rng, HEAL_S - 2)
        return super()._begin(cluster)

    def _check(self, checker: MetadataChecker) -> None:
        super()._check(checker)
        if self.compaction is not None:
            self.compaction.history.check()

    async def _last_look(self, cluster: Cluster) -> None:
        assert self.compaction is not None
        self.compaction.over = True
        await self.compaction.last_look(cluster.client("compacts"))
        await super()._last_look(cluster)


class AbreastRun(_Run):
    """With a client that writes many ledgers at once (``abreast_workload``)."""

    def _begin(self, cluster: Cluster) -> Faults:
        faults = super()._begin(cluster)
        rng = random.Random(f"{self._seed}/abreast")
        writer = AbreastWriter(cluster, rng, HEAL_S - 2)
        if rng.random() < CRASHED_SHARE:
            begin_s = rng.uniform(FAULTS_FROM_S, HEAL_S - 4)
            writer.when_answered = faults.crash_after_answers(begin_s, rng)
            writer.heard_from_s = begin_s
        self.jobs += writer.jobs
        return faults


KINDS: Final[Mapping[str, type[_Run | BrokerRun | KafkaRun | RepairRun | ReplicaRun]]] = {
    "read_only": ReadOnlyRun,
    "steered": SteeredRun,
    "staged": StagedRun,
    "repaired": RepairRun,
    "replicated": ReplicaRun,
    "compacted": CompactedRun,
    "keyed": KeyedRun,
    "led": LedRun,
    "tabled": TabledRun,
    "abreast": AbreastRun,
    "clocked": ClockedRun,
    "kafka": KafkaRun,
}
"""Runs that have something beside it: with brokers, read-only ones beside the owners, and policies
that say who is served by these; queries that write by staged ledgers; auto-recovery, and bookies
that are lost for good; replicas of partitions; a log that is compacted beside the ledgers;
subscriptions that are shared by key; topics on partitions that brokers replicate; tables that take
their topics; a client that writes many ledgers at once; clients that speak Kafka's protocol."""
