"""Followers' fetches at the broker that leads: what one partition suffers is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
import structlog

from magnetar.log.partition.group_append import Outcome
from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.limits import PartitionPolicy
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.serving import FollowerFetches
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.model.errors import CorruptBatchError
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    FetchedPartition,
    FetchPartition,
    FetchTopic,
)
from tests.unit.log.partition.kit import batch
from tests.unit.log.partition.world import SMALL, PartitionWorld

FOLLOWER = Member(99, 990)
Story = Callable[[list[HostedReplica], FollowerFetches], Awaitable[None]]


def tell(story: Story, policy: PartitionPolicy = SMALL) -> None:
    """With two partitions of topic ``t`` that are led here, twelve batches each."""

    async def main() -> None:
        world = PartitionWorld(policy)
        async with asyncio.timeout(60), world.running():
            host = world.host
            assert host is not None
            led = []
            for number in range(2):
                replica = await host.replica(("t", number))
                me = host.me
                state = PartitionState((me.broker, 99), 1, (me,), (), me.broker, host.start, 1)
                await replica.learnt(VersionedState(state, 0))
                await _fill(replica, 12)
                led.append(replica)
            find = dict(zip((("t", 0), ("t", 1)), led, strict=True)).get
            await story(led, FollowerFetches(find, lambda: 0, 1 << 20, lambda _partition: None))

    asyncio.run(main())


async def _fill(replica: HostedReplica, count: int) -> None:
    told: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()
    sent = [bytearray(batch([bytes(100)])) for _ in range(count)]
    replica.append(sent, 1, told.set_result)
    await told


async def _fetched(
    fetches: FollowerFetches, offset: int = 0, replica_topic: int = 0
) -> list[FetchedPartition]:
    asked = [
        FetchPartition(
            number,
            current_leader_epoch=1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            partition_bytes_max=1 << 20,
            replica_topic=replica_topic,
        )
        for number in range(2)
    ]
    request = ClientFetchRequest(
        replica_id=FOLLOWER.broker,
        replica_lineage=FOLLOWER.lineage,
        wait_ms_max=0,
        bytes_min=1,
        bytes_max=1 << 20,
        topics=[FetchTopic("t", partitions=asked)],
    )
    (topic,) = (await fetches.serve(request)).topics
    return topic.partitions


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), CorruptBatchError("it is none")])
def test_one_that_cannot_be_read_does_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def story(led: list[HostedReplica], fetches: FollowerFetches) -> None:
        def fails(*_: object) -> None:
            raise error

        monkeypatch.setattr(led[0].source, "range_from", fails)
        with structlog.testing.capture_logs() as logs:
            for offset in (0, 0, 5):
                one, other = await _fetched(fetches, offset)
                assert one.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert other.error_code == ErrorCode.NONE
                assert other.records, "its batches"
        # Its follower asks again and again.
        assert [(each["partition"], each["offset"]) for each in logs] == [
            ("partition t-0", 0),
            ("partition t-0", 5),
        ]

    tell(story)


def test_a_follower_is_told_where_a_log_begins_whoever_let_the_rest_go() -> None:
    """The topic was closed while its retention was under way: nobody told the leader. A follower
    that was behind was refused for ever, as by a broker that does not lead."""

    async def story(led: list[HostedReplica], fetches: FollowerFetches) -> None:
        source = led[0].source

        def job() -> None:
            source.delete_records(9)
            source.drop_deleted()

        await led[0].run(job)
        one, other = await _fetched(fetches)
        assert one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (one.log_start_offset, one.high_watermark) == (9, 12)
        assert other.error_code == ErrorCode.NONE
        one, _ = await _fetched(fetches, 9)
        assert one.error_code == ErrorCode.NONE
        assert one.records

    tell(story)


def test_what_was_read_while_another_began_to_lead_is_not_given() -> None:
    """The log may have been cut meanwhile, and go on with what another has written."""

    async def story(led: list[HostedReplica], fetches: FollowerFetches) -> None:
        source = led[0].source
        read = source.range_from

        def meanwhile(*asked: int) -> object:
            led[0].machine.leader = None
            return read(*asked)

        source.range_from = meanwhile  # type: ignore[assignment, method-assign]
        one, other = await _fetched(fetches)
        assert one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not one.records
        assert other.error_code == ErrorCode.NONE

    tell(story)


def test_a_follower_is_told_of_records_that_were_deleted_within_a_batch() -> None:
    async def story(led: list[HostedReplica], fetches: FollowerFetches) -> None:
        source = led[0].source
        told: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()
        led[0].append([bytearray(batch([b"1", b"2", b"3"]))], 1, told.set_result)
        await told
        await led[0].run(lambda: source.delete_records(13))
        assert (source.first_base, source.log_start) == (12, 13)
        one, _ = await _fetched(fetches, 12)
        assert one.error_code == ErrorCode.NONE
        assert one.records, "the batch comes whole"
        assert one.log_start_offset == 13

    tell(story)


def test_a_follower_of_a_deleted_topic_does_not_count() -> None:
    """Its broker has not heard that the topic was made again, with as high an epoch: what it has at
    those offsets is something else, and goes when it hears."""

    async def story(led: list[HostedReplica], fetches: FollowerFetches) -> None:
        led[0].topic_id, led[1].topic_id = f"{7:032x}", f"{8:032x}"
        one, other = await _fetched(fetches, 12, replica_topic=7)
        assert (one.error_code, other.error_code) == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID)
        leaders = [each.machine.leader for each in led]
        assert [leader and FOLLOWER in leader._followers for leader in leaders] == [True, False]

    tell(story)
