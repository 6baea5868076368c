"""How much later a message reaches a consumer at a read-only broker than one at the topic's owner.

    python -m bench.read_only_tail [--rate 500] [--seconds 30] [--rounds 3] [--quick]

A bookie, an owner and a read-only broker are processes of their own; so are the official client
that publishes and the two that consume, each with a subscription of its own: both get every message
of the same run. A latency is from the call of ``send`` to the listener, on the machine's one clock.
The goal is 1.5 times the owner's at the median, and twice at p99.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import struct
import time
import urllib.request
from collections.abc import Mapping
from multiprocessing.queues import Queue
from typing import Any, Final

from bench import results
from bench.measure import Histogram, machine
from bench.server import Server, broker, ledger_store

TOPIC: Final = "persistent://public/default/tail"
BYTES: Final = 1024
AT_OWNER, AT_READ_ONLY = "owner", "read-only"
GOALS: Final = {"p50": 1.5, "p99": 2.0}
WARMUP_S: Final = 3.0
FIRST_S, QUIET_S = 60.0, 5.0
"""What is not there by then, after the start or after the message before, counts as lost."""


def connect(url: str) -> Any:
    import pulsar

    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))


def consume(url: str, subscription: str, count: int, found: Queue[Any]) -> None:
    """In a process of its own: says that it is there, then what it measured."""
    latencies: list[float] = []

    def listen(consumer: Any, message: Any) -> None:
        sent_ns = struct.unpack_from(">q", message.data())[0]
        latencies.append((time.monotonic_ns() - sent_ns) / 1e9)
        consumer.acknowledge(message)

    client = connect(url)
    client.subscribe(TOPIC, subscription, message_listener=listen)
    found.put((subscription, None))
    seen, until_s = 0, time.monotonic() + FIRST_S
    while len(latencies) < count and time.monotonic() < until_s:
        time.sleep(0.1)
        if len(latencies) > seen:
            seen, until_s = len(latencies), time.monotonic() + QUIET_S
    found.put((subscription, latencies))
    client.close()


def publish(url: str, rate: float, warmup: int, count: int) -> None:
    """At that rate, each as soon as it is due."""
    client = connect(url)
    producer = client.create_producer(TOPIC, batching_enabled=False, max_pending_messages=10_000)
    rest = bytes(BYTES - 8)
    begun = time.monotonic()
    for number in range(warmup + count):
        delay_s = begun + number / rate - time.monotonic()
        if delay_s > 0:
            time.sleep(delay_s)
        producer.send_async(struct.pack(">q", time.monotonic_ns()) + rest, lambda *_: None)
    producer.flush()
    client.close()


def steer(owner: Server, rule: Mapping[str, str]) -> None:
    path = "/admin/v2/namespaces/public/default/readOnlyBrokers"
    request = urllib.request.Request(
        f"http://127.0.0.1:{owner.http_port}{path}",
        json.dumps({"rules": [rule]}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()


def dispatched(server: Server) -> int:
    url = f"http://127.0.0.1:{server.http_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    line = next(x for x in text.splitlines() if x.startswith("magnetar_broker_dispatched_entries"))
    return int(float(line.split()[1]))


def measure(owner: Server, read_only: Server, rate: float, seconds: float) -> dict[str, Any]:
    """One round: percentiles by who served."""
    url = f"pulsar://127.0.0.1:{owner.broker_port}"
    warmup, count = int(rate * WARMUP_S), int(rate * seconds)
    spawn = multiprocessing.get_context("spawn")
    found: Queue[Any] = spawn.Queue()
    before = dispatched(read_only)
    workers = [
        spawn.Process(target=consume, args=(url, name, warmup + count, found))
        for name in (AT_OWNER, AT_READ_ONLY)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        found.get()
    time.sleep(1.0)  # who is sent on has arrived
    publish(url, rate, warmup, count)
    latencies = dict(found.get() for _ in workers)
    for worker in workers:
        worker.join()
    served = dispatched(read_only) - before
    assert served >= count, f"the read-only broker served {served} of {count}"
    return {name: _percentiles(each, warmup, count) for name, each in latencies.items()}


def _percentiles(latencies: list[float], warmup: int, count: int) -> dict[str, float]:
    assert len(latencies) >= warmup + count, f"{warmup + count - len(latencies)} are missing"
    histogram = Histogram()
    for latency_s in latencies[warmup:]:
        histogram.record(latency_s)
    return histogram.summary_ms()


def ratios(report: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {each: report[AT_READ_ONLY][each] / report[AT_OWNER][each] for each in GOALS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of 5 s")
    options = parser.parse_args()
    seconds, rounds = (5.0, 1) if options.quick else (options.seconds, options.rounds)
    where = machine()
    quorums = ("ensemble_size", "write_quorum", "ack_quorum")
    one = tuple(word for name in quorums for word in ("--set", f"ledger.{name}=1"))
    with (
        ledger_store(1) as store,
        broker(store, *one) as owner,
        broker(store, "--read-only", *one) as read_only,
    ):
        steer(owner, {"subscription": AT_READ_ONLY, "to": "any"})
        reports = [measure(owner, read_only, options.rate, seconds) for _ in range(rounds)]
    rows = [
        [number, name, *(report[name][each] for each in ("p50", "p99", "p99_9", "max"))]
        for number, report in enumerate(reports, 1)
        for name in (AT_OWNER, AT_READ_ONLY)
    ]
    text = results.table(("round", "served by", "p50 ms", "p99 ms", "p99.9 ms", "max ms"), rows)
    for each, goal in GOALS.items():
        times = [ratios(report)[each] for report in reports]
        text += f"\n\n{each}: {statistics.median(times):.2f} times the owner's (goal {goal})"
    results.store("read_only_tail", {"rate": options.rate, "rounds": reports}, text, where)


if __name__ == "__main__":
    main()
