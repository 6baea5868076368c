"""A follower's log becomes its leader's: two brokers' replicas, and a line of Kafka's Fetch between
them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from magnetar.env.tasks import TaskScope, awaited
from magnetar.log.partition.batch_header import read_header
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.group_append import Outcome
from magnetar.log.partition.hosting import HostedReplica, PartitionHost
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.replication import serving
from magnetar.log.partition.replication.fetcher import Fetcher, FetchLimits
from magnetar.log.partition.replication.partition_state import PartitionState
from magnetar.log.partition.replication.serving import FollowerFetches
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.model.errors import LeaderUnreachableError
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    FetchedPartition,
    FetchResponse,
)
from tests.unit.log.partition.kit import batch
from tests.unit.log.partition.world import NOW_MS, SMALL, PartitionWorld

ONE, TWO = ("t", 0), ("t", 1)
EPOCH = 5
"""In which one leads and the other follows."""
PATIENT = FetchLimits(wait_ms=3_600_000)
"""Nothing but what has come ends a wait: a test in which nothing wakes the leader does not end."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "WAIT_S_MAX", 3600.0)


class _Line:
    """The leader's answers, as they come over a connection. ``alter`` may change them."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask_fetch(self, request: ClientFetchRequest, within_s: float) -> FetchResponse:
        asked = asyncio.ensure_future(self._pair.fetches.serve(request))
        waited: list[asyncio.Future[Any]] = [asked, self._ended]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            asked.cancel()
            raise LeaderUnreachableError("the line is ended")
        answer = asked.result()
        for part in answer.topics[0].partitions:
            part.records = memoryview(b"".join(part.records or []))  # type: ignore[arg-type]
            await self._pair.alter((answer.topics[0].name, part.partition), part)
        return answer

    def end(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


async def _as_it_is(_partition: Partition, _part: FetchedPartition) -> None:
    """The leader's word."""


class Pair:
    """Of brokers. The partitions that ``led`` and ``own`` have are those that the test made."""

    def __init__(self, leading: PartitionHost, following: PartitionHost, scope: TaskScope) -> None:
        self.leading, self.following = leading, following
        self.led: dict[Partition, HostedReplica] = {}
        self.own: dict[Partition, HostedReplica] = {}
        self.alter: Callable[[Partition, FetchedPartition], Awaitable[None]] = _as_it_is
        self.stale: list[Partition] = []
        self.fetches = FollowerFetches(self.led.get, lambda: 0, 1 << 20, lambda _partition: None)
        me, leader = following.me, leading.me.broker
        self.fetcher = Fetcher(me, leader, PATIENT, self._connect, lambda: 0, self.stale.append)
        self._scope = scope
        self._running: asyncio.Task[None] | None = None

    async def _connect(self, _leader: int) -> _Line:
        return _Line(self)

    async def partition(
        self,
        partition: Partition,
        led: Sequence[tuple[int, int]],
        own: Sequence[tuple[int, int]] = (),
        in_sync: bool = False,
    ) -> None:
        """Its logs have ``led`` and ``own``: (epoch, how many batches) one after the other."""
        self.led[partition] = await self.leading.replica(partition)
        self.own[partition] = await self.following.replica(partition)
        logs = ("led", self.led[partition], led), ("own", self.own[partition], own)
        for who, replica, epochs in logs:
            for epoch, count in epochs:
                await _written(replica, "both" if epoch == 1 else who, epoch, count)
        await self.play(partition, in_sync=in_sync)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - each step is a job of a lane
            await asyncio.sleep(0.002)

    async def play(self, partition: Partition, epoch: int = EPOCH, in_sync: bool = False) -> None:
        leading, me = self.leading, self.following.me
        both = leading.me.broker, me.broker
        isr = (leading.me, me) if in_sync else (leading.me,)
        state = PartitionState(both, 1, isr, (), leading.me.broker, leading.start, epoch)
        await self.led[partition].learnt(VersionedState(state, epoch))
        await self.own[partition].learnt(VersionedState(state, epoch))

    def follow(self, *partitions: Partition) -> None:
        for each in partitions:
            self.fetcher.add(each, self.own[each])
        if self._running is None:
            self._running = self._scope.spawn(self.fetcher.run(), "fetches")

    async def same(self, partition: Partition) -> None:
        """Both logs are one, byte by byte."""
        led, own = self.led[partition], self.own[partition]
        while await _content(led) != await _content(own):  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    async def append(self, partition: Partition, count: int = 1, epoch: int = EPOCH) -> None:
        """As a producer does it, at the leader."""
        told: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()
        sent = [bytearray(batch([b"later %d" % i + bytes(100)])) for i in range(count)]
        self.led[partition].append(sent, epoch, told.set_result)
        await told


Story = Callable[[Pair], Awaitable[None]]


def tell(story: Story) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            hosts = []
            for seed in (1, 2):
                world = PartitionWorld(SMALL)
                world._rng = random.Random(seed)  # else both are the same broker
                await stack.enter_async_context(world.running())
                assert world.host is not None
                hosts.append(world.host)
            scope = TaskScope("test", awaited(by="the test"))
            leading, following = hosts
            await story(Pair(leading, following, scope))
            await scope.close()

    asyncio.run(main())


async def _content(replica: HostedReplica) -> tuple[int, bytes]:
    return await replica.run(partial(_read, replica.source))


def _read(source: LocalLog) -> tuple[int, bytes]:
    """Where it begins, and all that there is."""
    found, at = b"", source.log_start
    while (piece := source.range_from(at, source.log_end, 1 << 20)) is not None:
        found += (data := piece.read())
        at = _next_offset(data)
    return source.log_start, found


def _delete_before(source: LocalLog, offset: int) -> None:
    source.delete_records(offset)
    source.drop_deleted()


def _next_offset(data: bytes) -> int:
    at = 0
    while True:
        header = read_header(data, at)
        at += header.byte_count
        if at >= len(data):
            return header.next_offset


async def _written(replica: HostedReplica, who: str, epoch: int, count: int) -> None:
    def job() -> None:
        for number in range(count):
            values = [b"%s %d.%d" % (who.encode(), epoch, number) + bytes(100)]
            replica.source.append_as_leader(batch(values), epoch, NOW_MS)

    await replica.run(job)


def test_a_follower_has_what_there_is_and_what_comes() -> None:
    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 3), (2, 9)], own=[(1, 3)], in_sync=True)
        pair.follow(ONE)
        await pair.same(ONE)
        led, own = pair.led[ONE], pair.own[ONE]
        for _ in range(3):
            await pair.append(ONE)
            await pair.same(ONE)
        await pair.until(lambda: led.high_watermark == 15)
        # It is told with what comes: the last batch had not been committed when it was sent.
        await pair.until(lambda: own.high_watermark == 14)

    tell(story)


def test_what_comes_with_an_answer_is_known_to_be_committed_with_it() -> None:
    """The next answer may come an hour later."""

    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 12)])
        pair.follow(ONE)
        await pair.until(lambda: pair.own[ONE].high_watermark == 12)

    tell(story)


def test_many_batches_come_in_several_answers() -> None:
    async def story(pair: Pair) -> None:
        pair.fetches._bytes_max = 400
        await pair.partition(ONE, led=[(1, 12)])
        await pair.partition(TWO, led=[(1, 12)])
        sizes: list[int] = []

        async def measured(_partition: Partition, part: FetchedPartition) -> None:
            assert isinstance(part.records, memoryview)
            sizes.append(len(part.records))

        pair.alter = measured
        pair.follow(ONE, TWO)
        await pair.same(ONE)
        await pair.same(TWO)
        assert max(map(sum, zip(sizes[::2], sizes[1::2], strict=False))) <= 400

    tell(story)


def test_a_log_is_cut_where_it_parts_from_its_leaders() -> None:
    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 3), (3, 6)], own=[(1, 5), (2, 2)])
        pair.follow(ONE)
        await pair.same(ONE)

    tell(story)


def test_a_log_that_is_longer_than_its_leaders_is_cut() -> None:
    """The leader lost what was not synced, and nobody has written since."""

    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 5)], own=[(1, 8)])
        pair.follow(ONE)
        await pair.same(ONE)
        assert pair.own[ONE].source.log_end == 5

    tell(story)


def test_a_log_that_ends_before_its_leaders_begins_anew() -> None:
    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 12)], own=[(1, 4)])
        await pair.led[ONE].run(partial(_delete_before, pair.led[ONE].source, 9))
        pair.follow(ONE)
        await pair.same(ONE)
        assert (pair.own[ONE].source.log_start, pair.own[ONE].source.log_end) == (9, 12)

    tell(story)


def test_what_a_leader_deletes_is_deleted_as_far_as_it_is_committed() -> None:
    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 12)], own=[(1, 12)], in_sync=True)
        pair.follow(ONE)
        own = pair.own[ONE].source
        await pair.append(ONE)
        await pair.until(lambda: pair.own[ONE].high_watermark == 12)
        await pair.led[ONE].run(partial(_delete_before, pair.led[ONE].source, 9))
        await pair.append(ONE)
        await pair.until(lambda: own.log_start == 9)
        assert own.segments[0].base_offset > 0, "the files go, too"

        async def too_far(_partition: Partition, part: FetchedPartition) -> None:
            part.log_start_offset = 1000

        pair.alter = too_far
        for _ in range(2):  # and it is fetched on
            await pair.append(ONE)
            await pair.same(ONE)
        assert own.log_start == 9

    tell(story)


def test_one_that_is_followed_later_does_not_wait_for_the_answer_under_way() -> None:
    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 4)])
        await pair.partition(TWO, led=[(1, 4)])
        pair.follow(ONE)
        await pair.same(ONE)
        await pair.until(lambda: bool(pair.led[ONE]._watchers))  # its fetch is held back
        pair.follow(TWO)
        await pair.same(TWO)
        pair.fetcher.remove(TWO)
        await pair.append(TWO)
        await pair.append(ONE)
        await pair.same(ONE)
        await pair.append(ONE)
        await pair.same(ONE)
        assert pair.own[TWO].source.log_end == 4

    tell(story)


def test_a_batch_that_came_damaged_is_not_stored_and_others_are() -> None:
    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 4)])
        await pair.partition(TWO, led=[(1, 4)])

        async def flipped(partition: Partition, part: FetchedPartition) -> None:
            if partition == ONE:
                assert isinstance(part.records, memoryview)
                data = bytearray(part.records)
                data[-1] ^= 1
                part.records = memoryview(data)

        pair.alter = flipped
        pair.follow(ONE, TWO)
        await pair.until(lambda: pair.own[ONE].failure is not None)
        await pair.same(TWO)
        assert pair.own[TWO].failure is None
        assert pair.own[ONE].source.log_end < 4, "not the damaged one"

    tell(story)


def test_one_that_is_refused_asks_what_is_stored_and_others_go_on() -> None:
    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 4)])
        await pair.partition(TWO, led=[(1, 4)])
        state = pair.led[ONE].stored
        assert state is not None
        later = replace(state.state, leader_epoch=EPOCH + 1)
        await pair.led[ONE].learnt(VersionedState(later, EPOCH + 1))  # the follower knows it not
        pair.follow(ONE, TWO)
        await pair.same(TWO)
        await pair.until(lambda: ONE in pair.stale)
        assert TWO not in pair.stale
        assert pair.own[ONE].source.log_end == 0
        await pair.own[ONE].learnt(VersionedState(later, EPOCH + 1))
        pair.fetcher.add(ONE, pair.own[ONE])
        await pair.same(ONE)

    tell(story)


def test_an_answer_of_an_epoch_that_is_over_changes_nothing() -> None:
    """It was on its way when this broker heard of another leader, who may have other batches."""

    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 4)])
        own = pair.own[ONE]
        state = own.stored
        assert state is not None
        heard = asyncio.Event()

        async def overtaken(_partition: Partition, _part: FetchedPartition) -> None:
            if not heard.is_set():
                another = replace(state.state, leader=77, leader_epoch=EPOCH + 1)
                await own.learnt(VersionedState(another, EPOCH + 1))
                heard.set()

        pair.alter = overtaken
        pair.follow(ONE)
        await heard.wait()
        await pair.partition(TWO, led=[(1, 4)])
        pair.follow(TWO)
        await pair.same(TWO)
        assert own.source.log_end == 0

    tell(story)


def test_an_answer_for_a_replica_that_is_followed_no_more_changes_nothing() -> None:
    async def story(pair: Pair) -> None:
        await pair.partition(ONE, led=[(1, 4)])
        await pair.partition(TWO, led=[(1, 4)])

        async def removed(partition: Partition, _part: FetchedPartition) -> None:
            if partition == TWO:
                pair.fetcher.remove(ONE)

        pair.alter = removed
        pair.follow(ONE, TWO)
        await pair.same(TWO)
        assert pair.own[ONE].source.log_end == 0

    tell(story)
