"""What replication knows of the brokers of its cluster: who lives, and where it is reached.

A broker's *number* is drawn once and lies in its log directory: it stays over starts, other than
the number of a start. Replicas are assigned to numbers, and Kafka's clients know brokers by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from magnetar.log.partition.replication.election import Live, LiveBroker


class PeerBroker(NamedTuple):
    """``host`` and ``port`` speak Kafka's protocol."""

    live: LiveBroker
    host: str
    port: int
    zone: str = ""


class PeerBrokers(Protocol):
    """The registered brokers that have a log directory, by their numbers."""

    async def look(self) -> Mapping[int, PeerBroker]:
        """Raises ``MetadataError``."""
        ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` on the loop after each change. Returns what ends it."""
        ...


def live_of(brokers: Mapping[int, PeerBroker]) -> Live:
    return {number: broker.live for number, broker in brokers.items()}
