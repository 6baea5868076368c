"""Ledgers that come and go, so that bookies collect, compact and remove all the time.

A share of the runs (``SHARE``) has this beside everything else: short ledgers are written and
deleted, some of them under their writer's hands; ledgers of the other jobs are deleted behind
their recovery; every bookie looks for deleted ledgers and compacts every few hundred milliseconds;
its index's entries are asked for while they are moved; and crashes, full and failing disks come at
the very moment when a log is begun or removed or a mark moves. What must hold:
``upkeep_checkers.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.storage.entry_log_format import LOG_SUFFIX
from magnetar.bookie.storage.marks import MARK_NAME
from magnetar.ledger.catalog.metadata import DEFAULT_ROOT
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import MagnetarError
from magnetar_sim.cluster.cluster import BookieMachine, Cluster, ClusterPlan
from magnetar_sim.cluster.cluster_checkers import (
    LedgerHistory,
    MetadataChecker,
    check_copies,
    check_end,
    copies_problem,
)
from magnetar_sim.cluster.ledger_workload import delete, read_all, recover
from magnetar_sim.cluster.upkeep_checkers import UpkeepChecker
from magnetar_sim.world.disk import CAPACITY_BYTES
from magnetar_sim.world.loop import call_from_outside, run_in, until
from magnetar_sim.world.scheduler import SimulationError

SHARE = 0.3
MARK_TROUBLE_SHARE = 0.4
"""Of the runs with upkeep: bookies cannot store how far they have flushed, for a while."""
MARK_TROUBLE_FROM_S = 1.0
MOVES_CUT_SHARE = 0.3
"""Of the runs with upkeep: power fails when the index has been pointed to a compacted log and
perhaps not synced."""
MOVES_CUT_S = 0.002
NEW_MARK = Path(MARK_NAME).with_suffix(".new").name
LEDGERS_MAX = 14
MOVED_READ_MAX = 6
RETRY_S = 0.3
IDS = f"{DEFAULT_ROOT}/idgen"
DIRECTORY_IDS = 10_000
SPACE_BACK_S = 60.0
"""And besides, what reading and writing all entry logs takes at the pace of compaction."""
QUIET_S = 2.5
"""More than the longest interval between two compactions."""


def has_upkeep(seed: int) -> bool:
    return random.Random(f"{seed}/upkeep").random() < SHARE


def plan_upkeep(plan: ClusterPlan, rng: random.Random) -> ClusterPlan:
    """``plan``, with small logs and much upkeep."""
    bookie = replace(
        plan.bookie,
        write_cache_bytes=rng.choice((32 << 10, plan.bookie.write_cache_bytes)),
        flush_interval_ms=rng.choice((200, 700)),
        entry_log_bytes_max=rng.choice((4 << 10, 16 << 10, 64 << 10)),
        collect_interval_ms=rng.choice((150, 500)),
        collect_grace_ms=rng.choice((0, 200, 800)),
        compaction_minor_percent=rng.choice((20, 60)),
        compaction_minor_interval_ms=rng.choice((200, 900)),
        compaction_major_percent=rng.choice((50, 80, 95)),
        compaction_major_interval_ms=rng.choice((600, 2000)),
        compaction_bytes_per_s=rng.choice((1 << 16, 1 << 19, 16 << 20)),
        disk_check_interval_ms=rng.choice((60, 250)),
    )
    return replace(plan, bookie=bookie)


class UpkeepJob:
    """All of it, of one run; between the start of the cluster and ``end_s``."""

    def __init__(
        self, cluster: Cluster, rng: random.Random, metadata: MetadataChecker, end_s: float
    ) -> None:
        self.checker = UpkeepChecker(cluster)
        self.histories: list[LedgerHistory] = []
        self._cluster = cluster
        self._random = rng
        self._metadata = metadata
        self._end_s = end_s
        self.over = False
        self._bad_moments = rng.choice((0, 1, 3, 6))
        self._bad_chance = rng.choice((0.03, 0.15))
        self._move_cuts = 0
        self._moves_random = rng
        if rng.random() < 0.5:  # ids of several directories: a listing may break off between them
            cluster.metadata.count_from(IDS, DIRECTORY_IDS - rng.randrange(1, LEDGERS_MAX // 2))
        self.client = cluster.client("churn")
        for _ in range(rng.choice((1, 2))):
            self.client.process.spawn(self._churn(), "churn")
        for machine in cluster.bookies:
            machine.disk.stall_chance = rng.choice((0.1, 0.5, 0.9))
            machine.disk.changed = partial(self._disk_changed, machine)
            assert machine.bookie is not None
            machine.process_now.context.run(self._beside, machine, machine.bookie)
        cluster.beside = self._started

    # -- beside serving -----------------------------------------------------------------------

    def _started(self, machine: BookieMachine, bookie: Bookie) -> None:
        self.checker.started(machine, bookie)
        self._beside(machine, bookie)

    def _beside(self, machine: BookieMachine, bookie: Bookie) -> None:
        """In the bookie's process."""
        process, promises = machine.process_now, machine.promises
        promises.forgets = partial(self.checker.forgets, machine)
        promises.has_forgotten = partial(self.checker.has_forgotten, machine)
        promises.revived = partial(self.checker.revived, machine)
        process.spawn(self.checker.look_for_forgotten(machine, bookie), "forgotten")
        if self._random.random() < 0.4:  # a log that was read before stays open, and readable
            process.spawn(self._probe(machine, bookie), "probe")

    async def _probe(self, machine: BookieMachine, bookie: Bookie) -> None:
        """Ask for entries that lie in entry logs, now and then."""
        rng, cluster = self._random, self._cluster
        while True:
            await asyncio.sleep(rng.uniform(0.1, 0.5))
            index = rng.choice([*machine.disk.indexes.values()])
            if not index.rows:
                continue
            key = rng.choice([*index.rows])
            if bookie.read_cached(*key) is None and cluster.has_ledger(key[0]):
                machine.process_now.spawn(self.checker.probe(machine, bookie, key), "probe")

    # -- bad moments --------------------------------------------------------------------------

    def _disk_changed(self, machine: BookieMachine, what: str, path: Path) -> None:
        """A log is begun or removed, the index points elsewhere, or a mark has moved: soon there
        is trouble, or a reader that knows what was true before."""
        if self.over or not machine.up or (what == "create" and path.suffix != LOG_SUFFIX):
            return
        rng, loop, bookie = self._random, self._cluster.loop, machine.bookie
        if what == "move" and bookie is not None and machine.serving:
            machine.process_now.call(self._read_moved, machine, bookie, path)
        if what == "move" and self._move_cuts and self._moves_random.random() < 0.5:
            self._move_cuts -= 1
            self._at(loop.time() + self._moves_random.random() * MOVES_CUT_S, machine.cut_power)
            self._at(loop.time() + self._moves_random.uniform(0.05, 1.5), machine.start)
            return
        chance = self._bad_chance * (3 if what in ("remove", "move") else 1)
        if not self._bad_moments or rng.random() >= chance:
            return
        self._bad_moments -= 1
        soon_s = rng.random() * rng.choice((machine.disk.cursor_s - loop.time(), 0.003, 0.05))
        self._at(loop.time() + soon_s, partial(self._trouble, machine))

    def _read_moved(self, machine: BookieMachine, bookie: Bookie, path: Path) -> None:
        """Ask for entries whose location has changed in this very moment."""
        now_s, index = self._cluster.loop.time(), machine.disk.indexes[path]
        moved = [key for key, (at_s, _) in index.moved.items() if at_s == now_s]
        for key in self._random.sample(moved, min(MOVED_READ_MAX, len(moved))):
            if bookie.read_cached(*key) is None and self._cluster.has_ledger(key[0]):
                machine.process_now.spawn(self.checker.probe(machine, bookie, key), "probe")

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        call_from_outside(self._cluster.loop, when_s, act, lambda: self.over)

    def _trouble(self, machine: BookieMachine) -> None:
        rng, disk, now_s = self._random, machine.disk, self._cluster.loop.time()
        kind, back_s = rng.random(), now_s + rng.choice((0.05, 0.5, 2.0)) * rng.uniform(0.5, 1.5)
        if kind < 0.3:
            machine.kill()
            self._at(back_s, machine.start)
        elif kind < 0.65:
            machine.cut_power()
            self._at(back_s, machine.start)
        elif kind < 0.9:
            room = rng.choice((0, 0, 3000, 100_000))
            disk.capacity_bytes = disk.used_bytes + room
            self._note(f"the disk of {machine.name} has {room} bytes left")
            self._at(back_s, partial(setattr, disk, "capacity_bytes", CAPACITY_BYTES))
        else:
            machine.suffered = disk.fails_writes = True
            self._note(f"the disk of {machine.name} fails writes")
            self._at(back_s, partial(setattr, disk, "fails_writes", False))

    def plan_cut_moves(self, rng: random.Random) -> None:
        """In some runs."""
        self._moves_random = rng
        if rng.random() < MOVES_CUT_SHARE:
            self._move_cuts = rng.choice((1, 3))

    def plan_mark_trouble(self, rng: random.Random) -> None:
        """In some runs. All of a flush works then but its last step, and what it has written may be
        moved before it is repeated."""
        if rng.random() >= MARK_TROUBLE_SHARE:
            return
        for _ in range(rng.choice((3, 8))):
            machine, lasts_s = rng.choice(self._cluster.bookies), rng.uniform(0.2, 1.5)
            at_s = rng.uniform(MARK_TROUBLE_FROM_S, self._end_s)
            self._at(at_s, partial(self._mark_fails, machine, lasts_s))

    def _mark_fails(self, machine: BookieMachine, lasts_s: float) -> None:
        names = machine.disk.unwritable
        names[NEW_MARK] = None
        self._at(self._cluster.loop.time() + lasts_s, partial(names.pop, NEW_MARK, None))
        self._note(f"{machine.name} cannot store a mark for {lasts_s:.2f} s")
        self._cluster.count("times that a bookie could not store a mark")

    def _note(self, what: str) -> None:
        self._cluster.trace.note("fault", what)

    # -- ledgers that come and go -------------------------------------------------------------

    async def _churn(self) -> None:
        rng, loop = self._random, self._cluster.loop
        while loop.time() < self._end_s and len(self.histories) < LEDGERS_MAX:
            await asyncio.sleep(rng.choice((0.02, 0.3)) * rng.random())
            try:
                writer = await self.client.ledgers.create()
            except MagnetarError as error:
                self._cluster.trace.note("churn", f"cannot create a ledger yet: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            await self._write(writer)
            if rng.random() < 0.6:
                await delete(self.client, rng.choice(self.histories))
            if rng.random() < 0.2:
                await self._read(rng.choice(self.histories))

    async def _write(self, writer: LedgerWriter) -> None:
        rng, history = self._random, LedgerHistory(writer.ledger_id, "churn")
        self.histories.append(history)
        history.copies_problem = partial(copies_problem, self._cluster, writer.ledger_id)
        size_max = rng.choice((100, 1500))
        for _ in range(rng.choice((1, 3))):
            first = len(history.payloads)
            payloads = [b"%d/" % i + rng.randbytes(rng.randrange(size_max)) for i in range(4)]
            history.payloads += [b"%d" % (first + i) + each for i, each in enumerate(payloads)]
            writer.append(history.payloads[first:], history.done)
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.4)))
        if rng.random() < 0.15:
            return  # left open, with what is on its way
        try:
            await writer.wait_confirmed()
            metadata = await writer.close()
        except MagnetarError as error:
            self._cluster.trace.note("churn", f"cannot close: {error}")
        else:
            history.ended("churn", metadata)

    async def _read(self, history: LedgerHistory) -> None:
        if history.ends and not history.deleting:
            await read_all(self.client, history, history.ends[0][1])

    # -- after healing ------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything after this is undisturbed."""
        self.over = True
        for machine in self._cluster.bookies:
            machine.disk.stall_chance = 0.0

    def check(self) -> None:
        self.checker.check()
        for history in self.histories:
            history.check()

    def check_deleted(self, history: LedgerHistory) -> None:
        """Invariant 2, of a ledger that is gone."""
        history.check()
        last = self._metadata.ends.get(history.ledger_id)
        if last is not None and history.confirmed - 1 > last:
            raise SimulationError(
                f"ledger {history.ledger_id} was closed at {last} and deleted, and its writer was "
                f"confirmed up to {history.confirmed - 1}"
            )
        if history.answered != len(history.payloads):
            raise SimulationError(
                f"ledger {history.ledger_id} was deleted, and {history.answered} of "
                f"{len(history.payloads)} appends were answered"
            )

    async def last_look(self) -> None:
        """Half of what is left is deleted: that space comes back, and the other half is there."""
        rng, cluster = self._random, self._cluster
        last = cluster.client("upkeep")
        for history in self.histories:
            await until(lambda history=history: history.settled, 0.2)  # type: ignore[misc]
            if history.deleting or rng.random() < 0.5:
                await run_in(last.process, delete(last, history), "delete")
        for history in self.histories:
            if cluster.has_ledger(history.ledger_id):
                await run_in(last.process, recover(last, history), "last look")
        await self._wait_space_back()
        await self._wait_quiet()
        if rng.random() < 0.3:
            cluster.trace.note("upkeep", "power cut of every bookie")
            for machine in cluster.bookies:
                machine.cut_power()
                machine.start()
        await self._look_at_copies()
        self.check()

    async def _wait_space_back(self) -> None:
        """Invariants 7 and 8."""
        unfinished = self.checker.unfinished
        pace = self._cluster.plan.bookie.compaction_bytes_per_s
        limit_s = SPACE_BACK_S + 2 * self.checker.log_bytes() / pace
        try:
            async with asyncio.timeout(limit_s):
                await until(lambda: unfinished() is None, 0.25)
        except TimeoutError:
            raise SimulationError(
                f"not tidied up within {limit_s:.0f} s of healing: {unfinished()}"
            ) from None

    async def _wait_quiet(self) -> None:
        """Invariant 9."""
        end_s = self._cluster.loop.time() + SPACE_BACK_S
        before: list[str] = []
        while (now := self.checker.logs()) != before:
            if self._cluster.loop.time() > end_s:
                raise SimulationError("entry logs are compacted again and again")
            before = now
            await asyncio.sleep(QUIET_S)

    async def _look_at_copies(self) -> None:
        for history in self.histories:
            if self._cluster.has_ledger(history.ledger_id):
                metadata = history.ends[0][1]
                check_end(history, metadata)
                await check_copies(self._cluster, history, metadata)
            else:
                self.check_deleted(history)
