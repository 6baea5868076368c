"""Where partitions lie, as admins ask; and that they stay there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magnetar.cluster.topic_name import parse_topic
from magnetar.env.files.disk import DiskSpace
from magnetar.log.policy import PieceRule
from magnetar.protocols.kafka.services import KeptReplica
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.log_dir_messages import (
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    LogDir,
    MovesToDir,
)
from magnetar.wire.kafka.partition_messages import (
    AlterPartitionReassignmentsRequest,
    PartitionsOfTopic,
    ReassignPartition,
    ReassignTopic,
)
from magnetar.wire.kafka.produce_messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, run

PATH = "/var/lib/partitions"


class SomeDirectory:
    """``services.PartitionDirectory``."""

    path = PATH
    pieces = PieceRule()
    fails = False

    async def space(self) -> DiskSpace:
        if self.fails:
            raise OSError("it is gone")
        return DiskSpace(1000, 300)

    def kept(self) -> Sequence[KeptReplica]:
        return [
            KeptReplica("p", 0, 50, 0),
            KeptReplica("p", 2, 70, 4),
            KeptReplica("a/b/q", 0, 1, 0),
        ]


async def dirs(peer: KafkaPeer, *topics: PartitionsOfTopic) -> list[LogDir]:
    asked = DescribeLogDirsRequest(list(topics) or None)
    answer = await peer.ask(ApiKey.DESCRIBE_LOG_DIRS, asked)
    assert answer.error_code == 0
    found: list[LogDir] = answer.results
    return found


async def moved(peer: KafkaPeer, path: str, name: str, index: int = 0) -> int:
    """The error of the answer."""
    asked = AlterReplicaLogDirsRequest([MovesToDir(path, [PartitionsOfTopic(name, [index])])])
    (topic,) = (await peer.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, asked)).results
    assert (topic.name, topic.partitions[0].index) == (name, index)
    error: int = topic.partitions[0].error_code
    return error


def sizes(found: LogDir) -> dict[tuple[str, int], tuple[int, int]]:
    assert not any(part.is_future for topic in found.topics for part in topic.partitions)
    return {
        (topic.name, part.index): (part.byte_count, part.lag)
        for topic in found.topics
        for part in topic.partitions
    }


def test_sizes_of_both_engines() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await world.services.control.partitioned.create(parse_topic("idle"), 2)
        sent = batch(20)
        part = ProducePartition(0, memoryview(sent))
        await peer.ask(ApiKey.PRODUCE, ProduceRequest(None, -1, 1, [ProduceTopic("t", [part])]))
        (ledgers,) = await dirs(peer)
        assert (ledgers.path, ledgers.total_bytes) == ("ledgers", -1)
        found = sizes(ledgers)
        assert found.pop(("t", 0))[0] >= len(sent)
        assert found == {("idle", 0): (0, 0), ("idle", 1): (0, 0)}
        world.services.directory = SomeDirectory()
        ledgers, files = await dirs(peer)
        assert (files.path, files.total_bytes, files.usable_bytes) == (PATH, 1000, 300)
        assert sizes(files) == {("p", 0): (50, 0), ("p", 2): (70, 4), ("a/b/q", 0): (1, 0)}
        ledgers, files = await dirs(
            peer, PartitionsOfTopic("idle", [1, 7]), PartitionsOfTopic("p", [2]),
            PartitionsOfTopic("none", [0]),
        )  # fmt: skip
        assert list(sizes(ledgers)) == [("idle", 1)]
        assert list(sizes(files)) == [("p", 2)]
        world.services.directory.fails = True  # type: ignore[attr-defined]
        _, files = await dirs(peer)
        assert (files.error_code, files.usable_bytes) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)

    run(scenario)


def test_partitions_that_were_never_used_are_where_they_are_to_lie() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, control = world.peer(), world.services.control
        for name in ("idle", "p"):
            topic = parse_topic(name)
            await control.partitioned.create(topic, 3)
            await control.policies.set_topic(topic, "engine", "partition")
        world.services.directory = SomeDirectory()
        ledgers, files = await dirs(peer)
        assert not {"idle", "p"} & {name for name, _ in sizes(ledgers)}
        assert sizes(files) == {
            ("idle", 0): (0, 0), ("idle", 1): (0, 0), ("idle", 2): (0, 0),
            ("p", 0): (50, 0), ("p", 1): (0, 0), ("p", 2): (70, 4), ("a/b/q", 0): (1, 0),
        }  # fmt: skip
        _, files = await dirs(peer, PartitionsOfTopic("idle", [1, 7]))
        assert sizes(files) == {("idle", 1): (0, 0)}
        assert await moved(peer, PATH, "idle") == ErrorCode.NONE
        assert await moved(peer, "ledgers", "idle") == ErrorCode.POLICY_VIOLATION

    run(scenario)


def test_replicas_stay_in_their_directory() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        world.services.directory = SomeDirectory()
        for path, name in (("ledgers", "t"), (PATH, "p")):
            assert await moved(peer, path, name) == ErrorCode.NONE
        for path, name in ((PATH, "t"), ("ledgers", "p")):
            assert await moved(peer, path, name) == ErrorCode.POLICY_VIOLATION
        assert await moved(peer, "/elsewhere", "t") == ErrorCode.LOG_DIR_NOT_FOUND
        for name, index in (("t", 1), ("none", 0)):
            assert await moved(peer, PATH, name, index) in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.REPLICA_NOT_AVAILABLE,
            )

    run(scenario)


def test_reassignments_are_refused_but_to_where_a_partition_is() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, me = world.peer(), world.services.node.node_id

        async def reassigned(name: str, index: int, replicas: list[int] | None) -> Any:
            topic = ReassignTopic(name, [ReassignPartition(index, replicas)])
            asked = AlterPartitionReassignmentsRequest(1000, [topic])
            answer = await peer.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, asked)
            (said,) = answer.topics[0].partitions
            return said.error_code, said.error_message

        assert await reassigned("t", 0, [me]) == (0, None)
        for wrong in ([me, 77], [77], [], [me, me]):
            code, why = await reassigned("t", 0, wrong)
            assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert f"stay at [{me}]" in why
        assert (await reassigned("t", 0, None))[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await reassigned("t", 1, [me]))[0] == unknown
        assert (await reassigned("none", 0, [me]))[0] == unknown

    run(scenario)
