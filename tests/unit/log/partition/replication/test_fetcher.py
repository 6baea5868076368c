"""What a follower asks its leader for while its disk has no room."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.leader_epochs import LeaderEpochs
from magnetar.log.partition.replication.fetcher import Fetcher, FetchLimits, Line
from magnetar.log.partition.replication.follower import PartitionFollower
from magnetar.log.partition.replication.partition_state import Member
from magnetar.log.partition.room import DiskRoom
from magnetar.model.errors import LeaderUnreachableError
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    FetchedPartition,
    FetchedTopic,
    FetchResponse,
)
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.partition.test_space import MIB, RULES, TellingDisk

ME = Member(2, 7)
TOPIC_ID = "0" * 32


class _Line:
    """Never answers; ``asked``: the offsets that were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.was_asked = asyncio.Event()

    async def ask_fetch(self, request: ClientFetchRequest, within_s: float) -> FetchResponse:
        self.asked += [part.fetch_offset for topic in request.topics for part in topic.partitions]
        self.was_asked.set()
        await asyncio.sleep(0.02)
        raise LeaderUnreachableError("it does not answer")

    def end(self, why: str) -> None: ...


def test_nothing_is_fetched_for_a_disk_without_room_until_it_has_some(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, line = TellingDisk(free=MIB), _Line()
        room = DiskRoom(disk, tmp_path, RULES)
        room.look()
        follower = PartitionFollower(ME, 1, 3, LeaderEpochs(), log_end=0, high_watermark=0)
        replica = SimpleNamespace(
            machine=SimpleNamespace(follower=follower), room=room, topic_id=TOPIC_ID
        )

        async def connect(_leader: int) -> Line:
            return line

        limits = FetchLimits()
        fetcher = Fetcher(ME, 1, limits, connect, lambda: 0, lambda _partition: None)
        fetcher.add(("t", 0), cast(HostedReplica, replica))
        running = asyncio.create_task(fetcher.run())
        await asyncio.sleep(0.3)
        assert line.asked == []
        disk.free = 1 << 40
        room.look()
        async with asyncio.timeout(10):
            await line.was_asked.wait()
        running.cancel()

    asyncio.run(scenario())


class _Moody:
    """Each fetch is answered by the next of ``moods``: an error's code for partition 0, or no
    answer (None). ``asked_s``: when, and for how many partitions."""

    def __init__(self, moods: list[int | None]) -> None:
        self.asked_s: list[tuple[float, int]] = []
        self.ended = 0
        self._moods = moods

    async def ask_fetch(self, request: ClientFetchRequest, within_s: float) -> FetchResponse:
        asked = [part for topic in request.topics for part in topic.partitions]
        self.asked_s.append((round(asyncio.get_running_loop().time(), 3), len(asked)))
        if not self._moods:
            await asyncio.Event().wait()
        if (mood := self._moods.pop(0)) is None:
            raise LeaderUnreachableError("it does not answer")
        parts = [
            FetchedPartition(each.partition, 0 if each.partition else mood, high_watermark=0)
            for each in asked
        ]
        await asyncio.sleep(0.001)
        return FetchResponse(topics=[FetchedTopic("t", partitions=parts)])

    def end(self, why: str) -> None:
        self.ended += 1


def _told_by(line: _Moody, partitions: int, until_s: float) -> list[tuple[str, int]]:
    """Which states are read again, of partitions that have nothing to fetch."""
    stale: list[tuple[str, int]] = []

    async def scenario() -> None:
        async def connect(_leader: int) -> Line:
            return line

        fetcher = Fetcher(ME, 1, FetchLimits(), connect, lambda: 0, stale.append)
        room, source = SimpleNamespace(follows=True), SimpleNamespace(log_start=0, log_end=0)
        for number in range(partitions):
            follower = PartitionFollower(ME, 1, 3, LeaderEpochs(), log_end=0, high_watermark=0)
            replica = SimpleNamespace(
                machine=SimpleNamespace(follower=follower),
                room=room,
                topic_id=TOPIC_ID,
                source=source,
                advanced=lambda: None,
            )
            fetcher.add(("t", number), cast(HostedReplica, replica))
        running = asyncio.create_task(fetcher.run())
        await asyncio.sleep(until_s)
        running.cancel()
        await asyncio.wait([running])

    run_virtual(scenario())
    return stale


def _gaps(times_s: list[float]) -> list[float]:
    return [round(b - a, 3) for a, b in itertools.pairwise(times_s)]


def test_a_leader_that_is_not_reached_is_asked_less_and_less_often() -> None:
    line = _Moody([*[None] * 7, 0, None])
    _told_by(line, 1, 30)
    assert _gaps([at for at, _ in line.asked_s]) == [
        0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0,
        0.001,  # it has answered
        0.05,
    ]  # fmt: skip
    assert line.ended == 9, "each time that it did not answer, and in the end"


def test_a_partition_that_is_refused_rests_alone() -> None:
    refused = int(ErrorCode.FENCED_LEADER_EPOCH)
    line = _Moody([refused] * 200)
    stale = _told_by(line, 2, 0.2)
    rests = [at for at, count in line.asked_s if count == 2]
    assert _gaps(rests) == [0.051, 0.101], "asked again after 50 ms, then after 100"
    assert stale == [("t", 0)] * 3
    assert len(line.asked_s) > 150, "the other one is fetched for all the time"


def test_a_refusal_that_is_over_is_forgotten() -> None:
    refused = int(ErrorCode.FENCED_LEADER_EPOCH)
    line = _Moody([refused, refused, refused, 0, refused, 0])
    _told_by(line, 1, 30)
    assert _gaps([at for at, _ in line.asked_s]) == [0.051, 0.101, 0.201, 0.001, 0.051, 0.001]
