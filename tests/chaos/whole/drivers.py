"""How each kind of fault is done, and undone: one function per kind.

A driver breaks something and returns what mends it; ``Fire`` always calls that, also when the run
is cut short. After mending, a lane waits until its servers are well, so that the plan's rule on
what may be broken at once holds whatever the machine's speed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from tests.chaos.whole.cluster import BOOKIES, BROKERS, READ_ONLY, ZOOKEEPERS, Cluster
from tests.chaos.whole.gaps import InForce
from tests.chaos.whole.plan import Fault, lanes_of
from tests.chaos.whole.workload import Workload
from tests.small_disk import fill_up

Mend: TypeAlias = Callable[[], None]
BUSIEST: Final = 0.8
"""So many of the read-only brokers' faults are for the one that has the most to do."""
SETTLE_S: Final = 1.5
REPAIR_S: Final = 240.0
"""Until no ledger names a bookie that was wiped, and none lacks copies."""
MEET_S: Final = 45.0
"""A fault that is to meet another waits for it so long, and then comes alone."""


class Drivers:
    """``break_it(fault)`` returns the target's name and what mends it."""

    def __init__(self, cluster: Cluster, workload: Workload) -> None:
        self._cluster = cluster
        self._workload = workload

    def break_it(self, fault: Fault) -> tuple[str, Mend]:
        target = self._target(fault)
        return target, self.table(target)[fault.name]()

    def table(self, name: str) -> Mapping[str, Callable[[], Mend]]:
        """Name of a kind of fault -> how it is done to ``name``."""
        kill, pause, stop = (
            lambda: self._kill(name), lambda: self._pause(name), lambda: self._stop(name)
        )  # fmt: skip

        def alone() -> Mend:
            return self._cut(name, self._cluster.network.hosts)

        return {
            "zookeeper: any killed": kill,
            "zookeeper: leader killed": kill,
            "zookeeper: leader paused": pause,
            "zookeeper: leader cut off": alone,
            "zookeeper: any cut off": alone,
            "bookie: killed": kill,
            "bookie: wiped": lambda: self._wipe(name),
            "bookie: paused": pause,
            "bookie: paused past its session": pause,
            "bookie: cut off": alone,
            "bookie: cut off past its session": alone,
            "bookie: cut off from one broker": lambda: self._cut(name, [BROKERS[0]]),
            "bookie: not heard, but hearing": lambda: self._cut(
                name, [*BROKERS, *READ_ONLY], both=False
            ),
            "bookie: disk full": lambda: self._fill(name),
            "broker: killed": kill,
            "broker: stopped in order": stop,
            "broker: paused": pause,
            "broker: paused past its session": pause,
            "broker: cut off past its session": alone,
            "broker: cut off from ZooKeeper": lambda: self._cut(name, ZOOKEEPERS),
            "broker: cut off from bookies": lambda: self._cut(name, BOOKIES),
            "read-only: killed": kill,
            "read-only: stopped in order": stop,
            "read-only: paused": pause,
            "read-only: paused past its session": pause,
            "read-only: cut off past its session": alone,
            "read-only: cut off from owners": lambda: self._cut(name, BROKERS),
            "client: killed": lambda: self._kill_client(name),
            "client: paused": lambda: self._pause_client(name),
        }

    def _target(self, fault: Fault) -> str:
        choices: Sequence[str] = {
            "zookeeper": ZOOKEEPERS,
            "bookie": BOOKIES,
            "broker": BROKERS,
            "read-only": READ_ONLY,
            "client": tuple(self._workload.clients),
        }[fault.lane]
        if fault.lane == "zookeeper" and "leader" in fault.kind:
            choices = [name for name in (self._cluster.quorum.leader(),) if name] or choices
        elif fault.lane == "broker":
            choices = self._cluster.loaded_brokers() or choices
        elif fault.lane == "read-only" and fault.choice < BUSIEST:
            choices = [name for name in (self._cluster.busiest_read_only(),) if name] or choices
        return choices[int(fault.choice * len(choices))]

    def wait_well(self, lane: str) -> None:
        """Until all servers of the lane are, and stay so: one that wakes up ends a moment later,
        when it finds that its session is over."""
        if lane == "zookeeper":
            self._cluster.quorum.wait_whole()
        names = {"bookie": BOOKIES, "broker": BROKERS, "read-only": READ_ONLY}.get(lane, ())
        for settle_s in (SETTLE_S, 0.0) if names else ():
            for name in names:
                self._cluster.servers[name].wait_ready()
            time.sleep(settle_s)

    # -- kinds ----------------------------------------------------------------------------------

    def _kill(self, name: str) -> Mend:
        server = self._cluster.servers[name]
        server.kill()
        return server.begin

    def _wipe(self, name: str) -> Mend:
        """The machine is lost, with everything on it. An operator says so, and has another begin
        under its name when others have its copies."""
        server, disk = self._cluster.servers[name], self._cluster.data_of(name)
        server.kill()
        for each in disk.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()

        def replace() -> None:
            self._operate("bookie", "recover", self._cluster.bookie_id(name))
            self._operate("recovery", "status", "--follow")
            server.begin()

        return replace

    def _operate(self, *words: str) -> None:
        """One command of an operator, again until it is done: ZooKeeper may break meanwhile."""
        command = [sys.executable, "-m", "magnetar", *words]
        deadline_s = time.monotonic() + REPAIR_S
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                done = subprocess.run(
                    [*command, "--metadata", self._cluster.metadata_url],
                    capture_output=True, text=True, timeout=max(left_s, 1.0), check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"{' '.join(words)}: not in {REPAIR_S:.0f} s") from None
            if done.returncode == 0:
                return
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
            time.sleep(1.0)

    def _stop(self, name: str) -> Mend:
        server = self._cluster.servers[name]
        server.stop()
        return server.begin

    def _pause(self, name: str) -> Mend:
        server = self._cluster.servers[name]
        server.pause()
        return server.resume

    def _cut(self, name: str, others: Sequence[str], both: bool = True) -> Mend:
        return self._cluster.network.cut(name, others, both)

    def _fill(self, name: str) -> Mend:
        filler = fill_up(self._cluster.data_of(name))
        return filler.unlink

    def _kill_client(self, name: str) -> Mend:
        client = self._workload.clients[name]
        client.kill()
        return client.start

    def _pause_client(self, name: str) -> Mend:
        client = self._workload.clients[name]
        client.signal(signal.SIGSTOP)
        return lambda: client.signal(signal.SIGCONT)


class Fire:
    """Carries a plan out, a thread per lane. ``done``: the faults that were."""

    def __init__(
        self, faults: Sequence[Fault], drivers: Drivers, say: Callable[[str], None]
    ) -> None:
        self._faults = faults
        self._drivers = drivers
        self._say = say
        self._over = threading.Event()
        self._in_force = [threading.Event() for _ in faults]
        self._past = [threading.Event() for _ in faults]
        self._lock = threading.Lock()
        self._begun_s = 0.0
        self.done: list[InForce] = []
        self.met = 0
        self.troubles: list[str] = []

    def burn(self, seconds: float) -> None:
        """Returns when every lane is through, or ``seconds`` are over, with everything mended."""
        self._begun_s = time.monotonic()
        lanes = [
            threading.Thread(target=self._lane, args=(faults,), name=name)
            for name, faults in lanes_of(self._faults).items()
        ]
        for lane in lanes:
            lane.start()
        try:
            for lane in lanes:
                lane.join(max(0.0, self._begun_s + seconds - time.monotonic()))
        finally:
            self._over.set()
            for lane in lanes:
                lane.join()

    def _lane(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._over.wait(max(0.0, self._begun_s + fault.at_s - time.monotonic()))
            met = self._meet(fault)
            if self._over.is_set():
                return
            try:
                self._one(fault, met)
            except (RuntimeError, OSError) as error:
                self._trouble(f"{fault.name}: {error}")
            finally:
                self._past[fault.number].set()

    def _meet(self, fault: Fault) -> bool:
        """Wait for the fault that this one is to meet; whether it does."""
        if fault.meets < 0:
            return False
        deadline_s = time.monotonic() + MEET_S
        other, past = self._in_force[fault.meets], self._past[fault.meets]
        while not other.is_set() and not self._over.is_set():
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.05)
        return other.is_set() and not past.is_set()

    def _one(self, fault: Fault, met: bool) -> None:
        begun_s = time.monotonic()
        target, mend = self._drivers.break_it(fault)
        self._in_force[fault.number].set()
        try:
            text = f" (meets {self._faults[fault.meets].name})" if met else ""
            self._say(f"{fault.number:>4} {fault.name}, {target}, {fault.for_s} s{text}")
            self._over.wait(fault.for_s)
        finally:
            self._past[fault.number].set()
            mend()
            over_s = time.monotonic()
            with self._lock:
                self.done.append(InForce(fault.name, target, begun_s, over_s))
                self.met += met
        self._drivers.wait_well(fault.lane)

    def _trouble(self, text: str) -> None:
        self._say(f"TROUBLE {text}")
        with self._lock:
            self.troubles.append(text)
