"""Both engines beside Kafka 4, over Kafka's protocol: same client, same flush policy.

    python -m bench.peers.kafka_engines --kept DIR [--rounds 3] [--quick]

``DIR``, outside the tree, is where Kafka is fetched to, and stays. One broker of each kind at a
time on an empty directory of the same disk, one topic with one partition, librdkafka in a process
of its own as producer (acks=all, linger 5 ms, batches of up to 64 KiB), then as consumer. "Each
batch": the log is synced before it is acknowledged (Kafka: ``log.flush.interval.messages=1``; the
ledgers' bookie syncs its journal); "kernel": it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import results
from bench.measure import cpu_of_trees, machine, process_table
from bench.peers.kafka import Fetched, fetched, kafka
from bench.server import standalone
from magnetar.env.free_ports import free_port

SIZES = {100: 500_000, 1024: 200_000}

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
else:
    consumer = kafka.Consumer({
        "bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([kafka.TopicPartition(topic, 0, 0)])
    assert consumer.consume(1, 60)
    begun, got = time.monotonic(), 0
    while got < count:
        found = consumer.consume(min(10000, count - got), 60)
        assert found
        got += len(found)
print(time.monotonic() - begun)
"""


@contextmanager
def ours(engine: str, sync: str) -> Iterator[tuple[str, int]]:
    """(address, process) of a standalone whose topics are on ``engine``."""
    port = free_port()
    os.environ["MAGNETAR_BROKER_ENGINE"] = engine
    os.environ["MAGNETAR_PARTITION_SYNC"] = sync
    os.environ["MAGNETAR_BROKER_AUTO_CREATE_PARTITIONS"] = "1"
    try:
        with standalone(1, "--kafka-port", str(port)) as server:
            yield f"127.0.0.1:{port}", server.pid
    finally:
        del os.environ["MAGNETAR_BROKER_ENGINE"], os.environ["MAGNETAR_PARTITION_SYNC"]
        del os.environ["MAGNETAR_BROKER_AUTO_CREATE_PARTITIONS"]


@contextmanager
def theirs(parts: Fetched, settings: str) -> Iterator[tuple[str, int]]:
    with kafka(parts, settings) as broker:
        yield broker.address, broker.pid


def sides(parts: Fetched) -> dict[str, Callable[[], Any]]:
    return {
        "Kafka 4, each batch": lambda: theirs(parts, "log.flush.interval.messages=1\n"),
        "partition, each batch": lambda: ours("partition", "each-batch"),
        "ledger, journal synced": lambda: ours("ledger", "each-batch"),
        "Kafka 4, kernel": lambda: theirs(parts, ""),
        "partition, kernel": lambda: ours("partition", "operating-system"),
    }


def measured(address: str, pid: int, what: str, count: int, size: int) -> tuple[float, float]:
    """(MB/s, the server's CPU seconds per million messages)."""
    before = cpu_of_trees(process_table(), [pid])
    client = [sys.executable, "-c", CLIENT, address, what, str(count), str(size)]
    seconds = float(subprocess.run(client, check=True, capture_output=True).stdout)
    cpu = cpu_of_trees(process_table(), [pid]) - before
    return count * size / seconds / 1e6, cpu / count * 1e6


def run(parts: Fetched, rounds: int, share: int) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for name, side in sides(parts).items():
            with side() as (address, pid):
                for size, count in SIZES.items():
                    for what in ("produce", "consume"):
                        rate, cpu = measured(address, pid, what, count // share, size)
                        found[name][f"{what} {size} B, MB/s"].append(rate)
                        found[name][f"{what} {size} B, CPU s per million"].append(cpu)
                        print(number, name, what, size, f"{rate:.1f} MB/s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    given = parser.parse_args()
    found = run(fetched(given.kept), given.rounds, 10 if given.quick else 1)
    rows = next(iter(found.values()))
    medians = {
        name: {row: statistics.median(values[row]) for row in rows}
        for name, values in found.items()
    }
    table = [[row, *(f"{medians[name][row]:.1f}" for name in found)] for row in rows]
    print(results.table(["", *found], table))
    print(json.dumps({"machine": machine(), "medians": medians}, indent=1))


if __name__ == "__main__":
    main()
