"""Kill, pause and stop brokers at random while the official client uses many topics; then count.

    python -m tests.chaos.shared_topics [--kills 30] [--kinds killed,stopped,paused] [--topics 50]
                                        [--brokers 3] [--bookies 5] [--round-s 0.02] [--seed N]

Each fault is one of: ``kill -9``; SIGTERM, on which a broker hands its topics over; SIGSTOP past
its session, after which it finds that it has lost them and ends. The broker is started again.

Invariants, per topic: every acknowledged message is there once, in order, and its consumer got it.
Printed: for each kind of fault, how long topics of that broker were without an acknowledgement.
Exit code 1 on any violation. With thousands of topics give more seconds to a round, which brings a
message to each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from tests.chaos.crash_publish import judge
from tests.scenarios.cluster import SESSION_MS, Cluster
from tests.scenarios.many_topics import ROUND_S, ManyTopics
from tests.scenarios.publisher import read_back
from tests.scenarios.shared_brokers import Brokers

KINDS = ("killed", "stopped", "paused")
QUORUMS = (3, 3, 2)
PAUSE_S = SESSION_MS / 1000 * 2


class Faults:
    """One after the other; ``gaps_s``: by kind, of the topics that each has touched."""

    def __init__(self, brokers: Brokers, traffic: ManyTopics, rng: random.Random) -> None:
        self.gaps_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self._brokers = brokers
        self._traffic = traffic
        self._random = rng

    def one(self, kind: str) -> None:
        index = self._random.choice(self._brokers.loaded())
        begun_s = time.monotonic()
        getattr(self, f"_{kind}")(index)
        self._traffic.wait_all_answered()
        if kind == "paused":
            self._brokers.role(index).resume()
            self._brokers.role(index).wait_ended()  # it has lost its topics, and says so
        self.gaps_s[kind].append(self._traffic.gaps_s(begun_s)[0])
        self._brokers.start(index)
        time.sleep(self._random.uniform(0.0, 1.0))

    def _killed(self, index: int) -> None:
        self._brokers.role(index).kill()

    def _stopped(self, index: int) -> None:
        assert self._brokers.role(index).end() == 0

    def _paused(self, index: int) -> None:
        self._brokers.role(index).pause()
        time.sleep(PAUSE_S)


def told(gaps_s: Sequence[float]) -> str:
    ordered = sorted(gaps_s)
    if not ordered:
        return "none"
    return f"{len(ordered)}: median {ordered[len(ordered) // 2]:.2f} s, worst {ordered[-1]:.2f} s"


def run(
    kills: int,
    kinds: Sequence[str],
    topics: int,
    brokers: int,
    bookies: int,
    round_s: float,
    seed: int,
) -> int:
    rng = random.Random(seed)
    names = [f"persistent://public/default/chaos-{number}" for number in range(topics)]
    quorums = QUORUMS if bookies >= 3 else (1, 1, 1)
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-shared-") as folder,
        ZooKeeperServer(Path(folder) / "zookeeper") as zookeeper,
    ):
        cluster = Cluster(Path(folder), f"zk://{zookeeper.address}/chaos", bookies)
        try:
            cluster.start_bookies()
            several = Brokers(cluster, quorums, brokers)
            several.start(*range(brokers))
            traffic = ManyTopics(several.service_url, names, round_s)
            traffic.start()
            traffic.wait_all_answered()
            faults = Faults(several, traffic, rng)
            for kind in itertools.islice(itertools.cycle(kinds), kills):
                faults.one(kind)
            traffic.stop_sending()
            traffic.wait_all_received()
            found = [judge(each.acknowledged, read_back(several.service_url, each.name))
                     for each in traffic.topics]  # fmt: skip
            failed = sum(len(each.failed) for each in traffic.topics)
            traffic.close()
        finally:
            cluster.end()
    total = {what: sum(each[what] for each in found) for what in found[0]} | {"failed": failed}
    print(json.dumps({"seed": seed, "topics": topics, **total}))
    for kind in kinds:
        gaps_s = faults.gaps_s[kind]
        print(f"{kind} {told(gaps_s)} without an acknowledgement (session {SESSION_MS / 1000} s)")
    return int(any(total[what] for what in ("lost", "repeated", "out_of_order", "failed")))


def chosen(text: str) -> Sequence[str]:
    kinds = text.split(",")
    if not set(kinds) <= set(KINDS):
        raise argparse.ArgumentTypeError(f"of {', '.join(KINDS)}, not {text}")
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--kinds", type=chosen, default=KINDS, metavar=",".join(KINDS))
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--bookies", type=int, default=5)
    parser.add_argument("--round-s", type=float, default=ROUND_S)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    sys.exit(run(**vars(arguments)))


if __name__ == "__main__":
    main()
