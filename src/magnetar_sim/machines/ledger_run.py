"""One run: a ledger, its writer, faults, recoveries, then healing and the last look.

The seed decides everything: quorums, bookies, outages, slow bookies, reordering, when the writer
crashes or lives on as an old writer, how many clients recover at the same time and which of them
crash. Times are in ticks; an answer takes about ten.

Why: docs/adr/0043-simulation-of-the-machines.md.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
from magnetar_sim.machines.bookies import QUICK, TIMEOUT, SimBookie
from magnetar_sim.machines.checkers import Checker
from magnetar_sim.machines.clients import Cluster, Parts, SimRecovery, SimWriter
from magnetar_sim.world.scheduler import Scheduler

QUORUMS = (
    (1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 1), (3, 3, 3),
    (3, 2, 2), (3, 2, 1), (4, 3, 2), (5, 3, 2), (5, 5, 3),
)  # fmt: skip
HALF_FENCED_SHARE = 0.08
"""Of the runs: a part of a ledger's bookies is out of reach of who takes it. It matters most where
every copy of a write set counts."""
LATE_TICKS, ANSWER_TICKS = 350, 60
FAULTS_UNTIL = 2000
HEALED_AT = 3000
LAST_LOOK_AT = 20_000


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``failure`` names the invariant that broke, None if all held."""

    seed: int
    failure: str | None
    events: int
    confirmed: int
    recoveries: int
    fragments: int
    trace: tuple[str, ...]


def run(seed: int, parts: Parts | None = None, tracing: bool = False) -> Outcome:
    """Run ``seed`` with the machines of ``parts`` (the real ones by default)."""
    scheduler = Scheduler(seed, tracing)
    ledger = _LedgerRun(scheduler, parts or Parts())
    failure = None
    try:
        scheduler.run()
        ledger.checker.ended(ledger.undisturbed, ledger.total, ledger.writer.missing)
    except Exception as error:  # noqa: BLE001 - whatever broke, it belongs to this seed
        failure = f"{type(error).__name__}: {error}"
    return Outcome(
        seed,
        failure,
        scheduler.events,
        ledger.checker.confirmed,
        len(ledger.checker.ends),
        len(ledger.cluster.store.metadata.fragments),
        tuple(scheduler.trace),
    )


class _LedgerRun:
    def __init__(self, scheduler: Scheduler, parts: Parts) -> None:
        self.scheduler = scheduler
        rng = scheduler.random
        self._plans = random.Random(f"half fenced {scheduler.seed}")
        self._half_fenced = self._plans.random() < HALF_FENCED_SHARE
        size, write_quorum, ack_quorum = rng.choice(QUORUMS)
        if self._half_fenced:
            all_count = [each for each in QUORUMS if each[0] > 1 and each[1] == each[2]]
            size, write_quorum, ack_quorum = self._plans.choice(all_count)
        names = [BookieId(f"b{i + 1}") for i in range(size + rng.randint(0, 3))]
        metadata = LedgerMetadata(
            LedgerId(1), size, write_quorum, ack_quorum, DigestType.CRC32C, b"",
            (Fragment(0, tuple(rng.sample(names, size))),),
        )  # fmt: skip
        self.total = rng.randint(3, 30)
        self.checker = Checker()
        self.cluster = self.checker.cluster = Cluster(scheduler, names, metadata, parts)
        scheduler.note(
            "run", f"E={size} Qw={write_quorum} Qa={ack_quorum} bookies={len(names)} "
            f"payloads={self.total} in_order={self.cluster.weather.in_order}"
        )  # fmt: skip
        self.writer = SimWriter(self.cluster, self.checker.entries_confirmed, self.total)
        self._late = self._plans.choice(self.writer.bookies)
        if self._half_fenced:
            self.writer.links[self._late].set_delay_max(LATE_TICKS)
        self.undisturbed = scheduler.chance(0.3)
        self._faults_until = self._plan_appends()
        self._plan_faults()
        if not self.undisturbed:
            self._plan_takeover()
        scheduler.at(HEALED_AT, self._heal)
        scheduler.at(LAST_LOOK_AT, lambda: self._recover("last look"))

    def _plan_appends(self) -> int:
        """Schedules the appends; returns until when faults begin."""
        rng, time, first = self.scheduler.random, 0, 0
        pause = rng.choice((5, 40, 150))
        while first < self.total:
            count = min(rng.randint(1, 5), self.total - first)
            time += rng.randint(1, pause)
            self.scheduler.at(time, partial(self._append, first, count))
            first += count
        return min(time + 100, FAULTS_UNTIL)

    def _append(self, first: int, count: int) -> None:
        if self.writer.alive:
            self.writer.append(range(first, first + count))

    def _plan_faults(self) -> None:
        rng = self.scheduler.random
        outages = rng.choice((0.2, 0.5))
        for bookie in self.cluster.bookies.values():
            while rng.random() < outages:
                begin = rng.randint(0, self._faults_until)
                end = begin + rng.choice((1, 50, 600))  # 1: its connections break
                self.scheduler.at(begin, partial(self._set_up, bookie, False))
                self.scheduler.at(end, partial(self._set_up, bookie, True))

    def _set_up(self, bookie: SimBookie, up: bool) -> None:
        if bookie.up != up:
            self.scheduler.note(bookie.name, "up" if up else "down")
            bookie.up = up

    def _plan_takeover(self) -> None:
        """Other clients open the ledger; the writer may crash, before or never."""
        rng = self.scheduler.random
        takeover = rng.randint(1, self._faults_until)
        if rng.random() < 0.5:
            crash = max(0, takeover - rng.randint(0, 100))
            self.scheduler.at(crash, partial(self.writer.stop, "crashes"))
        for i in range(rng.choice((1, 1, 2, 3))):
            time = takeover + rng.randint(0, 60)
            self.scheduler.at(time, partial(self._recover, f"recovery {i + 1}", True))

    def _recover(self, name: str, may_crash: bool = False) -> None:
        self.scheduler.note(name, "opens the ledger")
        recovery = SimRecovery(self.cluster, name, self.checker.recovered)
        if may_crash and self._half_fenced:
            self._fence_half(recovery)
        if may_crash and self.scheduler.chance(0.3):
            self.scheduler.after(self.scheduler.random.randint(10, 400), recovery.crash)

    def _fence_half(self, recovery: SimRecovery) -> None:
        """One bookie cannot be connected to when the recovery fences, and is quicker than all
        others when it reads; what the writer has sent to it comes there later still."""
        late = self._late
        self.scheduler.note("run", f"half fenced: {late} is out of reach, and then is not")
        recovery.links[late].misses = 1
        recovery.links[late].set_delay_max(QUICK)
        for other in self.writer.bookies:
            if other != late:
                self.writer.links[other].set_delay_max(2 * TIMEOUT)
                recovery.links[other].set_delay_max(ANSWER_TICKS)

    def _heal(self) -> None:
        self.scheduler.note("run", "all faults heal")
        self.cluster.weather.calm = True
        for bookie in self.cluster.bookies.values():
            self._set_up(bookie, True)
