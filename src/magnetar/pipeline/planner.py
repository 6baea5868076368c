"""Where a read starts, where it ends, and how much of it one micro-batch takes.

Runs on the driver. A plan is a range of places per topic partition, cut into splits; it depends on
nothing but the places, so a micro-batch that Spark runs again reads the same messages again. Every
place that comes from elsewhere (options, a checkpoint) is held against the partition's log before
it is used (``losses.py``); a task does so again when it reads, as retention may delete meanwhile.

How ranges become tasks: ``splits.py`` has the types (``PlannedRange``, ``Split``) and the contract.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from magnetar.model.errors import ConfigError
from magnetar.pipeline.broker_client import BrokerClient, StoredEntry, TopicReader
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.losses import UNKNOWN_MS, LogExtent, Loss, loss_at
from magnetar.pipeline.options import EARLIEST, LATEST, Bound, ReadOptions
from magnetar.pipeline.places import START, Offset, Place, after, after_entry
from magnetar.wire.pulsar.metadata import entry_metadata


class Planner:
    """Answers the driver's questions about places; holds connections only while it scans."""

    def __init__(
        self, options: ReadOptions, clock_ms: Callable[[], int] = lambda: time.time_ns() // 10**6
    ) -> None:
        self._options = options
        self._client = BrokerClient(options.service_url, options.poll_timeout_ms / 1000)
        self._clock_ms = clock_ms
        self._reports = LossReports(fatal=options.fail_on_data_loss)
        self._scans: dict[str, _Scan] = {}

    def topic_partitions(self) -> list[str]:
        """Every partition of the topics asked for, in a fixed order."""
        names = [name for topic in self._options.topics for name in self._client.partitions(topic)]
        return list(dict.fromkeys(names))

    def extents(self) -> dict[str, LogExtent]:
        """From where to where the log of each partition reaches now."""
        return {name: self._client.extent(name) for name in self.topic_partitions()}

    # -- from options -------------------------------------------------------------------------

    def starts(self, extents: Mapping[str, LogExtent]) -> dict[str, Place]:
        """Where a read begins in each partition."""
        return self._places("startingOffsets", self._options.starting, extents)

    def ends(self, extents: Mapping[str, LogExtent]) -> dict[str, Place]:
        """Where a batch read ends in each partition, as far as the log reaches now."""
        return self._places("endingOffsets", self._options.ending, extents)

    def _places(
        self, option: str, bound: Bound, extents: Mapping[str, LogExtent]
    ) -> dict[str, Place]:
        if isinstance(bound, dict):
            _check_given(option, bound, extents)
        places = {name: self._place(name, bound, extent) for name, extent in extents.items()}
        if not isinstance(bound, dict) or option != "startingOffsets":
            return places
        given = Offset({name: places[name] for name in bound})
        return {**places, **self.checked(given, extents)}

    def _place(self, name: str, bound: Bound, extent: LogExtent) -> Place:
        if bound == EARLIEST:
            return extent.kept_from
        if bound == LATEST:
            return extent.end
        if isinstance(bound, int):
            return self._client.place_at(name, bound, self._clock_ms())
        assert isinstance(bound, dict)
        starting = bound is self._options.starting
        return bound.get(name, extent.kept_from if starting else extent.end)

    # -- from a checkpoint --------------------------------------------------------------------

    def resumed(self, offset: Offset, extents: Mapping[str, LogExtent]) -> dict[str, Place]:
        """Where a stream goes on in each partition, after ``offset``; one that was added since
        begins at its start. What is lost is reported."""
        self.check_topics(offset)
        for name in offset.places:
            if name not in extents:
                what = "the partition is not there any more, or its topic not read any more"
                self._reports.report(Loss(name, what, 0, START))
        added = {name: START for name in extents if name not in offset.places}
        made_ms = {name: extents[name].created_ms for name in added}
        known = {name: place for name, place in offset.places.items() if name in extents}
        whole = Offset({**known, **added}, {**offset.created_ms, **made_ms})
        return self.checked(whole, extents)

    def check_topics(self, offset: Offset) -> None:
        """Refuse a checkpoint that has nothing to do with the topics that are read."""
        topics = self._options.topics
        if offset.places and not any(_is_of(name, topics) for name in offset.places):
            raise ConfigError(
                f"the checkpoint is of {', '.join(sorted(offset.places))}, and the query reads "
                f"{', '.join(topics)}; give it a checkpointLocation of its own"
            )

    def checked(self, offset: Offset, extents: Mapping[str, LogExtent]) -> dict[str, Place]:
        """The places of ``offset``; where something is lost that is reported, and the place after
        it taken instead."""
        places = {}
        for name, place in offset.places.items():
            loss = loss_at(name, place, offset.created_ms.get(name, UNKNOWN_MS), extents[name])
            if loss is not None:
                self._reports.report(loss)
            places[name] = place if loss is None else loss.go_on
        return places

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
    last = after_entry(entry.ledger_id, entry.entry_id)
    if not metadata.batched:
        return [last]
    before_last = range(metadata.num_messages - 1)
    return [*(after(entry.ledger_id, entry.entry_id, i) for i in before_last), last]


def _check_given(
    option: str, places: Mapping[str, Place], extents: Mapping[str, LogExtent]
) -> None:
    """Refuse places of partitions that are not read, or past the end of their log."""
    for name, place in sorted(places.items()):
        if name not in extents:
            raise ConfigError(
                f"option {option!r} has a place for {name}, which is none of the partitions read: "
                f"{', '.join(extents)}"
            )
        if place > extents[name].end:
            raise ConfigError(
                f"option {option!r}: place {place} is past the end of {name}, which is "
                f"{extents[name].end} now; give a place up to there, or 'latest'"
            )


def _is_of(name: str, topics: tuple[str, ...]) -> bool:
    """True if the partition belongs to one of the topics."""
    return name in topics or name.rpartition("-partition-")[0] in topics
