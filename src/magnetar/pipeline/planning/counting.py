"""At most so many messages, counted by reading them: for brokers that do not number messages.

Connections stay open at the place reached, so that every entry is looked at once over the life of a
query. (Brokers that number messages are asked where the last one lies: ``planner.py``.)
"""

from __future__ import annotations

import time

from magnetar.model.errors import BrokerError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.topic_reader import StoredEntry, TopicReader
from magnetar.pipeline.places import Place, Point, after, after_entry
from magnetar.pipeline.planning.plans import Points
from magnetar.wire.pulsar.metadata import entry_metadata

LOOK_AGAIN_S = 2.0


class Counting:
    """Holds a reader per partition that was cut."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client
        self._scans: dict[str, _Scan] = {}

    def limited(self, starts: Points, ends: Points, messages_max: int) -> Points:
        """Ends not past ``ends`` so that at most ``messages_max`` messages lie before them. The
        budget is shared evenly; what one partition leaves goes to those with more."""
        reached = {name: point.place for name, point in starts.items()}
        left = messages_max
        hungry = [name for name in sorted(starts) if starts[name].place < ends[name].place]
        while hungry and left > 0:
            share = max(1, left // len(hungry))
            for name in list(hungry):
                if left <= 0:
                    break
                end = ends[name].place
                place, taken = self._take(name, reached[name], min(share, left), end)
                reached[name] = place
                left -= taken
                if place >= end:
                    hungry.remove(name)
        return {name: Point(place) for name, place in reached.items()}

    def _take(self, name: str, start: Place, count: int, end: Place) -> tuple[Place, int]:
        """As ``_Scan.take``. A scan that broke is begun again where it was, once."""
        try:
            return self._scan(name, start).take(count, end)
        except BrokerError:
            self._scans.pop(name).close()
            return self._scan(name, start).take(count, end)

    def _scan(self, name: str, start: Place) -> _Scan:
        scan = self._scans.get(name)
        if scan is None or scan.place != start:
            if scan is not None:
                scan.close()
            reader = self._client.open(name, start)
            scan = self._scans[name] = _Scan(reader, start, self._client.timeout_s)
        return scan

    def close(self) -> None:
        for scan in self._scans.values():
            scan.close()
        self._scans.clear()


class _Scan:
    """Counts messages forward from a place; keeps what is left of the entry it stopped in."""

    def __init__(self, reader: TopicReader, place: Place, wait_s: float) -> None:
        self._reader = reader
        self._wait_s = wait_s
        self._current: list[Place] = []  # places after the messages still left of an entry
        self.place = place

    def take(self, count: int, end: Place) -> tuple[Place, int]:
        """Move on by at most ``count`` messages, not past ``end``; returns place and count."""
        taken = 0
        while taken < count and self.place < end:
            while not self._current:
                entry = self._entry(end)
                if entry is None:
                    return end, taken
                self._current = [p for p in _places_of(entry) if p > self.place]
            self.place = self._current.pop(0)
            taken += 1
        return min(self.place, end), taken

    def _entry(self, end: Place) -> StoredEntry | None:
        """The next one; None if everything up to ``end`` was deleted: then the tasks find out."""
        deadline = time.monotonic() + self._wait_s
        while time.monotonic() < deadline:
            entry = self._reader.entry_within(min(LOOK_AGAIN_S, self._wait_s))
            if entry is not None:
                return entry
            if self._reader.extent().kept_from >= end:
                return None
        raise BrokerError(
            f"topic {self._reader.topic}: no entry after {self.place} came in {self._wait_s} s"
        )

    def close(self) -> None:
        self._reader.close()


def _places_of(entry: StoredEntry) -> list[Place]:
    """The places after each message of an entry."""
    metadata = entry_metadata(entry.payload)
    last = after_entry(entry.ledger_id, entry.entry_id)
    if not metadata.batched:
        return [last]
    before_last = range(metadata.num_messages - 1)
    return [*(after(entry.ledger_id, entry.entry_id, i) for i in before_last), last]
