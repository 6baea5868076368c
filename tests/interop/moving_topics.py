"""Topics change their owners under a client in another language: what every such client must bear.

Three brokers, three bookies, a real ZooKeeper. The client knows each broker by itself, so its
lookups are answered by brokers that mostly do not own the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.chaos.crash_publish import judge
from tests.interop.driven_peer import DrivenPeer
from tests.scenarios.cluster import Cluster
from tests.scenarios.publisher import read_back
from tests.scenarios.shared_brokers import Brokers

TOPICS = 12
NAMESPACE = "/admin/v2/namespaces/public/default"


def move_topics(
    command: Sequence[str | Path], folder: Path, metadata_url: str
) -> Mapping[str, int]:
    """Run the client while bundles and a topic are unloaded, a broker is stopped and one is killed;
    all that was acknowledged is there once and in order. Returns for each event how long a topic
    was without an acknowledgement at most, ms."""
    cluster = Cluster(folder, metadata_url, 3)
    try:
        cluster.start_bookies()
        brokers = Brokers(cluster, (3, 3, 2))
        brokers.start(0, 1, 2)
        urls = [f"pulsar://127.0.0.1:{port}" for port, _ in brokers.ports]
        with DrivenPeer([*command, str(TOPICS), *urls], folder / "peer.log") as peer:
            peer.wait_answered()
            assert len(brokers.loaded()) >= 2, brokers.owners(0)
            gaps_ms = {what: _after(peer, event) for what, event in _events(brokers)}
            acknowledged = peer.stop()
        assert len(acknowledged) == TOPICS
        for topic, count in acknowledged.items():
            found = judge(set(range(count)), read_back(brokers.service_url, topic))
            assert count > 0
            assert (found["lost"], found["repeated"], found["out_of_order"]) == (0, 0, 0), found
        return gaps_ms
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
