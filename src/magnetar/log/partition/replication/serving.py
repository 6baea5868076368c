"""Followers' fetches, answered by the broker that leads: Kafka's Fetch with a replica's number.

Owns the way from a request for many partitions to one answer: each partition's leader machine says
what may be sent, batches are read on its lane, and a fetch that finds nothing is held back until a
log grows or the follower's patience ends.

Rules:

* What a request says of a follower's log (its offset) counts before anything is read; but not of
  the log of a topic that was deleted, whose name this one has: its epochs are as high, and its
  records are not these.
* A partition that is refused ends the wait: its follower has to look at the state.
* One that cannot be read is refused alone: what else its follower asks for has nothing to do with
  it, and must not go out of sync for it.
* The first partition that has something gives one whole batch at least; all keep to the request's
  bounds and to ``bytes_max``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.replication.leader import FetchGrant, FetchRequest, PartitionLeader
from magnetar.log.partition.replication.partition_state import Member, topic_number
from magnetar.model.errors import (
    CorruptBatchError,
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    PartitionError,
    UnknownLeaderEpochError,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    DivergingEpoch,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchResponse,
)

log = structlog.get_logger(__name__)

WAIT_S_MAX: Final = 5.0


class FollowerFetches:
    """``find`` gives this broker's replica of a partition, if it has one. ``counted`` is told when
    a follower's word for its log has counted: it may be in sync now."""

    def __init__(
        self,
        find: Callable[[Partition], HostedReplica | None],
        now_ms: Callable[[], int],
        bytes_max: int,
        counted: Callable[[Partition], None],
    ) -> None:
        self._counted = counted
        self._find = find
        self._now_ms = now_ms
        self._bytes_max = bytes_max
        self._unreadable: dict[Partition, int] = {}

    def tell_unreadable(self, replica: HostedReplica, offset: int, error: Exception) -> None:
        """Once for each place: its follower asks again and again."""
        if self._unreadable.get(replica.partition) == offset:
            return
        self._unreadable[replica.partition] = offset
        log.error(
            "a leader's log cannot be read: its followers do not get on, and nothing more is "
            "committed once they are out of sync. Have another replica lead, or mend the disk",
            partition=replica.name,
            offset=offset,
            error=str(error),
        )

    async def serve(self, request: ClientFetchRequest) -> FetchResponse:
        """One answer, perhaps after a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(0, request.wait_ms_max) / 1000, WAIT_S_MAX)
        grown = asyncio.Event()
        watches: dict[int, Callable[[], None]] = {}
        try:
            while True:
                grown.clear()
                look = _Look(self, request)
                for each in look.leading:  # before anything is read: what comes then is told
                    if id(each) not in watches:
                        watches[id(each)] = each.watch(grown.set)
                answer = await look.collect()
                left_s = deadline - loop.time()
                if look.size or look.told or left_s <= 0:
                    return answer
                await _wait(grown, left_s)
        finally:
            for end in watches.values():
                end()


async def _wait(grown: asyncio.Event, at_most_s: float) -> None:
    timer = asyncio.get_running_loop().call_later(at_most_s, grown.set)
    try:
        await grown.wait()
    finally:
        timer.cancel()


class _Look:
    """One look at all that a follower asks for. ``told``: something besides batches is answered."""

    def __init__(self, fetches: FollowerFetches, request: ClientFetchRequest) -> None:
        self.size = 0
        self.told = False
        self.leading: dict[HostedReplica, None] = {}
        self._fetches = fetches
        self._request = request
        self._left = min(request.bytes_max, fetches._bytes_max)
        for topic in request.topics:
            for part in topic.partitions:
                found = fetches._find((topic.name, part.partition))
                if found is not None:
                    self.leading[found] = None

    async def collect(self) -> FetchResponse:
        answer = FetchResponse()
        for topic in self._request.topics:
            said = FetchedTopic(topic.name)
            answer.topics.append(said)
            for part in topic.partitions:
                said.partitions.append(await self._one((topic.name, part.partition), part))
        return answer

    async def _one(self, partition: Partition, part: FetchPartition) -> FetchedPartition:
        found = FetchedPartition(part.partition, aborted=[], records=[])
        replica = self._fetches._find(partition)
        leader = None if replica is None else replica.machine.leader
        if replica is None or leader is None:
            self._refuse(found, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return found
        own = topic_number(replica.topic_id)
        if part.replica_topic and own and part.replica_topic != own:
            self._refuse(found, ErrorCode.UNKNOWN_TOPIC_ID)
            return found
        before = leader.high_watermark
        # Whoever let go of segments may have ended before it could say so.
        leader.trimmed(replica.source.first_base)
        try:
            grant = self._granted(leader, part)
        except FencedLeaderEpochError:
            self._refuse(found, ErrorCode.FENCED_LEADER_EPOCH)
        except UnknownLeaderEpochError:
            self._refuse(found, ErrorCode.UNKNOWN_LEADER_EPOCH)
        except OffsetOutOfRangeError:
            self._refuse(found, ErrorCode.OFFSET_OUT_OF_RANGE)
            # A follower cuts its log by it; a client's answer has no such meaning.
            found.log_start_offset, found.high_watermark = leader.log_start, leader.log_end
        else:
            if leader.high_watermark > before:
                replica.advanced()  # only then: other fetches that wait would wake one another
            self._fetches._counted(partition)
            await self._fill(found, replica, leader, grant, part)
        return found

    def _refuse(self, found: FetchedPartition, code: ErrorCode) -> None:
        found.error_code = code
        self.told = True

    def _granted(self, leader: PartitionLeader, part: FetchPartition) -> FetchGrant:
        follower = Member(self._request.replica_id, self._request.replica_lineage)
        epoch, offset = part.current_leader_epoch, part.fetch_offset
        request = FetchRequest(follower, epoch, offset, part.last_fetched_epoch)
        return leader.fetched(request, self._fetches._now_ms())

    async def _fill(
        self,
        found: FetchedPartition,
        replica: HostedReplica,
        leader: PartitionLeader,
        grant: FetchGrant,
        part: FetchPartition,
    ) -> None:
        # Exact: the machine's is where the first batch begins, from which followers can fetch.
        found.log_start_offset = max(grant.log_start, replica.source.log_start)
        if grant.diverging is not None:
            found.diverging_epoch = DivergingEpoch(*grant.diverging)
            self.told = True
        most = min(self._left, part.partition_bytes_max)
        wanted = grant.diverging is None and part.fetch_offset < grant.end_offset
        if wanted and (most > 0 or not self.size):
            read = partial(_read, replica.source, part.fetch_offset, grant.end_offset, max(most, 1))
            try:
                data = await replica.run(read)
            except PartitionError:  # trimmed meanwhile: the next fetch is told where it begins
                self._refuse(found, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return
            except (OSError, CorruptBatchError) as error:
                if replica.failure is None:  # else its files are closed
                    self._fetches.tell_unreadable(replica, part.fetch_offset, error)
                self._refuse(found, ErrorCode.KAFKA_STORAGE_ERROR)
                return
            if replica.machine.leader is not leader:
                # The log may have been cut since: what was read is nobody's any more.
                self._refuse(found, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return
            found.records = [data]
            self.size += len(data)
            self._left -= len(data)
        # The latest there is: what was read is no reason to tell an older one.
        found.high_watermark = found.last_stable_offset = leader.high_watermark


def _read(source: LocalLog, offset: int, end_offset: int, bytes_max: int) -> bytes:
    found = source.range_from(offset, end_offset, bytes_max)
    return b"" if found is None else found.read()
