"""Who begins without a broker: jobs wait for one, as a stream does, for a bounded time."""

from __future__ import annotations

import socket
import threading
from typing import cast

import pytest

from magnetar.model.errors import BrokerError, NotAllowedError, ProtocolError
from magnetar.pipeline.brokers import log_watch
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.log_watch import LogWatch
from tests.unit.pipeline.fake_cluster import FakeCluster

TOPIC = "persistent://public/default/a"


class Refusing(FakeCluster):
    """A broker that knows nobody's token."""

    asked = 0

    def reach(self) -> None:
        self.asked += 1
        raise NotAllowedError("127.0.0.1:6650 refused the connection: no token")


def watch_of(cluster: FakeCluster, patience_s: float) -> LogWatch:
    return LogWatch(cast(BrokerClient, cluster), patience_s)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_watch, "PAUSE_S", 0.01)
    monkeypatch.setattr(log_watch, "PAUSE_S_MAX", 0.02)


def test_a_broker_that_is_away_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    cluster.make(TOPIC)
    cluster.failures = 5
    watch = watch_of(cluster, 60.0)
    watch.wait_for_broker()
    assert cluster.failures == 0
    assert caplog.text.count("it is asked again, for 60 s") == 1
    cluster.failures = 3
    assert watch.partitions(TOPIC) == [TOPIC]


def test_the_wait_ends_and_says_for_how_long_it_was() -> None:
    cluster = FakeCluster()
    cluster.failures = 10**6
    with pytest.raises(BrokerError, match=r"broke.* waited for, 0\.1 s; .*--service-url"):
        watch_of(cluster, 0.1).wait_for_broker()
    assert 10**6 - 20 < cluster.failures < 10**6


def test_a_broker_that_refuses_is_not_waited_for() -> None:
    cluster = Refusing()
    with pytest.raises(NotAllowedError, match=r"no token$"):
        watch_of(cluster, 3600.0).wait_for_broker()
    assert cluster.asked == 1


def test_the_port_of_another_protocol_is_said_to_be_one() -> None:
    """The one of REST, above all: it answers, with what would be a frame of a gigabyte."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1 << 16)
                connection.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        told = rf"127\.0\.0\.1:{port} does not speak Pulsar's protocol .*6650"
        with pytest.raises(ProtocolError, match=told):
            log_watch.job_watch(f"pulsar://127.0.0.1:{port}", 60.0).wait_for_broker()
        thread.join()
