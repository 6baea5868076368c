"""Topics change their owners under a client in another language: what every such client must bear.

Three brokers, three or five bookies, a real ZooKeeper. Where no broker stays away the client knows
each by itself, so its lookups are answered by brokers that mostly do not own the topic.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.chaos.crash_publish import judge
from tests.interop.driven_peer import DrivenPeer
from tests.scenarios.cluster import SESSION_MS, Cluster
from tests.scenarios.publisher import read_back
from tests.scenarios.shared_brokers import Brokers

T = TypeVar("T")

TOPICS = 12
TOPICS_KILLED = 50
NAMESPACE = "/admin/v2/namespaces/public/default"


def move_topics(
    command: Sequence[str | Path], folder: Path, metadata_url: str
) -> Mapping[str, int]:
    """Run the client while bundles and a topic are unloaded, a broker is stopped and one is killed;
    all that was acknowledged is there once and in order. Returns for each event how long a topic
    was without an acknowledgement at most, ms."""

    def move(brokers: Brokers, peer: DrivenPeer) -> Mapping[str, int]:
        return {what: _after(peer, event) for what, event in _events(brokers)}

    gaps_ms, _ = _run(command, folder, metadata_url, (3, TOPICS), _one_each, move)
    return gaps_ms


def _one_each(ports: Sequence[int]) -> Sequence[str]:
    """The service URLs of clients that know one broker each."""
    return [f"pulsar://127.0.0.1:{port}" for port in ports]


def _all_of_them(ports: Sequence[int]) -> Sequence[str]:
    """Of clients that know all brokers, each another one first."""
    rotated = [[*ports[first:], *ports[:first]] for first in range(len(ports))]
    return ["pulsar://" + ",".join(f"127.0.0.1:{port}" for port in each) for each in rotated]


class Killed(NamedTuple):
    """``gaps_ms``: after each kill, how long a topic was without an acknowledgement at most."""

    gaps_ms: Sequence[int]
    acknowledged: int

    def __str__(self) -> str:
        ordered = sorted(self.gaps_ms)
        return (
            f"{len(ordered)} kills, {self.acknowledged} messages acknowledged; longest time "
            f"without an acknowledgement, ms: median {ordered[len(ordered) // 2]}, worst "
            f"{ordered[-1]} (session {SESSION_MS})"
        )


def kill_owners(
    command: Sequence[str | Path], folder: Path, metadata_url: str, kills: int, seed: int
) -> Killed:
    """Run the client on many topics while brokers that own some are killed, one after the other,
    and started again; all that was acknowledged is there once and in order, and what it has
    acknowledged as a consumer does not come again."""
    rng = random.Random(seed)

    def kill(brokers: Brokers, peer: DrivenPeer) -> Sequence[int]:
        gaps_ms = []
        for _ in range(kills):
            index = rng.choice(brokers.loaded())
            gaps_ms.append(_after(peer, brokers.role(index).kill))
            brokers.start(index)
            time.sleep(rng.uniform(0.0, 1.0))
        return gaps_ms

    layout = (5, TOPICS_KILLED)
    gaps_ms, acknowledged = _run(command, folder, metadata_url, layout, _all_of_them, kill)
    return Killed(gaps_ms, acknowledged)


def _run(
    command: Sequence[str | Path],
    folder: Path,
    metadata_url: str,
    bookies_and_topics: tuple[int, int],
    urls_of: Callable[[Sequence[int]], Sequence[str]],
    disturb: Callable[[Brokers, DrivenPeer], T],
) -> tuple[T, int]:
    """What ``disturb`` returns, and how many messages were acknowledged; none is lost, repeated or
    out of order."""
    bookies, topics = bookies_and_topics
    cluster = Cluster(folder, metadata_url, bookies)
    try:
        cluster.start_bookies()
        brokers = Brokers(cluster, (3, 3, 2))
        brokers.start(0, 1, 2)
        urls = urls_of([port for port, _ in brokers.ports])
        with DrivenPeer([*command, str(topics), *urls], folder / "peer.log") as peer:
            peer.wait_answered()
            assert len(brokers.loaded()) >= 2, brokers.owners(0)
            outcome = disturb(brokers, peer)
            acknowledged = peer.stop()
        assert len(acknowledged) == topics
        for topic, count in acknowledged.items():
            found = judge(set(range(count)), read_back(brokers.service_url, topic))
            assert count > 0
            assert (found["lost"], found["repeated"], found["out_of_order"]) == (0, 0, 0), found
        return outcome, sum(acknowledged.values())
    finally:
        cluster.end()


def _after(peer: DrivenPeer, event: Callable[[], None]) -> int:
    peer.mark()
    event()
    peer.wait_answered()
    return peer.gap_ms()


def _events(brokers: Brokers) -> Sequence[tuple[str, Callable[[], None]]]:
    def unload_bundles() -> None:
        for bundle, owner in brokers.owners(0).items():
            if owner:
                brokers.ask(1, f"{NAMESPACE}/{bundle}/unload", "PUT")

    def unload_topic() -> None:
        brokers.ask(2, "/admin/v2/persistent/public/default/shared-0/unload", "PUT")

    def stop() -> None:
        index = brokers.loaded()[-1]
        assert brokers.role(index).end() == 0
        brokers.start(index)

    def kill() -> None:
        index = brokers.loaded()[0]
        brokers.role(index).kill()
        brokers.start(index)

    return (
        ("topic unloaded", unload_topic),
        ("bundles unloaded", unload_bundles),
        ("broker stopped", stop),
        ("broker killed", kill),
    )
