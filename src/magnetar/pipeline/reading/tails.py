"""Readers that stay open where they have read to: the next micro-batch's entries come to them.

A query that follows a topic reads on where its last micro-batch ended, ten times a second. A reader
made for each one is two connections, two greetings, a look-up, a subscription and a request for
entries, one after the other; one that stays has the entries that were published meanwhile.

Rules:

* A reader is used again only if it is where the next range begins; else another is opened there.
  What it has received beyond is entries of the log, which never change; whether they are still to
  be read is asked of the log before each range, as by every reader (``range_reading``).
* A reader that failed, or was left in the middle, is closed. So is one that was idle for
  ``IDLE_S``: nobody answers the broker's pings meanwhile.
* ``TAILS_MAX`` are kept at most.
* Of what a caller asks for no more than ``byte_limit`` bytes of entries are read; more raises
  ``TooMuchError``.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol

from magnetar.pipeline.brokers.topic_reader import LogAnswer, StoredEntry
from magnetar.pipeline.losses import LogExtent
from magnetar.pipeline.places import START, Place, after_entry
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

IDLE_S: Final = 20.0
"""Less than a broker waits for a sign of life."""
TAILS_MAX: Final = 64


class TooMuchError(Exception):
    """The entries are more bytes than were to be read."""


class EntryReader(Protocol):
    """``topic_reader.TopicReader``, as those use it that read a range."""

    def extent(self) -> LogExtent: ...

    def ask(self, question: LogQuestion | None = None) -> LogAnswer: ...

    def entry_within(self, wait_s: float) -> StoredEntry | None: ...

    def close(self) -> None: ...

    def __enter__(self) -> EntryReader: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Readers(Protocol):
    """Who opens them: a ``BrokerClient``, or ``Tails``."""

    @property
    def timeout_s(self) -> float: ...

    def open(self, topic: str, place: Place = START) -> EntryReader: ...


class Tails:
    """Opens readers by ``client`` and keeps them. For use by one thread."""

    def __init__(
        self, client: Readers, timeout_s: float, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout_s = timeout_s
        self.byte_limit = 0
        self.bytes_read = 0
        self._client = client
        self._clock_s = clock_s
        self._kept: OrderedDict[str, tuple[_Tail, float]] = OrderedDict()

    def begin(self, byte_limit: int) -> None:
        """Something is to be read, of so many bytes at most."""
        self.byte_limit, self.bytes_read = byte_limit, 0

    def open(self, topic: str, place: Place = START) -> EntryReader:
        tail, since_s = self._kept.pop(topic, (None, 0.0))
        if tail is not None:
            if tail.next == place and self._clock_s() < since_s + IDLE_S:
                return tail
            tail.close()
        return _Tail(self, self._client.open(topic, place), topic, place)

    def take(self, byte_count: int) -> None:
        """An entry was read."""
        self.bytes_read += byte_count
        if self.bytes_read > self.byte_limit:
            raise TooMuchError(f"more than {self.byte_limit} bytes")

    def keep(self, tail: _Tail) -> None:
        """It has been read as far as was asked for."""
        if tail.next == START:
            tail.close()  # it was opened to ask something
            return
        before, _ = self._kept.pop(tail.topic, (None, 0.0))
        if before is not None:
            before.close()
        self._kept[tail.topic] = tail, self._clock_s()
        if len(self._kept) > TAILS_MAX:
            self._kept.popitem(last=False)[1][0].close()

    def close(self) -> None:
        for tail, _ in self._kept.values():
            tail.close()
        self._kept.clear()


class _Tail:
    """``next``: the place of the entry that it gives next."""

    def __init__(self, tails: Tails, reader: EntryReader, topic: str, place: Place) -> None:
        self._tails = tails
        self._reader = reader
        self.topic = topic
        self.next = place

    def extent(self) -> LogExtent:
        return self._reader.extent()

    def ask(self, question: LogQuestion | None = None) -> LogAnswer:
        return self._reader.ask(question)

    def entry_within(self, wait_s: float) -> StoredEntry | None:
        entry = self._reader.entry_within(wait_s)
        if entry is not None:
            self.next = after_entry(entry.ledger_id, entry.entry_id)
            self._tails.take(len(entry.payload))
        return entry

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> _Tail:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._tails.keep(self)
        else:
            self.close()
