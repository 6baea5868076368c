"""What a follower asks its leader for while its disk has no room."""

from __future__ import annotations

import asyncio
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
from magnetar.wire.kafka.fetch_messages import ClientFetchRequest, FetchResponse
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
