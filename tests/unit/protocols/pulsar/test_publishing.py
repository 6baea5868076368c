"""SENDs on their way to the log and their outcomes on the way back."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import (
    LedgerError,
    LogFencedError,
    MetadataUnavailableError,
    NoSpaceError,
    NotEnoughBookiesError,
)
from magnetar.protocols.pulsar.liveness import POLL_S
from magnetar.speedups.pure.sends import GROUPS_SEARCHED
from magnetar.topics.topic import COOL_DOWN_S
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.doubles.memory_log import HEADER
from tests.interop.pulsar.wire import message, send_frame
from tests.unit.protocols.pulsar.harness import ANNOUNCEMENTS, TOPIC, Peer, World, run


def receipts(commands: list[BaseCommand]) -> list[tuple[int, int, int]]:
    """(sequence id, ledger, entry) of the receipts."""
    return [
        (r.sequence_id, r.message_id.ledgerId, r.message_id.entryId)
        for r in (c.send_receipt for c in commands if c.type == BaseCommand.SEND_RECEIPT)
    ]


async def said(peer: Peer) -> list[BaseCommand]:
    """Without announcements; one whose turn comes is asked whether it lives first."""
    await asyncio.sleep(POLL_S * 2)
    return [each for each in await peer.heard() if each.type not in ANNOUNCEMENTS]


def test_a_chunk_of_sends_is_one_append_and_its_receipts_are_in_order() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(12)
        assert len(world.log()._pending) == 1
        assert receipts(await peer.heard()) == [(n, 1 + n // 5, n % 5) for n in range(12)]

    run(scenario)


def test_what_is_stored_is_what_was_sent() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        payload = message(bytes(range(256)))
        peer.feed(send_frame(1, 0, payload))
        await peer.heard()
        [entry] = world.log()._entries
        assert bytes(entry.payload) == payload

    run(scenario)


def test_producers_of_one_connection_keep_their_own_order() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce(producer_id=1)
        await peer.produce(producer_id=2, topic="t2")
        frames = [send_frame(1 + n % 2, n, message(b"x", n)) for n in range(10)]
        peer.feed(b"".join(frames))
        heard = await peer.heard()
        for producer_id in (1, 2):
            mine = [c for c in heard if c.send_receipt.producer_id == producer_id]
            assert [c.send_receipt.sequence_id for c in mine] == list(range(producer_id - 1, 10, 2))

    run(scenario)


def test_more_producers_than_a_chunk_is_searched_for_take_turns_in_it() -> None:
    """A producer's sends are found in several runs then, of which all count, in order."""

    async def scenario(world: World) -> None:
        peer, ids = world.peer(), range(1, GROUPS_SEARCHED + 2)
        for producer_id in ids:
            await peer.produce(producer_id=producer_id, topic=f"t{producer_id}")
        frames = [send_frame(each, n, message(b"x", n)) for n in range(3) for each in ids]
        peer.feed(b"".join(frames))
        heard = await peer.heard()
        for producer_id in ids:
            mine = [c for c in heard if c.send_receipt.producer_id == producer_id]
            assert [c.send_receipt.sequence_id for c in mine] == [0, 1, 2]

    run(scenario)


def test_a_refusal_waits_for_the_receipts_before_it() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        world.log().held = True
        peer.publish(2)
        peer.feed(send_frame(1, 2, message(b"bad", flip=True)))
        peer.publish(1, first=3)
        assert await peer.heard() == []
        world.log().release()
        kinds = await peer.kinds()
        assert kinds == ["SEND_RECEIPT", "SEND_RECEIPT", "SEND_ERROR", "SEND_RECEIPT"]

    run(scenario)


def test_closing_waits_for_every_outcome() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        world.log().held = True
        peer.publish(3)
        close = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        close.close_producer.producer_id = 1
        close.close_producer.request_id = 9
        peer.tell(close)
        assert await peer.heard() == []
        world.log().release()
        assert await peer.kinds() == ["SEND_RECEIPT"] * 3 + ["SUCCESS"]
        assert world.topic().producers == {}

    run(scenario)


def test_reading_stops_while_too_much_is_unconfirmed() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        world.log().held = True
        for n in range(4):
            peer.feed(send_frame(1, n, message(bytes(400), n)))
            assert peer.transport.reading is (n < 2)
        world.log().release()
        assert len(receipts(await peer.heard())) == 4
        assert peer.transport.reading

    run(scenario, pending_publish_bytes_per_connection=1024)


def test_one_who_does_not_read_is_not_read() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        peer.session.pause_writing()
        assert not peer.transport.reading
        peer.session.resume_writing()
        assert peer.transport.reading

    run(scenario)


# -- when the log fails ---------------------------------------------------------------------------


def test_a_failed_append_sends_producers_away_for_a_while() -> None:
    async def scenario(world: World) -> None:
        peer, other = world.peer(), world.peer()
        await peer.produce(name="a")
        await other.produce(name="b")
        log = world.log()
        log.failing = NotEnoughBookiesError("one of two bookies is away")
        peer.publish(3)
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        assert "CLOSE_PRODUCER" in await other.kinds()
        log.failing = None
        peer.publish(3)  # sent before the client heard: nobody's any more
        assert await peer.heard() == []
        refused = await peer.produce(name="a", epoch=1)
        assert refused.error.error == ServerError.SERVICE_NOT_READY
        await asyncio.sleep(COOL_DOWN_S)
        assert (await peer.produce(name="a", epoch=1)).type == BaseCommand.PRODUCER_SUCCESS
        peer.publish(1)
        assert receipts(await peer.heard()) == [(0, 1, 0)]

    run(scenario)


def test_producers_are_told_of_a_full_disk_and_let_in_again_by_themselves() -> None:
    """A code with which clients fail what they have pending, instead of waiting for time-outs."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce(name="a")
        log = world.log()
        log.failing = NoSpaceError("the disk of /d is nearly full")
        peer.publish(1)
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        refused = (await peer.produce(name="a", epoch=1)).error
        assert refused.error == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION
        assert "the disk of /d is nearly full" in refused.message
        log.failing = None
        await asyncio.sleep(COOL_DOWN_S)
        assert (await peer.produce(name="a", epoch=1)).type == BaseCommand.PRODUCER_SUCCESS
        peer.publish(1)
        assert receipts(await peer.heard()) == [(0, 1, 0)]

    run(scenario)


def test_a_producer_is_refused_while_there_is_no_space() -> None:
    """Before its first message; and only producers are."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        world.store.full = NoSpaceError("the disk of /d is nearly full")
        refused = (await peer.produce(name="a")).error
        assert refused.error == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION
        assert "the disk of /d is nearly full" in refused.message
        lookup = BaseCommand(type=BaseCommand.LOOKUP)
        lookup.lookupTopic.topic, lookup.lookupTopic.request_id = TOPIC, 9
        assert (await peer.ask(lookup)).lookupTopicResponse.request_id == 9
        assert (await peer.subscribe()).type == BaseCommand.SUCCESS
        world.store.full = None
        assert (await peer.produce(name="a")).type == BaseCommand.PRODUCER_SUCCESS
        peer.publish(1)
        assert receipts(await peer.heard()) == [(0, 1, 0)]

    run(scenario)


def test_a_fenced_log_is_opened_anew() -> None:
    async def scenario(world: World) -> None:
        peer, consumer = world.peer(), world.peer()
        await peer.produce()
        await consumer.subscribe()
        peer.publish(2)
        await peer.heard()
        world.log().failing = LogFencedError("another broker has it")
        peer.publish(1)
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        assert "CLOSE_CONSUMER" in await consumer.kinds()
        assert world.services.topics.loaded() == []
        await peer.produce()
        assert world.store.opens == 2
        await consumer.subscribe()
        consumer.flow(10)
        assert await consumer.entries() == [0, 1]

    run(scenario)


def test_no_receipts_after_the_client_was_told_that_its_producer_is_closed() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        world.log().held = True
        peer.publish(2)
        world.topic().disconnect_producers()
        world.log().release()
        assert await peer.kinds() == ["CLOSE_PRODUCER"]

    run(scenario)


def test_a_lost_connection_with_sends_under_way() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        world.log().held = True
        peer.publish(2)
        peer.lose()
        world.log().release()
        assert world.topic().producers == {}
        assert world.topic().entries_in == 2

    run(scenario)


# -- who may produce ------------------------------------------------------------------------------


@pytest.mark.parametrize("alive", [True, False])
def test_a_name_is_taken_over_from_a_dead_connection_only(
    alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.protocols.pulsar.liveness.CHECK_S", 0.1)

    async def scenario(world: World) -> None:
        holder, comer = world.peer(), world.peer()
        await holder.produce(name="n")
        if not alive:
            holder.play_dead()
        await comer.heard()
        ask = BaseCommand(type=BaseCommand.PRODUCER)
        ask.producer.topic, ask.producer.producer_name = TOPIC, "n"
        ask.producer.producer_id = ask.producer.request_id = 1
        comer.tell(ask)
        await asyncio.sleep(0.05)
        assert "PING" in await holder.kinds()
        await asyncio.sleep(0.2)
        [answer] = await comer.heard()
        if alive:
            assert answer.error.error == ServerError.PRODUCER_BUSY
        else:
            assert answer.type == BaseCommand.PRODUCER_SUCCESS
            assert holder.transport.closed

    run(scenario)


def test_a_later_incarnation_of_a_generated_name_takes_over_at_once() -> None:
    async def scenario(world: World) -> None:
        old, new = world.peer(), world.peer()
        await old.produce(name="n", user_provided_producer_name=False)
        answer = await new.produce(name="n", user_provided_producer_name=False, epoch=1)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS
        assert world.topic().producers["n"] in new.session.producers.values()
        old.publish(1)
        assert await old.heard() == []

    run(scenario)


def test_waiting_producers_are_let_in_one_after_the_other() -> None:
    async def scenario(world: World) -> None:
        first, second, third = world.peer(), world.peer(), world.peer()
        exclusive, wait = 1, 2
        answer = await first.produce(producer_access_mode=exclusive)
        epoch = answer.producer_success.topic_epoch
        for peer in (second, third):
            answer = await peer.produce(producer_access_mode=wait)
            assert not answer.producer_success.producer_ready
        second.publish(1)
        assert await said(second) == []  # it is not its turn
        first.lose()
        [ready] = await said(second)
        assert ready.producer_success.producer_ready
        assert ready.producer_success.topic_epoch == epoch + 1
        assert await said(third) == []
        second.lose()
        [ready] = await said(third)
        assert ready.producer_success.topic_epoch == epoch + 2

    run(scenario)


def test_a_turn_that_fails_goes_to_the_next_in_line() -> None:
    async def scenario(world: World) -> None:
        first, second, third = world.peer(), world.peer(), world.peer()
        await first.produce(producer_access_mode=1)
        for peer in (second, third):
            await peer.produce(producer_access_mode=2)
        put, losses = world.metadata.put, [MetadataUnavailableError("no answer")]

        async def lossy_put(path: str, value: bytes, version: int) -> int:
            if losses:
                raise losses.pop()
            return await put(path, value, version)

        world.metadata.put = lossy_put  # type: ignore[method-assign]
        first.lose()
        [refused] = await said(second)
        assert "no answer" in refused.error.message
        [ready] = await said(third)
        assert ready.producer_success.producer_ready

    run(scenario)


def test_one_who_leaves_the_line_lets_nobody_in_beside_the_one_whose_turn_it_is() -> None:
    async def scenario(world: World) -> None:
        first, second, third, fourth = (world.peer() for _ in range(4))
        await first.produce(producer_access_mode=1)
        for peer in (second, third, fourth):
            await peer.produce(producer_access_mode=2)
        put = world.metadata.put

        async def slow_put(path: str, value: bytes, version: int) -> int:
            await asyncio.sleep(1)
            return await put(path, value, version)

        world.metadata.put = slow_put  # type: ignore[method-assign]
        first.lose()
        await asyncio.sleep(0.5)  # the second's turn, which is being stored
        fourth.lose()
        await asyncio.sleep(5)
        assert [each.type for each in await said(second)] == [BaseCommand.PRODUCER_SUCCESS]
        assert await said(third) == []
        assert len(world.topic().producers) == 1
        second.lose()
        await asyncio.sleep(5)
        assert await third.kinds() == ["PRODUCER_SUCCESS"]

    run(scenario)


def test_one_whose_turn_comes_as_another_takes_the_topic_is_fenced() -> None:
    async def scenario(world: World) -> None:
        first, second, third = (world.peer() for _ in range(3))
        await first.produce(producer_access_mode=1)
        await second.produce(producer_access_mode=2)
        async with world.topic().lock:
            third.tell(third.produce_command(producer_access_mode=3))  # it waits for the lock first
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            first.lose()
            await asyncio.sleep(1)
        ready = (await third.heard())[-1]
        assert ready.producer_success.producer_ready
        [refused] = await second.heard()
        assert refused.error.error == ServerError.PRODUCER_FENCED
        assert len(world.topic().producers) == 1

    run(scenario)


def test_one_whose_turn_comes_as_the_topic_closes_may_come_again() -> None:
    """Fenced, its client would never ask again."""

    async def scenario(world: World) -> None:
        first, second, third = (world.peer() for _ in range(3))
        await first.produce(producer_access_mode=1)
        for peer in (second, third):
            await peer.produce(producer_access_mode=2)
        first.lose()
        await asyncio.sleep(0)  # it is asked whether it lives, as somebody else waits
        await world.services.topics.unload(parse_topic(TOPIC))
        await asyncio.sleep(1)
        for peer in (second, third):
            (told,) = [each for each in await peer.heard() if each.type not in ANNOUNCEMENTS]
            assert told.error.error == ServerError.SERVICE_NOT_READY

    run(scenario)


def test_one_who_is_closed_while_its_turn_is_stored_leaves_it_to_the_next() -> None:
    async def scenario(world: World) -> None:
        first, second, third = (world.peer() for _ in range(3))
        await first.produce(producer_access_mode=1)
        for peer in (second, third):
            await peer.produce(producer_access_mode=2)
        put = world.metadata.put

        async def slow_put(path: str, value: bytes, version: int) -> int:
            await asyncio.sleep(1)
            return await put(path, value, version)

        world.metadata.put = slow_put  # type: ignore[method-assign]
        first.lose()
        await asyncio.sleep(0.5)
        close = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        close.close_producer.producer_id, close.close_producer.request_id = 1, 5
        assert (await second.ask(close)).success.request_id == 5
        await asyncio.sleep(5)
        assert await second.heard() == []
        assert await third.kinds() == ["PRODUCER_SUCCESS"]
        assert list(world.topic().producers.values()) == list(third.session.producers.values())

    run(scenario)


def test_a_waiting_producer_that_asks_again_waits_on() -> None:
    async def scenario(world: World) -> None:
        first, second = world.peer(), world.peer()
        await first.produce(producer_access_mode=1)
        for _ in range(2):
            answer = await second.produce(producer_access_mode=2)
            assert not answer.producer_success.producer_ready
        assert len(world.topic().waiting) == 1
        first.lose()
        assert await second.kinds() == ["PRODUCER_SUCCESS"]

    run(scenario)


def test_what_a_failed_append_stored_reaches_consumers_once_it_is_readable() -> None:
    async def scenario(world: World) -> None:
        sender, reader = world.peer(), world.peer()
        await sender.produce(name="wire")
        await reader.subscribe()
        reader.flow(10)
        log = world.log()
        release, log.failing = log.release, LedgerError("no bookies")
        stored = message(b"0", 0)

        def stored_and_failed() -> None:
            log._confirm([HEADER + stored], lambda *_: None)
            release()

        log.release = stored_and_failed  # type: ignore[method-assign]
        sender.publish(1)
        assert await sender.kinds() == ["CLOSE_PRODUCER"]
        log.failing, log.release = None, release  # type: ignore[method-assign]
        assert await reader.entries() == [0], "the log says so, whoever made it readable"
        await asyncio.sleep(2 * COOL_DOWN_S)
        await sender.produce(name="wire", epoch=1)
        sender.publish(1)
        assert await sender.kinds() == ["SEND_RECEIPT"]
        assert await reader.entries() == [], "it is in the log once"

    run(scenario)


def test_a_waiting_producer_can_be_closed() -> None:
    async def scenario(world: World) -> None:
        first, second = world.peer(), world.peer()
        await first.produce(producer_access_mode=1)
        await second.produce(producer_access_mode=2)
        close = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        close.close_producer.producer_id, close.close_producer.request_id = 1, 5
        assert (await second.ask(close)).success.request_id == 5
        assert world.topic().waiting == []
        first.lose()
        assert await second.heard() == []

    run(scenario)


def test_fencing_survives_a_restart_of_the_topic() -> None:
    async def scenario(world: World) -> None:
        peer, other = world.peer(), world.peer()
        answer = await peer.produce(producer_access_mode=1, name="a")
        given = answer.producer_success.topic_epoch
        peer.lose()
        await other.produce(producer_access_mode=3, name="b")
        other.lose()
        await world.services.topics._unload(world.topic().name)
        late = world.peer()
        answer = await late.produce(producer_access_mode=1, name="a", topic_epoch=given, epoch=1)
        assert answer.error.error == ServerError.PRODUCER_FENCED

    run(scenario)


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_one_that_did_not_hear_that_it_is_back_is_not_fenced_by_itself(mode: int) -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        answer = await peer.produce(producer_access_mode=mode, name="a")
        given = answer.producer_success.topic_epoch
        for epoch in (1, 2):  # the answer to the first of them is lost with its connection
            peer.lose()
            peer = world.peer()
            answer = await peer.produce(
                producer_access_mode=mode, name="a", topic_epoch=given, epoch=epoch
            )
            assert answer.type == BaseCommand.PRODUCER_SUCCESS
            assert answer.producer_success.topic_epoch == given

    run(scenario)


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_who_has_the_topic_and_comes_back_takes_its_own_place_at_once(mode: int) -> None:
    async def scenario(world: World) -> None:
        old, new = world.peer(), world.peer()
        answer = await old.produce(
            producer_access_mode=mode, name="a", user_provided_producer_name=True
        )
        begun = asyncio.get_running_loop().time()
        answer = await new.produce(
            producer_access_mode=mode, name="a", user_provided_producer_name=True,
            topic_epoch=answer.producer_success.topic_epoch, epoch=1,
        )  # fmt: skip
        assert answer.producer_success.producer_ready
        assert asyncio.get_running_loop().time() - begun < 1, "nobody was asked whether it lives"
        assert list(world.topic().producers.values()) == list(new.session.producers.values())

    run(scenario)


def test_producers_of_one_name_wait_for_their_turns() -> None:
    """Instances of an application that has one name for what it sends, so that none is stored
    twice."""

    async def scenario(world: World) -> None:
        first, second, third = (world.peer() for _ in range(3))
        epoch = 0
        for peer in (first, second, third):
            answer = await peer.produce(producer_access_mode=2, name="a")
            assert answer.producer_success.producer_ready is (peer is first)
            epoch = epoch or answer.producer_success.topic_epoch
        for before, peer in ((first, second), (second, third)):
            before.lose()
            [ready] = await said(peer)
            epoch += 1
            assert ready.producer_success.topic_epoch == epoch
            peer.publish(1)
            assert await peer.kinds() == ["SEND_RECEIPT"]

    run(scenario)


def test_one_that_fences_another_of_its_name() -> None:
    async def scenario(world: World) -> None:
        old, new = world.peer(), world.peer()
        answer = await old.produce(producer_access_mode=1, name="a")
        given = answer.producer_success.topic_epoch
        answer = await new.produce(producer_access_mode=3, name="a")
        assert answer.producer_success.topic_epoch == given + 1
        assert await old.kinds() == ["CLOSE_PRODUCER"]
        old.publish(1)
        assert await old.heard() == []
        answer = await old.produce(producer_access_mode=1, name="a", topic_epoch=given, epoch=1)
        assert answer.error.error == ServerError.PRODUCER_FENCED
        new.lose()
        back = world.peer()
        answer = await back.produce(
            producer_access_mode=3, name="a", topic_epoch=given + 1, epoch=1
        )
        assert answer.producer_success.topic_epoch == given + 1, (
            "the name was not refused with the other"
        )

    run(scenario)


def test_one_of_a_name_that_wants_the_topic_for_itself_comes_second() -> None:
    async def scenario(world: World) -> None:
        old, new = world.peer(), world.peer()
        first = await old.produce(producer_access_mode=1, name="a")
        answer = await new.produce(producer_access_mode=1, name="a")
        assert answer.error.error == ServerError.PRODUCER_FENCED
        old.play_dead()
        new.tell(new.produce_command(producer_access_mode=1, name="a"))
        await asyncio.sleep(10)
        [answer] = await new.heard()
        given = first.producer_success.topic_epoch
        assert answer.producer_success.topic_epoch == given + 1

    run(scenario)


def test_one_that_waited_again_is_fenced_by_those_who_had_the_topic_meanwhile() -> None:
    async def scenario(world: World) -> None:
        old, other, back = (world.peer() for _ in range(3))
        answer = await old.produce(producer_access_mode=2, name="a")
        given = answer.producer_success.topic_epoch
        await other.produce(producer_access_mode=2, name="b")
        # It is back before the broker knows that its connection is lost: b's turn comes first.
        answer = await back.produce(producer_access_mode=2, name="a", topic_epoch=given, epoch=1)
        assert not answer.producer_success.producer_ready
        [ready] = await said(other)
        assert ready.producer_success.topic_epoch == given + 1
        other.lose()
        [refused] = await said(back)
        assert refused.error.error == ServerError.PRODUCER_FENCED
        assert not world.topic().producers

    run(scenario)


def test_an_epoch_of_a_deleted_topic_is_not_that_of_the_one_made_anew() -> None:
    """Who kept it would have the topic unknown to who had it before."""

    async def scenario(world: World) -> None:
        peer, back = world.peer(), world.peer()
        answer = await peer.produce(producer_access_mode=2, name="a")
        deleted = answer.producer_success.topic_epoch
        await world.services.topics.delete(world.topic().name, force=True)
        world.now_s += 1
        answer = await peer.produce(producer_id=2, producer_access_mode=2, name="b")
        first = answer.producer_success.topic_epoch
        assert first > deleted + 1
        answer = await back.produce(producer_access_mode=2, name="a", topic_epoch=deleted, epoch=1)
        assert answer.error.error == ServerError.PRODUCER_FENCED
        answer = await back.produce(producer_access_mode=2, name="a")
        peer.lose()
        [ready] = await back.heard()
        assert ready.producer_success.topic_epoch == first + 1

    run(scenario)


def test_too_many_producers() -> None:
    async def scenario(world: World) -> None:
        peer: Peer = world.peer()
        await peer.produce(producer_id=1)
        answer = await peer.produce(producer_id=2)
        assert answer.error.error == ServerError.TOO_MANY_REQUESTS
        assert "1 producers" in answer.error.message

    run(scenario, producers_per_topic_max=1)


def test_producers_that_wait_count_too() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce(producer_id=1, producer_access_mode=1)
        await peer.produce(producer_id=2, producer_access_mode=2)
        answer = await peer.produce(producer_id=3, producer_access_mode=2)
        assert answer.error.error == ServerError.TOO_MANY_REQUESTS
        assert "1 producers and 1 that wait" in answer.error.message

    run(scenario, producers_per_topic_max=2)
