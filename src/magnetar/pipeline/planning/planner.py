"""Where a read starts, where it ends, and how much of it one micro-batch takes.

Runs on the driver: asks brokers about logs (``brokers/log_watch.py``) and lets ``plans.py`` decide.
A plan is a range per topic partition, cut into splits; it depends on nothing but the points, so a
micro-batch that Spark runs again reads the same messages again. Every place that comes from
elsewhere (options, a checkpoint) is held against the partition's log before it is used
(``losses.py``); a task does so again when it reads, as retention may delete meanwhile.

How ranges become tasks: ``splits.py`` has the types (``PlannedRange``, ``Split``) and the contract.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from magnetar.model.errors import BrokerError, ConfigError, NotAllowedError, TopicNotFoundError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.log_watch import LogWatch
from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.loss_reports import LossReports, warn
from magnetar.pipeline.losses import UNKNOWN_MS, LedgerFacts, LogExtent, Loss
from magnetar.pipeline.options.bounds import EARLIEST, LATEST, AtOffset, AtTime, Bound, Spot
from magnetar.pipeline.options.source_options import ReadOptions, TriggerLimits
from magnetar.pipeline.places import NO_OFFSETS, START, Offset, Place, Point
from magnetar.pipeline.planning.counting import Counting
from magnetar.pipeline.planning.pins import Pins, hold, new_holder
from magnetar.pipeline.planning.plans import (
    Extents,
    Points,
    backlogs,
    begin_of,
    by_offsets,
    bytes_between,
    end_of,
    held,
    kept_offset,
    lost_after,
    misnumbered,
    place_after_bytes,
    resume,
    shares,
)
from magnetar.pipeline.planning.splits import PlannedRange
from magnetar.pipeline.topic_names import partition_of, topic_of
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

UNPIN_S: Final = 5.0


def _now_ms() -> int:
    return time.time_ns() // 10**6


class Planner:
    """Answers the driver's questions about points."""

    def __init__(
        self,
        options: ReadOptions,
        client: BrokerClient | None = None,
        clock_ms: Callable[[], int] = _now_ms,
        start_s: float = 0.0,
    ) -> None:
        """``start_s``: so long the first answer is waited for."""
        self._options = options
        client = client or BrokerClient(options.service_url, options.poll_timeout_ms / 1000)
        self._logs = LogWatch(client, options.poll_timeout_ms / 1000, start_s)
        self._counting = Counting(client)
        self._clock_ms = clock_ms
        self._reports = LossReports(fatal=options.fail_on_data_loss, keeps=True)
        self._absent: set[str] = set()
        self.holder = new_holder()
        self._pinned: set[str] = set()
        self._unheld: set[str] = set()
        self._warned = False

    def be_patient(self) -> None:
        """The first answer is waited for as long as all others."""
        self._logs.be_patient()

    def losses(self) -> list[Loss]:
        """What was lost since this was asked last."""
        return self._reports.taken(last=True)

    # -- which partitions ---------------------------------------------------------------------

    def partitions(self, *, begins: bool = True) -> list[str]:
        """Every partition of what is read, in a fixed order. When a read ``begins`` one that is
        assigned and not there is an error; later it has been there, and who asks for it hears."""
        selection = self._options.selection
        if selection.pattern is not None:
            return selection.matching(self._logs.topics(selection.namespace))
        names = [name for topic in selection.topics for name in self._logs.partitions(topic)]
        for topic, numbers in selection.assigned:
            names += _assigned(topic, numbers, self._logs.partitions(topic), begins=begins)
        return list(dict.fromkeys(names))

    def extents(
        self,
        known: Sequence[str] | None = None,
        *,
        absent_allowed: bool = False,
        read_from: Mapping[str, Place] | None = None,
    ) -> dict[str, LogExtent]:
        """From where to where the log of each partition reaches now. One that is not there is an
        error when a read begins. When it goes on after those that are ``known``, it is left out:
        what was known and is not there is a loss (``resumed``), and what was not will be read when
        it is there. From the places ``read_from`` on the logs are held against trimming (``pins``),
        of others from their start."""
        if known is not None:
            self._logs.be_patient()
        found = {}
        for name in self.partitions(begins=known is None):
            try:
                if read_from is None:
                    found[name] = self._logs.ask(name).extent
                else:
                    found[name] = self._held(name, read_from.get(name, START)).extent
            except TopicNotFoundError:
                if self._options.selection.pattern is None and not absent_allowed:
                    self._allow_absence(name, known)
        if known is None and not found:
            warn(f"no topic matches {self._options.selection}; nothing is read")
        for name in known or ():
            if name not in found:
                self._logs.forget(name)
        return found

    def _held(self, name: str, place: Place) -> LogAnswer:
        """What the broker says of a log, which it holds against trimming from the place on."""
        if not self._options.pin_ms:
            return self._logs.ask(name)
        self._pinned.add(name)
        wanted = hold(self.holder, place.ledger_id, self._options.pin_ms)
        try:
            answer = self._logs.ask(name, LogQuestion(hold=wanted))
        except NotAllowedError as error:
            self._say_unheld(name, str(error))
            return self._logs.ask(name)
        if not answer.held_ms and answer.extent.end_offset != NO_OFFSETS:
            self._say_unheld(name, "the broker is of an older release")
        return answer

    def _say_unheld(self, name: str, why: str) -> None:
        if name not in self._unheld:
            self._unheld.add(name)
            warn(f"{name}: what is read there is not held against trimming: {why}")

    def pin(self, parts: Sequence[PlannedRange]) -> Pins | None:
        """Hold what these ranges read against trimming, if it is not held yet; None: it is not to
        be held. Of a topic that is gone there is nothing to hold: its task says what is lost."""
        pin_ms = self._options.pin_ms
        for part in parts if pin_ms else ():
            if part.topic not in self._pinned:
                with contextlib.suppress(TopicNotFoundError):
                    self._held(part.topic, part.start)
        ledger_ids = {part.topic: part.start.ledger_id for part in parts}
        return Pins(self.holder, pin_ms, self._clock_ms(), ledger_ids) if pin_ms else None

    def unpin(self) -> None:
        """Nothing is read any more. What takes long is left: it ends by itself."""
        until_s = time.monotonic() + UNPIN_S
        for name in self._pinned:
            if time.monotonic() > until_s:
                break
            with contextlib.suppress(BrokerError):
                self._logs.say_last(name, LogQuestion(hold=hold(self.holder, 0, 0)))
        self._pinned.clear()

    def _allow_absence(self, name: str, known: Sequence[str] | None) -> None:
        topics = {topic_of(one) for one in known or ()}
        fatal = known is None or self._options.fail_on_data_loss
        if fatal and topic_of(name) not in topics:
            raise TopicNotFoundError(
                f"topic {name} is not there; make it, or mend the option that names it"
            )
        if name not in (known or ()) and name not in self._absent:
            self._absent.add(name)
            warn(f"topic {name} is not there; it will be read from its start when it is")

    # -- from options -------------------------------------------------------------------------

    def starts(self, extents: Extents) -> Points:
        """Where a read begins in each partition."""
        bound = self._options.starting
        self._check_given(bound, extents)
        places = {name: self._place(name, bound.at(name), extents[name]) for name in extents}
        return self._checked(bound, places, extents)

    def ends(self, extents: Extents, starts: Mapping[str, Point]) -> Points:
        """Where a batch read ends in each partition, as far as the log reaches now."""
        bound = self._options.ending
        self._check_given(bound, extents)
        self._check_times(bound, extents)
        places = {name: self._place(name, bound.at(name), extents[name]) for name in extents}
        points = self._checked(bound, places, extents)
        for name, point in points.items():
            if point.place < starts[name].place and name in self._explicit(bound, extents):
                raise ConfigError(
                    f"option {bound.option!r}: the read of {name} would end at {point.place}, "
                    f"before it starts at {starts[name].place} ({self._options.starting.option})"
                )
        return points

    def _check_given(self, bound: Bound, extents: Extents) -> None:
        for name in bound.without(extents):
            raise ConfigError(
                f"option {bound.option!r} has a place for {name}, which is none of the partitions "
                f"read: {', '.join(extents)}"
            )

    def _check_times(self, bound: Bound, extents: Extents) -> None:
        """Times that were taken for each other would give no row, and no word."""
        starting = self._options.starting
        for name in extents:
            start, end = starting.at(name), bound.at(name)
            if not (isinstance(start, AtTime) and isinstance(end, AtTime)):
                continue
            if end.time_ms < start.time_ms:
                raise ConfigError(
                    f"option {bound.option!r}: the read of {name} would end at {end.time_ms}, "
                    f"before it starts at {start.time_ms} ({starting.option})"
                )

    @staticmethod
    def _explicit(bound: Bound, extents: Extents) -> set[str]:
        """The partitions whose spot is a place of the user's."""
        return {name for name in extents if isinstance(bound.at(name), (Place, AtOffset))}

    def _checked(self, bound: Bound, points: Points, extents: Extents) -> Points:
        """The points that the user gave are within the log: not past its end (an error), and
        nothing after them was deleted (a loss)."""
        checked = dict(points)
        for name in self._explicit(bound, extents):
            extent = extents[name]
            if points[name].place > extent.end:
                raise ConfigError(
                    f"option {bound.option!r}: {_of(points[name])} is past the end of {name}, "
                    f"which is {_of(end_of(extent))} now; give one up to there, or 'latest'"
                )
            checked[name], loss = held(name, points[name], UNKNOWN_MS, extent)
            if loss is not None:
                self._reports.report(loss)
        return checked

    def _place(self, name: str, spot: Spot, extent: LogExtent) -> Point:
        if spot == EARLIEST:
            return begin_of(extent)
        if spot == LATEST:
            return end_of(extent)
        if isinstance(spot, AtTime):
            return self._at_time(name, spot, extent)
        if isinstance(spot, AtOffset):
            return self._at_offset(name, spot.offset, extent)
        assert isinstance(spot, Place)
        return self._numbered(name, spot, extent)

    def _at_time(self, name: str, spot: AtTime, extent: LogExtent) -> Point:
        place = min(extent.end, self._logs.place_at(name, spot.time_ms, self._clock_ms()))
        return end_of(extent) if place == extent.end else self._numbered(name, place, extent)

    def _at_offset(self, name: str, offset: int, extent: LogExtent) -> Point:
        if extent.end_offset == NO_OFFSETS:
            raise ConfigError(
                f"the broker of {name} does not number its messages; give places "
                "('ledger:entry:batch') instead of offsets"
            )
        if kept_offset(extent) <= offset < extent.end_offset:
            # Where compaction took that message it is the place of another, with its own number.
            return self._logs.ask(name, LogQuestion(offsets=[offset])).of_offsets[0]
        # Outside of the log: as far as it can be said as a place, for the checks that follow.
        entry_id = extent.end.entry_id + offset - extent.end_offset
        if offset < extent.end_offset:
            return Point(extent.kept_from._replace(entry_id=-1), offset)
        return Point(Place(extent.end.ledger_id, entry_id, 0), offset)

    def _numbered(self, name: str, place: Place, extent: LogExtent) -> Point:
        """The place with its offset."""
        if extent.end_offset == NO_OFFSETS or place < extent.kept_from or place > extent.end:
            return Point(place)
        question = LogQuestion()
        question.places.add(
            ledger_id=place.ledger_id, entry_id=place.entry_id, batch_index=place.batch_index
        )
        return Point(place, self._logs.ask(name, question).of_places[0])

    def check_start(self) -> None:
        """Refuse a stream that starts in the future: it would begin with messages from before."""
        bound, now_ms = self._options.starting, self._clock_ms()
        latest_ms = max(
            (s.time_ms for s in (bound.default, *bound.given.values()) if isinstance(s, AtTime)),
            default=0,
        )
        if latest_ms > now_ms and not self._options.future_start_allowed:
            raise ConfigError(
                f"option {bound.option!r} is {latest_ms - now_ms} ms in the future, and a stream "
                "starts at the end of the topic if nothing was published since then; give a time "
                "that is past, or startingOffsetsByTimestampStrategy=latest"
            )

    # -- from a checkpoint --------------------------------------------------------------------

    def resumed(self, offset: Offset, extents: Extents) -> tuple[Points, dict[str, int]]:
        """Where a stream goes on in each partition, after ``offset``, and what it has lost in all
        its life. What is lost now is reported."""
        self.check_topics(offset)
        found = resume(offset, extents)
        for loss in found.losses:
            self._reports.report(loss)
        starts = {
            name: point
            if point.offset != NO_OFFSETS and not misnumbered(point, extents[name])
            else self._numbered(name, point.place, extents[name])
            for name, point in found.starts.items()
        }
        return starts, lost_after(offset, found.losses)

    def check_topics(self, offset: Offset) -> None:
        """Refuse a checkpoint that has nothing to do with the topics that are read."""
        selection = self._options.selection
        if offset.points and not any(selection.covers(name) for name in offset.points):
            raise ConfigError(
                f"the checkpoint is of {', '.join(sorted(offset.points))}, and the query reads "
                f"{selection}; give it a checkpointLocation of its own"
            )

    # -- limits -------------------------------------------------------------------------------

    def limited(self, starts: Points, ends: Points, limits: TriggerLimits) -> Points:
        """Ends not past ``ends``, so that no more than the limits lies before them."""
        if limits.messages_max is not None:
            ends = self._limited_messages(starts, ends, limits.messages_max)
        if limits.bytes_max is not None:
            ends = self._limited_bytes(starts, ends, limits.bytes_max)
        return ends

    def _limited_messages(self, starts: Points, ends: Points, messages_max: int) -> Points:
        wanted = backlogs(starts, ends)
        if wanted is None:
            return self._counting.limited(starts, ends, messages_max)
        reached = {}
        for name, count in shares(wanted, messages_max).items():
            offset = starts[name].offset + count
            if count == wanted[name]:
                reached[name] = ends[name]
            elif count == 0:
                reached[name] = starts[name]
            else:
                found = self._logs.ask(name, LogQuestion(offsets=[offset])).of_offsets[0]
                # Deleted meanwhile: its task finds out. A plan never goes back.
                reached[name] = min(max(found, starts[name]), ends[name])
        return reached

    def _limited_bytes(self, starts: Points, ends: Points, bytes_max: int) -> Points:
        ledgers = {
            name: self.ledgers(name, starts[name].place, ends[name].place)
            for name in starts
            if starts[name].place < ends[name].place
        }
        sizes = {
            name: max(1, bytes_between(facts, starts[name].place, ends[name].place))
            for name, facts in ledgers.items()
        }
        reached = dict(ends)
        for name, byte_count in shares(sizes, bytes_max).items():
            if byte_count >= sizes[name] or not ledgers[name]:
                continue
            start, end = starts[name].place, ends[name].place
            place = (
                place_after_bytes(ledgers[name], start, end, byte_count) if byte_count else start
            )
            if place < end:
                extent = self._logs.ask(name).extent
                found = self._numbered(name, place, extent)
                if extent.by_offset and found.offset < extent.end_offset:
                    found = self._at_offset(name, found.offset, extent)  # not within a batch
                reached[name] = starts[name] if place == start else found
        return reached

    def ask(self, name: str, question: LogQuestion) -> LogAnswer:
        """What the broker says of a partition's log."""
        return self._logs.ask(name, question)

    def where(self, name: str, ledger_id: int) -> LogAnswer:
        """Where a ledger of the partition's log lies, and where the bookies listen."""
        return self._logs.ask(name, LogQuestion(stored_ledgers=[ledger_id]))

    def ledgers(self, name: str, start: Place, end: Place) -> tuple[LedgerFacts, ...]:
        """The ledgers between two places, in order; none, and a warning, if the broker does not
        tell them: what depends on it then does not hold."""
        question = LogQuestion(
            ledgers=True, first_ledger_id=start.ledger_id, last_ledger_id=end.ledger_id
        )
        found = self._logs.ask(name, question)
        if not found.ledgers and found.extent.end_offset == NO_OFFSETS and not self._warned:
            self._warned = True
            warn(
                f"the broker of {name} does not tell the ledgers of a topic: maxBytesPerTrigger "
                "limits nothing, and minPartitions cuts nothing"
            )
        return by_offsets(found.ledgers, found.extent) if found.extent.by_offset else found.ledgers

    def close(self) -> None:
        self._counting.close()
        self._logs.close()

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]


def _assigned(
    topic: str, numbers: Sequence[int], there: Sequence[str], *, begins: bool
) -> list[str]:
    """The names of a topic's partitions with these numbers; a topic without has number 0."""
    if there == [topic]:
        names = {0: topic}
    else:
        names = {number: partition_of(topic, number) for number in range(len(there))}
    for number in numbers:
        if number not in names and begins:
            raise ConfigError(
                f"option 'assign': {topic} has no partition {number}; it has {len(names)}"
            )
    return [names.get(number, partition_of(topic, number)) for number in numbers]


def _of(point: Point) -> str:
    return str(point.place) if point.offset == NO_OFFSETS else f"{point.place} ({point.offset})"
