"""Dispatch, acknowledgement and redelivery, seen from the client's side of a session."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.model.errors import BookieUnavailableError, LogClosedError, NotAllowedError
from magnetar.model.ids import Position
from magnetar.model.key_hash import key_hash
from magnetar.protocols.pulsar.bounds import PROPERTIES_MAX
from magnetar.topics.consuming import feed as feed_module
from magnetar.topics.consuming import subscription as subscription_module
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, KeySharedMode, MessageMetadata
from tests.interop.pulsar.wire import checked, send_frame
from tests.unit.protocols.pulsar.harness import (
    EXCLUSIVE,
    FAILOVER,
    SHARED,
    TOPIC,
    Peer,
    World,
    batch,
    run,
)


async def consumers(world: World, count: int, kind: int = 1, **fields: object) -> list[Peer]:
    """``count`` peers, each with consumer 1 of subscription "s"."""
    peers = [world.peer() for _ in range(count)]
    for number, peer in enumerate(peers):
        answer = await peer.subscribe(kind=kind, consumer_name=f"c{number}", **fields)
        assert answer.type == BaseCommand.SUCCESS, answer
    return peers


async def producer(world: World, count: int = 0) -> Peer:
    peer = world.peer()
    await peer.produce()
    peer.publish(count)
    await peer.heard()
    return peer


# -- permits -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_no_more_than_the_permits(kind: int) -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1, kind)
        await producer(world, 12)
        assert await peer.entries() == []
        peer.flow(3)
        assert await peer.entries() == [0, 1, 2]
        peer.flow(2)
        peer.flow(2)
        assert await peer.entries() == [3, 4, 5, 6]
        peer.flow(1000)
        assert await peer.entries() == list(range(7, 12))

    run(scenario)


def test_the_compacted_view_is_for_one_consumer_at_a_time() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        answer = await peer.subscribe(kind=SHARED, read_compacted=True)
        assert answer.type == BaseCommand.ERROR
        assert answer.error.error == ServerError.NOT_ALLOWED
        assert "shared" in answer.error.message
        await consumers(world, 1, EXCLUSIVE, read_compacted=True)

    run(scenario)


def test_permits_count_the_messages_of_batches() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        sender = await producer(world)
        sender.feed(b"".join(send_frame(1, n, batch(10, n)) for n in range(4)))
        await sender.heard()
        peer.flow(15)
        assert await peer.entries() == [0, 1]
        peer.flow(5)  # pays back what the second batch took too much
        assert await peer.entries() == []
        peer.flow(1)
        assert await peer.entries() == [2]

    run(scenario)


def test_new_entries_come_as_they_are_confirmed() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        peer.flow(100)
        sender = await producer(world)
        world.log().held = True
        sender.publish(3)
        assert await peer.entries() == []
        world.log().release()
        assert await peer.entries() == [0, 1, 2]

    run(scenario)


def test_a_connection_that_takes_no_more_waits() -> None:
    async def scenario(world: World) -> None:
        peer, other = await consumers(world, 2)
        for item in (peer, other):
            item.flow(100)
        peer.session.pause_writing()
        await producer(world, 30)
        assert await peer.entries() == []
        assert await other.entries() == list(range(30))
        peer.session.resume_writing()
        sender = await producer_again(world, 30, 4)
        assert sender is not None
        assert await peer.entries() == list(range(30, 34))

    run(scenario)


async def producer_again(world: World, first: int, count: int) -> Peer:
    peer = world.peer()
    await peer.produce()
    peer.publish(count, first=first)
    await peer.heard()
    return peer


def test_unsent_bytes_stop_dispatch_for_a_turn_only() -> None:
    async def scenario(world: World) -> None:
        world.services.connections.turn_bytes = 100
        [peer] = await consumers(world, 1)
        await producer(world, 40)
        peer.flow(1000)
        seen: list[int] = []
        for _ in range(20):
            seen += await peer.entries()
        assert seen == list(range(40))

    run(scenario)


# -- reading what is not in memory -------------------------------------------------------


def test_catching_up_reads_in_few_tasks() -> None:
    async def scenario(world: World) -> None:
        await producer(world, 600)
        [peer] = await consumers(world, 1)
        world.log().cached = False
        peer.flow(10_000)
        seen: list[int] = []
        for _ in range(5):
            seen += await peer.entries()
        assert seen == list(range(600))
        assert world.log().reads <= 2 + 600 // 256 + 1

    run(scenario)


def test_what_was_read_and_not_placed_is_not_read_again() -> None:
    async def scenario(world: World) -> None:
        sender = await producer(world)
        sender.feed(b"".join(send_frame(1, n, batch(50, n)) for n in range(20)))
        await sender.heard()
        [peer] = await consumers(world, 1)
        world.log().cached = False
        seen = []
        for _ in range(20):
            peer.flow(50)
            seen += await peer.entries()
        assert seen == list(range(20))
        assert world.log().reads < 20

    run(scenario)


def test_a_read_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.topics.consuming.feed.RETRY_DELAY_S", 0.02)

    async def scenario(world: World) -> None:
        await producer(world, 4)
        [peer] = await consumers(world, 1)
        world.log().cached = False
        world.log().failing = BookieUnavailableError("away")
        peer.flow(10)
        assert await peer.entries() == []
        world.log().failing = None
        await asyncio.sleep(0.05)
        assert await peer.entries() == [0, 1, 2, 3]

    run(scenario)


def test_a_rewind_forgets_a_read_under_way() -> None:
    async def scenario(world: World) -> None:
        await producer(world, 4)
        [peer] = await consumers(world, 1, EXCLUSIVE)
        world.log().cached = False
        peer.flow(10)
        await asyncio.sleep(0)
        peer.redeliver()
        assert await peer.entries() == [0, 1, 2, 3]

    run(scenario)


def test_a_closed_log_ends_reading() -> None:
    async def scenario(world: World) -> None:
        await producer(world, 4)
        [peer] = await consumers(world, 1)
        world.log().cached = False
        world.log().failing = LogClosedError("closed")
        peer.flow(10)
        assert await peer.entries() == []

    run(scenario)


# -- acknowledging -----------------------------------------------------------------------


def test_acknowledgement_receipts_come_after_storing() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 6)
        peer.flow(10)
        await peer.entries()
        for number in range(3):
            peer.acknowledge(number, request_id=number)
        heard = await peer.heard()
        assert [c.ackResponse.request_id for c in heard] == [0, 1, 2]
        cursor = world.log()._cursors.opened["s"]
        assert cursor.waits == 1, "one wait serves all"
        assert cursor.mark_delete == (1, 2)

    run(scenario)


def test_a_refused_acknowledgement_is_told() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 2)
        peer.acknowledge(1, cumulative=True, request_id=4)
        [answer] = await peer.heard()
        assert answer.ackResponse.error == ServerError.NOT_ALLOWED
        assert world.log()._cursors.opened["s"].mark_delete == (1, -1)

    run(scenario)


def test_an_acknowledgement_of_too_many_is_refused() -> None:
    """They are taken in one turn of the loop, in which nobody else is served."""

    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 2)
        await peer.heard()
        peer.acknowledge(*range(120_000), request_id=4)
        [answer] = await peer.heard()
        assert answer.ackResponse.error == ServerError.NOT_ALLOWED
        assert "acknowledge in several" in answer.ackResponse.message
        peer.acknowledge(*range(60_000), request_id=5)
        [answer] = await peer.heard()
        assert not answer.ackResponse.HasField("error")
        assert world.log()._cursors.opened["s"].mark_delete == (1, 1)

    run(scenario)


@pytest.mark.parametrize("same", [False, True], ids=["many names", "one name"])
def test_properties_are_counted(same: bool) -> None:
    """Hundreds of thousands in a frame held everybody up for two seconds."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        for count, taken in ((PROPERTIES_MAX, True), (PROPERTIES_MAX + 1, False)):
            made = peer.produce_command()
            for number in range(count):
                made.producer.metadata.add(key="k" if same else f"{number:x}", value="")
            asked = peer.subscribe_command()
            asked.subscribe.metadata.extend(made.producer.metadata)
            for command in (made, asked):
                answer = await peer.ask(command)
                assert (answer.type != BaseCommand.ERROR) == taken
                if not taken:
                    assert answer.error.error == ServerError.NOT_ALLOWED
                    assert f"{count} properties" in answer.error.message
            peer.lose()
            peer = world.peer()
            await peer.heard()

    run(scenario)


def test_unacknowledged_messages_are_bounded() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 10)
        peer.flow(100)
        assert await peer.entries() == [0, 1, 2, 3]
        peer.acknowledge(2)
        assert await peer.entries() == [4]
        peer.acknowledge(0, 1, 3, 4)
        assert await peer.entries() == [5, 6, 7, 8]

    run(scenario, unacknowledged_per_consumer_max=4)


def test_a_late_acknowledgement_frees_the_one_who_has_it_now() -> None:
    async def scenario(world: World) -> None:
        first, second = await consumers(world, 2)
        first.flow(4)
        await producer(world, 4)
        assert await first.entries() == [0, 1, 2, 3]
        second.flow(2)
        first.redeliver(0, 1)
        assert await second.entries() == [0, 1]
        first.acknowledge(0, 1, 2, 3)
        await first.heard()
        [mine, other] = [p.session.consumers[1].consumer for p in (first, second)]
        assert (mine.seat.unacked, other.seat.unacked) == (0, 0)
        assert other.seat.out == {}

    run(scenario)


# -- chunks ------------------------------------------------------------------------------


def chunk(number: int, index: int, count: int = 3) -> bytes:
    metadata = MessageMetadata(
        producer_name="peer",
        sequence_id=number,
        publish_time=1,
        uuid=f"peer-{number}",
        chunk_id=index,
        num_chunks_from_msg=count,
        total_chunk_msg_size=4 * count,
    )
    head = metadata.SerializeToString()
    return checked(len(head).to_bytes(4, "big") + head + b"data")


def test_chunks_go_where_the_first_one_went() -> None:
    async def scenario(world: World) -> None:
        first, second = await consumers(world, 2)
        for peer in (first, second):
            peer.flow(100)
        sender = await producer(world)
        for index in range(3):
            for number in range(2):
                sender.feed(send_frame(1, number, chunk(number, index)))
                await sender.heard()
        assert await first.entries() == [0, 2, 4]
        assert await second.entries() == [1, 3, 5]

    run(scenario)


def test_chunks_wait_for_their_connection_without_a_busy_loop() -> None:
    async def scenario(world: World) -> None:
        first, second = await consumers(world, 2)
        for peer in (first, second):
            peer.flow(100)
        sender = await producer(world)
        sender.feed(send_frame(1, 0, chunk(0, 0)))
        await sender.heard()
        assert await first.entries() == [0]
        first.session.pause_writing()
        sender.feed(send_frame(1, 0, chunk(0, 1)))
        await sender.heard()
        assert await second.entries() == []
        assert not world.topic().subscriptions["s"].dispatcher._scheduled
        first.session.resume_writing()
        assert await first.entries() == [1]

    run(scenario)


@pytest.mark.parametrize("cached", [True, False])
def test_chunks_of_one_who_leaves_are_sent_again_before_those_that_waited(cached: bool) -> None:
    async def scenario(world: World) -> None:
        first, second = await consumers(world, 2)
        first.flow(100)
        sender = await producer(world)
        for index in range(3):
            sender.feed(send_frame(1, 0, chunk(0, index)))
        assert await first.entries() == [0, 1, 2]
        world.log().cached = cached
        first.redeliver(0)
        assert await first.entries() == [0]
        first.session.pause_writing()
        second.flow(100)
        first.redeliver(1, 2)
        assert await first.entries() + await second.entries() == []
        first.lose()
        assert await second.entries() == [0, 1, 2]

    run(scenario)


# -- redelivery --------------------------------------------------------------------------


def test_refused_entries_come_before_new_ones_with_their_count() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 6)
        peer.flow(3)
        assert await peer.entries() == [0, 1, 2]
        peer.redeliver(2, 0)
        peer.flow(4)
        heard = [c.message for c in await peer.heard()]
        got = [(m.message_id.entryId, m.redelivery_count) for m in heard]
        assert got == [(0, 1), (2, 1), (3, 0), (4, 0)]

    run(scenario)


def test_replays_that_are_not_in_memory_are_read() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 12)
        peer.flow(12)
        await peer.entries()
        world.log().cached = False
        peer.redeliver(1, 3, 4, 5, 11)
        peer.flow(5)
        assert await peer.entries() == [1, 3, 4, 5, 11]

    run(scenario)


def test_replays_that_are_read_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "BYTES_MAX", 150)  # an entry has about a third of it

    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 12)
        peer.flow(12)
        await peer.entries()
        log = world.log()
        log.cached, log.reads = False, 0
        peer.redeliver(*range(0, 12, 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        peer.flow(6)
        feed, most = world.topic().subscriptions["s"].dispatcher.feed, 0
        for _ in range(200):
            await asyncio.sleep(0)
            most = max(most, sum(len(entry.data) for entry in feed._replayed))
        assert await peer.entries() == list(range(0, 12, 2))
        assert 0 < most <= 200

    run(scenario)


def test_a_consumer_that_leaves_gives_back_without_counting() -> None:
    async def scenario(world: World) -> None:
        first, second = await consumers(world, 2)
        first.flow(3)
        await producer(world, 3)
        await first.entries()
        first.acknowledge(1)
        second.flow(10)
        first.lose()
        heard = [c.message for c in await second.heard()]
        assert [(m.message_id.entryId, m.redelivery_count) for m in heard] == [(0, 0), (2, 0)]

    run(scenario)


def test_what_is_acknowledged_while_it_waits_is_not_sent() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 4)
        peer.flow(4)
        await peer.entries()
        peer.redeliver()
        peer.acknowledge(0, 2)
        peer.flow(10)
        assert await peer.entries() == [1, 3]

    run(scenario)


def test_an_exclusive_consumer_starts_again_after_the_mark() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1, EXCLUSIVE)
        await producer(world, 8)
        peer.flow(20)
        await peer.entries()
        peer.acknowledge(2, cumulative=True)
        peer.acknowledge(5)
        peer.redeliver()
        assert await peer.entries() == [3, 4, 6, 7]

    run(scenario)


def redeliver_all(peer: Peer, epoch: int) -> None:
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = 1
    command.redeliverUnacknowledgedMessages.consumer_epoch = epoch
    peer.tell(command)


async def epochs(peer: Peer) -> list[int]:
    """What the messages that have come say; -1: they say none."""
    found = [each.message for each in await peer.heard() if each.type == BaseCommand.MESSAGE]
    return [each.consumer_epoch if each.HasField("consumer_epoch") else -1 for each in found]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_messages_say_after_which_redelivery_they_were_sent(kind: int) -> None:
    """Java's client tells by that which were on their way when it asked for all of them again."""

    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1, kind, consumer_epoch=0)
        await producer(world, 3)
        peer.flow(100)
        assert await epochs(peer) == [0, 0, 0]
        redeliver_all(peer, 1)
        assert await epochs(peer) == [1, 1, 1]
        peer.acknowledge(1, cumulative=True)
        redeliver_all(peer, 200)
        redeliver_all(peer, 7)  # no client says that
        assert await epochs(peer) == [200]
        peer.tell(peer.subscribe_command(kind=kind, consumer_epoch=300))
        await peer.heard()
        await producer_again(world, 3, 1)
        assert await epochs(peer) == [300]

    run(scenario)


def test_who_counts_no_redeliveries_is_told_of_none() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1, EXCLUSIVE)
        await producer(world, 2)
        peer.flow(100)
        assert await epochs(peer) == [-1, -1]
        peer.redeliver()
        assert await epochs(peer) == [-1, -1]
        counts = 2**64 - 1  # -1: none
        [shared] = await consumers(world, 1, SHARED, name="shared", consumer_epoch=0)
        [none] = await consumers(world, 1, EXCLUSIVE, name="none", consumer_epoch=counts)
        shared.flow(100)
        none.flow(100)
        assert await epochs(shared) == await epochs(none) == [-1, -1]

    run(scenario)


# -- failover ----------------------------------------------------------------------------


def active(commands: list[BaseCommand]) -> list[bool]:
    return [
        c.active_consumer_change.is_active
        for c in commands
        if c.type == BaseCommand.ACTIVE_CONSUMER_CHANGE
    ]


def test_never_two_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "SWITCH_DELAY_S", 0.05)

    async def scenario(world: World) -> None:
        old, new = world.peer(), world.peer()
        await old.subscribe(kind=FAILOVER, consumer_name="b")
        assert active(await old.heard()) == [True]
        old.flow(100)
        sender = await producer(world, 5)
        assert await old.entries() == [0, 1, 2, 3, 4]
        await new.subscribe(kind=FAILOVER, consumer_name="a")
        new.flow(100)
        assert active(await old.heard()) == [False]
        assert active(await new.heard()) == [False]
        sender.publish(2, first=5)
        await sender.heard()
        assert await old.entries() == []
        assert await new.entries() == []
        old.acknowledge(4, cumulative=True)  # it may still say what it has done
        await asyncio.sleep(0.08)
        heard = await new.heard()
        assert active(heard) == [True]
        assert [c.message.message_id.entryId for c in heard[1:]] == [0, 1]
        assert await old.entries() == []

    run(scenario)


def test_the_next_takes_over_at_once_when_the_active_one_leaves() -> None:
    async def scenario(world: World) -> None:
        first, second = await consumers(world, 2, FAILOVER)
        for peer in (first, second):
            await peer.heard()
            peer.flow(100)
        await producer(world, 4)
        assert await first.entries() == [0, 1, 2, 3]
        first.acknowledge(0, 2)
        first.lose()
        heard = await second.heard()
        assert active(heard) == [True]
        assert [c.message.message_id.entryId for c in heard[1:]] == [1, 3]

    run(scenario)


# -- joining and leaving -----------------------------------------------------------------


def test_kinds_do_not_mix() -> None:
    async def scenario(world: World) -> None:
        await consumers(world, 1)
        for kind in (EXCLUSIVE, FAILOVER):
            answer = await world.peer().subscribe(kind=kind)
            assert answer.error.error == ServerError.CONSUMER_BUSY
        answer = await world.peer().subscribe(durable=False)
        assert answer.error.error == ServerError.NOT_ALLOWED

    run(scenario)


def test_who_is_refused_hears_of_the_exclusive_consumer_in_pulsars_words() -> None:
    """Programs look for them (`testExclusiveSubscribe` of Pulsar's own suite)."""

    async def scenario(world: World) -> None:
        await consumers(world, 1, EXCLUSIVE)
        answer = await world.peer().subscribe(kind=EXCLUSIVE)
        assert answer.error.error == ServerError.CONSUMER_BUSY
        assert "Exclusive consumer is already connected" in answer.error.message

    run(scenario)


def test_a_place_is_taken_over_from_a_dead_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.protocols.pulsar.liveness.CHECK_S", 0.05)

    async def scenario(world: World) -> None:
        [dead] = await consumers(world, 1, EXCLUSIVE)
        dead.play_dead()
        peer = world.peer()
        await peer.heard()
        ask = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = ask.subscribe
        request.topic, request.subscription, request.subType = TOPIC, "s", EXCLUSIVE
        request.consumer_id = request.request_id = 1
        peer.tell(ask)
        await asyncio.sleep(0.15)
        assert await peer.kinds() == ["SUCCESS"]
        assert dead.transport.closed

    run(scenario)


def test_consumers_are_bounded() -> None:
    async def scenario(world: World) -> None:
        await consumers(world, 2)
        answer = await world.peer().subscribe()
        assert answer.error.error == ServerError.CONSUMER_BUSY

    run(scenario, consumers_per_subscription_max=2)


def test_the_last_one_may_unsubscribe() -> None:
    async def scenario(world: World) -> None:
        first, second = await consumers(world, 2)
        leave = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
        leave.unsubscribe.consumer_id, leave.unsubscribe.request_id = 1, 3
        assert (await first.ask(leave)).type == BaseCommand.ERROR
        second.lose()
        assert (await first.ask(leave)).success.request_id == 3
        assert world.log()._cursors.opened == {}
        assert world.topic().subscriptions == {}

    run(scenario)


def test_a_seek_sends_everybody_away_before_it_is_answered() -> None:
    async def scenario(world: World) -> None:
        first, second = await consumers(world, 2)
        await producer(world, 8)
        for peer in (first, second):
            peer.flow(100)
            await peer.entries()
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 7
        seek.seek.message_id.ledgerId, seek.seek.message_id.entryId = 1, 3
        first.tell(seek)
        first.acknowledge(6)  # on its way when the seek was sent: without effect
        assert await first.kinds() == ["CLOSE_CONSUMER", "SUCCESS"]
        assert await second.kinds() == ["CLOSE_CONSUMER"]
        await second.subscribe()
        second.flow(100)
        assert await second.entries() == [3, 4, 5, 6, 7]

    run(scenario)


def test_a_seek_to_the_end_goes_behind_all_that_was_stored() -> None:
    """Of a log that was opened here just now the last entries may not be readable yet."""

    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 3)
        log = world.log()
        log.held = True
        await producer_again(world, 3, 2)

        class Opening:
            async def wait_whole(self) -> None:
                log.held = False
                log.release()

        log.opening = Opening()  # type: ignore[assignment]
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 7
        seek.seek.message_id.ledgerId = seek.seek.message_id.entryId = 2**63 - 1
        peer.tell(seek)
        await peer.heard()
        log.held = False
        log.release()
        await peer.subscribe()
        peer.flow(10)
        assert await peer.entries() == []

    run(scenario)


@pytest.mark.parametrize("time_ms", [0, 2**64 - 60, 2**63])
def test_a_seek_to_a_time_before_1970_goes_to_the_first_message(time_ms: int) -> None:
    """Java's clients write -60 as 2^64 - 60, and Pulsar's brokers read it so."""

    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 3)
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 7
        seek.seek.message_publish_time = time_ms
        peer.tell(seek)
        await peer.heard()
        await peer.subscribe()
        peer.flow(10)
        assert await peer.entries() == [0, 1, 2]

    run(scenario)


def test_a_seek_that_fails_still_sends_consumers_back() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 7
        seek.seek.message_publish_time = 1
        world.log().failing = NotAllowedError("the disk is away")
        peer.tell(seek)
        closed, refused = await peer.heard()
        assert closed.type == BaseCommand.CLOSE_CONSUMER
        assert refused.error.error == ServerError.NOT_ALLOWED
        world.log().failing = None
        assert (await peer.subscribe()).type == BaseCommand.SUCCESS

    run(scenario)


def test_a_reader_whose_seek_fails_goes_on_where_its_client_says() -> None:
    """It had read on, and what the broker remembered was older."""

    async def scenario(world: World) -> None:
        await producer(world, 8)
        peer = world.peer()
        await peer.heard()

        async def read_from(position: Position) -> None:
            command = peer.subscribe_command("reader", EXCLUSIVE, 5, durable=False)
            at = command.subscribe.start_message_id
            at.ledgerId, at.entryId = position.ledger_id, position.entry_id
            assert (await peer.ask(command)).type == BaseCommand.SUCCESS
            peer.flow(100, 5)

        await read_from(world.log().positions.at(0))
        assert (await peer.entries())[-1] == 7
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 5, 7
        seek.seek.message_publish_time = 1
        world.log().failing = NotAllowedError("the disk is away")
        peer.tell(seek)
        closed, refused = await peer.heard()
        assert (closed.type, refused.type) == (BaseCommand.CLOSE_CONSUMER, BaseCommand.ERROR)
        world.log().failing = None
        await read_from(world.log().positions.at(5))
        assert min(await peer.entries()) >= 5

    run(scenario)


def test_a_seek_to_nowhere_is_refused_and_nobody_is_sent_away() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 1)
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 7
        peer.tell(seek)
        [refused] = await peer.heard()
        assert refused.error.error == ServerError.NOT_ALLOWED
        peer.flow(10)
        assert await peer.entries() == [0]

    run(scenario)


def ack_part(entry_id: int, words: int, batch_size: int, request_id: int = 9) -> BaseCommand:
    """An ACK of a part of an entry that leaves everything unacknowledged."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, command.ack.Individual
    command.ack.request_id = request_id
    command.ack.message_id.add(
        ledgerId=1, entryId=entry_id, batch_size=batch_size, ack_set=[-1] * words
    )
    return command


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_no_more_is_acknowledged_of_an_entry_than_it_has(kind: int) -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1, kind)
        sender = await producer(world, 1)
        sender.feed(send_frame(1, 1, batch(100)))
        await sender.heard()
        state = world.topic().subscriptions["s"].cursor
        for entry_id, words in ((0, 10_000), (0, 2), (1, 10_000), (1, 3)):
            refused = await peer.ask(ack_part(entry_id, words, words * 64))
            assert refused.ackResponse.error == ServerError.NOT_ALLOWED
            assert state.ack_set(Position(1, entry_id)) is None
        # a client that says that its batch is larger than it is gets no more for it
        taken = await peer.ask(ack_part(1, 2, 500_000_000))
        assert not taken.ackResponse.HasField("error")
        assert state.ack_set(Position(1, 1)) is not None
        world.log().cached = False
        refused = await peer.ask(ack_part(0, 1025, 0))
        assert refused.ackResponse.error == ServerError.NOT_ALLOWED

    run(scenario)


def test_an_acknowledgement_of_more_than_any_entry_has_ends_the_connection() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 1)
        peer.tell(ack_part(0, 500_000, 0))
        assert peer.session.closed

    run(scenario)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_reader_is_not_told_to_wait_for_what_it_is_never_given(compacted: bool) -> None:
    """Else it asks whether there is more, and then waits for it: its client's way to the end."""

    async def scenario(world: World) -> None:
        reader, sender = world.peer(), await producer(world, 2)
        damaged = b"\xff\xff\xff"
        head = len(damaged).to_bytes(4, "big") + damaged
        sender.feed(send_frame(1, 2, checked(head)))
        assert "SEND_RECEIPT" in await sender.kinds()
        await reader.subscribe(kind=EXCLUSIVE, durable=False, read_compacted=compacted)
        reader.flow(10)
        assert await reader.entries() == [0, 1]
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        command.getLastMessageId.consumer_id, command.getLastMessageId.request_id = 1, 9
        answer = (await reader.ask(command)).getLastMessageIdResponse
        assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == (1, 1)

    run(scenario)


def test_a_subscription_starts_at_a_time_back() -> None:
    async def scenario(world: World) -> None:
        await producer(world, 5)  # published at 1 ms; the clock says 10^9 s
        peer = world.peer()
        await peer.subscribe(start_message_rollback_duration_sec=10)
        peer.flow(10)
        assert await peer.entries() == []
        await peer.subscribe(name="all", consumer_id=2, start_message_rollback_duration_sec=10**9)
        peer.flow(10, consumer_id=2)
        assert await peer.entries() == [0, 1, 2, 3, 4]

    run(scenario)


def test_a_subscription_goes_back_although_something_of_it_is_not_due() -> None:
    """What is not due stays known while nobody is there, and dispatch goes on where it rested: what
    lay between the time that was asked for and that place never came."""

    async def scenario(world: World) -> None:
        publisher = await producer(world, 4)  # published at 1 ms
        delayed = MessageMetadata(
            producer_name="peer",
            sequence_id=4,
            publish_time=1,
            deliver_at_time=int((world.now_s + 3600) * 1000),
        ).SerializeToString()
        payload = checked(len(delayed).to_bytes(4, "big") + delayed + b"later")
        publisher.feed(send_frame(1, 4, payload))
        await publisher.heard()
        [peer] = await consumers(world, 1)
        peer.flow(10)
        assert await peer.entries() == [0, 1, 2, 3]
        peer.acknowledge(0, 1, 2, 3)
        peer.lose()
        [again] = await consumers(world, 1, start_message_rollback_duration_sec=10**9)
        again.flow(10)
        assert await again.entries() == [0, 1, 2, 3]

    run(scenario)


def test_consumer_stats() -> None:
    async def scenario(world: World) -> None:
        [peer] = await consumers(world, 1)
        await producer(world, 5)
        peer.flow(8)
        await peer.entries()
        peer.acknowledge(0)
        ask = BaseCommand(type=BaseCommand.CONSUMER_STATS)
        ask.consumerStats.request_id, ask.consumerStats.consumer_id = 3, 1
        reply = (await peer.ask(ask)).consumerStatsResponse
        assert reply.request_id == 3
        assert (reply.availablePermits, reply.unackedMessages, reply.msgBacklog) == (3, 4, 4)
        assert (reply.consumerName, reply.type) == ("c0", "Shared")

    run(scenario)


def test_nobody_joins_a_topic_that_closed_meanwhile() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        await peer.subscribe()
        peer.lose()
        peer = world.peer()
        await peer.heard()
        cursor = world.log()._cursors.opened["s"]
        reset = cursor.reset

        async def slow_reset(position: Position) -> None:
            await asyncio.sleep(1)
            await reset(position)

        cursor.reset = slow_reset  # type: ignore[method-assign]
        peer.tell(peer.subscribe_command(start_message_rollback_duration_sec=10))
        await asyncio.sleep(0.5)
        world.topic().fail(LogClosedError("lost"))
        answer = await peer.next()
        assert answer.error.error == ServerError.SERVICE_NOT_READY

    run(scenario)


def test_a_reader_that_left_before_it_was_seated_leaves_nothing() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        peer.tell(peer.subscribe_command(name="reader", durable=False))
        peer.lose()
        await asyncio.sleep(1)
        assert world.topic().subscriptions == {}

    run(scenario)


def test_a_reader_whose_place_cannot_be_found_leaves_nothing() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        log = world.log()

        async def no_answer(time_ms: int) -> Position:
            raise BookieUnavailableError("no answer")

        log.first_at = no_answer  # type: ignore[method-assign]
        answer = await peer.subscribe(
            name="reader", durable=False, start_message_rollback_duration_sec=10
        )
        assert "no answer" in answer.error.message
        assert world.topic().subscriptions == {}

    run(scenario)


def test_a_reader_of_hash_ranges_gets_those_keys_alone() -> None:
    """Java's readers ask for them; what they leave out holds nothing up."""

    def keyed(number: int) -> bytes:
        meta = MessageMetadata(producer_name="w", sequence_id=number, publish_time=1)
        meta.partition_key = str(number)
        head = meta.SerializeToString()
        return checked(len(head).to_bytes(4, "big") + head + b"x")

    async def scenario(world: World) -> None:
        sender = await producer(world)
        sender.feed(b"".join(send_frame(1, n, keyed(n)) for n in range(2000)))
        await sender.heard()
        wanted = [n for n in range(2000) if (key_hash(b"%d" % n) % 65_536 or 1) <= 20_000]
        assert 400 < len(wanted) < 800
        peer = world.peer()
        command = peer.subscribe_command("reader", EXCLUSIVE, durable=False)
        meta = command.subscribe.keySharedMeta
        meta.keySharedMode = KeySharedMode.STICKY
        meta.hashRanges.add(start=0, end=20_000)
        command.subscribe.start_message_id.ledgerId = (1 << 64) - 1
        command.subscribe.start_message_id.entryId = (1 << 64) - 1
        await peer.heard()
        assert (await peer.ask(command)).type == BaseCommand.SUCCESS
        peer.flow(100)
        got = await peer.entries()
        assert got == wanted[:100]
        peer.flow(1000)
        for _ in range(20):
            got += await peer.entries()
        assert got == wanted
        sender.feed(b"".join(send_frame(1, n, keyed(n)) for n in range(2000, 2200)))
        await sender.heard()
        more = [n for n in range(2000, 2200) if (key_hash(b"%d" % n) % 65_536 or 1) <= 20_000]
        assert await peer.entries() == more

    run(scenario, ledger_entries=10_000)
