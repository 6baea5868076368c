"""Who reads partitions: from one offset on, by Fetch, as official clients do. ``PartitionReader``
has what consumers in groups share with those that take their partitions themselves
(``KafkaReader``): what comes next, batches taken apart, aborted transactions left out, and all of
it told to the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import CONTROL, TRANSACTIONAL, BatchHeader, split
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    FetchedPartition,
    FetchPartition,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from magnetar.wire.kafka.markers import read_marker
from magnetar.wire.kafka.records import KafkaRecord, read_batch, timestamp_of
from magnetar_sim.kafka.kafka_client import FETCH, REQUEST_S, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import ABORT, COMMIT, KafkaHistory, Shown, Written
from magnetar_sim.kafka.kafka_link import KafkaLink, LinkError

FETCH_VERSION: Final = 12
LIST_VERSION: Final = 7
LATEST: Final = -1
EARLIEST: Final = -2
AGAIN: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
)


@dataclass(frozen=True)
class ReaderPlan:
    """How it fetches."""

    committed: bool
    bytes_max: int
    partition_bytes_max: int
    wait_ms: int
    epochs: bool
    """It says which leader's epoch it knows."""


@dataclass(slots=True)
class ReadPlace:
    """Of one partition: what it wants next, and of the aborted transactions that it is in."""

    offset: int
    high_watermark: int = -1
    stable_offset: int = -1
    offsets: list[int] = field(default_factory=list)
    """All that it was shown."""


class PartitionReader:
    """``give``: each record that the application gets, with its offset."""

    def __init__(
        self,
        client: KafkaClient,
        history: KafkaHistory,
        name: str,
        plan: ReaderPlan,
        give: Callable[[Written, int], None],
    ) -> None:
        self.client = client
        self.name = name
        self.places: dict[Place, ReadPlace] = {}
        self._history = history
        self._plan = plan
        self._give = give
        self._asked: dict[KafkaLink, asyncio.Task[None]] = {}

    def read_from(self, offsets: dict[Place, int]) -> None:
        """These partitions, and no others, from there on."""
        self.places = {place: ReadPlace(offset) for place, offset in offsets.items()}

    async def fetch_once(self) -> None:
        """Of each leader that is not asked already, and until one has answered; whatever fails is
        tried again next time."""
        by_link: dict[KafkaLink, list[Place]] = {}
        for place in list(self.places):
            try:
                link = await self.client.at_leader(place, FETCH)
            except LinkError:
                continue
            by_link.setdefault(link, []).append(place)
        spawn = self.client.host.process.spawn
        for link, places in by_link.items():
            if link not in self._asked:
                self._asked[link] = spawn(self._fetch(link, places), f"{self.name} fetches")
        if not self._asked:
            await self.client.pause()
            return
        await asyncio.wait(self._asked.values(), return_when=asyncio.FIRST_COMPLETED)
        self._asked = {link: task for link, task in self._asked.items() if not task.done()}

    async def _fetch(self, link: KafkaLink, places: Sequence[Place]) -> None:
        plan = self._plan
        request = ClientFetchRequest(
            wait_ms_max=plan.wait_ms,
            bytes_min=1,
            bytes_max=plan.bytes_max,
            isolation_level=int(plan.committed),
            session_epoch=0,
        )
        asked: dict[Place, ReadPlace] = {}
        topics: dict[str, FetchTopic] = {}
        for place in places:
            found = self.places.get(place)
            if found is None:
                continue
            asked[place] = found
            leader = self.client.leader(place)
            epoch = leader.epoch if leader is not None and plan.epochs else -1
            topic = topics.setdefault(place[0], FetchTopic(place[0], partitions=[]))
            part = FetchPartition(
                place[1],
                epoch,
                found.offset,
                partition_bytes_max=plan.partition_bytes_max,
            )
            topic.partitions.append(part)
        request.topics = [*topics.values()]
        try:
            within_s = REQUEST_S + plan.wait_ms / 1000
            answer = await link.ask(ApiKey.FETCH, FETCH_VERSION, request, within_s)
        except LinkError:
            for place in places:
                self.client.moved(place)
            return
        again = False
        for said in answer.topics:
            for part in said.partitions:
                place = said.name, part.partition
                if self.places.get(place) is asked[place]:  # else it is read from elsewhere now
                    again = self._take(place, asked[place], part) or again
        if again:
            await self.client.pause()

    def _take(self, place: Place, at: ReadPlace, said: FetchedPartition) -> bool:
        """Whether to wait a moment before the next one."""
        code = said.error_code
        if code != ErrorCode.NONE:
            self.client.note(f"{self.name} fetches {place} from {at.offset}: {code}")
            if code == ErrorCode.CORRUPT_MESSAGE and not self._history.healed:
                self._history.count("reads that disks have failed")  # of an entry's only copy
            elif code not in AGAIN:
                self._history.broken(f"{self.name} is told {code} of {place} at {at.offset}")
            self.client.moved(place)
            return True
        at.high_watermark, at.stable_offset = said.high_watermark, said.last_stable_offset
        records = said.records
        assert records is None or isinstance(records, memoryview | bytes)
        aborted = sorted((each.first_offset, each.producer_id) for each in said.aborted or ())
        gone = _AbortedNow(aborted)
        for batch in split(memoryview(records or b"")):
            self._take_batch(place, at, batch, gone)
        return False

    def _take_batch(
        self, place: Place, at: ReadPlace, batch: memoryview, gone: _AbortedNow
    ) -> None:
        header, records = read_batch(batch)
        if header.next_offset <= at.offset:
            what = f"from {header.base_offset} to {header.next_offset}, who asked for {at.offset}"
            self._history.broken(f"{self.name} is sent a batch of {place} {what}")
            return
        if header.base_offset > at.offset:
            what = f"{header.base_offset}, and not {at.offset}"
            self._history.broken(f"{self.name} is sent of {place} {what}")
        if self._plan.committed and at.stable_offset < header.next_offset:
            what = f"{header.next_offset}, and {at.stable_offset} is stable"
            self._history.broken(f"{self.name} is sent of {place} what ends at {what}")
        dropped = gone.drops(header)
        for record in records:
            offset = header.base_offset + record.offset_delta
            if offset < at.offset:
                continue
            control = bool(header.attributes & CONTROL)
            value = record.value or b""
            if control:
                commits, _ = read_marker(batch)
                value = COMMIT if commits else ABORT
                gone.marker(header, commits)
            shown = shown_of(header, record, value)
            at.offsets.append(offset)
            written = self._history.show(place, offset, shown, self.name)
            if written is not None and not dropped:
                if self._plan.committed:
                    self._history.commit(written, self.name)
                self._give(written, offset)
        at.offset = header.next_offset

    async def list_offset(self, place: Place, time_ms: int, committed: bool = False) -> int:
        """As often as it takes."""
        while True:
            try:
                link = await self.client.at_leader(place, FETCH)
                part = ListOffsetsPartition(place[1], -1, time_ms)
                topics = [ListOffsetsTopic(place[0], [part])]
                request = ListOffsetsRequest(isolation_level=int(committed), topics=topics)
                answer = await link.ask(ApiKey.LIST_OFFSETS, LIST_VERSION, request, REQUEST_S)
            except LinkError:
                self.client.moved(place)
                await self.client.pause()
                continue
            said = answer.topics[0].partitions[0]
            if said.error_code == ErrorCode.NONE:
                found = said.offset
                assert isinstance(found, int)
                return found
            if said.error_code not in AGAIN:
                self._history.broken(f"{self.name} lists {place}: {said.error_code}")
            self.client.moved(place)
            await self.client.pause()


def shown_of(header: BatchHeader, record: KafkaRecord, value: bytes) -> Shown:
    """``value``: the record's, or what stands for a marker."""
    attributes = header.attributes & (TRANSACTIONAL | CONTROL)
    time_ms = timestamp_of(header, record)
    return Shown(value, header.producer_id, header.producer_epoch, attributes, time_ms)


class _AbortedNow:
    """Which transactions were aborted, as far as one answer says it, and its batches go."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._aborted = list(aborted)
        self._gone: set[int] = set()

    def drops(self, header: BatchHeader) -> bool:
        while self._aborted and self._aborted[0][0] < header.next_offset:
            self._gone.add(self._aborted.pop(0)[1])
        return bool(header.attributes & TRANSACTIONAL) and header.producer_id in self._gone

    def marker(self, header: BatchHeader, commits: bool) -> None:
        if not commits:
            self._gone.discard(header.producer_id)


class KafkaReader:
    """Reads partitions that it takes itself, again and again from somewhere."""

    def __init__(
        self,
        client: KafkaClient,
        history: KafkaHistory,
        name: str,
        plan: ReaderPlan,
        places: Sequence[Place],
        restless: float,
    ) -> None:
        self.name = name
        self.client = client
        self.over = False
        self.got: dict[Place, list[tuple[Written, int]]] = {place: [] for place in places}
        """What it was given since it began from somewhere the last time, with offsets."""
        self._restless = restless
        self._places = places
        self._history = history
        self.reader = PartitionReader(client, history, name, plan, self._give)

    def _give(self, written: Written, offset: int) -> None:
        self.got[written.place].append((written, offset))

    async def run(self) -> None:
        rng = self.client.random
        await self._begin(0)
        while not self.over:
            await self.reader.fetch_once()
            self._history.count("fetches")
            if rng.random() < self._restless:
                await self._begin(rng.random())
            await asyncio.sleep(0)

    async def _begin(self, how: float) -> None:
        """At the start, at the end, or anywhere before it."""
        offsets: dict[Place, int] = {}
        for place in self._places:
            known = self._history.end_known(place)
            end = await self.reader.list_offset(place, LATEST)
            if end < 0:
                self._history.broken(f"{self.name}: {place} ends at {end}")
            offsets[place] = 0 if how < 0.4 else min(end, int(how * known))
        self.got = {place: [] for place in self._places}
        self.reader.read_from(offsets)
