"""Brokers of one cluster share its topics: processes, a real ZooKeeper, the official client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from tests.chaos.crash_publish import judge
from tests.scenarios.cluster import Cluster
from tests.scenarios.many_topics import ManyTopics
from tests.scenarios.publisher import connect, read_back
from tests.scenarios.shared_brokers import WAIT_S, Brokers

pytestmark = pytest.mark.zookeeper

TOPICS = [f"persistent://public/default/shared-{number}" for number in range(12)]


@pytest.fixture
def brokers(tmp_path: Path, zookeeper_url: str) -> Iterator[Brokers]:
    cluster = Cluster(tmp_path, zookeeper_url, 1)
    try:
        cluster.start_bookies()
        made = Brokers(cluster, (1, 1, 1))
        made.start(0, 1, 2)
        yield made
    finally:
        cluster.end()


def eventually(what: Callable[[], bool], said: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline_s, said
        time.sleep(0.1)


def test_topics_move_when_owners_are_killed_and_when_they_leave(
    brokers: Brokers, record_property: Callable[[str, object], None]
) -> None:
    traffic = ManyTopics(brokers.service_url, TOPICS)
    traffic.start()
    traffic.wait_all_answered()
    assert len(brokers.ask(0, "/admin/v2/brokers")) == 3
    assert len(brokers.ask(1, "/admin/v2/namespaces/public/default/bundles")["boundaries"]) == 5
    assert len(brokers.loaded()) >= 2, brokers.owners(0)
    for index in range(3):  # whoever is asked sends it on
        stats = brokers.ask(index, "/admin/v2/persistent/public/default/shared-0/stats")
        assert stats["msgInCounter"] > 0

    victim = brokers.loaded()[0]
    begun_s = time.monotonic()
    brokers.role(victim).kill()
    traffic.wait_all_answered()
    killed = traffic.gaps_s(begun_s)
    assert victim not in brokers.loaded()

    leaving = brokers.loaded()[0]
    begun_s = time.monotonic()
    assert brokers.role(leaving).end() == 0
    traffic.wait_all_answered()
    left = traffic.gaps_s(begun_s)
    (rest,) = brokers.loaded()

    brokers.start(victim, leaving)
    begun_s = time.monotonic()
    brokers.ask(victim, f"/magnetar/v1/brokers/{brokers.broker_id(rest)}/drain", "PUT")
    assert brokers.broker_id(rest) not in brokers.owners(rest).values()
    traffic.wait_all_answered()
    drained = traffic.gaps_s(begun_s)
    assert rest not in brokers.loaded()

    traffic.stop_sending()
    traffic.wait_all_received()
    for topic in traffic.topics:
        found = judge(topic.acknowledged, read_back(brokers.service_url, topic.name))
        assert (found["lost"], found["repeated"], found["out_of_order"]) == (0, 0, 0), found
        assert topic.failed == []
    traffic.close()
    told = ", ".join(
        f"{what} {gaps[0]:.2f} s (median {gaps[len(gaps) // 2]:.2f})"
        for what, gaps in (("killed", killed), ("left", left), ("drained", drained))
    )
    record_property("counted", told)
    print(f"\nlongest time without an acknowledgement, {len(TOPICS)} topics: {told}")


def test_requests_about_many_topics_reach_every_owner(brokers: Brokers) -> None:
    name = "/admin/v2/persistent/public/default/many"
    answer = brokers.rest.put(f"http://{brokers.broker_id(0)}{name}/partitions", json=8)
    assert answer.is_success, answer.text
    client = connect(brokers.service_url)
    consumer = client.subscribe("many", "s")
    producer = client.create_producer("many")
    for _ in range(8):
        producer.send(b"x")
    assert len(brokers.loaded()) >= 2, brokers.owners(0)

    stats = brokers.ask(1, f"{name}/partitioned-stats")
    assert (len(stats["partitions"]), stats["msgInCounter"]) == (8, 8)
    assert brokers.ask(2, f"{name}/subscriptions") == ["s"]
    assert len(brokers.ask(2, "/admin/v2/persistent/public/default")) == 8

    grown = brokers.rest.post(f"http://{brokers.broker_id(2)}{name}/partitions", json=12)
    assert grown.is_success, grown.text
    for index in range(12):
        assert brokers.ask(index % 3, f"{name}-partition-{index}/subscriptions") == ["s"]
    brokers.ask(1, f"{name}/unload", "PUT")
    brokers.ask(1, "/admin/v2/namespaces/public/default/unload", "PUT")
    producer.send(b"y")

    refused = brokers.rest.delete(f"http://{brokers.broker_id(0)}{name}/partitions")
    assert refused.status_code == 409
    consumer.close()
    producer.close()
    eventually(
        lambda: brokers.rest.delete(f"http://{brokers.broker_id(0)}{name}/partitions").is_success,
        "partitions are deleted wherever they are",
    )
    assert brokers.ask(1, "/admin/v2/persistent/public/default") == []
    client.close()


def test_a_namespace_is_deleted_with_topics_of_every_owner(brokers: Brokers) -> None:
    space = "/admin/v2/namespaces/public/gone"
    brokers.ask(0, space, "PUT")
    client = connect(brokers.service_url)
    names = [f"persistent://public/gone/t{number}" for number in range(12)]
    producers = [client.create_producer(name, send_timeout_millis=2000) for name in names]
    for producer in producers:
        producer.send(b"x")
    put = brokers.rest.put
    path = f"http://{brokers.broker_id(1)}/admin/v2/persistent/public/gone/p/partitions"
    assert put(path, json=4).is_success
    owners = brokers.ask(0, "/magnetar/v1/namespaces/public/gone/bundles")
    assert len({each["owner"] for each in owners} - {""}) >= 2, owners

    url = f"http://{brokers.broker_id(2)}{space}"
    refused = brokers.rest.delete(url)
    assert (refused.status_code, "has 16 topics" in refused.text) == (409, True)
    for producer in producers:
        producer.send(b"y")
    forced = brokers.rest.delete(url, params={"force": "true"})
    assert forced.is_success, forced.text
    for index in range(3):
        host = f"http://{brokers.broker_id(index)}"
        assert brokers.ask(index, "/admin/v2/namespaces/public") == ["public/default"]
        assert put(f"{host}/admin/v2/persistent/public/gone/t0").status_code == 404
    with pytest.raises(pulsar.Timeout):  # it comes back all the time, and is refused
        producers[0].send(b"z")

    brokers.ask(1, space, "PUT")  # another one, under the name
    assert brokers.ask(1, "/admin/v2/persistent/public/gone/partitioned") == []
    client.close()
