"""Random runs of what decides on transactions, and of all that may go wrong between its parts.

A run plays one transactional id. Producers begin with it one after the other, and those before go
on as if nothing had happened; writes and markers are on their way for any time; coordinators are
replaced, and what a former one has sent still arrives; partitions move and know again what their
logs say. Then everything comes to rest, and the logs are judged:

* every record of a transaction is followed by a marker of its outcome, and no other comes before;
* every record that a committed transaction's producer was told of is there;
* nothing is open.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.protocols.kafka.coordination import transaction
from magnetar.protocols.kafka.coordination.transaction import (
    Beginning,
    TransactionRecord,
    TransactionVerdict,
)
from magnetar.protocols.kafka.partitions.transaction_index import TransactionWriters
from magnetar.wire.kafka.batches import CONTROL, TRANSACTIONAL, BatchHeader
from magnetar.wire.kafka.errors import ErrorCode

PARTITIONS = 3
TIMEOUT_MS = 150
STEPS = 400


def _header(producer_id: int, epoch: int, control: bool = False) -> BatchHeader:
    attributes = TRANSACTIONAL | (CONTROL if control else 0)
    return BatchHeader(0, 0, 0, 2, 0, attributes, 0, 0, 0, producer_id, epoch, 0, 1)


class Stored(NamedTuple):
    """An entry of a partition: a record of a transaction (its number), or a marker."""

    producer_id: int
    epoch: int
    number: int
    commits: bool | None = None
    coordinator_epoch: int = -1


@dataclass
class Place:
    """A partition: its log, and what it knows."""

    log: list[Stored] = field(default_factory=list)
    writers: TransactionWriters = field(default_factory=TransactionWriters)

    def move(self) -> None:
        self.writers = TransactionWriters()
        for each in self.log:
            if each.commits is None:
                self.writers.batch(_header(each.producer_id, each.epoch))
            else:
                self.writers.marker(each.producer_id, each.epoch, each.coordinator_epoch)


@dataclass
class Producer:
    producer_id: int
    epoch: int
    number: int = -1  # of its transaction
    places: set[int] = field(default_factory=set)
    under_way: int = 0
    told: list[tuple[int, int]] = field(default_factory=list)
    dead: bool = False


@dataclass
class Write:
    """On its way: first it may have to be asked for, by an opening of the partition's log: another
    opening knows nothing of that."""

    producer: Producer
    place: int
    number: int
    ends: int = -1
    opening: TransactionWriters | None = None


@dataclass
class Marker:
    producer_id: int
    epoch: int
    commits: bool
    coordinator_epoch: int
    place: int


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.record: TransactionRecord | None = None
        self.places = [Place() for _ in range(PARTITIONS)]
        self.producers: list[Producer] = []
        self.writes: list[Write] = []
        self.markers: list[Marker] = []
        self.coordinator_epoch = 1
        self.marked: set[int] = set()
        self.number = 0
        self.outcomes: dict[int, bool] = {}
        self.told: dict[int, list[tuple[int, int]]] = {}
        self.faults: list[str] = []

    # -- the coordinator ----------------------------------------------------------------------

    def store(self, verdict: TransactionVerdict) -> ErrorCode:
        if verdict.record is not None:
            self.put(verdict.record)
        return verdict.error

    def put(self, record: TransactionRecord) -> None:
        before, self.record = self.record, record
        if record.ongoing and not (before is not None and before.ongoing):
            self.number += 1
        if record.ending:
            self.marked = set()
            known = self.outcomes.setdefault(self.number, record.commits)
            if known != record.commits:
                self.faults.append(f"transaction {self.number} has two outcomes")

    def send_markers(self) -> None:
        record = self.record
        if record is None or not record.ending:
            return
        # Asked again on another connection, the former request of this coordinator counts no more.
        own = self.coordinator_epoch
        self.markers = [each for each in self.markers if each.coordinator_epoch != own]
        for _, place in record.partitions:
            if place not in self.marked:
                made = Marker(record.producer_id, record.epoch, record.commits, own, place)
                self.markers.append(made)
        if self.marked >= {place for _, place in record.partitions}:
            self.put(transaction.marked(record, self.now_ms))

    def replace_coordinator(self) -> None:
        self.coordinator_epoch += 1
        self.marked = set()

    def time_out(self) -> None:
        record, now_ms = self.record, self.now_ms
        late = record and transaction.time_out(record, now_ms - record.started_ms, now_ms)
        if late:
            self.put(late)

    # -- partitions ---------------------------------------------------------------------------

    def deliver_marker(self, marker: Marker) -> None:
        place = self.places[marker.place]
        error = place.writers.check_marker(
            marker.producer_id, marker.epoch, marker.coordinator_epoch
        )
        if error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            return
        if error is ErrorCode.NONE and place.writers.marker(
            marker.producer_id, marker.epoch, marker.coordinator_epoch
        ):
            made = Stored(
                marker.producer_id, marker.epoch, 0, marker.commits, marker.coordinator_epoch
            )
            place.log.append(made)
        if marker.coordinator_epoch == self.coordinator_epoch:
            self.marked.add(marker.place)

    def deliver_write(self, write: Write) -> None:
        """One step of it: taken, refused, or asked for."""
        producer, place = write.producer, self.places[write.place]
        header = _header(producer.producer_id, producer.epoch)
        name = ("t", write.place)
        if write.opening is not None and write.opening is not place.writers:
            self.refuse(write)
            return
        if not place.writers.takes(header):
            if write.opening is None:
                write.opening = place.writers
                write.ends = place.writers.ends(producer.producer_id)
                error = transaction.takes_part(
                    self.record, producer.producer_id, producer.epoch, name
                )
                if error is ErrorCode.NONE:
                    self.writes.append(write)  # the answer is on its way
                else:
                    self.refuse(write)
                return
            place.writers.allow(producer.producer_id, producer.epoch, write.ends)
        if place.writers.check(header) is not ErrorCode.NONE:
            self.refuse(write)
            return
        place.writers.batch(header)
        place.log.append(Stored(producer.producer_id, producer.epoch, write.number))
        producer.under_way -= 1
        producer.told.append((write.place, len(place.log) - 1))

    @staticmethod
    def refuse(write: Write) -> None:
        write.producer.under_way -= 1
        write.producer.dead = True  # it aborts, or begins anew: another one does here

    # -- producers ----------------------------------------------------------------------------

    def begin(self) -> None:
        new_id = 1_000 + len(self.producers)
        verdict = transaction.begin(self.record, Beginning(TIMEOUT_MS), new_id, self.now_ms)
        if self.store(verdict) is ErrorCode.NONE:
            assert self.record is not None
            self.producers.append(Producer(self.record.producer_id, self.record.epoch))

    def step_of(self, producer: Producer) -> None:
        place = self.random.randrange(PARTITIONS)
        action = self.random.random()
        if action < 0.2 or producer.number < 0:
            self.add(producer, place)
        elif action < 0.75 and place in producer.places:
            producer.under_way += 1
            self.writes.append(Write(producer, place, producer.number))
        elif producer.under_way == 0:
            self.end(producer, self.random.random() < 0.6)
        elif action > 0.97:  # it does not know what became of them, so it wants another epoch
            self.end(producer, False)
            producer.dead = True

    def add(self, producer: Producer, place: int) -> None:
        own = producer.producer_id, producer.epoch
        error = self.store(transaction.add(self.record, *own, [("t", place)], self.now_ms))
        if error is ErrorCode.NONE:
            if producer.number < 0:
                producer.number, producer.places, producer.told = self.number, set(), []
            producer.places.add(place)
        elif error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            producer.dead = True

    def end(self, producer: Producer, commits: bool) -> None:
        own = producer.producer_id, producer.epoch
        error = self.store(transaction.end(self.record, *own, commits, self.now_ms))
        if error is ErrorCode.NONE:
            if commits:
                self.told[producer.number] = producer.told
            producer.number = -1
        elif error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            producer.dead = True

    # -- the run ------------------------------------------------------------------------------

    def step(self) -> None:
        self.now_ms += 1
        kind = self.random.random()
        alive = [each for each in self.producers if not each.dead]
        if kind < (0.02 if alive else 0.2):
            self.begin()
        elif kind < 0.45:
            if alive:
                self.step_of(self.random.choice(alive))
        elif kind < 0.65 and self.writes:
            self.deliver_write(self.writes.pop(self.arriving(len(self.writes))))
        elif kind < 0.80 and self.markers:
            self.deliver_marker(self.markers.pop(self.arriving(len(self.markers))))
        elif kind < 0.91:
            self.send_markers()
        elif kind < 0.96:  # in the middle of its work, most of all
            self.send_markers()
            self.replace_coordinator()
            self.send_markers()
        elif kind < 0.97:
            self.random.choice(self.places).move()
        else:
            self.time_out()

    def arriving(self, count: int) -> int:
        """Mostly the last that was sent, so that some are very late."""
        return count - 1 if self.random.random() < 0.8 else self.random.randrange(count)

    def rest(self) -> None:
        """Everything arrives; what is open times out."""
        self.now_ms += 10 * TIMEOUT_MS
        for _ in range(20):
            while self.writes:
                self.deliver_write(self.writes.pop(0))
            while self.markers:
                self.deliver_marker(self.markers.pop(0))
            self.time_out()
            self.send_markers()

    def judge(self) -> list[str]:
        faults = list(self.faults)
        if self.record is not None and (self.record.ending or self.record.ongoing):
            faults.append("a transaction never ends")
        for number, place in enumerate(self.places):
            for at, entry in enumerate(place.log):
                if entry.commits is not None:
                    continue
                ends = [
                    each.commits
                    for each in place.log[at:]
                    if each.producer_id == entry.producer_id and each.commits is not None
                ]
                wanted = self.outcomes.get(entry.number)
                if not ends:
                    faults.append(f"partition {number}: entry {at} stays open")
                elif ends[0] is not wanted:
                    faults.append(f"partition {number}: entry {at} ends {ends[0]}, not {wanted}")
        for number, told in self.told.items():
            for place_number, at in told:
                if self.places[place_number].log[at].number != number:
                    faults.append(f"transaction {number}: a record is gone")
        return faults


def faults_of(seed: int) -> list[str]:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.rest()
    return world.judge()
