"""A simulated broker with one replica (ring 1): the product's machines, a disk that forgets, a
network.

A process is one start of a broker. What is under way when it ends is dropped; what is under way
when it pauses happens when it goes on. A process that has lost its session learns so late, and is a
former leader or follower until then; then it ends, and starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from magnetar.log.partition.leader_epochs import LeaderEpochs
from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.follower import AppendAnswer, CutTo, RestartAt
from magnetar.log.partition.replication.leader import (
    AppendOutcome,
    FetchGrant,
    FetchRequest,
    PartitionLeader,
)
from magnetar.log.partition.replication.partition_state import Member
from magnetar.log.partition.replication.replica import PartitionReplica
from magnetar.model.errors import (
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    PartitionError,
)
from magnetar_sim.machines.partition_checkers import PartitionChecker, SimBatch
from magnetar_sim.machines.partition_store import ANSWER_TICKS, SimStateStore
from magnetar_sim.world.scheduler import Scheduler

SESSION_TICKS = 150
LAG_TICKS = 250
FETCH_TIMEOUT = 120
IDLE_TICKS = 30
TICK_TICKS = 60
BATCHES_MAX = 4


@dataclass
class SimPlatter:
    """A log as its process sees it, and as a loss of power leaves it."""

    visible: list[SimBatch] = field(default_factory=list)
    durable: list[SimBatch] = field(default_factory=list)
    high_watermark: int = 0  # of the checkpoint
    lineage: int = 0

    def sync(self, end: int) -> None:
        """What was written when it began; what was cut meanwhile is not there."""
        self.durable = self.visible[:end]

    def lose_power(self, choose: Callable[[int, int], int]) -> None:
        """Something between what was synced and what was written."""
        same = 0
        for mine, theirs in zip(self.visible, self.durable, strict=False):
            if mine != theirs:
                break
            same += 1
        if same < len(self.durable) and choose(0, 1):
            self.visible = list(self.durable)  # a cut that was not synced has not happened
        else:
            del self.visible[choose(same, len(self.visible)) :]
        self.durable = list(self.visible)


@dataclass
class Waiting:
    """An append whose client waits, for all in-sync replicas or for the leader's own log."""

    value: int
    offset: int
    all_replicas: bool = True


class SimBroker:
    """``replica`` is None while no process runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: SimStateStore,
        checker: PartitionChecker,
        number: int,
        durable: bool,
        ends_at: int,
    ) -> None:
        self.number = number
        self.platter = SimPlatter(lineage=number)
        self.replaced: list[list[SimBatch]] = []
        """What was on disks that it has lost."""
        self.others: dict[int, SimBroker] = {}
        self.replica: PartitionReplica | None = None
        self.start = 0
        self.paused = False
        self.cut_off = False
        """From the metadata store."""
        self.blocked: dict[int, None] = {}
        """Brokers that it cannot reach."""
        self.sync_ticks = 3
        self.delay = 8
        self.expired = False
        self.ends_at = ends_at
        self._scheduler = scheduler
        self._metadata = store
        self._checker = checker
        self._durable = durable
        self._epochs = LeaderEpochs()
        self._waiting: list[Waiting] = []
        self._backlog: list[Callable[[], None]] = []
        self._storing = False
        self._fetches = 0
        self._request: FetchRequest | None = None
        self._asking = False
        store.watchers.append(self._look_soon)

    # -- processes ----------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.replica is not None

    @property
    def leads(self) -> bool:
        """As it sees it."""
        return self.replica is not None and self.replica.leader is not None

    def boot(self) -> None:
        """A process begins: it reads its disk, registers, and looks at the state."""
        if self.up:
            return
        self.start += 1
        self.expired = False
        if not self._durable and self.start > 1:
            self.platter.lineage += 100
            self.platter.high_watermark = 0
        self._epochs = LeaderEpochs()
        for offset, batch in enumerate(self.platter.visible):
            self._epochs.assign(batch.epoch, offset)
        self.platter.sync(len(self.platter.visible))
        me = Member(self.number, self.platter.lineage)
        mark = min(self.platter.high_watermark, len(self.platter.visible))
        self.replica = PartitionReplica(me, self.start, high_watermark=mark, lag_ms_max=LAG_TICKS)
        self._asking = self._storing = False
        self._note(f"starts ({self.start}) with {len(self.platter.visible)} batches")
        self._later(1, self._register)
        self._later(TICK_TICKS, self._tick)

    def _register(self) -> None:
        if self.cut_off:
            self._later(ANSWER_TICKS, self._register)
            return
        self._metadata.register(self.number, LiveBroker(self.start, self.platter.lineage))
        self._look()

    def kill(self, power: bool) -> None:
        if not self.up:
            return
        self._note("loses power" if power else "is killed")
        self.replica = None
        self._waiting.clear()
        self._backlog.clear()
        self.paused = False
        if power:
            self.platter.lose_power(self._scheduler.random.randint)
        self._end_session(self.start)

    def wipe(self) -> None:
        """Its disk is a new one. While no process runs."""
        self._note("has a new disk")
        self.replaced.append(self.platter.durable)
        self.platter = SimPlatter(lineage=self.platter.lineage + 1000)

    def set_paused(self, paused: bool) -> None:
        if not self.up or paused == self.paused:
            return
        self._note("pauses" if paused else "goes on")
        self.paused = paused
        if paused:
            self._end_session(self.start)
            return
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self._later(self._scheduler.random.randint(1, 5), action)

    def set_cut_off(self, cut_off: bool) -> None:
        if cut_off == self.cut_off:
            return
        self._note("is cut off from the store" if cut_off else "reaches the store")
        self.cut_off = cut_off
        if cut_off:
            self._end_session(self.start)
        else:
            self._look_soon()

    def _end_session(self, start: int) -> None:
        """Unless it is heard of before."""

        def look() -> None:
            gone = self.start != start or not self.up or self.paused or self.cut_off
            if gone:
                self._metadata.expire(self.number, start)
                if self.start == start and self.up:
                    self.expired = True
                    self._later(self._scheduler.random.randint(1, 400), self._end)

        self._scheduler.after(SESSION_TICKS, look)

    def _end(self) -> None:
        """The process has learnt that its session is over."""
        if self.expired:
            self.kill(power=False)
            self._scheduler.after(20, self.boot)

    def _later(self, ticks: int, action: Callable[[], None]) -> None:
        """In this process, when it is not paused."""
        start = self.start

        def run() -> None:
            if self.start != start or not self.up:
                return
            if self.paused:
                self._backlog.append(action)
            else:
                action()

        self._scheduler.after(ticks, run)

    def _note(self, what: str) -> None:
        self._scheduler.note(f"broker {self.number}", what)

    # -- the stored state ---------------------------------------------------------------------

    def _look_soon(self) -> None:
        if self.up:
            self._later(self._scheduler.random.randint(1, ANSWER_TICKS), self._look)

    def _look(self) -> None:
        if self.cut_off or self.replica is None:
            return
        if self._storing:
            self._look_soon()  # what a part begins with is stored
            return
        state, version = self._metadata.state, self._metadata.version
        log_end = len(self.platter.visible)
        # What was cut may lie on the platter still.
        stored_end = min(len(self.platter.durable), log_end) if self._durable else log_end
        changed = self.replica.learnt(
            state,
            version,
            self._epochs,
            log_start=0,
            log_end=log_end,
            stored_end=stored_end,
            now_ms=self._scheduler.now,
        )
        if changed:
            self._waiting.clear()  # clients are told to look for the leader
            if self.replica.leader is not None:
                self._note(f"leads epoch {state.leader_epoch} from {len(self.platter.visible)}")
                self._checker.leads((self.number, self.start), state, self.platter.visible)
            elif self.replica.follower is not None:
                self._note(f"follows {state.leader} in epoch {state.leader_epoch}")
                self._asking = False
                # What it wrote as a leader counts as its own from its first fetch on.
                self._store(len(self.platter.visible), self._fetch)
        self._led()

    def _tick(self) -> None:
        if self._scheduler.now < self.ends_at:
            self._later(TICK_TICKS, self._tick)
        assert self.replica is not None
        self.platter.high_watermark = self.replica.high_watermark
        if self.replica.leader is not None:
            self.replica.leader.tick(self._scheduler.now)
            self._led()

    # -- leading ------------------------------------------------------------------------------

    def _led(self) -> None:
        """Something may have changed for the leader: what is committed, who is in sync."""
        replica = self.replica
        if replica is None or (leader := replica.leader) is None:
            return
        self._checker.high_watermark(
            (self.number, self.start, leader.epoch),
            leader.high_watermark,
            self.platter.visible,
            [[*each.replaced, each.platter.durable] for each in (self, *self.others.values())],
            leader.state.least_in_sync,
        )
        for waiting in list(self._waiting):
            if not waiting.all_replicas:
                if leader.stored_here(waiting.offset):
                    self._waiting.remove(waiting)
                    self._checker.acknowledge_alone(
                        waiting.value,
                        waiting.offset,
                        leader.epoch,
                        self.platter.visible,
                        self.platter.durable,
                    )
                continue
            outcome = leader.outcome(waiting.offset)
            if outcome is not AppendOutcome.WAITS:
                self._waiting.remove(waiting)
            if outcome is AppendOutcome.COMMITTED:
                self._checker.acknowledge(waiting.value, waiting.offset)
        self._propose()

    def _propose(self) -> None:
        replica = self.replica
        if self._asking or replica is None or replica.leader is None:
            return
        leader = replica.leader
        if (proposal := leader.proposal()) is None:
            return
        self._asking = True
        version = replica.version
        rng = self._scheduler.random

        def answered(lost: bool) -> None:
            self._asking = False
            if replica.leader is leader:
                if lost:
                    leader.in_doubt()
                self._look()

        def put() -> None:
            if self.cut_off:
                self._later(ANSWER_TICKS, lambda: answered(lost=True))
                return
            won = self._metadata.put(proposal, version)
            lost = not won or rng.random() < 0.1
            self._later(rng.randint(1, ANSWER_TICKS), lambda: answered(lost))

        self._later(rng.randint(1, ANSWER_TICKS), put)

    def produce(self, value: int, all_replicas: bool) -> None:
        """A client asks. What is refused or given up is sent again by nobody."""
        replica = self.replica
        if self.paused or replica is None or (leader := replica.leader) is None:
            return
        try:
            if all_replicas:
                leader.check_append()
        except NotEnoughReplicasError:
            return
        log = self.platter.visible
        log.append(SimBatch(leader.epoch, value))
        self._checker.appended(log, len(log) - 1)
        self._epochs.assign(leader.epoch, len(log) - 1)
        end = len(log)
        leader.appended(end)
        if all_replicas:
            self._waiting.append(Waiting(value, end - 1))
        else:
            self._waiting.append(Waiting(value, end - 1, all_replicas=False))
        self._led()
        self._sync(end, lambda: self._leader_stored(leader, end))

    def _leader_stored(self, leader: PartitionLeader, end: int) -> None:
        if self.replica is not None and self.replica.leader is leader:
            leader.stored(end)
            self._led()

    def _sync(self, end: int, done: Callable[[], None]) -> None:
        """``done`` when it counts as stored."""
        if not self._durable:
            done()
            self._later(10 * self.sync_ticks, lambda: self.platter.sync(end))
            return

        def synced() -> None:
            durable = self.platter.durable
            grown = len(self.platter.visible) >= end > len(durable)
            if grown or self.platter.visible[: len(durable)] != durable:
                self.platter.sync(end)
            done()

        self._later(self._scheduler.random.randint(1, self.sync_ticks), synced)

    def consume(self, offset: int) -> int:
        """A consumer reads from here; where it goes on."""
        replica = self.replica
        if self.paused or replica is None or replica.leader is None:
            return offset
        end = replica.leader.readable_end
        for at in range(offset, min(end, offset + BATCHES_MAX)):
            self._checker.consume(at, self.platter.visible[at])
            offset = at + 1
        return offset

    # -- following ----------------------------------------------------------------------------

    def _fetch(self) -> None:
        replica = self.replica
        if replica is None or replica.follower is None or self._storing:
            return
        if self._scheduler.now >= self.ends_at:
            return
        follower = replica.follower
        self._request = request = follower.next_fetch()
        self._fetches += 1
        serial = self._fetches
        self._send(follower.leader, lambda to: to.serve(self.number, request))

        def again() -> None:
            if self._fetches == serial:
                self._fetch()

        self._later(FETCH_TIMEOUT, again)

    def _send(self, to: int, what: Callable[[SimBroker], None]) -> None:
        other = self.others[to]
        if to in self.blocked or not other.up:
            return
        ticks = self._scheduler.random.randint(1, max(self.delay, other.delay))
        other._later(ticks, lambda: what(other))

    def serve(self, follower: int, request: FetchRequest) -> None:
        """A follower's fetch arrives."""
        replica = self.replica
        if replica is None or (leader := replica.leader) is None:
            return
        try:
            grant = leader.fetched(request, self._scheduler.now)
        except OffsetOutOfRangeError:
            ends = 0, len(self.platter.visible)
            self._send(follower, lambda to: to.refused(request, *ends))
            return
        except PartitionError:
            return  # it looks at the state, and asks again
        batches: Sequence[SimBatch] = ()
        if grant.diverging is None:
            stop = min(grant.end_offset, request.offset + BATCHES_MAX)
            batches = tuple(self.platter.visible[request.offset : stop])
        self._led()
        self._send(follower, lambda to: to.answered(request, grant, batches))

    def refused(self, request: FetchRequest, log_start: int, log_end: int) -> None:
        follower = self.replica.follower if self.replica is not None else None
        if follower is None:
            return
        step = follower.out_of_range(request, log_start, log_end)
        if isinstance(step, CutTo):
            self._cut(step.end_offset)

    def answered(
        self, request: FetchRequest, grant: FetchGrant, batches: Sequence[SimBatch]
    ) -> None:
        follower = self.replica.follower if self.replica is not None else None
        if follower is None:
            return
        step = follower.answered(request, grant, bool(batches))
        if isinstance(step, CutTo):
            self._cut(step.end_offset)
        elif isinstance(step, RestartAt):
            raise AssertionError("nothing is trimmed here")
        elif isinstance(step, AppendAnswer):
            self._append(request.offset, batches, grant.high_watermark)
        elif request is self._request:
            self._later(self._scheduler.random.randint(1, IDLE_TICKS), self._fetch)

    def _append(self, offset: int, batches: Sequence[SimBatch], high_watermark: int) -> None:
        assert self.replica is not None
        follower = self.replica.follower
        log = self.platter.visible
        assert len(log) == offset, "an answer is appended where it was asked for"
        log.extend(batches)
        for at, batch in enumerate(batches, offset):
            self._epochs.assign(batch.epoch, at)
        self._checker.appended(log, offset)
        end = len(log)

        def stored() -> None:
            if self.replica is not None and self.replica.follower is follower is not None:
                follower.stored(end, high_watermark)
                self._fetch()

        self._store(end, stored)

    def _store(self, end: int, done: Callable[[], None]) -> None:
        """Nothing else is done to the log meanwhile, as on the lane that a real one has."""
        self._storing = True

        def stored() -> None:
            self._storing = False
            done()

        self._sync(end, stored)

    def _cut(self, end: int) -> None:
        assert self.replica is not None
        follower = self.replica.follower
        assert follower is not None
        self._note(f"cuts its log from {len(self.platter.visible)} to {end}")
        del self.platter.visible[end:]
        self._epochs.truncate(end)
        before = follower.lost
        follower.cut(end)
        self._checker.truncated(self.number, follower.lost - before)
        if self._scheduler.chance(0.5):
            self.platter.sync(end)
        self._fetch()
