"""Set fire to a query on a Spark cluster, and count its sink: no row missing, none twice.

    python -m tests.chaos.spark_fire [--rows 500000] [--kills 30] [--seed N] [--metadata] [--keep]

ZooKeeper, three bookies and a broker, and a Spark master with two workers, speculation on: real
processes, on loopback. A query (``fire_job``) takes the rows of a topic through a stateful count
into another, exactly once. Meanwhile there is killed with SIGKILL, in an order that the seed gives:
the query's driver (Java and Python), the Java of an executor, Python workers, the broker, a bookie.
What was killed is started again moments later; nothing else is helped along. With ``--metadata``
the query asks ZooKeeper itself instead of the broker (option ``metadata.url``).

What must hold at the end:

* every row that went in came out, and once;
* the rows of each key have the numbers 1, 2, 3, ...: the query's state counted every row once too;
* the record of the query waits for nothing: everything committed was taken in;
* the log says that second attempts of slow tasks ran beside the first.

A query that ends by itself is started again as its user would; how often, and why, is printed.
Exit code 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pulsar

from magnetar.pipeline.writing.staged_session import StagedSession
from magnetar.staging.committer import Committer
from tests.chaos.fire_parts import Platform, Query, command_of, descendants
from tests.spark_cluster import SparkCluster

IN, OUT = "fire-in", "fire-out"
PARTITIONS = 2
KEYS = 500
KINDS = ("driver", "executor", "python", "broker", "bookie")
BATCHES_PER_KILL = 2.5
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKER = "-m pyspark.daemon"
PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
STEP_S = 900.0
"""The longest that a step may take on a busy machine: a batch, a restart."""

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


class Fire:
    """Kills, by the seed."""

    def __init__(
        self, platform: Platform, cluster: SparkCluster, query: Query, rng: random.Random
    ) -> None:
        self._platform, self._cluster, self._query, self._rng = platform, cluster, query, rng
        self.kills: Counter[str] = Counter()

    def burn(self, kind: str) -> None:
        burners: dict[str, Callable[[], bool]] = {
            "driver": self._driver,
            "executor": self._executor,
            "python": self._python,
            "broker": self._broker,
            "bookie": self._bookie,
        }
        deadline = time.monotonic() + STEP_S
        while not burners[kind]():  # there is none at this moment, as executors come and go
            self._query.look_after()
            assert time.monotonic() < deadline, f"no {kind} to kill"
            time.sleep(0.2)
        self.kills[kind] += 1

    def _driver(self) -> bool:
        self._query.kill()
        self._query.start()
        return True

    def _executors(self) -> list[psutil.Process]:
        return [
            child
            for pid in self._cluster.worker_pids
            for child in descendants(pid)
            if EXECUTOR in command_of(child)
        ]

    def _one_of(self, found: list[psutil.Process]) -> bool:
        if not found:
            return False
        try:
            self._rng.choice(found).kill()
        except psutil.NoSuchProcess:
            return False
        return True

    def _executor(self) -> bool:
        return self._one_of(self._executors())

    def _python(self) -> bool:
        """One that runs a task, one that forks those, or the driver's that plans micro-batches."""
        workers = [
            child
            for executor in self._executors()
            for child in descendants(executor.pid)
            if WORKER in command_of(child)
        ]
        planners = [one for one in self._query.processes if PLANNER in command_of(one)]
        return self._one_of([*workers, *planners])

    def _broker(self) -> bool:
        self._platform.burn_broker(self._rng.uniform(0.0, 3.0))
        return True

    def _bookie(self) -> bool:
        self._platform.burn_bookie(self._rng.randrange(3), self._rng.uniform(0.0, 6.0))
        return True


def publish(platform: Platform, rows: int) -> None:
    for topic in (IN, OUT):
        url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/partitions"
        assert httpx.put(url, json=PARTITIONS, timeout=60).status_code == 204
    client = pulsar.Client(platform.service_url, logger=QUIET)
    failed: Counter[str] = Counter()

    def sent(result: pulsar.Result, _id: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed[str(result)] += 1

    producer = client.create_producer(IN, batching_enabled=True, block_if_queue_full=True)
    for number in range(rows):
        producer.send_async(b"%d" % number, sent, partition_key=f"k{number % KEYS}")
    producer.flush()
    client.close()
    assert not failed, failed


def read_out(platform: Platform) -> list[tuple[str, int, int]]:
    """(key, row, number) of every message of the sink."""
    client = pulsar.Client(platform.service_url, logger=QUIET)
    found = []
    for partition in range(PARTITIONS):
        topic = f"{OUT}-partition-{partition}"
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
        while reader.has_message_available():
            message = reader.read_next(60_000)
            row, _, number = message.data().decode().partition(":")
            found.append((message.partition_key(), int(row), int(number)))
    client.close()
    return found


def judge(found: list[tuple[str, int, int]], rows: int) -> dict[str, int]:
    times = Counter(row for _, row, _ in found)
    numbers: dict[str, list[int]] = {}
    for key, _, number in found:
        numbers.setdefault(key, []).append(number)
    return {
        "rows": rows,
        "in the sink": len(found),
        "missing": sum(1 for row in range(rows) if row not in times),
        "twice": sum(1 for count in times.values() if count > 1),
        "of another key": sum(1 for key, row, _ in found if key != f"k{row % KEYS}"),
        "keys miscounted": sum(
            1 for each in numbers.values() if sorted(each) != list(range(1, len(each) + 1))
        ),
    }


def wait_batches(query: Query, until: Callable[[], bool]) -> None:
    """Until it holds, with a batch over in every ``STEP_S``."""
    seen, deadline = query.batches, time.monotonic() + STEP_S
    while not until():
        query.look_after()
        if query.batches != seen:
            seen, deadline = query.batches, time.monotonic() + STEP_S
        assert time.monotonic() < deadline, f"no batch was over in {STEP_S:.0f} s"
        time.sleep(0.05)


def deck(kills: int, rng: random.Random) -> list[str]:
    """Each kind as often as the others, in any order."""
    kinds = list(itertools.islice(itertools.cycle(KINDS), kills))
    rng.shuffle(kinds)
    return kinds


def burn_down(query: Query, fire: Fire, kinds: list[str], rows: int, rng: random.Random) -> None:
    """Kill while it works, at any phase of a batch."""
    for kind in kinds:
        at = query.batches + rng.randint(1, 2)
        wait_batches(query, lambda at=at: query.batches >= at or query.rows_read >= rows)  # type: ignore[misc]
        time.sleep(rng.uniform(0.0, 2.0))
        print(f"{time.strftime('%H:%M:%S')} batch {query.batches}: {kind}", flush=True)
        fire.burn(kind)


def wait_all_taken_in(platform: Platform, query: Query, rows: int) -> None:
    """Until what is committed holds every row, and the topics have it."""
    wait_batches(query, lambda: query.rows_read >= rows)
    print(f"batch {query.batches}: all rows are committed", flush=True)
    session = StagedSession(platform.metadata_url)
    try:
        record = session.run(session.queries.read(query.id))
        assert record is not None, f"there is no record of query {query.id}"
        committer = Committer(session.queries, session.ledgers(None, None))
        session.run(committer.wait_taken_in(query.id, record.last_batch, STEP_S))
    finally:
        session.close()


def run(args: argparse.Namespace) -> int:
    rng = random.Random(args.seed)
    print(f"seed {args.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="magnetar-fire-"))
    platform = Platform(folder)
    cluster = SparkCluster(folder, workers=2, cores=2)
    query: Query | None = None
    good = False
    begun = time.monotonic()
    try:
        platform.start()
        cluster.start()
        publish(platform, args.rows)
        per_trigger = max(1, int(args.rows / (BATCHES_PER_KILL * max(args.kills, 1))))
        asked = (platform.metadata_url,) if args.metadata else ()
        query = Query(folder, platform, cluster, per_trigger, *asked)
        fire = Fire(platform, cluster, query, rng)
        query.start()
        burn_down(query, fire, deck(args.kills, rng), args.rows, rng)
        wait_all_taken_in(platform, query, args.rows)
        query.kill()
        print("all rows are taken in", flush=True)
        good = told(args, query, fire, read_out(platform), time.monotonic() - begun)
    finally:
        if query is not None:
            query.kill()
        cluster.end()
        platform.end()
        if good and not args.keep:
            shutil.rmtree(folder)
        else:
            print(f"logs and data: {folder}")
    return 0 if good else 1


def told(
    args: argparse.Namespace,
    query: Query,
    fire: Fire,
    found: list[tuple[str, int, int]],
    seconds: float,
) -> bool:
    """Print what was found; whether all of it is as it must be."""
    speculated = query.speculative_tasks()
    result: dict[str, object] = dict(judge(found, args.rows))
    result |= {
        "seed": args.seed,
        "kills": dict(fire.kills),
        "batches": query.batches,
        "second attempts beside a first": speculated,
        "query ended by itself": len(query.ended_by_itself),
        "seconds": round(seconds),
    }
    print(json.dumps(result))
    bad = ("missing", "twice", "of another key", "keys miscounted")
    broken = [name for name in bad if result[name]]
    broken += [] if fire.kills.total() == args.kills else ["kills"]
    broken += [] if speculated or not args.kills else ["nothing was speculated"]
    print(f"FAIL ({', '.join(broken)}): repeat with --seed {args.seed}" if broken else "PASS")
    return not broken


def stop(_number: int, _frame: object) -> None:
    """SIGTERM ends it as Ctrl-C does: what it has started goes with it."""
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, stop)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--metadata", action="store_true", help="the query asks ZooKeeper itself")
    parser.add_argument("--keep", action="store_true", help="leave logs and data where they are")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
