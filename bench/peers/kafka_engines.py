"""Both engines beside Kafka 4, over Kafka's protocol: same client, same flush policy.

    python -m bench.peers.kafka_engines --kept DIR [--rounds 3] [--quick]

``DIR``, outside the tree, is where Kafka is fetched to, and stays. One broker of each kind at a
time on an empty directory of the same disk, one topic with one partition, librdkafka in a process
of its own as producer (acks=all, linger 5 ms, batches of up to 64 KiB), then as consumer, then as a
producer at a fixed rate (20 000 messages a second of 100 B; latency counts from when a message was
due until it is acknowledged). "Each batch": the log is synced before it is acknowledged (Kafka:
``log.flush.interval.messages=1``; the ledgers' bookie syncs its journal); "kernel": it is not.

Sides take turns, and who is first changes from round to round. A ratio is of the same flush policy,
above 1 where ours is ahead: our rate by Kafka's, Kafka's CPU time or latency by ours.

The consumer's ``fetch.queue.backoff.ms`` is 1: by default librdkafka rests for a second when it has
fetched 100 000 messages ahead of the application, which a quick server is punished for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import results
from bench.measure import cpu_of_trees, machine, process_table, resident_mib
from bench.peers.kafka import Fetched, fetched, kafka_on
from bench.server import standalone_on, work_directory
from magnetar.env.network.free_ports import free_port

SIZES = {100: 500_000, 1024: 200_000}
RATE, SECONDS = 20_000, 10
LATENCY_BYTES = 100
KAFKA_SYNCED, KAFKA_KERNEL = "Kafka 4, each batch", "Kafka 4, kernel"
BESIDE = {
    "partition, each batch": KAFKA_SYNCED,
    "ledger, journal synced": KAFKA_SYNCED,
    "partition, kernel": KAFKA_KERNEL,
}
"""Whom each of ours is held against."""

CLIENT = """
import sys, time
import confluent_kafka as kafka

address, what, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
topic = "measured-%d" % size
if what == "produce":
    producer = kafka.Producer({
        "bootstrap.servers": address, "linger.ms": 5, "batch.size": 65536, "acks": "all",
        "queue.buffering.max.messages": 200000, "message.timeout.ms": 300000})
    value = bytes(range(256)) * 4
    value = value[:size]
    failed = []
    producer.produce(topic, value)  # the topic is made
    producer.flush()
    begun = time.monotonic()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=lambda e, m: e and failed.append(e))
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
    assert not failed, failed[0]
    print(time.monotonic() - begun)
elif what == "latency":
    rate, took, late = int(sys.argv[5]), [], []
    producer = kafka.Producer({"bootstrap.servers": address, "linger.ms": 1, "acks": "all"})
    value = bytes(size)

    def answered(due):
        def done(error, message):
            assert error is None, error
            took.append(time.monotonic() - due)
        return done

    for warm, total in ((True, rate * 2), (False, count)):
        took.clear()
        late.clear()
        begun = time.monotonic()
        for number in range(0, total, 20):
            due = begun + number / rate
            while time.monotonic() < due:
                producer.poll(max(0.0, min(due - time.monotonic(), 0.001)))
            late.append(time.monotonic() - due)
            for _ in range(20):
                producer.produce(topic, value, on_delivery=answered(due))
        producer.flush()
        assert len(took) == total
    took.sort()
    late.sort()
    print(*(values[int(len(values) * share)] * 1000
            for values, share in ((took, .5), (took, .99), (took, .999), (late, .99))))
else:
    consumer = kafka.Consumer({
        "bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 1})
    consumer.assign([kafka.TopicPartition(topic, 0, 0)])
    assert consumer.consume(1, 60)
    begun, got = time.monotonic(), 0
    while got < count:
        found = consumer.consume(min(10000, count - got), 60)
        assert found
        got += len(found)
    print(time.monotonic() - begun)
"""


@dataclass(frozen=True)
class Running:
    """A broker. ``ready_s``: from the start of its process until it serves."""

    address: str
    pid: int
    ready_s: float


@contextmanager
def ours(folder: Path, engine: str, sync: str) -> Iterator[Running]:
    """A standalone whose topics are on ``engine``."""
    port = free_port()
    os.environ["MAGNETAR_BROKER_ENGINE"] = engine
    os.environ["MAGNETAR_PARTITION_SYNC"] = sync
    os.environ["MAGNETAR_BROKER_AUTO_CREATE_PARTITIONS"] = "1"
    try:
        with standalone_on(folder, 1, "--kafka-port", str(port)) as server:
            yield Running(f"127.0.0.1:{port}", server.pid, server.ready_s)
    finally:
        del os.environ["MAGNETAR_BROKER_ENGINE"], os.environ["MAGNETAR_PARTITION_SYNC"]
        del os.environ["MAGNETAR_BROKER_AUTO_CREATE_PARTITIONS"]


@contextmanager
def theirs(folder: Path, parts: Fetched, settings: str) -> Iterator[Running]:
    with kafka_on(folder, parts, settings) as broker:
        yield Running(broker.address, broker.pid, broker.ready_s)


Start = Callable[[Path], AbstractContextManager[Running]]


def sides(parts: Fetched) -> dict[str, Start]:
    """How each is started on a directory."""
    return {
        "Kafka 4, each batch": lambda on: theirs(on, parts, "log.flush.interval.messages=1\n"),
        "partition, each batch": lambda on: ours(on, "partition", "each-batch"),
        "ledger, journal synced": lambda on: ours(on, "ledger", "each-batch"),
        "Kafka 4, kernel": lambda on: theirs(on, parts, ""),
        "partition, kernel": lambda on: ours(on, "partition", "operating-system"),
    }


def client(address: str, *arguments: object) -> list[float]:
    """Raises ``RuntimeError`` with the client's own error."""
    command = [sys.executable, "-c", CLIENT, address, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        what = " ".join(map(str, arguments))
        raise RuntimeError(f"the client of {address} ({what}) failed:\n{done.stderr}")
    return [float(number) for number in done.stdout.split()]


def measured(address: str, pid: int, what: str, count: int, size: int) -> tuple[float, float]:
    """(MB/s, the server's CPU seconds per million messages)."""
    before = cpu_of_trees(process_table(), [pid])
    (seconds,) = client(address, what, count, size)
    cpu = cpu_of_trees(process_table(), [pid]) - before
    return count * size / seconds / 1e6, cpu / count * 1e6


Found = dict[str, dict[str, list[float]]]
"""Side -> row -> a figure of each round."""


def run(parts: Fetched, rounds: int, share: int) -> Found:
    found: Found = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        turns = list(sides(parts).items())
        for name, side in turns if number % 2 == 0 else reversed(turns):
            one_side(side, share, found[name])
            print(f"round {number + 1} of {rounds}, {name}", flush=True)
    return found


def one_side(side: Start, share: int, rows: dict[str, list[float]]) -> None:
    with work_directory() as folder:
        with side(folder) as running:
            loads(running.address, running.pid, share, rows)
            rows["memory after it, MiB"].append(resident_mib(running.pid))
        with side(folder) as running:
            rows["restart with that data, s"].append(running.ready_s)


def loads(address: str, pid: int, share: int, rows: dict[str, list[float]]) -> None:
    for size, count in SIZES.items():
        for what in ("produce", "consume"):
            rate, cpu = measured(address, pid, what, count // share, size)
            rows[f"{what} {size} B, MB/s"].append(rate)
            rows[f"{what} {size} B, CPU s per million"].append(cpu)
    before = cpu_of_trees(process_table(), [pid])
    count = RATE * SECONDS // share
    figures = client(address, "latency", count, LATENCY_BYTES, RATE)
    cpu = cpu_of_trees(process_table(), [pid]) - before
    for row, figure in zip(("p50", "p99", "p99.9", "lag of the load p99"), figures, strict=True):
        rows[f"at 20 000/s, {row}, ms"].append(figure)
    rows["at 20 000/s, CPU s per million"].append(cpu / (count + RATE * 2) * 1e6)


def ratios(medians: dict[str, dict[str, float]], row: str) -> list[str]:
    """Of each of ours, in the order of ``BESIDE``."""
    found = []
    for name, peer in BESIDE.items():
        own, its = medians[name][row], medians[peer][row]
        ratio = own / its if row.endswith("MB/s") else its / max(own, 1e-9)
        found.append("" if "lag of" in row else f"{ratio:.2f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    given = parser.parse_args()
    where = machine()
    found = run(fetched(given.kept), given.rounds, 10 if given.quick else 1)
    rows = list(next(iter(found.values())))
    medians = {
        name: {row: statistics.median(values[row]) for row in rows}
        for name, values in found.items()
    }
    columns = ["medians", *medians, *(f"ratio: {name}" for name in BESIDE)]
    cells = [
        [row, *(f"{medians[name][row]:.1f}" for name in medians), *ratios(medians, row)]
        for row in rows
    ]
    results.store("kafka_engines", {"rounds": found}, results.table(columns, cells), where)


if __name__ == "__main__":
    main()
