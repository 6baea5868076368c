"""What topics may ask of an entry's contents. They ask nobody else, and look at no byte themselves.

A protocol's front end stores what its producers send as it came, so only that protocol can say how
many messages an entry holds or who sent it. Its format (``protocols.pulsar.entry_format``) is given
to topics by whoever builds them.

What decides who gets an entry is read once per entry (``describe``), however many subscriptions
there are, and remembered with the entry. What few ask for (its time, its producer) is read when
they ask.

Methods take an entry's payload (the client's bytes, as stored) and raise ``ProtocolError`` for
bytes that are not of the format.

Why: docs/adr/0068-what-an-entry-means.md.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from magnetar.model.entry import Description, Entry
from magnetar.model.errors import ProtocolError

Fingerprint: TypeAlias = tuple[int, int, bytes]
"""(sequence id, length, checksum) of what a producer sent: two sends of one producer that agree in
all three are one message that was sent twice."""


class Published(NamedTuple):
    """What an entry says of itself: whose it is, how many messages it holds, and when its producer
    published it (milliseconds since 1970)."""

    producer: str
    sequence_id: int
    messages: int
    time_ms: int


class Numbered(NamedTuple):
    """The sequence ids of an entry's messages, ``first`` to ``last`` (signed). ``ends``: its
    messages are whole with it; False: a chunk before the last one of its message."""

    producer: str
    first: int
    last: int
    ends: bool


class EntryFormat(Protocol):
    """One protocol's way to store messages in entries."""

    def describe(self, payload: memoryview) -> Description:
        """How many messages the entry holds, and what else decides who gets it. Raises for
        everything that clients could not read either; so each count in it is possible for the
        payload's size."""
        ...

    def key_hash(self, payload: memoryview) -> int:
        """The hash (``model.key_hash``) of what Key_Shared subscriptions go by: the entry's key.
        Never raises for an entry that has a description."""
        ...

    def published(self, payload: memoryview) -> Published:
        """What the entry says of itself, checked as what a producer sends is. Raises
        ``ProtocolError``."""
        ...

    def sent(self, payload: memoryview) -> tuple[str, int]:
        """The name of the entry's producer, and its sequence id."""
        ...

    def last_index(self, payload: memoryview) -> int:
        """The batch index of the entry's last message as Pulsar's consumers know it, -1 if it is no
        batch. Raises ``ProtocolError``."""
        ...

    def numbered(self, payload: memoryview) -> Numbered:
        """What the entry says of its producer and ids. Raises ``ProtocolError`` for what no
        producer with sequence ids has sent."""
        ...

    def last_of(
        self, sequence_id: int, highest_sequence_id: int, payload: memoryview
    ) -> tuple[int, int, bool]:
        """The same (first, last, ends) of a send that says those ids (the latter 0: none). Never
        raises: what cannot be read counts as one message."""
        ...

    def fingerprint(self, sequence_id: int, payload: memoryview) -> Fingerprint | None:
        """What identifies a send among its producer's; None if nothing does for certain."""
        ...

    def sender(self, payload: memoryview) -> tuple[str, Fingerprint] | None:
        """Who sent the entry, and its fingerprint; None if it has none."""
        ...


def describe(entry: Entry, entry_format: EntryFormat) -> Description:
    """The description of ``entry``, read by the first who asks. Raises ``ProtocolError``."""
    found = entry.description
    if found is None:
        found = entry.description = entry_format.describe(entry.payload)
    return found


def last_index(entry: Entry, entry_format: EntryFormat) -> int:
    """The batch index of the last message that compaction has left of ``entry``, -1 if it is no
    batch, or cannot be read."""
    if entry.kept:
        return max(64 * at + word.bit_length() for at, word in enumerate(entry.kept) if word) - 1
    try:
        return entry_format.last_index(entry.payload)
    except ProtocolError:
        return -1
