"""A million delayed messages on a shared subscription, over a kill of the platform.

    python -m bench.delayed_delivery [--messages 1000000] [--spread-s 120] [--seed N]

A platform as a process (one bookie, its journal synced), the official client (Python) for both
sides. Every message says when it is due, a random time within the spread, which begins when all
are published and the platform was killed (SIGKILL) and started again. Stated: how fast they are
taken, the memory before, with all of them held, and at the end, and how late they are: from the
time a message is due to its receipt. None may be early, missing, or come again after it was
acknowledged.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import threading
import time
from collections import Counter

import pulsar

from bench import results
from bench.measure import Histogram, machine, resident_mib
from bench.server import work_directory
from tests.scenarios.publisher import connect
from tests.standalone import Standalone

TOPIC = "persistent://public/default/delayed"
PAYLOAD = struct.Struct(">QQ")
PUBLISH_PER_S = 10_000
"""At least: how long publishing is given before the first is due."""
RESTART_S = 30.0
END_S = 300.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def publish(client: pulsar.Client, count: int, first_ms: int, spread_ms: int, seed: int) -> float:
    """Seconds until all are acknowledged."""
    producer = client.create_producer(TOPIC, block_if_queue_full=True, max_pending_messages=5000)
    rng, failed = random.Random(seed), []

    def answered(result: pulsar.Result, _id: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    begun = time.monotonic()
    for number in range(count):
        due_ms = first_ms + rng.randrange(spread_ms)
        producer.send_async(PAYLOAD.pack(number, due_ms), answered, deliver_at=due_ms)
    producer.flush()
    producer.close()
    if failed:
        raise SystemExit(f"not acknowledged: {Counter(map(str, failed))}")
    return time.monotonic() - begun


class Receiver:
    """Counts what comes and how late. ``early``: before it was due."""

    def __init__(self, client: pulsar.Client) -> None:
        self.lateness = Histogram()
        self.early = 0
        self.seen: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._consumer = client.subscribe(
            TOPIC,
            "all",
            consumer_type=pulsar.ConsumerType.Shared,
            receiver_queue_size=5000,
            message_listener=self._got,
        )

    def _got(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        late_ms = now_ms() - PAYLOAD.unpack(message.data())[1]
        with self._lock:
            self.seen[PAYLOAD.unpack(message.data())[0]] += 1
            self.early += late_ms < 0
            self.lateness.record(max(0, late_ms) / 1000)
        consumer.acknowledge(message)

    def wait(self, count: int, until_ms: int) -> None:
        while len(self.seen) < count and now_ms() < until_ms:
            time.sleep(0.2)


def measure(count: int, spread_s: float, seed: int) -> dict[str, object]:
    with work_directory() as folder, Standalone(folder / "data") as platform:
        client = connect(platform.service_url)
        receiver = Receiver(client)
        before_mib = resident_mib(platform.pid)
        first_ms = now_ms() + int(1000 * (count / PUBLISH_PER_S + RESTART_S))
        publishing_s = publish(client, count, first_ms, int(1000 * spread_s), seed)
        held_mib = resident_mib(platform.pid)
        platform.kill()
        restart_s = platform.start()
        spare_s = (first_ms - now_ms()) / 1000
        time.sleep(max(0.0, spare_s - 1))
        again_mib = resident_mib(platform.pid)
        receiver.wait(count, first_ms + int(1000 * (spread_s + END_S)))
        end_mib = resident_mib(platform.pid)
        client.close()
    late = receiver.lateness.summary_ms()
    return {
        "messages": count,
        "published/s": round(count / publishing_s),
        "restart s": round(restart_s, 1),
        "spare s": round(spare_s, 1),
        "MiB before, held, after the kill, at the end": (
            f"{before_mib:.0f}, {held_mib:.0f}, {again_mib:.0f}, {end_mib:.0f}"
        ),
        "missing": count - len(receiver.seen),
        "twice": sum(receiver.seen.values()) - len(receiver.seen),
        "early": receiver.early,
        "late p50 ms": late["p50"],
        "late p99 ms": late["p99"],
        "late max ms": late["max"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--spread-s", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    where = machine()
    found = measure(args.messages, args.spread_s, args.seed)
    text = results.table([*found], [[*found.values()]])
    results.store("delayed_delivery", found, text, where)
    return 1 if found["missing"] or found["twice"] or found["early"] else 0


if __name__ == "__main__":
    sys.exit(main())
