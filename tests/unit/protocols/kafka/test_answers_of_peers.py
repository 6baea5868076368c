"""What another broker answers that is not as this one would: an error that passes."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import ServiceNotReadyError
from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition
from magnetar.protocols.kafka.handlers.admin import _delete_one
from magnetar.protocols.kafka.services import KafkaServices, Node
from magnetar.protocols.kafka.shares.share_records import (
    NOT_STARTED,
    ShareStateKey,
    ShareStateRecord,
)
from magnetar.wire.kafka.admin_messages import DeleteTopicsResponse
from magnetar.wire.kafka.schema import NO_UUID
from magnetar.wire.kafka.share_state_messages import (
    FoundState,
    FoundStateTopic,
    ReadShareGroupStateResponse,
    StateBatch,
    WriteShareGroupStateResponse,
    WrittenState,
    WrittenStateTopic,
)
from magnetar.wire.kafka.transaction_messages import (
    DescribedTransaction,
    DescribeTransactionsResponse,
)
from tests.unit.protocols.kafka.harness import KafkaWorld, run

KEY = ShareStateKey("g", TopicIdPartition(uuid.UUID(int=1), 0))
RECORD = ShareStateRecord(1, 1, NOT_STARTED)


async def read(world: KafkaWorld) -> object:
    return await world.server.coordinated_groups.share_states.read(KEY, 0)


async def written(world: KafkaWorld) -> object:
    return await world.server.coordinated_groups.share_states.write(KEY, RECORD)


async def takes_part(world: KafkaWorld) -> object:
    return await world.server.transactions.takes_part("x", 7, 0, ("t", 0))


async def deleted(world: KafkaWorld) -> object:
    await _delete_one(world.services, parse_topic("t-partition-0"), NO_UUID, chosen=False)
    return None


def found(state: FoundState) -> ReadShareGroupStateResponse:
    return ReadShareGroupStateResponse(topics=[FoundStateTopic(KEY.place.topic_id, [state])])


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (read, ReadShareGroupStateResponse()),
        (read, ReadShareGroupStateResponse(topics=[FoundStateTopic(KEY.place.topic_id)])),
        (read, found(FoundState(0, error_code=999))),
        (read, found(FoundState(0, batches=[StateBatch(0, 1, 99, 1)]))),
        (written, WriteShareGroupStateResponse()),
        (
            written,
            WriteShareGroupStateResponse(
                topics=[WrittenStateTopic(KEY.place.topic_id, [WrittenState(0, 999)])]
            ),
        ),
        (takes_part, DescribeTransactionsResponse()),
        (
            takes_part,
            DescribeTransactionsResponse(
                transactions=[DescribedTransaction(0, "x", state="Waiting")]
            ),
        ),
        (deleted, DeleteTopicsResponse()),
    ],
)
def test_an_answer_of_another_release_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
    asked: Callable[[KafkaWorld], Awaitable[object]],
    answer: Any,
) -> None:
    """It was an IndexError or a ValueError, which ended the client's connection without a word of
    why."""

    async def scenario(world: KafkaWorld) -> None:
        other = Node(2, "other", 9092)

        async def leader_of(*_: object) -> Node:
            return other

        async def ask(_: object, node: Node, *__: object) -> Any:
            assert node is other
            return answer

        monkeypatch.setattr(KafkaServices, "leader_of", leader_of)
        monkeypatch.setattr(KafkaServices, "ask", ask)
        with pytest.raises(ServiceNotReadyError, match="another release"):
            await asked(world)

    run(scenario)
