"""Two owners, and two read-only brokers in a zone each, as processes on a real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.scenarios.cluster import Cluster
from tests.scenarios.shared_brokers import WAIT_S, Brokers

OWNERS: Final = (0, 1)
READ_ONLY: Final = (2, 3)
ZONES: Final = {2: "eu", 3: "us"}
NAMESPACE: Final = "/admin/v2/namespaces/public/default/readOnlyBrokers"


@contextmanager
def steered_brokers(folder: Path, zookeeper_url: str) -> Iterator[Brokers]:
    cluster = Cluster(folder, zookeeper_url, 1)
    more = {index: ("--set", f"broker.zone={zone}") for index, zone in ZONES.items()}
    try:
        cluster.start_bookies()
        count = len(OWNERS) + len(READ_ONLY)
        brokers = Brokers(cluster, (1, 1, 1), count, read_only=READ_ONLY, more=more)
        brokers.start(*OWNERS, *READ_ONLY)
        yield brokers
    finally:
        cluster.end()


def say(brokers: Brokers, *rules: Mapping[str, Any]) -> None:
    """Of all topics."""
    answer = brokers.rest.post(
        f"http://{brokers.broker_id(0)}{NAMESPACE}", json={"rules": list(rules)}
    )
    assert answer.is_success, answer.text


def dispatched(brokers: Brokers, indexes: Sequence[int] = READ_ONLY) -> int:
    """Entries that consumers had from those of the brokers that run."""
    return sum(brokers.dispatched(each) for each in indexes if brokers.role(each).running)


def eventually(what: Callable[[], bool], said: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline_s, said
        time.sleep(0.1)
