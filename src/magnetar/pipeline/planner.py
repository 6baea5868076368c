"""Where a read starts, where it ends, and how much of it one micro-batch takes.

Runs on the driver. A plan is a range of places per topic partition; it depends on nothing but the
places, so a micro-batch that Spark runs again reads the same messages again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from magnetar.model.errors import ConfigError
from magnetar.pipeline.broker_client import BrokerClient, StoredEntry, TopicReader
from magnetar.pipeline.options import EARLIEST, LATEST, Bound, ReadOptions
from magnetar.pipeline.places import START, Place, after
from magnetar.wire.pulsar.metadata import entry_metadata


@dataclass(frozen=True)
class Range:
    """Messages of one topic partition: from ``start`` up to, not including, ``end``."""

    topic: str
    start: Place
    end: Place

    @property
    def empty(self) -> bool:
        return self.start >= self.end


class Planner:
    """Answers the driver's questions about places; holds connections only while it scans."""

    def __init__(
        self, options: ReadOptions, clock_ms: Callable[[], int] = lambda: time.time_ns() // 10**6
    ) -> None:
        self._options = options
        self._client = BrokerClient(options.service_url, options.poll_timeout_ms / 1000)
        self._clock_ms = clock_ms
        self._scans: dict[str, _Scan] = {}

    def topic_partitions(self) -> list[str]:
        """Every partition of the topics asked for, in a fixed order."""
        names = [name for topic in self._options.topics for name in self._client.partitions(topic)]
        return list(dict.fromkeys(names))

    def starts(self) -> dict[str, Place]:
        """Where the read begins in each partition."""
        return {name: self._place(name, self._options.starting) for name in self._named_ok(True)}

    def ends(self) -> dict[str, Place]:
        """Where a batch read ends in each partition, as far as the log reaches now."""
        return {name: self._place(name, self._options.ending) for name in self._named_ok(False)}

    def latest(self) -> dict[str, Place]:
        """The place after the last message of each partition."""
        return {name: self._client.end(name) for name in self.topic_partitions()}

    def _named_ok(self, starting: bool) -> list[str]:
        """The partitions; refuses places given for one that does not exist."""
        names = self.topic_partitions()
        bound = self._options.starting if starting else self._options.ending
        if isinstance(bound, dict):
            unknown = sorted(set(bound) - set(names))
            if unknown:
                raise ConfigError(
                    f"positions are given for {unknown[0]}, which is none of the partitions read: "
                    f"{', '.join(names)}"
                )
        return names

    def _place(self, name: str, bound: Bound) -> Place:
        if bound == EARLIEST:
            return START
        if bound == LATEST:
            return self._client.end(name)
        if isinstance(bound, int):
            return self._client.place_at(name, bound, self._clock_ms())
        assert isinstance(bound, dict)
        starting = bound is self._options.starting
        return bound.get(name, START if starting else self._client.end(name))

    def limited(
        self, starts: Mapping[str, Place], ends: Mapping[str, Place], messages_max: int
    ) -> dict[str, Place]:
        """Ends not past ``ends`` so that at most ``messages_max`` messages lie before them.

        The budget is shared evenly; what one partition leaves goes to those with more. Counting
        means looking at the entries: connections stay open at the place reached, so that every
        entry is looked at once over the life of a query.
        """
        reached = dict(starts)
        left = messages_max
        hungry = [name for name in sorted(starts) if starts[name] < ends[name]]
        while hungry and left > 0:
            share = max(1, left // len(hungry))
            for name in list(hungry):
                if left <= 0:
                    break
                place, taken = self._scan(name, reached[name]).take(min(share, left), ends[name])
                reached[name] = place
                left -= taken
                if place >= ends[name]:
                    hungry.remove(name)
        return reached

    def _scan(self, name: str, start: Place) -> _Scan:
        scan = self._scans.get(name)
        if scan is None or scan.place != start:
            if scan is not None:
                scan.close()
            scan = self._scans[name] = _Scan(self._client.open(name, start), start)
        return scan

    def close(self) -> None:
        for scan in self._scans.values():
            scan.close()
        self._scans.clear()

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]


class _Scan:
    """Counts messages forward from a place; keeps what is left of the entry it stopped in."""

    def __init__(self, reader: TopicReader, place: Place) -> None:
        self._reader = reader
        self._entries: Iterator[StoredEntry] = reader.entries()
        self._current: list[Place] = []  # places after the messages still left of an entry
        self.place = place

    def take(self, count: int, end: Place) -> tuple[Place, int]:
        """Move on by at most ``count`` messages, not past ``end``; returns place and count."""
        taken = 0
        while taken < count and self.place < end:
            while not self._current:
                self._current = [p for p in _places_of(next(self._entries)) if p > self.place]
            self.place = self._current.pop(0)
            taken += 1
        return min(self.place, end), taken

    def close(self) -> None:
        self._reader.close()


def _places_of(entry: StoredEntry) -> list[Place]:
    """The places after each message of an entry."""
    metadata = entry_metadata(entry.payload)
    if not metadata.batched:
        return [after(entry.ledger_id, entry.entry_id, -1)]
    return [after(entry.ledger_id, entry.entry_id, i) for i in range(metadata.num_messages)]
