"""Topics that were terminated, for Kafka's clients: they read, and are refused what they write."""

from __future__ import annotations

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import NotAllowedError
from magnetar.topics.terminating import terminate
from magnetar.topics.topic import Topic
from magnetar.wire.kafka.errors import ErrorCode
from tests.unit.protocols.kafka.harness import KafkaWorld, batch, run
from tests.unit.protocols.kafka.test_session import T, fetched, produced, values
from tests.unit.protocols.kafka.test_transaction_requests import begun


def opened(world: KafkaWorld) -> Topic:
    found = world.broker.topics.find(parse_topic(f"{T}-partition-0"))
    assert found is not None
    return found


def test_producers_are_told_what_they_do_not_try_again_on() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(2))
        await terminate(opened(world))
        found = await produced(peer, batch(1, 2))
        assert found.error_code == ErrorCode.POLICY_VIOLATION
        assert "terminated" in (found.error_message or "")
        assert values(await fetched(peer, 0)) == [b"0", b"1"]
        assert (await fetched(peer, 2)).error_code == ErrorCode.NONE
        assert not opened(world).cooling_down

    run(scenario)


def test_what_was_stored_is_told_so_when_it_comes_again() -> None:
    """The answer was lost, perhaps: an error would be taken for a message that is not there."""

    async def scenario(world: KafkaWorld) -> None:
        peer, sent = world.peer(), batch(1, producer_id=7, producer_epoch=0, base_sequence=0)
        assert (await produced(peer, sent)).base_offset == 0
        await terminate(opened(world))
        again = await produced(peer, sent)
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        later = batch(1, producer_id=7, producer_epoch=0, base_sequence=1)
        for _ in range(2):
            assert (await produced(peer, later)).error_code == ErrorCode.POLICY_VIOLATION

    run(scenario)


@pytest.mark.parametrize("commits", [False, True])
def test_a_topic_with_an_open_transaction_is_not_terminated(commits: bool) -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1, 2)
        with pytest.raises(NotAllowedError, match="1 open transactions"):
            await terminate(opened(world))
        assert await producer.end(commits) is ErrorCode.NONE
        await terminate(opened(world))
        assert opened(world).log.end.terminated

    run(scenario)


def test_a_transaction_that_got_nothing_into_the_topic_ends() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.transaction(True, 1)
        assert await producer.add() is ErrorCode.NONE
        await terminate(opened(world))
        assert await producer.produce(2) is ErrorCode.POLICY_VIOLATION
        assert await producer.end(False) is ErrorCode.NONE
        assert await producer.begin() is ErrorCode.NONE

    run(scenario)
