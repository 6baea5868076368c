"""Break everything that can be, while official clients publish and consume; then judge.

    python -m tests.chaos.whole [--minutes 3] [--seed N] [--folder out/chaos] [--java DIR]
                                [--relays]

Three ZooKeepers, five bookies, three brokers and two read-only brokers, as processes; clients as
processes of their own (``modes``). Faults come by a plan that the seed makes (``plan``): kill -9,
SIGSTOP, partitions, full disks, bookies that lose everything, several at the same time. Then
everything is mended, all that was acknowledged must arrive, every ledger must have all of its
copies (``copies``), and the histories are judged (``checker``).

Exit code 0: every promise held. The report, the histories and all logs are in the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from tests.chaos.whole import network
from tests.chaos.whole.checker import Checker
from tests.chaos.whole.cluster import HOSTS, PORTS, SERVERS, ZOOKEEPERS, Cluster
from tests.chaos.whole.copies import wait_whole
from tests.chaos.whole.drivers import Drivers, Fire
from tests.chaos.whole.gaps import acknowledgement_times, by_kind
from tests.chaos.whole.history import read_folder
from tests.chaos.whole.modes import AUDIT, Topic
from tests.chaos.whole.modes import topics as topics_of
from tests.chaos.whole.plan import CUTS, EVERYTHING, SESSION_MS, left_out, plan
from tests.chaos.whole.relays import Relays
from tests.chaos.whole.report import Run, as_json, as_text
from tests.chaos.whole.servers import Network
from tests.chaos.whole.workload import JAVA_RUN, Workload

CALM_S: Final = 8.0
"""Without faults, before the first."""
LATE_S: Final = 60.0
"""Faults of a plan that begin later than this after its end are left out."""
ARRIVE_S: Final = 180.0
"""After the last fault, until everything has arrived."""
LOOK_S: Final = 5.0


class Memory(threading.Thread):
    """The most memory that all processes had together, looked at now and then."""

    def __init__(self) -> None:
        super().__init__(name="memory", daemon=True)
        self.most_mib = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(LOOK_S):
            total = 0
            for each in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += each.memory_info().rss
            self.most_mib = max(self.most_mib, total >> 20)


class Teller:
    """Prints, and keeps for those who look later."""

    def __init__(self, folder: Path) -> None:
        self._begun_s = time.monotonic()
        self._file = (folder / "faults.log").open("w")
        self._lock = threading.Lock()

    def __call__(self, text: str) -> None:
        line = f"{time.monotonic() - self._begun_s:7.1f} s [{time.monotonic():.3f}]  {text}"
        with self._lock:
            print(line, file=self._file, flush=True)
            print(line, flush=True)


def wait_arrived(topics: Sequence[Topic], histories: Path, begun_s: float) -> tuple[float, str]:
    """Until every subscription has all that was acknowledged. Returns how long it took, and what
    is missing if it took too long."""
    while True:
        checker = Checker(topics)
        checker.feed(read_folder(histories))
        missing = checker.missing(but=AUDIT)
        took_s = time.monotonic() - begun_s
        if not missing:
            return took_s, ""
        if took_s > ARRIVE_S:
            what = {" ".join(key): len(each) for key, each in missing.items()}
            return took_s, f"not arrived {took_s:.0f} s after the last fault: {what}"
        time.sleep(LOOK_S)


@contextlib.contextmanager
def burning(folder: Path, java: Path | None, say: Teller) -> Iterator[tuple[Cluster, Workload]]:
    """A running cluster with its clients; ended whatever happens."""
    hosts = [name for group in HOSTS for name in group]
    links: Network = network.Namespaces(hosts) if network.inside() else Relays(PORTS, ZOOKEEPERS)
    links.start()
    cluster = Cluster(folder, links, network.inside(), say)
    workload = Workload(cluster.service_url, folder, java)
    try:
        cluster.start()
        say("all servers are ready")
        workload.start(say)
        yield cluster, workload
    finally:
        workload.kill()
        cluster.end()
        links.end()


def run(args: argparse.Namespace) -> int:
    folder = args.folder / f"{time.strftime('%m%d-%H%M%S')}-seed-{args.seed}"
    folder.mkdir(parents=True)
    say = Teller(folder)
    abilities = EVERYTHING if network.inside() else (CUTS,)
    seconds = args.minutes * 60
    topics = topics_of(java=args.java is not None)
    faults = plan(args.seed, seconds, abilities)
    say(f"seed {args.seed}: {len(faults)} faults in {args.minutes:g} minutes; {folder}")
    memory = Memory()
    with burning(folder, args.java, say) as (cluster, workload):
        memory.start()
        time.sleep(CALM_S)
        fire = Fire(faults, Drivers(cluster, workload), say)
        fire.burn(seconds + LATE_S)
        begun_s = time.monotonic()
        say("everything is mended; publishers end")
        troubles = [*fire.troubles, *workload.dead(), *workload.stop_publishing()]
        recovery_s, missing = wait_arrived(topics, folder / "histories", begun_s)
        say(f"after {recovery_s:.1f} s: {missing or 'everything has arrived'}")
        workload.stop_consuming()
        workload.audit()
        whole = wait_whole(cluster.metadata_url)
        say(whole.trouble or f"all copies are there, after {whole.took_s:.1f} s")
        memory.over.set()
        ended = cluster.supervisor.ended
        description = cluster.network.description
    say("everything has ended; the histories are judged")
    checker = Checker(topics)
    checker.feed(read_folder(folder / "histories"))
    times = acknowledgement_times(read_folder(folder / "histories"))
    told = Run(
        seed=args.seed,
        minutes=args.minutes,
        servers=SERVERS,
        network=description,
        session_s=SESSION_MS / 1000,
        faults_planned=len(faults),
        gaps=by_kind(fire.done, times),
        met=fire.met,
        verdict=checker.verdict(),
        ended=ended,
        troubles=[*troubles, *([missing] if missing else [])],
        left_out=left_out(abilities),
        memory_mib=memory.most_mib,
        recovery_s=recovery_s,
        whole=whole,
        folder=str(folder),
        repeat=f"make chaos MINUTES={args.minutes:g} SEED={args.seed}"
        + (f" KEPT={args.java.parent}" if args.java is not None else ""),
    )
    (folder / "report.json").write_text(json.dumps(as_json(told), indent=1))
    (folder / "report.txt").write_text(as_text(told))
    print("\n" + as_text(told))
    return 0 if told.good else 1


def again(args: argparse.Namespace) -> list[str]:
    """The arguments that mean the same."""
    java = ["--java", str(args.java)] if args.java is not None else []
    named = {"--minutes": args.minutes, "--seed": args.seed, "--folder": args.folder}
    return [*java, *(str(word) for pair in named.items() for word in pair)]


def stop(_number: int, _frame: object) -> None:
    """SIGTERM ends it as Ctrl-C does: everything is mended and ended."""
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--folder", type=Path, default=Path("out/chaos"))
    parser.add_argument("--java", type=Path, help="where Java's client is fetched to (needs Maven)")
    parser.add_argument("--relays", action="store_true", help="as where namespaces are not allowed")
    args = parser.parse_args()
    if args.java is not None and not network.inside():
        args.java = args.java.absolute()
        args.java.mkdir(parents=True, exist_ok=True)
        subprocess.run([JAVA_RUN, args.java, "fetch"], check=True)
    way = None if network.inside() or args.relays else network.way_in()
    if way is not None:
        network.enter(way, "tests.chaos.whole", again(args))
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
