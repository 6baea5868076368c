"""How long anybody is interrupted when a broker is stopped in order.

    python -m bench.orderly_stops [--stops 20] [--topics 50] [--brokers 3] [--bookies 3] [--seed N]

Brokers, bookies and a ZooKeeper as processes; the official client (Python) with a producer and a
consumer on each topic, a message every 20 ms. A broker gets SIGTERM, hands its topics over and
ends; it is started again. Per topic that it served: the longest time without an acknowledgement,
and without a delivery, from the signal on. Beside it the same over as long a time in which nothing
happens: what the machine and the load are worth.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure import machine
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from tests.scenarios.cluster import Cluster
from tests.scenarios.many_topics import ManyTopics, TopicTraffic
from tests.scenarios.publisher import connect
from tests.scenarios.shared_brokers import Brokers

SETTLED_S = 2.0
"""After a start: topics have come to rest where they are."""
FIRST_STORED = 1 << 40
"""The number of the first of them; those that are counted begin at 0."""
AFTER_S = 1.0
"""Watched after the broker has ended."""


def told(values_s: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(values_s)
    at = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "worst": -1}
    return {name: round(ordered[index] * 1000, 1) for name, index in at.items()}


def moved_from(brokers: Brokers, traffic: ManyTopics, index: int) -> list[TopicTraffic]:
    """The topics that this broker serves."""
    other = next(i for i, role in enumerate(brokers.roles) if i != index and role is not None)
    found = []
    for topic in traffic.topics:
        path = topic.name.replace("://", "/")
        answer = brokers.rest.get(
            f"http://{brokers.broker_id(other)}/lookup/v2/topic/{path}"
        ).json()
        if answer["httpUrl"].endswith(brokers.broker_id(index)):
            found.append(topic)
    return found


def one(brokers: Brokers, traffic: ManyTopics, index: int) -> dict[str, list[float]]:
    """Stop a broker and start it again: the interruptions of its topics, seconds."""
    topics = moved_from(brokers, traffic, index)
    begun_s = time.monotonic()
    assert brokers.role(index).end() == 0
    ended_s = time.monotonic()
    time.sleep(AFTER_S)
    until_s = time.monotonic()
    found = {
        "acknowledgements": [each.longest_gap_s(begun_s, until_s) for each in topics],
        "deliveries": [each.longest_silence_s(begun_s, until_s) for each in topics],
        "whole stop": [ended_s - begun_s],
    }
    traffic.wait_all_answered()
    quiet_s = time.monotonic()
    time.sleep(until_s - begun_s)
    now_s = time.monotonic()
    found["no stop"] = [each.longest_gap_s(quiet_s, now_s) for each in traffic.topics]
    brokers.start(index)
    time.sleep(SETTLED_S)
    return found


def fill(service_url: str, names: Sequence[str], count: int) -> None:
    """Topics that move have a history."""
    client = connect(service_url)
    producers = [
        client.create_producer(name, batching_enabled=False, max_pending_messages=count + 1)
        for name in names
    ]
    for number in range(count):
        for producer in producers:
            producer.send_async(struct.pack(">Q", FIRST_STORED + number), lambda *_: None)
    for producer in producers:
        producer.flush()
    client.close()


def run(
    stops: int, topics: int, stored: int, brokers: int, bookies: int, seed: int
) -> dict[str, object]:
    rng = random.Random(seed)
    names = [f"persistent://public/default/stops-{number}" for number in range(topics)]
    size = min(bookies, 3)
    all_s: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-stops-") as folder,
        ZooKeeperServer(Path(folder) / "zookeeper") as zookeeper,
    ):
        cluster = Cluster(Path(folder), f"zk://{zookeeper.address}/stops", bookies)
        try:
            cluster.start_bookies()
            quorums = size, size, min(size, 2)
            several = Brokers(cluster, quorums, brokers, ["broker.balance_interval_ms=0"])
            several.start(*range(brokers))
            fill(several.service_url, names, stored)
            traffic = ManyTopics(several.service_url, names)
            traffic.start()
            traffic.wait_all_answered()
            time.sleep(SETTLED_S)
            for _ in range(stops):
                index = rng.choice(several.loaded())
                found = one(several, traffic, index)
                print(json.dumps({k: told(v) for k, v in found.items()}), flush=True)
                for what, values_s in found.items():
                    all_s.setdefault(what, []).extend(values_s)
            traffic.stop_sending()
            traffic.wait_all_received()
            traffic.close()
        finally:
            cluster.end()
    return {what: told(values_s) for what, values_s in all_s.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--stored", type=int, default=2000, help="messages in each at first")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--bookies", type=int, default=3)
    parser.add_argument("--seed", type=int, default=20261122)
    arguments = vars(parser.parse_args())
    print(json.dumps({"machine": machine(), **arguments}, default=str))
    for what, found in run(**arguments).items():
        print(f"{what}: {found} ms")


if __name__ == "__main__":
    main()
