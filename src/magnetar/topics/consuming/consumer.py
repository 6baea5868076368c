"""One connected consumer: its client, its counters, and its seat in dispatch.

What is out at it and what it may get is its seat's, and so the dispatch machine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol

from magnetar.model.entry import Entry
from magnetar.model.errors import MagnetarError
from magnetar.topics.dispatch.key_policy import KeyPolicy
from magnetar.topics.dispatch.redelivery import Key
from magnetar.topics.dispatch.seats import Seat

NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class ConsumerNews(Enum):
    """What a consumer's client is told of it, and goes on."""

    ACTIVE = "of a failover subscription it is the active one"
    PASSIVE = "another is"
    ENDED = "all of the topic is acknowledged, and nothing more comes"


class ConsumerClient(Protocol):
    """What a consumer, and whoever moves it, knows of the client that it belongs to."""

    @property
    def peer(self) -> str: ...

    @property
    def writable(self) -> bool:
        """Whether its connection can take more."""
        ...

    @property
    def crowded(self) -> bool:
        """Whether so much waits on its connection that it is given no more in this turn of the
        loop."""
        ...

    def deliver(
        self,
        entries: Sequence[Entry],
        counts: Mapping[Key, int],
        ack_sets: Mapping[Key, Sequence[int]],
    ) -> int:
        """Send ``entries``; returns bytes. ``counts`` are redelivery counts, ``ack_sets`` those
        of partly acknowledged batches."""
        ...

    def answer_ack(self, request_id: int, error: MagnetarError | None) -> None:
        """What was acknowledged by that request is stored, or is refused."""
        ...

    def tell(self, news: ConsumerNews) -> None: ...

    def tell_closed(self, service_url: str = "") -> None:
        """The consumer was closed here; its client looks up again and subscribes anew: at the
        broker at ``service_url`` if it is not empty."""
        ...

    def forget(self) -> None:
        """What the client says for the consumer means nothing from now on."""
        ...

    async def is_alive(self) -> bool:
        """Whether the peer says anything when it is asked to."""
        ...

    def abort(self) -> None: ...


class Consumer:
    """A consumer of one subscription, on one connection.

    It knows nothing of the subscription, which seats it in order of arrival. ``properties``: what
    its application says of it; ``follows``: its client goes where it is sent
    (``ConsumerClient.tell_closed``). ``read_compacted``: it is served from the compacted view.
    ``key_policy``: of a Key_Shared one. ``client_version``: what its client calls itself.
    ``returns_skipped``: its client gives back the permits of those messages of a batch that it
    leaves out because they are acknowledged.
    """

    def __init__(
        self,
        client: ConsumerClient,
        consumer_id: int,
        name: str,
        priority: int,
        connected_at_ms: int,
        properties: Mapping[str, str] = NO_PROPERTIES,
        follows: bool = False,
        read_compacted: bool = False,
        key_policy: KeyPolicy | None = None,
        client_version: str = "",
        returns_skipped: bool = False,
    ) -> None:
        self.client = client
        self.consumer_id = consumer_id
        self.name = name
        self.seat: Seat[Consumer] = Seat(self, name, priority, key_policy)
        self.connected_at_ms = connected_at_ms
        self.properties = properties
        self.client_version = client_version
        self.follows = follows
        self.returns_skipped = returns_skipped
        self.read_compacted = read_compacted
        self.closed = False
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.redelivered = 0
        self.acknowledged = 0
        self.told_end = False
        """That nothing more comes."""
        self.last_asked_ms = 0
        """When it last said how much it takes; milliseconds since 1970, 0: never. So the others."""
        self.last_sent_ms = 0
        self.last_acked_ms = 0

    def send(
        self,
        entries: Sequence[Entry],
        messages: int,
        counts: Mapping[Key, int],
        ack_sets: Mapping[Key, Sequence[int]],
    ) -> int:
        """Hand ``entries`` (with ``messages`` together) to the client; returns bytes. ``counts``
        and ``ack_sets`` as in ``ConsumerClient.deliver``."""
        byte_count = self.client.deliver(entries, counts, ack_sets)
        self.entries_out += len(entries)
        self.messages_out += messages
        self.bytes_out += byte_count
        return byte_count
