"""End the brokers of a cluster in order, one after the other, again and again, under official
clients: partitions change their leader, topics their owner; then judge.

    python -m tests.chaos.moves [--rounds 10] [--killed] [--java DIR] [--folder out/moves]

``--killed``: by ``kill -9``, and begun again before its session has ended, or after it.
The cluster is that of ``tests.chaos.upgrade``, with this version alone, and so are clients and
judges, with more partitions and groups: of what goes wrong in one of a thousand moves of a
partition (a client that takes an answer for another than it is) two rounds of three partitions show
nothing.

Exit code 0: every promise held. All logs are in the folder.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.upgrade.__main__ import ALL_PORTS, KafkaCluster, ended, finish
from tests.chaos.upgrade.kafka_work import KafkaWork
from tests.chaos.whole.__main__ import Teller
from tests.chaos.whole.cluster import BROKERS, ZOOKEEPERS
from tests.chaos.whole.relays import Relays
from tests.chaos.whole.workload import Workload

PARTITIONS: Final = 12
GROUPS: Final = 3
CALM_S: Final = 5.0
SETTLE_S: Final = 4.0
"""Between two brokers."""
KILLED_S: Final = (0.2, 7.0, 1.0, 3.0)
"""How long one is away, in turns."""


def run(rounds: int, killed: bool, java: Path | None, folder: Path) -> int:
    folder.mkdir(parents=True)
    say, links = Teller(folder), Relays(ALL_PORTS, ZOOKEEPERS)
    links.start()
    cluster = KafkaCluster(folder, links, False, say)
    workload = Workload(cluster.service_url, folder, java)
    work = KafkaWork(cluster.bootstrap, len(BROKERS), partitions=PARTITIONS, groups=GROUPS)
    troubles: list[str] = []
    away_s = itertools.cycle(KILLED_S)
    try:
        cluster.start()
        workload.start(say)
        work.start()
        time.sleep(CALM_S)
        for number in range(rounds):
            for name in BROKERS:
                server = cluster.servers[name]
                if killed:
                    server.kill()
                    time.sleep(next(away_s))
                else:
                    troubles += ended(server)
                server.begin()
                server.wait_ready()
                time.sleep(SETTLE_S)
            say(f"round {number + 1} of {rounds}")
        troubles += work.finish()
        troubles += finish(cluster, workload, folder, say, java is not None)
    finally:
        workload.kill()
        cluster.end()
        links.end()
    print("Kafka's clients:", work.counts)
    print("\n".join(["FAIL", *troubles]) if troubles else "PASS")
    return 1 if troubles else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--killed", action="store_true", help="by kill -9, not in order")
    parser.add_argument("--java", type=Path, help="where Java's client was fetched to")
    parser.add_argument("--folder", type=Path, default=Path("out/moves"))
    args = parser.parse_args(arguments)
    return run(args.rounds, args.killed, args.java, args.folder / time.strftime("%m%d-%H%M%S"))


if __name__ == "__main__":
    sys.exit(main())
