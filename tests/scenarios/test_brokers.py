"""The loss scenarios as a user of the official client sees them: brokers that pause and are
replaced, and everything killed at once. What was acknowledged is there, once, in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port
from tests.chaos.crash_publish import judge
from tests.roles import END_S
from tests.scenarios.cluster import SESSION_MS, Cluster
from tests.scenarios.counts import Counts
from tests.scenarios.link import Link
from tests.scenarios.publisher import Publisher, read_back

pytestmark = pytest.mark.zookeeper

TOPIC = "persistent://public/default/scenario"
QUORUMS = (3, 3, 2)
OTHERS_FIRST = 1 << 32


def at(port: int) -> str:
    return f"pulsar://127.0.0.1:{port}"


def assert_sound(publisher: Publisher, numbers: list[int]) -> None:
    """Every acknowledged message once, in order; nothing was refused."""
    found = judge(publisher.acknowledged, numbers)
    assert (found["lost"], found["repeated"], found["out_of_order"]) == (0, 0, 0), found
    assert publisher.failed == []


def test_a_broker_paused_past_its_session_confirms_nothing_more(
    start_cluster: Callable[[int], Cluster], counts: Counts
) -> None:
    cluster = start_cluster(3)
    old_port, new_port = free_port(), free_port()
    old = cluster.begin_broker(old_port, QUORUMS).wait_ready()
    both = Publisher(f"{at(old_port)},127.0.0.1:{new_port}", TOPIC)
    both.start()
    both.wait_acknowledged(500)

    old.pause()
    acknowledged = len(both.acknowledged)
    new = cluster.begin_broker(new_port, QUORUMS).wait_ready()
    time.sleep(2 * SESSION_MS / 1000)  # until then it says that the topic is at the old one
    other = Publisher(at(new_port), TOPIC, OTHERS_FIRST)  # the topic moves: fenced, recovered
    other.start()
    other.wait_acknowledged(200)
    assert len(both.acknowledged) - acknowledged <= 200, "only receipts that were under way"

    old.resume()
    assert old.process.wait(END_S) == 1
    assert "may have this one's topics by now" in old.log
    both.wait_acknowledged(500)  # it has found the new broker and sent its pending messages again
    both.stop()
    other.stop()

    numbers = read_back(at(new_port), TOPIC)
    assert_sound(both, [n for n in numbers if n < OTHERS_FIRST])
    assert_sound(other, [n for n in numbers if n >= OTHERS_FIRST])
    assert new.running
    acknowledged = len(both.acknowledged) + len(other.acknowledged)
    counts(f"{acknowledged} messages acknowledged: lost 0, repeated 0, out of order 0")


def test_a_broker_cut_off_from_the_metadata_gives_way(
    start_cluster: Callable[[int], Cluster], zookeeper: ZooKeeperServer, counts: Counts
) -> None:
    """It reaches its clients and the bookies all the time."""
    cluster = start_cluster(3)
    old_port, new_port = free_port(), free_port()
    with Link(zookeeper.address) as link:
        through_link = cluster.metadata_url.replace(zookeeper.address, link.address)
        old = cluster.begin_broker(old_port, QUORUMS, through_link).wait_ready()
        both = Publisher(f"{at(old_port)},127.0.0.1:{new_port}", TOPIC)
        both.start()
        both.wait_acknowledged(500)

        link.cut()
        new = cluster.begin_broker(new_port, QUORUMS).wait_ready()  # after the session is over
        other = Publisher(at(new_port), TOPIC, OTHERS_FIRST)
        other.start()
        other.wait_acknowledged(200)
        assert old.process.wait(END_S) == 1
        assert "may have this one's topics by now" in old.log
        both.wait_acknowledged(500)
        both.stop()
        other.stop()

    numbers = read_back(at(new_port), TOPIC)
    assert_sound(both, [n for n in numbers if n < OTHERS_FIRST])
    assert_sound(other, [n for n in numbers if n >= OTHERS_FIRST])
    assert new.running
    acknowledged = len(both.acknowledged) + len(other.acknowledged)
    counts(f"{acknowledged} messages acknowledged: lost 0, repeated 0, out of order 0")


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


def everything_is_killed(
    folder: Path, zookeeper: ZooKeeperServer, times: int, counts: Counts
) -> None:
    cluster = Cluster(folder, f"zk://{zookeeper.address}/all", 3)
    port = free_port()
    try:
        cluster.start_bookies()
        broker = cluster.begin_broker(port, QUORUMS).wait_ready()
        publisher = Publisher(at(port), TOPIC)
        publisher.start()
        for _ in range(times):
            publisher.wait_acknowledged(1000)
            zookeeper.kill()
            roles = (broker, *(bookie.role for bookie in cluster.bookies))
            for role in roles:
                role.process.send_signal(signal.SIGKILL)
            for role in roles:
                role.kill()

            zookeeper.start()
            cluster.start_bookies()
            broker = cluster.begin_broker(port, QUORUMS).wait_ready()
        publisher.wait_acknowledged(1000)
        publisher.stop()
        assert_sound(publisher, read_back(at(port), TOPIC))
        acknowledged = len(publisher.acknowledged)
        counts(f"{acknowledged} messages acknowledged: lost 0, repeated 0, out of order 0")
    finally:
        cluster.end()


def test_everything_killed_at_once_and_started_again(
    tmp_path: Path, own_zookeeper: ZooKeeperServer, counts: Counts
) -> None:
    everything_is_killed(tmp_path, own_zookeeper, 1, counts)


@pytest.mark.slow
def test_everything_killed_five_times(
    tmp_path: Path, own_zookeeper: ZooKeeperServer, counts: Counts
) -> None:
    everything_is_killed(tmp_path, own_zookeeper, 5, counts)
