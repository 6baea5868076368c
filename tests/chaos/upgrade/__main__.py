"""Replace every server of a cluster by one of this version, one after the other, while official
clients publish and consume; then judge.

    python -m tests.chaos.upgrade --from COMMIT [--back] [--seed N] [--folder out/upgrade]
                                  [--java DIR] [--no-kafka]

The cluster and its clients are those of ``tests.chaos.whole``, on loopback, and clients of Kafka's
(``kafka_work``), for whom brokers have partitions, replicated three times. Servers begin with the
code of ``COMMIT``, by itself, with the packages that are installed here. Bookies, brokers and
read-only brokers are ended in order and begin again with this version's code; while there are both,
one of each version is killed as well. ``--back`` is the other way: from this version to that one.
What an operator is told in docs/operating.md is done here.

Exit code 0: every promise held. The report, the histories and all logs are in the folder.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.upgrade.kafka_work import KafkaWork
from tests.chaos.whole.__main__ import CALM_S, Teller, wait_arrived
from tests.chaos.whole.checker import Checker
from tests.chaos.whole.cluster import BOOKIES, BROKERS, PORTS, READ_ONLY, ZOOKEEPERS, Cluster
from tests.chaos.whole.copies import wait_whole
from tests.chaos.whole.gaps import InForce, acknowledgement_times, by_kind
from tests.chaos.whole.history import read_folder
from tests.chaos.whole.modes import topics as topics_of
from tests.chaos.whole.relays import Relays
from tests.chaos.whole.servers import Server
from tests.chaos.whole.workload import Workload

ROOT: Final = Path(__file__).parents[3]
KAFKA_PORT: Final = 9092
ALL_PORTS: Final = {
    name: (*PORTS[name], *([KAFKA_PORT] if name in BROKERS else [])) for name in PORTS
}
SETTLE_S: Final = 5.0
"""Between two servers; their sessions and topics have come back long before."""
KILLED_S: Final = 3.0


class KafkaCluster(Cluster):
    """With Kafka's protocol, and partitions, at each broker that owns topics."""

    def _broker(self, name: str) -> list[str]:
        command = super()._broker(name)
        if name not in BROKERS:
            return command
        told, number = self.network.told(name), BROKERS.index(name) + 1
        directory = (self._data / name / "partitions").absolute()
        sets = (
            f"kafka.host={self.network.address(name)}", f"kafka.port={KAFKA_PORT}",
            f"kafka.advertised_host={told}", f"partition.directory={directory}",
            f"partition.broker_id={number}", "partition.replica_lag_ms_max=4000",
        )  # fmt: skip
        return [*command, *(word for each in sets for word in ("--set", each))]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self.network.told(name)}:{KAFKA_PORT}" for name in BROKERS)


def ended(server: Server) -> list[str]:
    """In order; what was wrong with it."""
    try:
        server.stop()
    except RuntimeError as error:
        return [str(error)]
    return []


def export(commit: str, folder: Path) -> Path:
    """The code of that commit; returns where Python finds it."""
    folder.mkdir(parents=True)
    packed = subprocess.run(
        ["git", "-C", ROOT, "archive", commit, "src"], stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return folder / "src"


class Upgrade:
    """``environment``: of the version that comes. ``randomness`` chooses who is killed while there
    are both."""

    def __init__(
        self,
        cluster: Cluster,
        environment: Mapping[str, str],
        say: Teller,
        randomness: random.Random,
    ) -> None:
        self._cluster = cluster
        self._environment = environment
        self._say = say
        self._random = randomness
        self.done: list[InForce] = []
        self.troubles: list[str] = []

    def run(self) -> None:
        for group in (BOOKIES, BROKERS, READ_ONLY):
            half = len(group) // 2
            for name in group[:half]:
                self._replace(name)
            self._kill(self._random.choice(group[half:]), "former version")
            self._kill(self._random.choice(group[:half]), "next version")
            for name in group[half:]:
                self._replace(name)

    def _replace(self, name: str) -> None:
        server, begun_s = self._cluster.servers[name], time.monotonic()
        self.troubles += ended(server)
        server.environment = self._environment
        self._begin(name, "replaced", begun_s)

    def _kill(self, name: str, version: str) -> None:
        begun_s = time.monotonic()
        self._cluster.servers[name].kill()
        time.sleep(KILLED_S)
        self._begin(name, f"killed, {version}", begun_s)

    def _begin(self, name: str, what: str, begun_s: float) -> None:
        server = self._cluster.servers[name]
        server.begin()
        server.wait_ready()
        over_s = time.monotonic()
        kind = f"{name.rpartition('-')[0]} {what}"
        self.done.append(InForce(kind, name, begun_s, over_s))
        self._say(f"{kind}: {name}, {over_s - begun_s:.1f} s")
        time.sleep(SETTLE_S)


def run(args: argparse.Namespace) -> int:
    way = "to" if args.back else "from"
    folder = args.folder / f"{time.strftime('%m%d-%H%M%S')}-{way}-{args.commit}"
    folder.mkdir(parents=True)
    versions = [{"PYTHONPATH": str(export(args.commit, folder / "code").absolute())}, {}]
    first, last = reversed(versions) if args.back else versions
    say, links = Teller(folder), Relays(ALL_PORTS, ZOOKEEPERS)
    links.start()
    cluster = (KafkaCluster if args.kafka else Cluster)(folder, links, False, say)
    for name in (*BOOKIES, *BROKERS, *READ_ONLY):
        cluster.servers[name].environment = first
    workload = Workload(cluster.service_url, folder, args.java)
    kafka = None
    if isinstance(cluster, KafkaCluster):
        kafka = KafkaWork(cluster.bootstrap, len(BROKERS))
    upgrade = Upgrade(cluster, last, say, random.Random(args.seed))
    try:
        cluster.start()
        say(f"all servers are ready; {way} {args.commit}, seed {args.seed}")
        workload.start(say)
        if kafka is not None:
            kafka.start()
        time.sleep(CALM_S)
        upgrade.run()
        told = list(kafka.finish()) if kafka is not None else []
        told += finish(cluster, workload, folder, say, args.java is not None)
    finally:
        workload.kill()
        cluster.end()
        links.end()
    troubles = [*upgrade.troubles, *told]
    gaps = by_kind(upgrade.done, acknowledgement_times(read_folder(folder / "histories")))
    for kind, found in gaps.items():
        print(f"{kind}: {found.count} times, without an acknowledgement {found.worst_s:.1f} s")
    if kafka is not None:
        print("Kafka's clients:", kafka.counts)
    print("ended by themselves:", cluster.supervisor.ended or "none")
    print("\n".join(["FAIL", *troubles]) if troubles else "PASS")
    return 1 if troubles else 0


def finish(
    cluster: Cluster, workload: Workload, folder: Path, say: Teller, java: bool
) -> Iterator[str]:
    """Let everything arrive, and judge; what was promised and did not hold."""
    begun_s, topics, histories = time.monotonic(), topics_of(java), folder / "histories"
    yield from workload.dead()
    yield from workload.stop_publishing()
    took_s, missing = wait_arrived(topics, histories, begun_s)
    say(f"after {took_s:.1f} s: {missing or 'everything has arrived'}")
    workload.stop_consuming()
    workload.audit()
    whole = wait_whole(cluster.metadata_url)
    say(whole.trouble or f"all {whole.copies.copies} copies are there")
    checker = Checker(topics)
    checker.feed(read_folder(histories))
    verdict = checker.verdict()
    say(f"{dict(verdict.counts)}")
    yield from (each for each in (missing, whole.trouble) if each)
    yield from (f"{count} {rule}" for rule, count in verdict.violations.items() if count)
    yield from verdict.examples


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--from", dest="commit", required=True, help="of this repository")
    parser.add_argument("--back", action="store_true", help="from this version to that")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--folder", type=Path, default=Path("out/upgrade"))
    parser.add_argument("--java", type=Path, help="where Java's client was fetched to")
    parser.add_argument("--no-kafka", dest="kafka", action="store_false", help="Pulsar's only")
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
