"""Topics that are past their backlog quotas, for Kafka's producers."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cluster.policies.backlog_quotas import BacklogQuota, BacklogQuotas, QuotaAction
from magnetar.model.ids import EARLIEST
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.opening import open_durable
from magnetar.wire.kafka.errors import ErrorCode
from tests.unit.protocols.kafka.harness import KafkaWorld, batch, run
from tests.unit.protocols.kafka.test_session import fetched, produced, values
from tests.unit.protocols.kafka.test_terminated_topics import opened
from tests.unit.protocols.kafka.test_transaction_requests import begun

AGED = BacklogQuotas(age=BacklogQuota(-1, 1, QuotaAction.EXCEPTION))


async def past(world: KafkaWorld, action: QuotaAction) -> Subscription:
    """The topic is past its quota, and that was seen; the subscription that is behind."""
    topic = opened(world)
    behind = await open_durable(topic, "s", EARLIEST, {})
    said = BacklogQuotas(BacklogQuota(1, -1, action))
    await world.broker.control.policies.set_topic(topic.name, "backlog_quotas", said)
    for _ in range(20):
        await asyncio.sleep(0)
    await world.broker.quotas.look()
    return behind


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (QuotaAction.HOLD, ErrorCode.NOT_ENOUGH_REPLICAS),
        (QuotaAction.EXCEPTION, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_they_wait_or_fail_and_go_on_when_there_is_place(
    action: QuotaAction, code: ErrorCode
) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(2))
        behind = await past(world, action)
        found = await produced(peer, batch(1, 2))
        assert found.error_code == code
        assert "subscription s is " in (found.error_message or "")
        assert values(await fetched(peer, 0)) == [b"0", b"1"]
        behind.cursor.acknowledge_cumulative(opened(world).log.positions.readable)
        await world.broker.quotas.look()
        assert (await produced(peer, batch(1, 2))).base_offset == 2

    run(scenario)


def test_their_batches_stay_in_order() -> None:
    """What was sent behind a batch that comes again does not come before it."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()

        def sent(sequence: int) -> bytes:
            return batch(1, sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)

        assert (await produced(peer, sent(0))).base_offset == 0
        behind = await past(world, QuotaAction.HOLD)
        again = await produced(peer, sent(0))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0), "it is stored"
        assert (await produced(peer, sent(1))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        behind.cursor.acknowledge_cumulative(opened(world).log.positions.readable)
        await world.broker.quotas.look()
        assert (await produced(peer, sent(2))).error_code != ErrorCode.NONE
        assert (await produced(peer, sent(1))).base_offset == 1
        assert (await produced(peer, sent(2))).base_offset == 2

    run(scenario)


def test_a_transaction_ends_all_the_same() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1, 2)
        await past(world, QuotaAction.EXCEPTION)
        assert await producer.produce(3) is ErrorCode.POLICY_VIOLATION
        assert await producer.end(False) is ErrorCode.NONE

    run(scenario)


@pytest.mark.parametrize("quota", [BacklogQuotas(BacklogQuota(1, -1, QuotaAction.EXCEPTION)), AGED])
def test_the_first_batch_after_a_start_is_held_to_the_quota(quota: BacklogQuotas) -> None:
    """Until the first look, a minute later, all was taken."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(2))
        before = opened(world)
        await open_durable(before, "s", EARLIEST, {})
        await world.broker.control.policies.set_topic(before.name, "backlog_quotas", quota)
        await asyncio.sleep(2)
        assert await world.broker.topics.unload(before.name)
        found = await asyncio.gather(*(produced(peer, batch(1, 2)) for _ in range(3)))
        assert {each.error_code for each in found} == {ErrorCode.POLICY_VIOLATION}
        assert opened(world) is not before
        opened(world).subscriptions["s"].cursor.acknowledge_cumulative(
            opened(world).log.positions.readable
        )
        await world.broker.quotas.look()
        assert (await produced(peer, batch(1, 2))).base_offset == 2

    run(scenario)
