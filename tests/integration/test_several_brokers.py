"""Several brokers on one machine behind one address, each a process, with the official client."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pulsar
import pytest

from tests.chaos.crash_publish import judge
from tests.roles import Role
from tests.scenarios.many_topics import ManyTopics
from tests.scenarios.publisher import connect, read_back

WAIT_S = 120.0
TOPICS = [f"persistent://public/default/several-{number}" for number in range(12)]


class Several:
    """``standalone --brokers``: where its first broker is, and what REST says."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.data_dir = folder / "data"
        self._folder = folder
        self._arguments = arguments
        self.start()

    def start(self) -> None:
        self.role = Role(
            self._folder,
            "standalone",
            *("--data-dir", str(self.data_dir), "--broker-port", "0", "--http-port", "0"),
            *("--set", "metadata.session_timeout_ms=4000"),
            *self._arguments,
        ).wait_ready()
        found = re.search(r"(pulsar://\S+)  (http://\S+) ", self.role.ready_line)
        assert found is not None, self.role.ready_line
        self.service_url, self.http_url = found[1], found[2]

    def brokers(self) -> Sequence[dict[str, object]]:
        answer = httpx.get(f"{self.http_url}/magnetar/v1/brokers", timeout=WAIT_S)
        found: list[dict[str, object]] = answer.json()
        return found

    def owners(self) -> set[str]:
        path = f"{self.http_url}/magnetar/v1/namespaces/public/default/bundles"
        return {each["owner"] for each in httpx.get(path, timeout=WAIT_S).json() if each["owner"]}

    def pids(self) -> list[int]:
        """Of its brokers."""
        children = Path(f"/proc/{self.role.process.pid}/task").glob("*/children")
        return sorted(int(pid) for each in children for pid in each.read_text().split())


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Several]:
    made = Several(tmp_path, "--brokers", "2")
    try:
        yield made
    finally:
        made.role.kill()


def eventually(what: Callable[[], bool], said: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline_s, said
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def check_all_there(several: Several, traffic: ManyTopics) -> None:
    for topic in traffic.topics:
        found = judge(topic.acknowledged, read_back(several.service_url, topic.name))
        assert (found["lost"], found["repeated"], found["out_of_order"]) == (0, 0, 0), found
        assert topic.failed == []


def test_one_that_dies_comes_back_and_nothing_is_lost(several: Several) -> None:
    traffic = ManyTopics(several.service_url, TOPICS)
    traffic.start()
    traffic.wait_all_answered()
    assert len(several.brokers()) == 2
    assert len(several.owners()) == 2, "both serve topics"
    before = several.pids()
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
        traffic.wait_all_answered()
        eventually(lambda pid=pid: len(several.pids()) == 2 and pid not in several.pids(), "again")
    eventually(lambda: len(several.brokers()) == 2, "both are back")
    traffic.stop_sending()
    traffic.wait_all_received()
    check_all_there(several, traffic)
    traffic.close()
    pids = several.pids()
    assert several.role.end() == 0
    assert not any(alive(pid) for pid in pids)


def test_one_that_is_paused_is_killed_and_its_clients_go_on(several: Several) -> None:
    """They would find out by themselves, after a minute or so."""
    traffic = ManyTopics(several.service_url, TOPICS)
    traffic.start()
    traffic.wait_all_answered()
    paused = several.pids()[1]
    os.kill(paused, signal.SIGSTOP)
    traffic.wait_all_answered()
    eventually(lambda: not alive(paused), "it is killed")
    traffic.stop_sending()
    traffic.wait_all_received()
    check_all_there(several, traffic)
    traffic.close()


def test_data_are_those_of_one_broker_and_of_several(tmp_path: Path) -> None:
    """Nothing is kept that says how many there were."""
    several = Several(tmp_path, "--brokers", "2")
    try:
        for count, more in ((1, ("--brokers", "3")), (2, ()), (3, ())):
            client = connect(several.service_url)
            client.create_producer("kept").send(b"%d" % count)
            client.close()
            assert several.role.end() == 0
            several = Several(tmp_path, *more)
        client = connect(several.service_url)
        consumer = client.create_reader("kept", pulsar.MessageId.earliest)
        assert [consumer.read_next(60_000).data() for _ in range(3)] == [b"1", b"2", b"3"]
        client.close()
    finally:
        several.role.kill()


def test_the_health_of_the_bookies_is_told_by_brokers_and_by_their_own_process(
    tmp_path: Path,
) -> None:
    """They were in a process without an address: nobody heard of a disk that failed."""
    several = Several(tmp_path, "--brokers", "2", "--bookies", "2")
    try:
        found = re.search(r"whose health is at (http://[^,\s]+)", several.role.ready_line)
        assert found is not None
        own = httpx.get(f"{found[1]}/health", timeout=WAIT_S).json()
        assert [each["ok"] for each in own["parts"] if each["part"] != "metadata"] == [True, True]
        metrics = httpx.get(f"{found[1]}/metrics", timeout=WAIT_S).text
        assert "magnetar_bookie_failed_reads_total" in metrics
        theirs = httpx.get(f"{several.http_url}/health", timeout=WAIT_S).json()
        told = {each["part"]: each for each in theirs["parts"]}
        assert told["the process with the bookies"]["ok"], told
    finally:
        several.role.kill()


def test_brokers_end_with_their_parent(several: Several) -> None:
    pids = several.pids()
    assert len(pids) == 2
    several.role.kill()
    eventually(lambda: not any(alive(pid) for pid in pids), "they end")


@pytest.mark.zookeeper
def test_a_machine_of_a_cluster(tmp_path: Path, zookeeper_url: str) -> None:
    bookie = Role(
        tmp_path,
        "bookie",
        *("--data-dir", str(tmp_path / "bookie"), "--port", "0", "--metadata", zookeeper_url),
        *("--set", "bookie.bookie_id=one"),
    )
    settings = [f"ledger.{name}=1" for name in ("ensemble_size", "write_quorum", "ack_quorum")]
    cluster = Role(
        tmp_path,
        "cluster",
        *("up", "--brokers", "2", "--port", "0", "--http-port", "0", "--metadata", zookeeper_url),
        *(word for each in settings for word in ("--set", each)),
    )
    try:
        bookie.wait_ready()
        cluster.wait_ready()
        found = re.search(r"(pulsar://\S+)  (http://\S+) ", cluster.ready_line)
        assert found is not None
        client = connect(found[1])
        for number in range(8):
            client.create_producer(f"up-{number}").send(b"x")
        brokers = httpx.get(f"{found[2]}/magnetar/v1/brokers", timeout=WAIT_S).json()
        assert [each["bundles"] > 0 for each in brokers] == [True, True]
        client.close()
        assert cluster.end() == 0
    finally:
        cluster.kill()
        bookie.kill()
