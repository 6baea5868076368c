"""One run of ring 1's kind "partition": replicas, faults, elections, then healing and the last
look.

The seed decides everything: how many replicas, ``min_isr``, whether syncs are waited for, outages,
pauses, cut links, brokers cut off from the store alone, power cuts of one or all, disks that are
replaced. Times are in ticks.

Why: docs/adr/0110-replication-is-a-machine.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar_sim.machines.partition_brokers import LAG_TICKS, SimBroker
from magnetar_sim.machines.partition_checkers import PartitionChecker
from magnetar_sim.machines.partition_store import SimController, SimStateStore
from magnetar_sim.world.scheduler import Scheduler

SIZES = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 2), (3, 2), (3, 3), (4, 2), (5, 3))
FAULTS_UNTIL = 3000
HEALED_AT = 3400
HEALED_SYNC_TICKS, HEALED_DELAY = 10, 8
LAST_VALUE_AT = 5200
ENDS_AT = 6000
UNCLEAN_SHARE, LOSSY_SHARE = 0.08, 0.2


@dataclass(frozen=True)
class PartitionOutcome:
    """How a run ended. ``failure`` names the invariant that broke, None if all held."""

    seed: int
    failure: str | None
    events: int
    committed: int
    elections: int
    cuts: int
    consumed: int
    alone: int
    lost_alone: int
    whole: int
    trace: tuple[str, ...]


def run_partition(seed: int, tracing: bool = False) -> PartitionOutcome:
    scheduler = Scheduler(seed, tracing)
    whole = _PartitionRun(scheduler)
    failure = None
    try:
        scheduler.run()
        whole.ended()
    except Exception as error:  # noqa: BLE001 - whatever broke, it belongs to this seed
        failure = f"{type(error).__name__}: {error}"
    checker = whole.checker
    return PartitionOutcome(
        seed,
        failure,
        scheduler.events,
        len(checker.committed),
        checker.elections,
        checker.cut,
        checker.consumed,
        len(checker.alone),
        len(checker.lost_alone),
        checker.whole,
        tuple(scheduler.trace),
    )


class _PartitionRun:
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        rng = scheduler.random
        size, min_isr = rng.choice(SIZES)
        unclean = rng.random() < UNCLEAN_SHARE
        self.durable = rng.random() >= LOSSY_SHARE
        numbers = tuple(range(1, size + 1))
        members = tuple(Member(number, number) for number in numbers)
        state = PartitionState(numbers, min_isr, isr=members, whole_since=0)
        # The only replica goes on with what it has, if that is not all: nobody has more.
        self.checker = PartitionChecker(unclean or (size == 1 and not self.durable), self.durable)
        self.store = SimStateStore(scheduler, state, self.checker)
        for number in numbers:  # so that the first election finds all of them
            self.store.live[number] = LiveBroker(1, number)
            self.store.ever[number, 1] = LiveBroker(1, number)
        self.brokers = {
            number: SimBroker(scheduler, self.store, self.checker, number, self.durable, ENDS_AT)
            for number in numbers
        }
        for broker in self.brokers.values():
            broker.others = {n: b for n, b in self.brokers.items() if b is not broker}
            broker.delay = rng.choice((3, 8, 8, 40))
            broker.sync_ticks = rng.choice((2, 10, 40))
            broker.boot()
        self._delays = {number: broker.delay for number, broker in self.brokers.items()}
        self.controllers = [
            SimController(self.store, ENDS_AT, unclean, HEALED_AT)
            for _ in range(rng.choice((1, 1, 2)))
        ]
        scheduler.note(
            "run",
            f"replicas={size} min_isr={min_isr} unclean={unclean} durable={self.durable}",
        )
        self._wipes_left = min(min_isr, size) - 1 if self.durable else 0
        self._values = 0
        self._all_share = rng.choice((1.0, 0.7, 0.3))
        self._consumers = [0, 0]
        self._plan_load()
        self._plan_faults()
        scheduler.at(HEALED_AT, self._heal)
        scheduler.at(LAST_VALUE_AT, self._last_value)

    # -- load ---------------------------------------------------------------------------------

    def _plan_load(self) -> None:
        rng, time = self.scheduler.random, 0
        pause = rng.choice((8, 25, 60))
        while time < HEALED_AT:
            time += rng.randint(1, 2 * pause)
            self.scheduler.at(time, self._produce)
            self.scheduler.at(time + rng.randint(0, pause), self._consume)

    def _produce(self) -> None:
        """Old leaders are asked too, by clients that have not heard of new ones."""
        rng = self.scheduler.random
        leaders = [each for each in self.brokers.values() if each.leads]
        if leaders:
            self._values += 1
            rng.choice(leaders).produce(self._values, rng.random() < self._all_share)

    def _consume(self) -> None:
        rng = self.scheduler.random
        leaders = [each for each in self.brokers.values() if each.leads]
        if leaders:
            which = rng.randrange(len(self._consumers))
            self._consumers[which] = rng.choice(leaders).consume(self._consumers[which])

    def _last_value(self) -> None:
        leader = self.brokers.get(self.store.state.leader)
        if leader is not None:
            self._values += 1
            leader.produce(self._values, all_replicas=True)

    # -- faults -------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        rng = self.scheduler.random
        count = rng.choice((1, 3, 6, 12))
        for _ in range(count):
            begin = rng.randint(50, FAULTS_UNTIL)
            lasts = rng.choice((5, 60, 200, LAG_TICKS + 100, 700))
            kind = rng.choice(
                (self._kill, self._kill, self._power, self._pause, self._cut_off, self._block,
                 self._block_all, self._slow)
            )  # fmt: skip
            self.scheduler.at(begin, partial(kind, lasts))
        if rng.random() < 0.25:
            self.scheduler.at(rng.randint(200, FAULTS_UNTIL), self._power_of_all)

    def _pick(self) -> SimBroker:
        """The leader more often than not."""
        rng = self.scheduler.random
        leader = self.brokers.get(self.store.state.leader)
        if leader is not None and rng.random() < 0.5:
            return leader
        return rng.choice(list(self.brokers.values()))

    def _kill(self, lasts: int) -> None:
        broker = self._pick()
        broker.kill(power=False)
        self.scheduler.after(lasts, broker.boot)

    def _power(self, lasts: int) -> None:
        broker = self._pick()
        broker.kill(power=True)
        if self._wipes_left and self.scheduler.chance(0.2):
            self._wipes_left -= 1
            broker.wipe()
        self.scheduler.after(lasts, broker.boot)

    def _power_of_all(self) -> None:
        self.scheduler.note("run", "power cut")
        for broker in self.brokers.values():
            broker.kill(power=True)
            self.scheduler.after(self.scheduler.random.randint(1, 400), broker.boot)

    def _pause(self, lasts: int) -> None:
        broker = self._pick()
        broker.set_paused(True)
        self.scheduler.after(lasts, lambda: broker.set_paused(False))

    def _cut_off(self, lasts: int) -> None:
        broker = self._pick()
        broker.set_cut_off(True)
        self.scheduler.after(lasts, lambda: broker.set_cut_off(False))

    def _block(self, lasts: int) -> None:
        """One way, or both."""
        broker = self._pick()
        other = self.scheduler.random.choice(list(self.brokers.values()))
        pairs = [(broker, other)]
        if self.scheduler.chance(0.6):
            pairs.append((other, broker))
        for one, two in pairs:
            one.blocked[two.number] = None
            self.scheduler.after(lasts, partial(one.blocked.pop, two.number, None))

    def _block_all(self, lasts: int) -> None:
        """The followers of the leader, which goes on alone."""
        leader = self._pick()
        for other in leader.others.values():
            other.blocked[leader.number] = None
            self.scheduler.after(lasts, partial(other.blocked.pop, leader.number, None))

    def _slow(self, lasts: int) -> None:
        broker = self._pick()
        broker.delay = 60

        def again() -> None:  # not what it was: it may have been slow by another fault already
            broker.delay = self._delays[broker.number]

        self.scheduler.after(lasts, again)

    def _heal(self) -> None:
        self.scheduler.note("run", "all faults heal")
        for broker in self.brokers.values():
            broker.blocked.clear()
            broker.delay = self._delays[broker.number] = HEALED_DELAY
            # Else one with a new disk does not fetch the whole log until the end of the run.
            broker.sync_ticks = min(broker.sync_ticks, HEALED_SYNC_TICKS)
            broker.set_paused(False)
            broker.set_cut_off(False)
            broker.boot()

    def ended(self) -> None:
        self.checker.ended(
            self.store.state,
            {number: broker.platter.visible for number, broker in self.brokers.items()},
            self._values,
        )
