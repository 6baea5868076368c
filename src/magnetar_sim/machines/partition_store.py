"""The metadata store and the controllers of a simulated partition (ring 1).

One node with the partition's state, compare-and-set, and the brokers' registrations. Answers take
time and get lost; who watches is told late; controllers act on what was true when they looked.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.partition_state import NO_LEADER, PartitionState
from magnetar_sim.machines.partition_checkers import PartitionChecker
from magnetar_sim.world.scheduler import Scheduler

ANSWER_TICKS = 25
LOOK_TICKS = 150
OPENINGS_SHARE = 0.02
"""Of the looks that find nothing to do: the leader's topic is opened anew."""


class SimStateStore:
    """``watch`` calls are made when the state or the registrations change."""

    def __init__(
        self, scheduler: Scheduler, state: PartitionState, checker: PartitionChecker
    ) -> None:
        self.scheduler = scheduler
        self.state = state
        self.version = 0
        self.live: dict[int, LiveBroker] = {}
        self.ever: dict[tuple[int, int], LiveBroker] = {}
        self.watchers: list[Callable[[], None]] = []
        self._checker = checker

    def register(self, broker: int, entry: LiveBroker) -> None:
        self.live[broker] = entry
        self.ever[broker, entry.start] = entry
        self._tell(f"broker {broker} registers: {entry}")

    def expire(self, broker: int, start: int) -> None:
        """The session of that start has ended."""
        found = self.live.get(broker)
        if found is not None and found.start == start:
            del self.live[broker]
            self._tell(f"the session of broker {broker} expires")

    def put(self, state: PartitionState, version: int) -> bool:
        """Compare and set."""
        if version != self.version:
            return False
        state.check()
        self._checker.stored(self.state, state, self.ever)
        self.state = state
        self.version += 1
        self._tell(f"{self.version}: {_told(state)}")
        return True

    def _tell(self, what: str) -> None:
        self.scheduler.note("store", what)
        for watcher in self.watchers:
            watcher()


def _told(state: PartitionState) -> str:
    isr = ",".join(str(member.broker) for member in state.isr)
    elr = ",".join(str(member.broker) for member in state.elr)
    return f"leader {state.leader} epoch {state.leader_epoch} isr [{isr}] elr [{elr}]"


class SimController:
    """Looks when something has changed, and now and then; stores what follows, some time later."""

    def __init__(self, store: SimStateStore, until: int, unclean: bool, opens_until: int) -> None:
        self._store = store
        self._scheduler = store.scheduler
        self._until = until
        self._opens_until = opens_until
        self._unclean = unclean
        self._planned = False
        store.watchers.append(self._plan)
        self._look_again()

    def _look_again(self) -> None:
        self._plan()
        if self._scheduler.now < self._until:
            self._scheduler.after(LOOK_TICKS, self._look_again)

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._scheduler.after(self._scheduler.random.randint(1, ANSWER_TICKS), self._look)

    def _look(self) -> None:
        self._planned = False
        store, rng = self._store, self._scheduler.random
        state, version, live = store.state, store.version, dict(store.live)
        following = election.elect(state, live, unclean=self._unclean)
        if following is None and rng.random() < 0.05:
            following = election.prefer(state, live)
        opens = store.scheduler.now < self._opens_until and state.leader != NO_LEADER
        if following is None and opens and rng.random() < OPENINGS_SHARE:
            following = election.move(state, live, state.leader)
        if following is not None:
            chosen = following
            self._scheduler.after(rng.randint(1, ANSWER_TICKS), lambda: self._put(chosen, version))

    def _put(self, state: PartitionState, version: int) -> None:
        if not self._store.put(state, version):
            self._plan()
