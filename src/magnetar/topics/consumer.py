"""One connected consumer: its seat in dispatch, what is out at it, and how entries reach it.

The stored payload of an entry goes out as it came in: a MESSAGE frame is a small header and a view
of the entry. ``pending`` holds what a shared consumer has not acknowledged (key -> messages); it
is bounded by the permits that the dispatch machine grants. Exclusive and failover consumers need
none: all that matters of theirs lies after the cursor's mark-delete position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from magnetar.model.entry import Entry
from magnetar.topics.dispatch import Seat
from magnetar.topics.redelivery import Key
from magnetar.wire.pulsar.hot import MessageHeaderEncoder

UNSENT_BYTES_MAX = 4 << 20
"""Bytes waiting on a connection at which dispatch to it pauses for a loop turn."""


class ConsumerClient(Protocol):
    """What a consumer, and whoever moves it, knows of its connection."""

    peer: str
    writable: bool

    @property
    def unsent_bytes(self) -> int: ...

    def write(self, part: bytes) -> None: ...

    def write_parts(self, parts: Sequence[bytes | memoryview], byte_count: int) -> None: ...

    def tell_active(self, consumer: Consumer, active: bool) -> None:
        """Say whether a failover consumer is the active one."""
        ...

    def tell_consumer_closed(self, consumer: Consumer) -> None:
        """The broker closed the consumer; its client looks up again and subscribes anew."""
        ...

    def forget_consumer(self, consumer: Consumer) -> None:
        """Commands for the consumer mean nothing from now on."""
        ...

    async def is_alive(self) -> bool:
        """Whether the peer says anything when it is asked to."""
        ...

    def abort(self) -> None: ...


class Consumer:
    """A consumer of one subscription, on one connection. ``partition``: of its topic, or -1.

    It knows nothing of the subscription, which seats it in order of arrival.
    """

    def __init__(
        self,
        client: ConsumerClient,
        partition: int,
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
        self._encode = MessageHeaderEncoder(consumer_id, partition).encode

    def send(
        self,
        entries: Sequence[Entry],
        sizes: Sequence[int],
        counts: dict[Key, int],
        ack_sets: dict[Key, list[int]],
        tracked: bool,
    ) -> int:
        """Write ``entries`` (with ``sizes`` messages each) as MESSAGE frames; returns bytes.

        ``counts`` are redelivery counts, ``ack_sets`` those of partly acknowledged batches;
        ``tracked``: remember the entries as pending.
        """
        parts: list[bytes | memoryview] = []
        total = 0
        encode, pending = self._encode, self.pending
        special = bool(counts or ack_sets)
        for entry, size in zip(entries, sizes, strict=True):
            ledger_id, entry_id, data = entry.ledger_id, entry.entry_id, entry.data
            offset = entry.payload_offset
            payload_bytes = len(data) - offset
            if special:
                key = (ledger_id, entry_id)
                header = encode(
                    ledger_id, entry_id, payload_bytes, counts.get(key, 0), ack_sets.get(key, ())
                )
            else:
                header = encode(ledger_id, entry_id, payload_bytes)
            parts.append(header)
            parts.append(memoryview(data)[offset:])
            total += len(header) + payload_bytes
            if tracked:
                pending[ledger_id, entry_id] = size
        self.client.write_parts(parts, total)
        self.entries_out += len(entries)
        self.messages_out += sum(sizes)
        self.bytes_out += total
        if self.client.unsent_bytes > UNSENT_BYTES_MAX:
            self.seat.blocked = True
        return total

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
