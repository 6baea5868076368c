"""Markers of transactions in one partition: when they are written, and when they are said to be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.log.seam import Content
from magnetar.model.errors import ServiceNotReadyError
from magnetar.protocols.kafka.partitions.partition import Ending, Partition, Produced
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import TRANSACTIONAL
from magnetar.wire.kafka.errors import ErrorCode
from tests.unit.protocols.kafka.harness import KafkaWorld, batch, run
from tests.unit.protocols.kafka.test_session import T, outcome, producing

ONE, TWO = 1, 2
"""Producers."""


async def opened(world: KafkaWorld, *producers: int) -> Partition:
    """A partition that takes parts of these producers' transactions, and knows all."""
    partition = await world.services.partition(T, 0)
    await partition.know_producers()
    await partition.prepare_transactions()
    for number in producers:
        writers = partition.transactions.writers
        writers.allow(number, 0, writers.ends(number))
    return partition


def produced(
    partition: Partition, producer_id: int, sequence: int = 0, awaits_all: bool = True
) -> asyncio.Future[Produced]:
    done: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
    part = batch(
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )
    partition.produce(memoryview(part), done.set_result, awaits_all=awaits_all)
    return done


def ended(partition: Partition, producer_id: int, asked: bool = True) -> asyncio.Future[Produced]:
    ending = Ending(producer_id, 0, True, 1)
    return asyncio.ensure_future(partition.end_transaction(ending, 1, lambda: asked))


def test_a_marker_that_is_asked_for_again_is_not_there_before_it_is_stored() -> None:
    async def scenario(world: KafkaWorld) -> None:
        partition = await opened(world, ONE)
        await produced(partition, ONE)
        log = world.log()
        log.held = True
        first = ended(partition, ONE)
        await asyncio.sleep(1)
        again = ended(partition, ONE)
        await asyncio.sleep(1)
        assert (first.done(), again.done()) == (False, False)
        log.held = False
        log.release()
        assert [(await each).error for each in (first, again)] == [ErrorCode.NONE] * 2
        assert partition.positions.end_offset == 2, "it is written once"

    run(scenario)


def test_where_the_topic_closes_nobody_says_that_nothing_is_open() -> None:
    """The next owner may have taken a part of it by then, which nobody would end."""

    async def scenario(world: KafkaWorld) -> None:
        partition, log = await opened(world, ONE), world.log()
        await produced(partition, ONE)
        log.held = True
        marker = ended(partition, ONE)
        await asyncio.sleep(1)
        nothing = ended(partition, ONE)
        await asyncio.sleep(1)
        assert not nothing.done()
        partition.topic.closed = True
        log.release()
        assert (await marker).error is ErrorCode.NONE
        with pytest.raises(ServiceNotReadyError):
            await nothing

    run(scenario)


def test_who_has_nothing_open_does_not_wait_for_what_others_send() -> None:
    """In a partition that is in use something is always under way: the transaction did not end."""

    async def scenario(world: KafkaWorld) -> None:
        partition, log = await opened(world, ONE, TWO), world.log()
        log.held = True
        other = produced(partition, TWO)
        outcome = await asyncio.wait_for(ended(partition, ONE), 5)
        assert (outcome.error, other.done()) == (ErrorCode.NONE, False)
        log.release()
        assert (await other).error is ErrorCode.NONE

    run(scenario)


def test_a_marker_whose_request_was_given_up_is_waited_for_all_the_same() -> None:
    async def scenario(world: KafkaWorld) -> None:
        partition, log = await opened(world, ONE), world.log()
        await produced(partition, ONE)
        log.held = True
        given_up, again = ended(partition, ONE), ended(partition, ONE)
        await asyncio.sleep(1)
        given_up.cancel()
        await asyncio.sleep(1)
        assert not again.done()
        log.held = False
        log.release()
        assert (await again).error is ErrorCode.NONE
        assert partition._markers == {}
        assert partition.positions.end_offset == 2, "it is written once"

    run(scenario)


def test_a_producer_with_an_open_transaction_sends_nothing_beside() -> None:
    """As Kafka has it: an abort would not take it back."""

    async def scenario(world: KafkaWorld) -> None:
        async def plain(producer_id: int, sequence: int) -> ErrorCode:
            records = batch(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            found = await world.peer().ask(ApiKey.PRODUCE, producing(records))
            return ErrorCode(outcome(found).error_code)

        assert await plain(ONE, 0) is ErrorCode.NONE
        partition = await opened(world, ONE)
        await produced(partition, ONE, 1)
        assert await plain(ONE, 2) is ErrorCode.INVALID_TXN_STATE
        assert await plain(ONE, 0) is ErrorCode.NONE, "it is there"
        assert await plain(TWO, 0) is ErrorCode.NONE
        await world.broker.topics.unload(partition.topic.name)
        assert await plain(ONE, 2) is ErrorCode.INVALID_TXN_STATE, "the log says that it is open"
        partition = await world.services.partition(T, 0)
        assert (await ended(partition, ONE)).error is ErrorCode.NONE
        assert await plain(ONE, 2) is ErrorCode.NONE

    run(scenario)


def test_an_idempotent_producer_does_not_wait_for_what_others_send() -> None:
    """As above: it was not known when there was nothing under way, and so it never began."""

    async def scenario(world: KafkaWorld) -> None:
        partition, log = await world.services.partition(T, 0), world.log()
        log.held = True
        plain: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
        partition.produce(memoryview(batch(1)), plain.set_result)
        await asyncio.wait_for(partition.know_producers(), 5)
        assert partition.producers_known
        assert not plain.done()
        log.release()
        assert (await plain).error is ErrorCode.NONE

    run(scenario)


def test_a_marker_that_nobody_waits_for_ends_nothing() -> None:
    """It may have been written another time since, and be of the next transaction by now."""

    async def scenario(world: KafkaWorld) -> None:
        partition = await opened(world, ONE)
        await produced(partition, ONE)
        assert (await ended(partition, ONE, asked=False)).error is not ErrorCode.NONE
        assert (await produced(partition, ONE, 1)).error is ErrorCode.NONE
        assert partition.stable_offset() == 0

    run(scenario)


def test_a_part_of_a_transaction_waits_for_all_whatever_its_producer_says() -> None:
    async def scenario(world: KafkaWorld) -> None:
        partition = await opened(world, ONE)
        append, contents = partition.log.append, list[Content]()

        def noted(payloads: Any, done: Any, content: Any = None) -> None:
            contents.append(content)
            append(payloads, done, content)

        partition.log.append = noted  # type: ignore[method-assign]
        await produced(partition, ONE, awaits_all=False)
        assert [each.awaits_all for each in contents] == [True]

    run(scenario)


def test_what_was_deleted_of_an_open_transaction_holds_nothing_back() -> None:
    async def scenario(world: KafkaWorld) -> None:
        partition = await opened(world, ONE)
        await produced(partition, ONE)
        await produced(partition, ONE, 1)
        assert partition.stable_offset() == 0
        partition.log.front = SimpleNamespace(offset=2)  # type: ignore[assignment]
        assert partition.stable_offset() == 2, "where readers begin"

    run(scenario)
