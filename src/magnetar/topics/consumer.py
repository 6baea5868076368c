"""One connected consumer: its seat in dispatch, what is out at it, and how entries reach it.

``pending`` holds what a shared consumer has not acknowledged (key -> messages); it
is bounded by the permits that the dispatch machine grants. Exclusive and failover consumers need
none: all that matters of theirs lies after the cursor's mark-delete position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from magnetar.model.entry import Entry
from magnetar.model.errors import MagnetarError
from magnetar.topics.dispatch import Seat
from magnetar.topics.redelivery import Key

UNSENT_BYTES_MAX = 4 << 20
"""Bytes waiting on a connection at which dispatch to it pauses for a loop turn."""


class ConsumerClient(Protocol):
    """What a consumer, and whoever moves it, knows of the client that it belongs to."""

    @property
    def peer(self) -> str: ...

    @property
    def writable(self) -> bool:
        """Whether its connection can take more."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait on its connection."""
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

    def tell_active(self, active: bool) -> None:
        """Say whether a failover consumer is the active one."""
        ...

    def tell_closed(self) -> None:
        """The consumer was closed here; its client looks up again and subscribes anew."""
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

    It knows nothing of the subscription, which seats it in order of arrival.
    """

    def __init__(
        self,
        client: ConsumerClient,
        consumer_id: int,
        name: str,
        priority: int,
        connected_at_ms: int,
    ) -> None:
        self.client = client
        self.consumer_id = consumer_id
        self.name = name
        self.seat: Seat[Consumer] = Seat(self, name, priority)
        self.pending: dict[Key, int] = {}
        self.connected_at_ms = connected_at_ms
        self.closed = False
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.redelivered = 0
        self.acknowledged = 0
        self.follow_connection()

    def send(
        self,
        entries: Sequence[Entry],
        sizes: Sequence[int],
        counts: Mapping[Key, int],
        ack_sets: Mapping[Key, Sequence[int]],
        tracked: bool,
    ) -> int:
        """Hand ``entries`` (with ``sizes`` messages each) to the client; returns bytes.

        ``counts`` and ``ack_sets`` as in ``ConsumerClient.deliver``; ``tracked``: remember the
        entries as pending.
        """
        client = self.client
        byte_count = client.deliver(entries, counts, ack_sets)
        if tracked:
            pending = self.pending
            for entry, size in zip(entries, sizes, strict=True):
                pending[entry.ledger_id, entry.entry_id] = size
        self.entries_out += len(entries)
        self.messages_out += sum(sizes)
        self.bytes_out += byte_count
        if client.unsent_bytes > UNSENT_BYTES_MAX:
            self.seat.blocked = True
        return byte_count

    def follow_connection(self) -> None:
        """Take over whether the connection can take more."""
        self.seat.blocked = not self.client.writable

    def settle(self, key: Key) -> bool:
        """``key`` is acknowledged or taken back; False if it was not out at this consumer."""
        size = self.pending.pop(key, None)
        if size is None:
            return False
        self.seat.unacked -= size
        return True

    def take_pending(self) -> list[Key]:
        """Everything that is out at the consumer; nothing is, after."""
        keys = list(self.pending)
        self.pending.clear()
        self.seat.unacked = 0
        return keys
