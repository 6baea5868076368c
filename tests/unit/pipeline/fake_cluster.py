"""Brokers as the pipeline's client sees them: topics, their logs and readers, in memory.

A message's value is a number that no other message has, in whatever topic. Ledgers are closed with
``roll`` and deleted from the front with ``trim``, as retention does; ``before_entry`` is called
before each entry that a reader hands out, so that things may happen in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from magnetar.model.errors import BrokerError, NotAllowedError, TopicNotFoundError
from magnetar.pipeline.brokers.topic_reader import LogAnswer, StoredEntry
from magnetar.pipeline.losses import GivenAnswer, LedgerFacts, LogExtent, UnreadEntry
from magnetar.pipeline.places import START, Place, Point, after_entry
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion, MessageMetadata, SingleMessageMetadata


@dataclass
class FakeEntry:
    """``batched``: as a batch, even of one message."""

    values: list[int]
    batched: bool
    published_ms: int

    def payload(self) -> memoryview:
        metadata = MessageMetadata(
            producer_name="p", sequence_id=self.values[0], publish_time=self.published_ms
        )
        data = b"".join(_single(value) for value in self.values)
        if self.batched:
            metadata.num_messages_in_batch = len(self.values)
        else:
            data = b"%d" % self.values[0]
        head = metadata.SerializeToString()
        return memoryview(len(head).to_bytes(4, "big") + head + data)


def _single(value: int) -> bytes:
    text = b"%d" % value
    head = SingleMessageMetadata(payload_size=len(text)).SerializeToString()
    return len(head).to_bytes(4, "big") + head + text


@dataclass
class FakeLedger:
    ledger_id: int
    first_offset: int
    entries: list[FakeEntry] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(len(entry.values) for entry in self.entries)

    def offset_of(self, entry_id: int) -> int:
        return self.first_offset + sum(len(e.values) for e in self.entries[:entry_id])


class FakeLog:
    """One partition. ``gone``: the values that retention has deleted."""

    def __init__(self, created_ms: int, next_ledger_id: Callable[[], int]) -> None:
        self.created_ms = created_ms
        self._next_ledger_id = next_ledger_id
        self.trimmed = (-1, -1)
        self.tells_bookies = True
        self.gone: list[int] = []
        self.holds: dict[str, tuple[int, int]] = {}
        self.holds_refused = False
        self.lost: set[tuple[int, int]] = set()
        """Entries that cannot be read, and whether no sound copy is left (``lost_for_good``)."""
        self.lost_for_good = True
        self.hidden: set[tuple[int, int]] = set()
        """Entries that consumers do not get: of transactions that were aborted."""
        self.undecided = False
        self.ledgers = [FakeLedger(next_ledger_id(), 0)]

    @property
    def end_offset(self) -> int:
        return self.ledgers[-1].first_offset + self.ledgers[-1].messages

    def append(self, values: list[int], batched: bool, published_ms: int) -> None:
        self.ledgers[-1].entries.append(FakeEntry(values, batched, published_ms))

    def roll(self) -> None:
        if self.ledgers[-1].entries:
            self.ledgers.append(FakeLedger(self._next_ledger_id(), self.end_offset))

    def trim(self, count: int) -> None:
        """Delete up to ``count`` closed ledgers from the front."""
        for _ in range(min(count, len(self.ledgers) - 1)):
            ledger = self.ledgers.pop(0)
            self.trimmed = (ledger.ledger_id, len(ledger.entries) - 1)
            self.gone += [value for entry in ledger.entries for value in entry.values]

    def values(self) -> list[int]:
        return [value for ledger in self.ledgers for e in ledger.entries for value in e.values]

    def stored(self) -> Iterator[tuple[Place, FakeEntry]]:
        for ledger in self.ledgers:
            for entry_id, entry in enumerate(ledger.entries):
                yield Place(ledger.ledger_id, entry_id, 0), entry

    def extent(self) -> LogExtent:
        kept_from = after_entry(*self.trimmed)
        places = [place for place, _ in self.stored()]
        end = after_entry(*places[-1][:2]) if places else kept_from
        first = Place(self.ledgers[0].ledger_id, 0, 0)
        first_offset = self.ledgers[0].first_offset
        return LogExtent(kept_from, first, end, self.created_ms, first_offset, self.end_offset)

    def answer(self, question: LogQuestion | None) -> LogAnswer:
        asked = question or LogQuestion()
        last_id = asked.last_ledger_id if asked.HasField("last_ledger_id") else 2**62
        facts = tuple(
            LedgerFacts(
                one.ledger_id, len(one.entries), 10 * one.messages, one is not self.ledgers[-1]
            )
            for one in self.ledgers
            if asked.ledgers and asked.first_ledger_id <= one.ledger_id <= last_id
        )
        return LogAnswer(
            self.extent(),
            facts,
            tuple(self._point_of(offset) for offset in asked.offsets),
            tuple(
                self._offset_of(Place(p.ledger_id, p.entry_id, p.batch_index)) for p in asked.places
            ),
            tuple(self._place_at(time_ms) for time_ms in asked.times_ms),
            {
                one.ledger_id: b"metadata of %d" % one.ledger_id
                for one in self.ledgers
                if one.ledger_id in asked.stored_ledgers
            },
            {"b": ("127.0.0.1", 1)} if self.tells_bookies else {},
            self._hold(asked),
            given=self._given(asked) if asked.HasField("given") else None,
        )

    def _given(self, asked: LogQuestion) -> GivenAnswer:
        first, stop = (
            Place(one.ledger_id, one.entry_id, 0) for one in (asked.given.first, asked.given.stop)
        )
        there = [
            Place(ledger.ledger_id, entry_id, 0)
            for ledger in self.ledgers
            for entry_id in range(len(ledger.entries))
        ]
        any_given = any(first <= each < stop and each[:2] not in self.hidden for each in there)
        sought_to = stop if any(each >= first for each in there) else first
        return GivenAnswer(any_given, sought_to, self.undecided)

    def _hold(self, asked: LogQuestion) -> int:
        if not asked.HasField("hold"):
            return 0
        if self.holds_refused:
            raise NotAllowedError("held by 100 readers already")
        self.holds[asked.hold.holder] = (asked.hold.ledger_id, asked.hold.for_ms)
        return asked.hold.for_ms

    def _point_of(self, offset: int) -> Point:
        place = self._place_of(offset)
        return Point(place, self._offset_of(place))

    def _place_of(self, offset: int) -> Place:
        for ledger in self.ledgers:
            for entry_id, entry in enumerate(ledger.entries):
                first = ledger.offset_of(entry_id)
                if offset < first + len(entry.values):
                    return Place(ledger.ledger_id, entry_id, max(0, offset - first))
        return self.extent().end

    def _offset_of(self, place: Place) -> int:
        for ledger in self.ledgers:
            if place.ledger_id < ledger.ledger_id:
                return ledger.first_offset
            if place.ledger_id == ledger.ledger_id:
                entry_id = max(0, place.entry_id)
                within = place.batch_index if entry_id < len(ledger.entries) else 0
                return ledger.offset_of(entry_id) + within
        return self.end_offset

    def _place_at(self, time_ms: int) -> Place:
        found = (place for place, entry in self.stored() if entry.published_ms >= time_ms)
        return next(found, self.extent().end)


class FakeReader:
    """``topic_reader.TopicReader``."""

    def __init__(self, cluster: FakeCluster, topic: str, place: Place) -> None:
        self._cluster = cluster
        self._log = cluster.log(topic)
        self.topic = topic
        self._next = place._replace(batch_index=0)
        self.handed_out = 0
        self._open = True
        self.unread: UnreadEntry | None = None
        cluster.open_readers += 1

    def _check(self) -> None:
        if self._cluster.logs.get(self.topic) is not self._log:
            raise BrokerError(f"{self.topic} moved")
        self._cluster.maybe_fail()

    def extent(self) -> LogExtent:
        return self.ask().extent

    def ask(self, question: LogQuestion | None = None) -> LogAnswer:
        self._check()
        self._cluster.questions.append((self.topic, question))
        return self._log.answer(question)._replace(unread=self.unread)

    def entry_within(self, wait_s: float) -> StoredEntry | None:
        self._cluster.before_entry()
        self._check()
        self.unread = None
        for place, entry in self._log.stored():
            if place >= self._next and place[:2] not in self._log.hidden:
                if place[:2] in self._log.lost:
                    behind, lost = after_entry(*place[:2]), self._log.lost_for_good
                    self.unread = UnreadEntry(place, behind, "no replica has it sound", lost)
                    return None
                self._next = after_entry(place.ledger_id, place.entry_id)
                self.handed_out += 1
                return StoredEntry(
                    place.ledger_id, place.entry_id, entry.payload(), len(entry.values)
                )
        return None

    def close(self) -> None:
        self._cluster.open_readers -= self._open
        self._open = False

    def __enter__(self) -> FakeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeCluster:
    """``brokers.client.BrokerClient``, and what happens to topics."""

    timeout_s = 0.5

    def __init__(self) -> None:
        self.logs: dict[str, FakeLog] = {}
        self.partition_counts: dict[str, int] = {}
        self.now_ms = 1_000
        self.failures = 0
        self.opened: list[tuple[str, Place]] = []
        self.open_readers = 0
        self.questions: list[tuple[str, LogQuestion | None]] = []
        self._values = 0
        self._ledger_ids = 0
        self.before_entry: Callable[[], None] = lambda: None

    # -- what happens -------------------------------------------------------------------------

    def make(self, topic: str, partitions: int = 0) -> None:
        self.now_ms += 1
        if partitions:
            self.partition_counts[topic] = partitions
        for name in self.names_of(topic):
            if name not in self.logs:
                self.logs[name] = FakeLog(self.now_ms, self._next_ledger_id)

    def delete(self, topic: str) -> None:
        for name in self.names_of(topic):
            self.logs.pop(name, None)
        self.partition_counts.pop(topic, None)

    def _next_ledger_id(self) -> int:
        self._ledger_ids += 1
        return self._ledger_ids

    def publish(self, name: str, count: int, batched: bool = False) -> list[int]:
        """Messages with new values, in one batch or one by one."""
        self.now_ms += 1
        values = list(range(self._values, self._values + count))
        self._values += count
        for group in [values] if batched else [[value] for value in values]:
            self.logs[name].append(group, batched, self.now_ms)
        return values

    def maybe_fail(self) -> None:
        """Fail as often as ``failures`` says: the broker restarts."""
        if self.failures:
            self.failures -= 1
            raise BrokerError("the connection broke")

    # -- what the pipeline sees ---------------------------------------------------------------

    def reach(self) -> None:
        self.maybe_fail()

    def partitions(self, topic: str) -> list[str]:
        self.maybe_fail()
        return self.names_of(topic)

    def names_of(self, topic: str) -> list[str]:
        count = self.partition_counts.get(topic, 0)
        return [f"{topic}-partition-{number}" for number in range(count)] or [topic]

    def topics(self, namespace: str) -> list[str]:
        self.maybe_fail()
        return sorted(self.logs)

    def log(self, name: str) -> FakeLog:
        if name not in self.logs:
            raise TopicNotFoundError(f"topic {name} does not exist")
        return self.logs[name]

    def close(self) -> None:
        pass

    def open(self, topic: str, place: Place = START) -> FakeReader:
        self.maybe_fail()
        self.opened.append((topic, place))
        return FakeReader(self, topic, place)
