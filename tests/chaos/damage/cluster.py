"""One file of one server of a cluster is damaged: others have copies, so nothing may be lost.

    python -m tests.chaos.damage.cluster [--of bookie|broker] [--cases 12] [--seed 1]
                                         [--quorums 3,3,2] [--only KIND,...] [--folder out/damage]

On a ZooKeeper. Each case fills on, ends one server (in order, or by kill -9), does one thing to one
of its files (``damaging``), and starts it:

* a bookie of four: both official clients read all there is; then what operators are told to do is
  done (``magnetar ledger verify --all --repair``, ``magnetar recovery``, a bookie that does not
  start or is in limbo), until ``verify`` finds all copies sound;
* a broker of three, each of which has a replica (two in sync are enough): it ends alone, or with
  the others, and is the first to start; all is read when all replicas are in sync, and then with
  the damaged one as the only one.

Wrong is what ``judge`` finds, and all that it takes for told. The cluster goes on after each case.
Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
from confluent_kafka.admin import AdminClient

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port
from tests.chaos.churn.server import Server
from tests.chaos.damage import filling, looking
from tests.chaos.damage.__main__ import SETTINGS, SETTLE_S
from tests.chaos.damage.contents import TOPICS
from tests.chaos.damage.damaging import damage
from tests.chaos.damage.judge import judge
from tests.scenarios.cluster import BookieMachine, Cluster
from tests.scenarios.shared_brokers import Brokers

REPLICAS: Final = 3
WAIT_S: Final = 90.0
SESSION_MS: Final = 12_000
TOLD_CHARS: Final = 400
SHOWN: Final = 4


class Everything:
    """The cluster, and how many rounds its topics have."""

    def __init__(
        self, folder: Path, zookeeper: str, quorums: Sequence[int], bookies: int, brokers: int
    ) -> None:
        self.folder = folder
        self.metadata = f"zk://{zookeeper}/damage"
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        settings += [f"metadata.session_timeout_ms={SESSION_MS}"]
        sets = [word for each in settings for word in ("--set", each)]
        self.cluster = Cluster(folder, self.metadata, bookies, sets)
        self.cluster.start_bookies()
        self.kafka_ports = [free_port() for _ in range(brokers)]
        more = {
            index: (
                "--kafka-port", str(port),
                "--set", f"partition.directory={self.directory(index)}",
                "--set", f"partition.broker_id={index + 1}",
                "--set", "partition.replica_lag_ms_max=4000",
                "--set", f"partition.replication_factor={brokers}",
                "--set", f"partition.min_insync_replicas={brokers // 2 + 1}",
                *sets,
            )
            for index, port in enumerate(self.kafka_ports)
        }  # fmt: skip
        self.brokers = Brokers(self.cluster, quorums, brokers, more=more)
        self.brokers.start(*range(brokers))
        self.rounds = 0
        filling.make(self.server(0))

    def directory(self, index: int) -> Path:
        return self.folder / f"broker-{index}" / "partitions"

    def server(self, index: int) -> Server:
        port, http_port = self.brokers.ports[index]
        made = Server(port, http_port, self.kafka_ports[index])
        rest = httpx.Client(base_url=made.rest.base_url, timeout=60, follow_redirects=True)
        object.__setattr__(made, "rest", rest)
        return made

    def fill(self) -> None:
        filling.fill(self.server(0), self.rounds * filling.ROUND)
        self.rounds += 1
        time.sleep(SETTLE_S)

    def wrong(self, index: int = 0) -> list[str]:
        """What a client of that broker does not find as it was sent."""
        verdict = judge(looking.look(self.server(index)), self.rounds, "")
        return verdict.wrong + verdict.told

    def command(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "magnetar", *arguments, "--metadata", self.metadata],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr[-TOLD_CHARS:]


def bookie_case(everything: Everything, draw: random.Random, only: str) -> list[str]:
    bookie = draw.choice(everything.cluster.bookies)
    how = draw.choice(("clean", "kill"))
    bookie.role.end() if how == "clean" else bookie.kill()
    older = everything.folder / "older" / bookie.data_dir.name
    done = damage(bookie.data_dir, older, draw, only)
    print(f"{how}: {bookie.bookie_id}: {done.kind}: {done.path}: {done.what}", flush=True)
    wrong = [f"while it is away: {each}" for each in everything.wrong()]
    if not _starts(bookie):
        print(f"   not started: {_last(bookie)}", flush=True)
        if not _last(bookie).startswith("magnetar: "):
            wrong.append(f"it ends without a word: {_last(bookie)}")
        wrong += _replaced_by_an_empty_one(everything, bookie)
    wrong += [f"started: {each}" for each in everything.wrong()]
    wrong += _mended(everything, bookie)
    return wrong + [f"mended: {each}" for each in everything.wrong()]


def _starts(bookie: BookieMachine) -> bool:
    try:
        bookie.start()
    except AssertionError:
        bookie.kill()
        return False
    return True


def _last(bookie: BookieMachine) -> str:
    return (bookie.role.log.splitlines() or [""])[-1][:TOLD_CHARS]


def _replaced_by_an_empty_one(everything: Everything, bookie: BookieMachine) -> list[str]:
    code, said = everything.command("bookie", "recover", bookie.bookie_id)
    if code:
        return [f"recover ended with {code}: {said}"]
    shutil.rmtree(bookie.data_dir)
    bookie.start()
    return []


def _mended(everything: Everything, bookie: BookieMachine) -> list[str]:
    """As an operator does it, by what is told."""
    code, said = everything.command("ledger", "verify", "--all", "--json")
    print(f"   verify: {code} {_summary(said)}", flush=True)
    everything.command("recovery", "check")
    everything.command("ledger", "verify", "--all", "--repair")

    def sound() -> bool:
        return everything.command("ledger", "verify", "--all")[0] == 0

    def none_lacks() -> bool:
        return everything.command("recovery", "list", "--json")[1].strip() == "[]"

    if not _within(none_lacks):
        return [f"ledgers lack copies: {everything.command('recovery', 'list')}"]
    if "limbo=True" in bookie.role.log:
        print("   leaves limbo", flush=True)
        bookie.role.end()
        _start_with(bookie, "--leave-limbo")
    if not _within(sound):
        return [f"copies are not mended: {everything.command('ledger', 'verify', '--all')}"]
    return []


def _start_with(bookie: BookieMachine, argument: str) -> None:
    settings = bookie._settings
    bookie._settings = (*settings, argument)
    bookie.start()
    bookie._settings = settings


def _summary(text: str) -> str:
    return " ".join(text.split())[:TOLD_CHARS]


def _within(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(1)
    return True


def broker_case(everything: Everything, draw: random.Random, only: str) -> list[str]:
    brokers = everything.brokers
    index = draw.randrange(REPLICAS)
    others = [each for each in range(REPLICAS) if each != index]
    how, alone = draw.choice(("clean", "kill")), draw.random() < 0.5
    for each in [index] if alone else [*others, index]:
        brokers.role(each).end() if how == "clean" else brokers.role(each).kill()
    folder = everything.directory(index).parent
    done = damage(folder, everything.folder / "older" / folder.name, draw, only)
    print(f"{how}{' alone' if alone else ''}: {folder.name}: {done.kind}: {done.path}: {done.what}",
          flush=True)  # fmt: skip
    wrong = []
    try:
        brokers.start(index)
    except AssertionError:
        last = (brokers.role(index).log.splitlines() or [""])[-1][:TOLD_CHARS]
        print(f"   not started: {last}", flush=True)
        if not last.startswith("magnetar: "):
            wrong.append(f"it ends without a word: {last}")
        shutil.rmtree(folder)
        brokers.start(index)
    if not alone:
        time.sleep(SESSION_MS / 1000)
        brokers.start(*others)
    time.sleep(SESSION_MS / 1000)  # until then one that was killed is said to be in sync
    if not _within(lambda: _in_sync(everything)):
        wrong.append(f"not all are in sync: {_replicas(everything)}")
    wrong += [f"in sync: {each}" for each in everything.wrong(index)]
    for each in others:
        brokers.role(each).end()
    time.sleep(SESSION_MS / 1000)
    wrong += [f"by that one alone: {each}" for each in everything.wrong(index)]
    brokers.start(*others)
    if not _within(lambda: _in_sync(everything)):
        wrong.append(f"not all are in sync again: {_replicas(everything)}")
    return wrong


def _replicas(everything: Everything) -> dict[str, Any]:
    addresses = ",".join(f"127.0.0.1:{port}" for port in everything.kafka_ports)
    topics = AdminClient({"bootstrap.servers": addresses, "log_level": 0}).list_topics(timeout=20)
    return {
        each.name: sorted(topics.topics[each.name].partitions[0].isrs)
        for each in TOPICS
        if each.engine == "partition"
    }


def _in_sync(everything: Everything) -> bool:
    return all(len(each) == REPLICAS for each in _replicas(everything).values())


def keep_older(everything: Everything) -> None:
    older = everything.folder / "older"
    shutil.rmtree(older, ignore_errors=True)
    for bookie in everything.cluster.bookies:
        shutil.copytree(bookie.data_dir, older / bookie.data_dir.name)
    for index in range(len(everything.kafka_ports)):
        shutil.copytree(everything.directory(index).parent, older / f"broker-{index}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quorums", default="3,3,2", help="ensemble, write, ack")
    parser.add_argument("--of", choices=("bookie", "broker"), default="bookie")
    parser.add_argument("--only", default="", help="kinds of files with this in their name")
    parser.add_argument("--folder", type=Path, default=Path("out/damage"))
    options = parser.parse_args(arguments)
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found: list[str] = []
    with ZooKeeperServer(folder / "zookeeper") as zookeeper:
        quorums = [int(each) for each in options.quorums.split(",")]
        if options.of == "bookie":
            everything = Everything(folder, zookeeper.address, quorums, 4, 1)
        else:
            everything = Everything(folder, zookeeper.address, (1, 1, 1), 1, REPLICAS)
        try:
            everything.fill()
            for number in range(options.cases):
                keep_older(everything)
                everything.fill()
                draw = random.Random(f"{options.seed}/{number}")
                print(f"{number}: ", end="", flush=True)
                case = bookie_case if options.of == "bookie" else broker_case
                wrong = case(everything, draw, options.only)
                for each in wrong[:SHOWN]:
                    print(f"   WRONG {each[:TOLD_CHARS]}", flush=True)
                found += [f"case {number}: {each}" for each in wrong]
                if wrong:
                    break
        finally:
            everything.cluster.end()
    print(*found, sep="\n")
    print(f"{number + 1} cases, {len(found)} wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
