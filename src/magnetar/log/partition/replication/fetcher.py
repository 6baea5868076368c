"""The followers of one leading broker: all of this broker's replicas that follow it, fetched
together.

Owns the connection to it, and the order of what a fetch does: ask, store, ask on. What to ask and
what an answer means is ``follower``'s to say.

Rules:

* One fetch is under way at a time, for all partitions that follow and have no back-off. The next is
  sent when all that this one brought is stored: its offsets are this broker's word that it has all
  before them.
* What is done to a log is one job on the partition's lane, and what it was done for is looked at
  again behind it: a part may have ended meanwhile.
* A partition that is refused (its leader has not heard of the epoch, or of its end, or has a log
  of another making of the topic) backs off alone, and its state is read again. A broker that is
  not reached backs off for all; both pauses grow to ``PAUSE_S_MAX``.
* Partitions that are added while the leader holds a fetch back do not wait for it: the fetch is
  given up with its connection.
* Where the disk has no room left (``room``) nothing is asked for: the leader has this broker leave
  the in-sync set, and it goes on by itself.
* A log that could not be written, or got from its leader what is no batch, is not fetched any
  more: the replica fails (``HostedReplica.fail``), and whoever keeps it sees to it.

Bounds: ``FetchLimits``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.leader_epochs import EpochEnd
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.replication.follower import (
    AppendAnswer,
    CutTo,
    PartitionFollower,
    RestartAt,
    Step,
)
from magnetar.log.partition.replication.leader import FetchGrant, FetchRequest
from magnetar.log.partition.replication.partition_state import Member, topic_number
from magnetar.log.partition.replication.wake import Wake
from magnetar.model.errors import (
    CorruptBatchError,
    LeaderUnreachableError,
    MetadataError,
    ProtocolError,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    FetchTopic,
)

log = structlog.get_logger(__name__)

PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0
IDLE_S: Final = 60.0
ANSWER_SLACK_S: Final = 10.0


class FetchLimits(NamedTuple):
    """Of one fetch [replica.fetch.wait.max.ms, .response.max.bytes, .max.bytes]."""

    wait_ms: int = 500
    bytes_max: int = 10 << 20
    partition_bytes_max: int = 1 << 20


class Line(Protocol):
    """A connection to the leading broker."""

    async def ask_fetch(self, request: ClientFetchRequest, within_s: float) -> FetchResponse:
        """Raises ``LeaderUnreachableError``."""
        ...

    def end(self, why: str) -> None: ...


class _Asked(NamedTuple):
    replica: HostedReplica
    follower: PartitionFollower
    request: FetchRequest


class _Pause:
    """Grows with each failure; a success ends it."""

    def __init__(self) -> None:
        self.until_s = 0.0
        self._next_s = PAUSE_S_MIN

    def failed(self, now_s: float) -> None:
        self.until_s = now_s + self._next_s
        self._next_s = min(PAUSE_S_MAX, 2 * self._next_s)

    def over(self) -> None:
        self.until_s, self._next_s = 0.0, PAUSE_S_MIN


class Fetcher:
    """From broker ``leader``. ``connect`` opens a line to it, wherever it is now (raises
    ``LeaderUnreachableError``, ``MetadataError`` is one too); ``now_ms``: the date, as logs are
    written with; ``stale`` has a partition's state read again."""

    def __init__(
        self,
        me: Member,
        leader: int,
        limits: FetchLimits,
        connect: Callable[[int], Awaitable[Line]],
        now_ms: Callable[[], int],
        stale: Callable[[Partition], None],
    ) -> None:
        self.leader = leader
        self.members: dict[Partition, HostedReplica] = {}
        self._me = me
        self._limits = limits
        self._connect = connect
        self._now_ms = now_ms
        self._stale = stale
        self._line: Line | None = None
        self._waits = False
        """The leader may be holding a fetch back."""
        self._wake = Wake()
        self._pause = _Pause()
        self._pauses: dict[Partition, _Pause] = {}

    def add(self, partition: Partition, replica: HostedReplica) -> None:
        """It follows this leader, from its log's end on."""
        self.members[partition] = replica
        self._pauses.pop(partition, None)
        if self._waits and self._line is not None:
            self._line.end("more partitions are to be fetched")
        self._wake.set()

    def remove(self, partition: Partition) -> None:
        """It does not any more; what is under way for it changes nothing."""
        self.members.pop(partition, None)
        self._pauses.pop(partition, None)

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                pause_s = self._pause.until_s - loop.time()
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                asked = self._next(loop.time())
                if not asked:
                    await self._wake.wait(self._idle_s(loop.time()))
                    continue
                await self._fetch(asked)
        finally:
            self._end_line("this broker does not follow it any more")

    def _idle_s(self, now_s: float) -> float:
        """Until the first back-off of a partition is over."""
        ends = [pause.until_s - now_s for pause in self._pauses.values()]
        return max(0.001, min([IDLE_S, *ends]))

    # -- asking -------------------------------------------------------------------------------

    def _next(self, now_s: float) -> dict[Partition, _Asked]:
        found = {}
        for partition, each in self.members.items():
            follower = each.machine.follower
            pause = self._pauses.get(partition)
            if follower is None or follower.leader != self.leader:
                continue
            if not each.room.follows:
                self._refrain(partition, now_s)
                continue
            if pause is None or pause.until_s <= now_s:
                found[partition] = _Asked(each, follower, follower.next_fetch())
        return found

    def _refrain(self, partition: Partition, now_s: float) -> None:
        """The disk has no room: it is asked again later, and out of sync by then."""
        pause = self._pauses.get(partition)
        if pause is None or pause.until_s <= now_s:
            pause = self._pauses.setdefault(partition, _Pause())
            pause.failed(now_s)

    async def _fetch(self, asked: Mapping[Partition, _Asked]) -> None:
        loop = asyncio.get_running_loop()
        within_s = self._limits.wait_ms / 1000 + ANSWER_SLACK_S
        added = len(self.members)
        try:
            line = self._line
            if line is None:
                line = self._line = await self._connect(self.leader)
            self._waits = True
            answer = await line.ask_fetch(self._request(asked), within_s)
        except (LeaderUnreachableError, MetadataError) as error:
            self._end_line(str(error))
            if len(self.members) == added:
                log.debug("leader is not reached", leader=self.leader, error=str(error))
                self._pause.failed(loop.time())
            return
        finally:
            self._waits = False
        self._pause.over()
        await self._take(asked, answer)

    def _end_line(self, why: str) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.end(why)

    def _request(self, asked: Mapping[Partition, _Asked]) -> ClientFetchRequest:
        topics: dict[str, FetchTopic] = {}
        for (topic, number), (replica, _, request) in asked.items():
            said = topics.setdefault(topic, FetchTopic(topic))
            said.partitions.append(
                FetchPartition(
                    number,
                    current_leader_epoch=request.leader_epoch,
                    fetch_offset=request.offset,
                    last_fetched_epoch=request.last_epoch,
                    partition_bytes_max=self._limits.partition_bytes_max,
                    replica_topic=topic_number(replica.topic_id),
                )
            )
        return ClientFetchRequest(
            replica_id=self._me.broker,
            replica_lineage=self._me.lineage,
            wait_ms_max=self._limits.wait_ms,
            bytes_min=1,
            bytes_max=self._limits.bytes_max,
            topics=list(topics.values()),
        )

    # -- answers ------------------------------------------------------------------------------

    async def _take(self, asked: Mapping[Partition, _Asked], answer: FetchResponse) -> None:
        """All at once, each on its lane; done when all are."""
        jobs = []
        for topic in answer.topics:
            for part in topic.partitions:
                partition = topic.name, part.partition
                found = asked.get(partition)
                if found is None or self.members.get(partition) is not found.replica:
                    continue
                if _is_quiet(found, part):  # as nearly all are where there are many
                    self._step(partition, found, part)
                    found.replica.advanced()
                else:
                    jobs.append(self._taken(partition, found, part))
        for outcome in await asyncio.gather(*jobs, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _taken(self, partition: Partition, asked: _Asked, part: FetchedPartition) -> None:
        try:
            step = self._step(partition, asked, part)
            await self._do(partition, asked, step, part)
        except (OSError, CorruptBatchError, ProtocolError) as error:
            asked.replica.fail(error)

    def _step(self, partition: Partition, asked: _Asked, part: FetchedPartition) -> Step:
        follower, request = asked.follower, asked.request
        if asked.replica.machine.follower is not follower:
            return None
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # To a replica the high watermark of such an answer is the end of the leader's log.
            return follower.out_of_range(request, part.log_start_offset, part.high_watermark)
        if part.error_code != ErrorCode.NONE:
            self._refused(partition, part.error_code)
            return None
        self._pauses.pop(partition, None)
        return follower.answered(request, _grant(request, part), bool(part.records))

    def _refused(self, partition: Partition, code: int) -> None:
        pause = self._pauses.setdefault(partition, _Pause())
        pause.failed(asyncio.get_running_loop().time())
        log.debug("leader refuses a fetch", partition=partition, leader=self.leader, code=code)
        self._stale(partition)

    async def _do(
        self, partition: Partition, asked: _Asked, step: Step, part: FetchedPartition
    ) -> None:
        replica, follower, source = asked.replica, asked.follower, asked.replica.source
        if step is None:
            replica.advanced()  # the leader may have told of a later high watermark
            if part.error_code == ErrorCode.NONE:  # or of a later start, with nothing to append
                await self._follow_start(asked, part)
            return
        if isinstance(step, AppendAnswer):
            assert isinstance(part.records, memoryview)
            replica.room.took(len(part.records))
            job = partial(_append, source, part.records, self._now_ms())
        elif isinstance(step, CutTo):
            log.info("log is cut", log=replica.name, at=step.end_offset, end=source.log_end)
            job = partial(_cut, source, step.end_offset, self._now_ms())
        else:
            assert isinstance(step, RestartAt)
            log.info("log begins anew", log=replica.name, at=step.offset)
            job = partial(_restart, source, step.offset, self._now_ms())

        def done() -> None:
            if isinstance(step, CutTo):
                follower.cut(source.log_end)
            else:
                follower.stored(source.log_end, part.high_watermark)

        await replica.follow(follower, job, done)
        await self._follow_start(asked, part)

    async def _follow_start(self, asked: _Asked, part: FetchedPartition) -> None:
        """What the leader has deleted is deleted here, as far as it is known to be committed."""
        source, start = asked.replica.source, part.log_start_offset
        if source.log_start < start <= asked.follower.high_watermark:
            await asked.replica.follow(asked.follower, partial(_delete_before, source, start))


def _is_quiet(asked: _Asked, part: FetchedPartition) -> bool:
    """Nothing is to be done to the log for it."""
    return (
        part.error_code == ErrorCode.NONE
        and not part.records
        and part.diverging_epoch is None
        and part.log_start_offset <= asked.replica.source.log_start
    )


def _delete_before(source: LocalLog, start: int) -> None:
    source.delete_records(start)
    source.drop_deleted()  # nobody else does: retention is the leader's


def _grant(request: FetchRequest, part: FetchedPartition) -> FetchGrant:
    """An answer without an error is of the epoch that was asked for."""
    diverging = part.diverging_epoch
    return FetchGrant(
        request.leader_epoch,
        part.high_watermark,
        part.log_start_offset,
        -1,  # what the leader has is in the answer
        None if diverging is None else EpochEnd(diverging.epoch, diverging.end_offset),
    )


def _append(source: LocalLog, records: memoryview, now_ms: int) -> None:
    source.append_as_follower(records, now_ms)


def _cut(source: LocalLog, end_offset: int, now_ms: int) -> None:
    source.truncate(end_offset, now_ms)


def _restart(source: LocalLog, offset: int, now_ms: int) -> None:
    source.restart_at(offset, now_ms)
