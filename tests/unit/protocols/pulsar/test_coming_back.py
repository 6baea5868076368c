"""Producers that come back and send again, and clients of a broker that has lost its topics."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.env.metadata import SessionState
from magnetar.model.errors import LogError
from magnetar.protocols.pulsar.liveness import CHECK_S
from magnetar.topics.publishing.resend import FIRST_STEP_ENTRIES
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, ProducerAccessMode
from tests.unit.protocols.pulsar.harness import ANNOUNCEMENTS, Peer, World, run
from tests.unit.protocols.pulsar.test_publishing import receipts


async def all_receipts(peer: Peer, count: int) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for _ in range(100):
        found += receipts(await peer.heard())
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} receipts of {count}")


@pytest.mark.parametrize("unseen", [1, FIRST_STEP_ENTRIES - 1, 4 * FIRST_STEP_ENTRIES, 99])
def test_what_is_sent_again_has_the_place_that_it_had(unseen: int) -> None:
    """However many receipts were lost, and with the new ones in the same chunk."""

    async def scenario(world: World) -> None:
        before = world.peer()
        await before.produce(name="wire")
        before.publish(100)
        told = await all_receipts(before, 100)
        before.lose()
        again = world.peer()
        await again.produce(name="wire", epoch=1)
        again.publish(unseen + 10, first=100 - unseen)
        found = await all_receipts(again, unseen + 10)
        assert found[:unseen] == told[100 - unseen :]
        assert [each[0] for each in found] == list(range(100 - unseen, 110))
        again.publish(5, first=110)
        assert len(await all_receipts(again, 5)) == 5
        assert len(world.log()._entries) == 115

    run(scenario)


def test_what_was_sent_before_and_is_still_under_way_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        before = world.peer()
        await before.produce(name="wire")
        log = world.log()
        log.held = True
        before.publish(3)
        await asyncio.sleep(0.1)
        before.lose()
        again = world.peer()
        coming = asyncio.create_task(again.produce(name="wire", epoch=1))
        await asyncio.sleep(1)
        assert len(log._entries) == 0
        log.held = False
        log.release()
        assert (await coming).producer_success.producer_name == "wire"
        again.publish(5)
        await all_receipts(again, 5)
        assert len(log._entries) == 5

    run(scenario)


def test_what_is_sent_again_after_a_wait_for_the_topic_has_the_place_that_it_had() -> None:
    """Others had come to the topic before the producer was back: it has to wait for them."""

    async def scenario(world: World) -> None:
        waits = ProducerAccessMode.WaitForExclusive
        before = world.peer()
        came = await before.produce(name="wire", producer_access_mode=waits)
        before.publish(10)
        told = await all_receipts(before, 10)
        before.lose()
        other = world.peer()
        await other.produce(name="other", producer_id=2)
        again = world.peer()
        epoch = came.producer_success.topic_epoch
        answer = await again.produce(
            name="wire", epoch=1, producer_access_mode=waits, topic_epoch=epoch
        )
        assert not answer.producer_success.producer_ready
        other.lose()
        assert (await again.next()).producer_success.producer_ready
        again.publish(5, first=7)
        assert (await all_receipts(again, 5))[:3] == told[7:]
        assert len(world.log()._entries) == 12

    run(scenario)


def test_one_that_is_closed_as_its_turn_comes_does_not_have_the_topic() -> None:
    async def scenario(world: World) -> None:
        waits = ProducerAccessMode.WaitForExclusive
        other, again = world.peer(), world.peer()
        await other.produce(name="other", producer_id=2)
        await again.produce(name="wire", epoch=1, producer_access_mode=waits)
        topic, closing = world.topic(), BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        closing.close_producer.producer_id, closing.close_producer.request_id = 1, 7
        catch_up = topic.frames.catch_up

        async def closed_meanwhile() -> None:
            await catch_up()
            again.tell(closing)
            await asyncio.sleep(1)

        topic.frames.catch_up = closed_meanwhile  # type: ignore[method-assign]
        other.lose()
        await asyncio.sleep(2)
        assert await again.kinds() == ["SUCCESS"]
        assert topic.producers == {}

    run(scenario)


def test_one_whose_connection_is_dead_does_not_hold_up_the_line() -> None:
    """It was found out a minute later, and nobody had the topic meanwhile."""

    async def scenario(world: World) -> None:
        waits = ProducerAccessMode.WaitForExclusive
        holder, dead, lives = world.peer(), world.peer(), world.peer()
        await holder.produce(name="holder")
        await dead.produce(name="dead", producer_access_mode=waits)
        await lives.produce(name="lives", producer_access_mode=waits)
        dead.play_dead()
        holder.lose()
        await asyncio.sleep(CHECK_S + 1)
        assert list(world.topic().producers) == ["lives"]
        assert dead.transport.closed
        (told,) = [each for each in await lives.heard() if each.type not in ANNOUNCEMENTS]
        assert told.producer_success.producer_ready

    run(scenario)


def test_the_only_one_in_line_has_its_turn_at_once() -> None:
    async def scenario(world: World) -> None:
        holder, waits = world.peer(), world.peer()
        await holder.produce(name="holder")
        mode = ProducerAccessMode.WaitForExclusive
        await waits.produce(name="waits", producer_access_mode=mode)
        waits.play_dead()
        holder.lose()
        assert [each.type for each in await waits.heard()] == [BaseCommand.PRODUCER_SUCCESS]

    run(scenario)


def test_others_on_the_connection_wait_for_a_search_and_go_on() -> None:
    async def scenario(world: World) -> None:
        before = world.peer()
        await before.produce(name="wire")
        before.publish(100)
        await all_receipts(before, 100)
        before.lose()
        again = world.peer()
        other = "persistent://public/default/other"
        await again.produce(other, producer_id=2)
        await again.produce(name="wire", epoch=1)
        again.publish(3, producer_id=2)
        again.publish(60, first=40)
        again.publish(3, first=3, producer_id=2)
        assert len(await all_receipts(again, 66)) == 66
        assert len(world.log(other)._entries) == 6
        assert len(world.log()._entries) == 100

    run(scenario)


def test_a_search_that_fails_sends_the_producer_away_and_nobody_else() -> None:
    async def scenario(world: World) -> None:
        before = world.peer()
        await before.produce(name="wire")
        before.publish(100)
        await all_receipts(before, 100)
        before.lose()
        again = world.peer()
        await again.produce(name="wire", epoch=1)
        log = world.log()
        log.cached = False
        read, log.read = log.read, fail  # type: ignore[method-assign]
        again.publish(60, first=40)
        assert (await again.next()).type == BaseCommand.CLOSE_PRODUCER
        log.read = read  # type: ignore[method-assign]
        await again.produce(name="wire", epoch=2)
        again.publish(60, first=40)
        assert len(await all_receipts(again, 60)) == 60
        assert len(log._entries) == 100

    async def fail(*_: object) -> list[object]:
        raise LogError("not now")

    run(scenario)


def test_clients_of_a_broker_that_has_lost_its_session_are_sent_away_at_once() -> None:
    """It may have been paused for minutes: its topics are served elsewhere."""

    async def scenario(world: World) -> None:
        lost: list[str] = []
        await world.broker.join("http://here:8080", "", 1000, lost.append)
        peer, idle = world.peer(), world.peer()
        await peer.produce()
        world.metadata.end_session(SessionState.EXPIRED)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(lost) == 1
        assert (peer.session.closed, idle.session.closed) == (True, True)
        assert not receipts(await peer.heard())

    run(scenario, shares=True)
