"""What goes wrong with brokers that replicate, by the seed: processes, power, disks that are slow,
links between them, the metadata store, sessions; and the store is emptied, and restored.

Every fault ends by itself or when the run heals, but for one: in some runs a leader's file system
takes no writes any more, for good, while its broker lives on (``errors=remount-ro``). What is on it
stays readable. No disk is lost, and syncs are waited for, so that whatever was acknowledged must
survive. Where syncs are not waited for, one broker's disk may lose what it has not synced, and
nothing happens to the others' that could.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from magnetar_sim.replicas.replica_machines import ReplicaMachine, ReplicaWorld
from magnetar_sim.world.metadata import SavedNode
from magnetar_sim.world.planned_faults import PlannedFaults

LASTS_S = (0.3, 1.5, 4.0)


class ReplicaFaults(PlannedFaults):
    """Of one run. ``leading``: who leads most just now."""

    def __init__(
        self,
        world: ReplicaWorld,
        rng: random.Random,
        machines: Sequence[ReplicaMachine],
        leading: Callable[[], ReplicaMachine | None],
    ) -> None:
        super().__init__(world.loop, world.trace, rng, LASTS_S)
        self.disks_broken = 0
        self._world = world
        self._machines = machines
        self._leading = leading
        self.emptied = 0
        self._saved: dict[str, SavedNode] | None = None

    def plan_emptying(self, rng: random.Random, begin_s: float, end_s: float) -> None:
        """Once, in some runs."""
        if rng.random() < 0.3:
            self._at(rng.uniform(begin_s, end_s), partial(self._empty, rng.choice(LASTS_S)))

    def plan_read_only(self, when_s: float) -> None:
        """From then on the disk of whoever leads takes nothing, while the others suffice."""
        self._at(when_s, self._make_read_only)

    def plan_failed_syncs(self, rng: random.Random, begin_s: float) -> None:
        """Syncs of a leader's disk fail for a while. It loses power as soon as the log has been
        opened again, and been written to."""
        when_s, cut_s = rng.uniform(0.0, 0.5), rng.uniform(5.9, 6.4)
        self._at(begin_s + when_s, partial(self._fail_syncs, rng.uniform(0.3, 1.0), cut_s))

    def plan_lost_writes(self, rng: random.Random, begin_s: float, end_s: float) -> None:
        """Syncs of one disk fail, now and then: what is not on it by then is lost."""
        machine = rng.choice(self._machines)
        for _ in range(rng.choice((1, 2, 3))):
            lose = partial(self._lose_writes, machine, rng.uniform(0.1, 1.0))
            self._at(rng.uniform(begin_s, end_s), lose)

    def plan_harmless(self, count: int, begin_s: float, end_s: float) -> None:
        """To what disks hold."""
        kinds: list[Callable[[], None]] = [self._close, self._slow_disk, self._lag, self._block,
                                           self._isolate, self._break, self._slow]  # fmt: skip
        self._plan(kinds, count, begin_s, end_s)

    def plan(self, count: int, begin_s: float, end_s: float) -> None:
        kinds: list[Callable[[], None]] = [
            self._crash, self._crash, self._power, self._power, self._close, self._pause,
            self._expire, self._cut_off, self._store_down, self._lost_answers,
            self._slow_disk, self._broken_disk, self._lag,
        ]  # fmt: skip
        if len(self._machines) > 1:
            kinds += [self._block, self._isolate, self._break, self._slow]
        self._plan(kinds, count, begin_s, end_s)
        rng = self._random
        if rng.random() < 0.2:
            self._at(rng.uniform(begin_s, end_s), self._power_of_all)

    def _pick(self) -> ReplicaMachine:
        """The leader more often than not."""
        leading = self._leading()
        if leading is not None and self._random.random() < 0.5:
            return leading
        return self._random.choice(self._machines)

    # -- processes and disks ------------------------------------------------------------------

    def _down_s(self) -> float:
        return self._random.choice((0.1, 0.5, 4.0)) * self._random.uniform(0.5, 1.5)

    def _crash(self) -> None:
        self._pick().crash(self._down_s(), power=False)

    def _power(self) -> None:
        self._pick().crash(self._down_s(), power=True)

    def _power_of_all(self) -> None:
        self._note("the power of all fails")
        for machine in self._machines:
            machine.crash(self._down_s(), power=True)

    def _close(self) -> None:
        self._pick().close_in_order()

    def _pause(self) -> None:
        self._pause_process(self._pick().process)

    def _slow_disk(self) -> None:
        disk = self._pick().disk
        disk.slowness = self._random.choice((30.0, 300.0))
        self._after(partial(setattr, disk, "slowness", 1.0))

    def _broken_disk(self) -> None:
        """It takes no writes for a while: replicas on it are given up."""
        machine = self._pick()
        machine.disk.fails_writes = True
        self.disks_broken += 1
        lasts_s = self._after(machine.mend_disk)
        self._note(f"the disk of {machine.name} takes nothing for {lasts_s:.1f} s")

    def _fail_syncs(self, lasts_s: float, cut_s: float) -> None:
        machine, now_s = self._leading() or self._machines[0], self._loop.time()
        machine.disk.fails_syncs = True
        self.disks_broken += 1
        self._at(now_s + lasts_s, partial(setattr, machine.disk, "fails_syncs", False))
        self._at(now_s + cut_s, partial(machine.crash, 0.3, power=True))
        self._note(f"syncs on the disk of {machine.name} fail for {lasts_s:.1f} s")

    def _lose_writes(self, machine: ReplicaMachine, lasts_s: float) -> None:
        machine.disk.fails_syncs = True
        self.disks_broken += 1
        mended_s = self._loop.time() + lasts_s
        self._at(mended_s, partial(setattr, machine.disk, "fails_syncs", False))
        self._note(f"syncs on the disk of {machine.name} fail for {lasts_s:.1f} s")

    def _make_read_only(self) -> None:
        serving = [each for each in self._machines if each.node is not None]
        if serving:  # one that had ended in order could not even begin again
            machine = self._leading() or serving[0]
            machine.make_read_only()
            self.disks_broken += 1
            self._note(f"the disk of {machine.name} takes nothing any more")

    # -- the metadata store -------------------------------------------------------------------

    def _expire(self) -> None:
        name = self._pick().name
        self._note(f"the session of {name} expires")
        self._world.metadata.expire(name)

    def _cut_off(self) -> None:
        name, cut_off = self._pick().name, self._world.metadata.cut_off
        cut_off[name] = None
        lasts_s = self._after(lambda: cut_off.pop(name, None))
        self._note(f"{name} is cut off from the store for {lasts_s:.1f} s")

    def _store_down(self) -> None:
        metadata = self._world.metadata
        metadata.up = False
        self._note(f"the store is down for {self._after(self._store_up):.1f} s")

    def _store_up(self) -> None:
        self._world.metadata.up = True

    def _lost_answers(self) -> None:
        metadata = self._world.metadata
        metadata.lost_answers = 0.2
        self._after(partial(setattr, metadata, "lost_answers", 0.0))

    def _empty(self, lasts_s: float) -> None:
        """An operator's mistake, and the backup of the moment before it."""
        self.emptied += 1
        self._saved = self._world.metadata.empty()
        self._at(self._world.loop.time() + lasts_s, self.restore)
        self._note(f"the store is emptied for {lasts_s:.1f} s")

    def restore(self) -> None:
        """Idempotent."""
        saved, self._saved = self._saved, None
        if saved is not None:
            self._note("the store is restored")
            self._world.metadata.restore(saved)

    def _lag(self) -> None:
        """The server that a broker reads from is behind the others."""
        name, metadata = self._pick().name, self._world.metadata
        metadata.lag(name)
        lasts_s = self._after(partial(metadata.catch_up, name))
        self._note(f"what {name} reads of the store is up to {lasts_s:.1f} s old")

    # -- links --------------------------------------------------------------------------------

    def _pair(self) -> tuple[ReplicaMachine, ReplicaMachine]:
        one = self._pick()
        return one, self._random.choice([each for each in self._machines if each is not one])

    def _block(self) -> None:
        """One way, or both."""
        one, other = self._pair()
        links = [(one.name, other.name)]
        if self._random.random() < 0.6:
            links.append((other.name, one.name))
        self._block_links(self._world.network, links)

    def _isolate(self) -> None:
        """From the other brokers alone."""
        one = self._pick()
        others = [each for each in self._machines if each is not one]
        pairs = [(one.name, other.name) for other in others]
        links = [*pairs, *((other, name) for name, other in pairs)]
        self._block_links(self._world.network, links)

    def _break(self) -> None:
        one, other = self._pair()
        if self._world.network.break_between(one.name, other.name):
            self._note(f"the connections of {one.name} and {other.name} break")

    def _slow(self) -> None:
        one, other = self._pair()
        delay_s = self._random.choice((0.05, 0.4))
        self._part(self._world.network, one.name, other.name, delay_s)
