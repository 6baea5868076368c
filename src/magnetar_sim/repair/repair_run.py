"""One run of ring 2 with auto-recovery beside bookies and clients of ledgers, and with bookies that
are lost for good. What must hold: ``repair_checkers``, and of the ledgers ``cluster_checkers``.

Phases, in seconds of virtual time: until ``HEAL_S`` ledgers are written, taken over and repaired
under faults of every kind; fewer than Qa bookies are lost for good, others come and go. An
auto-recovery may be killed or paused at any step of a repair: as a lock is taken, a mark comes or
goes, a copy is added, metadata is written. Then the faults end, and everything must become whole.
After that, bookies are lost one by one while there are enough left: each time all must become whole
again, and nothing that was confirmed may be missing. Then one bookie is heard no more, and stays
registered: what it has counts for nothing; and one is emptied while it serves. In some runs an
operator says who is to be emptied, and takes it back, all the time (``repair_operator``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from magnetar.config import LedgerConfig
from magnetar.metrics import Metrics
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.copies import is_superfluous
from magnetar_sim.cluster.cluster import DATA, BookieMachine, Client, Cluster, plan_cluster
from magnetar_sim.cluster.cluster_checkers import check_end
from magnetar_sim.cluster.faults import Faults
from magnetar_sim.cluster.ledger_workload import LedgerJob, recover
from magnetar_sim.repair.repair_actors import RepairMachine, plan_repair
from magnetar_sim.repair.repair_checkers import RepairChecker
from magnetar_sim.repair.repair_operator import Operator
from magnetar_sim.world.checked_run import CheckedRun
from magnetar_sim.world.loop import SimLoop, SimProcess, call_from_outside, run_in, until
from magnetar_sim.world.scheduler import SimulationError
from magnetar_sim.world.trace import Trace

QUORUMS = (
    (2, 2, 2), (3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (3, 2, 2), (4, 3, 2),
    (5, 3, 2), (2, 2, 1), (3, 3, 1),
)  # fmt: skip
FAULTS_FROM_S = 0.5
HEAL_S = 9.0
PROGRESS_S = 120.0
BAD_MOMENTS = (0, 2, 6, 15)
HOLES_SHARE = 0.3
"""Of the runs with Qa < Qw: bookies miss entries, and those who know of it die."""


class RepairRun(CheckedRun):
    """The run of ``seed``."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(loop, trace)
        self._seed = seed
        self._random = rng = random.Random(f"{seed}/repair")
        size, write_quorum, ack_quorum = rng.choice(QUORUMS)
        ledger = LedgerConfig(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            add_timeout_ms=rng.choice((400, 1500)),
            read_timeout_ms=rng.choice((400, 1500)),
            explicit_lac_interval_ms=rng.choice((0, 300)),
        )
        self._lose_at_once = rng.randint(0, ack_quorum - 1)
        self._lose_later = rng.choice((0, 1, 1, 2))
        self._hole_random = random.Random(f"{seed}/holes")
        self._end_random = ends = random.Random(f"{seed}/ends")
        self._hushes, self._empties = ends.random() < 0.3, ends.random() < 0.2
        self._operates = ends.random() < 0.35
        self._holes = ack_quorum < write_quorum and self._hole_random.random() < HOLES_SHARE
        if self._holes:  # a writer without another bookie to take goes on without the one
            self._lose_at_once = self._lose_later = 0
            self._hushes = self._empties = self._operates = False
        bookies = size + self._lose_at_once + self._lose_later + rng.choice((0, 0, 1))
        bookies += self._hushes or self._empties or self._operates
        bookies = size if self._holes else bookies
        plan = plan_cluster(rng, bookies, ledger)
        # Whole after a while, whatever was lost: an index that is flushed rarely costs much here.
        self._repair = plan_repair(rng)
        beside = self._repair if rng.random() < 0.6 else None
        self._plan = replace(
            plan, bookie=replace(plan.bookie, flush_interval_ms=1000), repair=beside
        )
        self._metrics = metrics
        self.cluster: Cluster | None = None
        self.jobs: list[LedgerJob] = []
        self.machines: list[RepairMachine] = []
        self._bad_moments = rng.choice(BAD_MOMENTS)
        self._bad_chance = rng.choice((0.05, 0.2, 0.5))
        self._operator: Operator | None = None
        self._over = False

    @property
    def confirmed(self) -> int:
        """Entries that writers were told are stored."""
        return sum(job.history.confirmed for job in self.jobs if job.history is not None)

    @property
    def ledgers(self) -> int:
        return sum(job.history is not None for job in self.jobs)

    def note_error(self, who: str, what: str) -> None:
        """Errors of bookies are looked at in other runs."""

    # -- the run ------------------------------------------------------------------------------

    async def main(self) -> None:
        cluster = Cluster(self.loop, self._seed, self._plan, self.trace, self._metrics)
        self.cluster = cluster
        ledger = self._plan.ledger
        self.trace.note(
            "run",
            f"E={ledger.ensemble_size} Qw={ledger.write_quorum} Qa={ledger.ack_quorum} "
            f"bookies={self._plan.bookies} lost={self._lose_at_once}+{self._lose_later} "
            f"delay={self._repair.lost_bookie_delay_ms} ms",
        )
        await cluster.start()
        delay_s = max(self._repair.lost_bookie_delay_ms, self._repair.silent_bookie_delay_ms) / 1000
        checker = RepairChecker(cluster, delay_s + self._plan.session_timeout_s + 5.0)
        faults = self._begin(cluster, checker)
        while self.loop.time() < HEAL_S:
            await asyncio.sleep(0.5)
            self._check(checker)
        faults.over = self._over = True
        self.trace.note("run", "all faults heal")
        cluster.heal()
        for machine in self.machines:
            machine.heal()
        if self._operator is not None:
            await self._operator.end()
        await self._settle(cluster, checker)
        for _ in range(self._lose_later):
            self._lose(checker, self._choose_sound(cluster, checker))
            await self._settle(cluster, checker)
        if self._hushes:
            await self._hush(cluster, checker)
        if self._empties:
            await self._empty(cluster, checker)

    async def _hush(self, cluster: Cluster, checker: RepairChecker) -> None:
        """A bookie is registered, and nobody hears from it; then it is back."""
        machine = self._end_random.choice(self._sound(cluster, checker))
        checker.silent_s[machine.name] = self.loop.time()
        self.trace.note("fault", f"nobody hears from {machine.name}")
        cluster.count("bookies that fall silent")
        cluster.network.hush(machine.name)
        await self._settle(cluster, checker)
        del checker.silent_s[machine.name]
        cluster.network.unhush(machine.name)
        self.trace.note("fault", f"{machine.name} is heard again")
        await self._settle(cluster, checker)

    async def _empty(self, cluster: Cluster, checker: RepairChecker) -> None:
        """An operator has a bookie emptied while it serves."""
        operator = self._operator or Operator(cluster, self._end_random, list, 0)
        await operator.end()
        machine = self._end_random.choice(self._sound(cluster, checker))
        await operator.leave(machine.name)
        checker.leaving = machine.name
        await self._settle(cluster, checker)
        checker.leaving = None
        await operator.stay(machine.name)

    def _begin(self, cluster: Cluster, checker: RepairChecker) -> Faults:
        rng = self._random
        for index in range(rng.choice((1, 2, 3))):
            job = LedgerJob(cluster, index, rng, rng.choice((1.0, 3.0, 6.0)))
            job.deferred = False
            self.jobs.append(job)
        least = 0 if self._plan.repair is not None else 1
        for index in range(rng.choice((least, 1, 2, 2))):
            seed = f"{self._seed}/repairs {index}"
            machine = RepairMachine(cluster, f"a{index + 1}", self._repair, random.Random(seed))
            self.machines.append(machine)
            machine.start()
        clients = [job.client for job in self.jobs]
        if self._holes:
            self._plan_holes(cluster)
        for job in self.jobs:
            if rng.random() < 0.6:
                other = cluster.client(f"r{job.name[1:]}")
                clients.append(other)
                self._plan_takeover(job, other)
            if rng.random() < 0.3:
                self._at(rng.uniform(FAULTS_FROM_S, HEAL_S - 2), job.client.kill)
        faults = Faults(cluster, rng, [*clients, *self.machines, *self.machines], 0)
        faults.plan(rng.choice((0, 2, 6, 12)), FAULTS_FROM_S, HEAL_S - 1)
        for _ in range(self._lose_at_once):
            self._at(
                rng.uniform(FAULTS_FROM_S, HEAL_S - 2),
                lambda: self._lose(checker, self._choose_sound(cluster, checker)),
            )
        for _ in range(rng.choice((0, 1, 2))):
            self._at(rng.uniform(FAULTS_FROM_S, HEAL_S - 3), partial(self._absent, cluster))
        if self._operates:
            self._operate(cluster, checker)
        checker.stepped = self._stepped
        for bookie in cluster.bookies:
            bookie.promises.add_comes = self._add_comes
            bookie.promises.forgets = partial(checker.gives_up, bookie.name)
        return faults

    def _operate(self, cluster: Cluster, checker: RepairChecker) -> None:
        def processes() -> list[SimProcess]:
            repairing = [*self.machines, *(cluster.bookies if self._plan.repair else ())]
            return [each.process for each in repairing if each.process is not None]

        rng = random.Random(f"{self._seed}/operator")
        self._operator = operator = Operator(cluster, rng, processes, rng.choice((5, 20, 60)))

        def rewritten(metadata: LedgerMetadata) -> None:
            named = [name for one in metadata.fragments for name in one.bookies]
            for bookie in cluster.bookies:
                if is_superfluous(metadata, BookieId(bookie.name)):
                    operator.gives_up(bookie.name, named)

        checker.rewritten = rewritten
        for bookie in cluster.bookies:
            bookie.promises.listed = operator.listed

    def _plan_takeover(self, job: LedgerJob, other: Client) -> None:
        when_s = self._random.uniform(FAULTS_FROM_S + 0.5, HEAL_S - 1)

        async def takeover() -> None:
            await asyncio.sleep(when_s)
            if job.history is not None:
                job.history.end_of = lasting_end
                await recover(other, job.history)

        other.process.spawn(takeover(), "recovery")

    def _plan_holes(self, cluster: Cluster) -> None:
        """A bookie is away for a while, in the middle of what writers write; soon after it is back
        they die, and what it has missed is known to nobody."""
        rng = self._hole_random
        for _ in range(rng.choice((1, 2, 3))):
            machine = rng.choice(cluster.bookies)
            begin_s = rng.uniform(FAULTS_FROM_S + 0.3, HEAL_S - 4)
            back_s = begin_s + rng.uniform(0.2, 1.5)
            self._at(begin_s, machine.kill)
            self._at(back_s, machine.start)
        for job in self.jobs:
            if rng.random() < 0.7:
                self._at(back_s + rng.uniform(0.1, 1.0), job.client.kill)

    # -- bad moments --------------------------------------------------------------------------

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        call_from_outside(self.loop, when_s, act, lambda: self._over)

    def _add_comes(self, _ledger: int, _entries: Sequence[bytes], _deferred: bool) -> None:
        self._stepped("entries are added")

    def _stepped(self, what: str) -> None:
        """A repair has done a step: soon an auto-recovery may be gone, or hang, or a bookie die."""
        rng = self._random
        chance = self._bad_chance * (0.05 if what == "entries are added" else 1.0)
        if self._over or not self._bad_moments or rng.random() >= chance:
            return
        self._bad_moments -= 1
        when_s = self.loop.time() + rng.choice((0.0, 0.002, 0.02, 0.2)) * rng.random()
        kind = rng.random() if self.machines else 1.0
        machine = rng.choice(self.machines) if self.machines else None
        if machine is None:
            self._at(when_s, partial(self._restart, rng.choice(self._bookies), 0.2))
        elif kind < 0.5:
            self._at(when_s, partial(machine.kill, rng.choice((0.05, 1.0, 3.0))))
        elif kind < 0.8:
            self._at(when_s, partial(self._pause, machine, rng.choice((0.3, 2.0, 6.0))))
        else:
            self._at(when_s, partial(self._restart, rng.choice(self._bookies), 0.2))
        self._cluster.count(f"bad moments: {what}")

    @property
    def _cluster(self) -> Cluster:
        assert self.cluster is not None
        return self.cluster

    @property
    def _bookies(self) -> list[BookieMachine]:
        return self._cluster.bookies

    def _pause(self, machine: RepairMachine, lasts_s: float) -> None:
        process = machine.process
        if process is not None and process.alive:
            process.pause()
            self.trace.note("fault", f"{machine.name} is paused for {lasts_s:.1f} s")
            self._at(self.loop.time() + lasts_s, process.resume)

    def _restart(self, machine: BookieMachine, down_s: float) -> None:
        if machine.lost is None:
            machine.kill()
            self._at(self.loop.time() + down_s, machine.start)

    # -- bookies that go ----------------------------------------------------------------------

    def _sound(self, cluster: Cluster, checker: RepairChecker) -> list[BookieMachine]:
        return [one for one in cluster.bookies if one.name not in checker.lost_s]

    def _choose_sound(self, cluster: Cluster, checker: RepairChecker) -> BookieMachine:
        return self._random.choice(self._sound(cluster, checker))

    def _lose(self, checker: RepairChecker, machine: BookieMachine) -> None:
        """For good: its disks are empty, so it refuses to start."""
        machine.stop_and_wipe(DATA)
        checker.lost_s[machine.name] = self.loop.time()
        self._cluster.count("bookies lost")

    def _absent(self, cluster: Cluster) -> None:
        """Away for about as long as the delay is, then back with all that it had."""
        machine = self._random.choice(cluster.bookies)
        if machine.lost is None:
            delay_s = self._repair.lost_bookie_delay_ms / 1000 + self._plan.session_timeout_s
            machine.kill()
            self._at(self.loop.time() + self._random.uniform(0.3, 2.0) * delay_s, machine.start)

    # -- after healing ------------------------------------------------------------------------

    def _check(self, checker: RepairChecker) -> None:
        self.check()
        checker.check()
        if self._cluster.problem is not None:
            raise SimulationError(self._cluster.problem)
        for job in self.jobs:
            if job.history is not None:
                job.history.check()

    async def _settle(self, cluster: Cluster, checker: RepairChecker) -> None:
        """Everything becomes whole; every ledger is closed, and can be read."""
        try:
            async with asyncio.timeout(PROGRESS_S):
                await self._wait_whole(checker)  # those too that nobody has closed
                last = cluster.client(f"last{self.loop.next_serial()}")
                for job in self.jobs:
                    await self._close(last, job)
                await self._wait_whole(checker)
        except TimeoutError:
            lacking = [*checker.marked]
            for job in self.jobs:
                lacking += self._lacking(checker, job)
            raise SimulationError(
                f"not whole within {PROGRESS_S:.0f} s: {'; '.join(lacking[:4])}"
            ) from None
        self._check(checker)
        for job in self.jobs:
            if job.history is not None:
                await self._check_copies(job, checker)
        if self._plan.repair is not None:
            await self._wait_given_up(cluster, checker)

    async def _wait_whole(self, checker: RepairChecker) -> None:
        for job in self.jobs:
            await until(lambda job=job: job.settled, 0.5)  # type: ignore[misc]
        while checker.marked or any(self._lacking(checker, job) for job in self.jobs):
            await asyncio.sleep(0.5)
            self._check(checker)

    async def _wait_given_up(self, cluster: Cluster, checker: RepairChecker) -> None:
        """No bookie holds copies of a ledger that does not name it."""
        for machine in cluster.bookies:
            if machine.name in checker.silent_s:
                continue  # it cannot find out whether they are anybody's
            deadline_s = self.loop.time() + PROGRESS_S
            while (held := await self._superfluous_at(machine, checker)) and machine.serving:
                if self.loop.time() > deadline_s:
                    raise SimulationError(f"{machine.name} keeps what is nobody's: {held}")
                await asyncio.sleep(0.5)
                self._check(checker)

    async def _superfluous_at(self, machine: BookieMachine, checker: RepairChecker) -> list[int]:
        if not machine.serving or machine.bookie is None:
            return []
        held = await run_in(machine.process_now, machine.bookie.ledgers(), "ledgers")
        known = [(each, checker.stored(each)) for each in held or ()]
        return [
            ledger_id
            for ledger_id, metadata in known
            if metadata is not None and is_superfluous(metadata, BookieId(machine.name))
        ]

    def _lacking(self, checker: RepairChecker, job: LedgerJob) -> list[str]:
        if job.history is None:
            return []
        metadata = checker.stored(job.history.ledger_id)
        assert metadata is not None
        named = [name for one in metadata.fragments for name in one.bookies]
        gone = {*checker.lost_s, *checker.silent_s, checker.leaving}
        lost = [f"{name}, which is gone, is named" for name in named if name in gone]
        down = [
            f"{name}, which is down, may lack what it is named for"
            for name in named
            if not self._cluster.bookie(name).serving
        ]
        return lost or down or [*islice(checker.lacks(metadata), 1)]

    async def _close(self, last: Client, job: LedgerJob) -> None:
        await until(lambda: job.settled, 0.5)
        history = job.history
        if history is None:
            if job.client.process.alive:
                raise SimulationError(f"{job.name} has not created its ledger: no progress")
            return
        history.end_of = lasting_end
        if not job.client.process.alive:
            history.answered = len(history.payloads)  # nobody was left to hear the answers
        metadata = await run_in(last.process, recover(last, history), "last look")
        assert metadata is not None
        check_end(history, metadata)

    async def _check_copies(self, job: LedgerJob, checker: RepairChecker) -> None:
        """4, asked of the bookies' own cores."""
        history = job.history
        assert history is not None
        metadata = checker.stored(history.ledger_id)
        assert metadata is not None
        for entry_id in range(metadata.last_entry_id + 1):
            for name in metadata.write_set(entry_id):
                machine = self._cluster.bookie(name)
                await until(lambda machine=machine: machine.serving, 0.1)  # type: ignore[misc]
                assert machine.bookie is not None
                reading = machine.bookie.read_entry(history.ledger_id, entry_id)
                data = await run_in(machine.process_now, reading, "copies")
                if data is None or not data.endswith(history.payloads[entry_id]):
                    raise SimulationError(
                        f"{name} does not give entry {history.ledger_id}:{entry_id} as written"
                    )
        checker.check_whole(history.ledger_id)


def lasting_end(metadata: LedgerMetadata) -> object:
    """What of a closed ledger does not change when it is repaired."""
    firsts = tuple(one.first_entry_id for one in metadata.fragments)
    return metadata.state, metadata.last_entry_id, metadata.length, firsts
