"""What topics may ask of an entry's contents. They ask nobody else, and look at no byte themselves.

A protocol's front end stores what its producers send as it came, so only that protocol can say how
many messages an entry holds or who sent it. Its format (``protocols.pulsar.entry_format``) is given
to topics by whoever builds them.

Methods take an entry's payload (the client's bytes, as stored) and raise ``ProtocolError`` for
bytes that are not of the format.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

Fingerprint: TypeAlias = tuple[int, int, bytes]
"""(sequence id, length, checksum) of what a producer sent: two sends of one producer that agree in
all three are one message that was sent twice."""


class Chunk(NamedTuple):
    """A chunk of message number ``message`` (any number that is the same for all its chunks)."""

    message: int
    last: bool


class EntryFormat(Protocol):
    """One protocol's way to store messages in entries."""

    def messages(self, payload: memoryview) -> int:
        """How many messages the entry holds; 0 for a chunk of a larger one (``chunk``). Raises
        for everything that clients could not read either."""
        ...

    def chunk(self, payload: memoryview) -> Chunk:
        """Which chunk the entry is; ``messages`` was 0."""
        ...

    def publish_time_ms(self, payload: memoryview) -> int:
        """When its producer sent it, in milliseconds since 1970."""
        ...

    def fingerprint(self, sequence_id: int, payload: memoryview) -> Fingerprint | None:
        """What identifies a send among its producer's; None if nothing does for certain."""
        ...

    def sent_by(self, payload: memoryview, producer_name: str) -> Fingerprint | None:
        """The fingerprint of what ``producer_name`` sent; None if another did."""
        ...
