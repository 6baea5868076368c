"""A session's own rules: order of requests, unusual but valid frames, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.protocols.pulsar.liveness import Connection, Sweeper
from magnetar.protocols.pulsar.requests import REQUESTS_MAX
from magnetar.protocols.pulsar.session import COMMANDS_PER_TURN
from magnetar.topics.consuming.consumer import Consumer
from magnetar.topics.consuming.subscription import Subscription
from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.interop.pulsar.wire import frame, message, send_frame
from tests.unit.protocols.pulsar.harness import TOPIC, Peer, World, run


def lookup(request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = TOPIC, request_id
    return command


def test_connected_says_what_is_implemented() -> None:
    async def scenario(world: World) -> None:
        [answer] = await world.peer().heard()
        connected = answer.connected
        assert connected.max_message_size == world.services.config.message_bytes_max
        assert connected.protocol_version == 20
        flags = connected.feature_flags
        assert flags.supports_get_partitioned_metadata_without_auto_creation
        assert flags.supports_topic_watchers
        assert not flags.supports_topic_watcher_reconcile
        assert not flags.supports_broker_entry_metadata

    run(scenario)


def test_requests_of_one_producer_run_in_order() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        create = BaseCommand(type=BaseCommand.PRODUCER)
        create.producer.topic, create.producer.producer_id = TOPIC, 1
        close = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        close.close_producer.producer_id = 1
        chunk = b""
        for number in range(0, 6, 2):
            create.producer.request_id, close.close_producer.request_id = number, number + 1
            chunk += encode_command(create) + encode_command(close)
        peer.feed(chunk)
        heard = await peer.heard()
        got = [c.producer_success.request_id or c.success.request_id for c in heard]
        assert got == list(range(6))
        assert world.topic().producers == {}

    run(scenario)


def test_too_many_requests_stop_reading_until_half_are_answered() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        peer.feed(b"".join(encode_command(lookup(n)) for n in range(REQUESTS_MAX + 1)))
        assert not peer.transport.reading
        answered = await peer.heard()
        assert peer.transport.reading
        assert len(answered) == REQUESTS_MAX + 1

    run(scenario)


def test_requests_past_the_bound_wait_although_they_came_in_the_same_chunk() -> None:
    """They stop at the bound, go on in their order, and what is whole or not after them waits."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        under_way, most = 0, 0
        answer = peer.session.answer

        async def counted(command: BaseCommand) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await answer(command)
            under_way -= 1

        peer.session.answer = counted  # type: ignore[method-assign]
        many = 4 * REQUESTS_MAX
        last = encode_command(lookup(many))
        frames = peer.session.frames
        peer.feed(b"".join(encode_command(lookup(n)) for n in range(many)) + last[:-1])
        assert peer.session.frames - frames == REQUESTS_MAX + 1
        answered = await peer.heard()
        assert [c.lookupTopicResponse.request_id for c in answered] == list(range(many))
        assert most == REQUESTS_MAX + 1
        assert peer.session.frames - frames == many
        assert peer.transport.reading
        peer.feed(last[-1:])
        (answer_to_last,) = await peer.heard()
        assert answer_to_last.lookupTopicResponse.request_id == many

    run(scenario)


def test_many_commands_in_one_chunk_take_turns_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50 000 FLOWs stopped a broker for 0.76 s."""
    given: list[int] = []

    def flow(_subscription: Subscription, _consumer: Consumer, permits: int) -> None:
        given.append(permits)

    monkeypatch.setattr(Subscription, "flow", flow)

    async def scenario(world: World) -> None:
        peers = [world.peer() for _ in range(3)]
        many = 4 * COMMANDS_PER_TURN
        for number, peer in enumerate(peers):
            await peer.subscribe(f"s{number}")
        for number, peer in enumerate(peers):
            first = number * many
            peer.feed(b"".join(flow_frame(1, first + each) for each in range(many)))
        most, before = 0, len(given)
        assert before == 3 * COMMANDS_PER_TURN
        while len(given) < 3 * many:
            await asyncio.sleep(0)
            most, before = max(most, len(given) - before), len(given)
        assert most == COMMANDS_PER_TURN, "of one of them in a turn"
        for number in range(3):
            mine = range(number * many, (number + 1) * many)
            assert [each for each in given if each in mine] == list(mine)
        for peer in peers:
            await peer.heard()
            assert peer.transport.reading

    run(scenario)


def flow_frame(consumer_id: int, permits: int) -> bytes:
    command = BaseCommand(type=BaseCommand.FLOW)
    command.flow.consumer_id = consumer_id
    command.flow.messagePermits = permits
    return encode_command(command)


def test_what_waits_after_requests_goes_with_its_connection() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        frames = peer.session.frames
        peer.feed(b"".join(encode_command(lookup(n)) for n in range(2 * REQUESTS_MAX)))
        peer.session.connection_lost(None)
        await peer.heard()
        assert peer.session.frames - frames == REQUESTS_MAX + 1
        assert not peer.transport.reading

    run(scenario)


def test_fields_in_an_unusual_order_are_understood() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        send = BaseCommand(type=BaseCommand.SEND)
        send.send.producer_id, send.send.sequence_id = 1, 3
        whole = send.SerializeToString()
        turned = whole[2:] + whole[:2]  # the type last
        payload = message(b"x")
        head = (4 + len(turned) + len(payload)).to_bytes(4, "big")
        peer.feed(head + len(turned).to_bytes(4, "big") + turned + payload)
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, 1
        body = flow.SerializeToString()
        peer.feed(frame(body[2:] + body[:2]))
        assert await peer.kinds() == ["SEND_RECEIPT"]

    run(scenario)


def test_frames_split_anywhere() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        data = b"".join(send_frame(1, n, message(b"x" * 50, n)) for n in range(5))
        for start in range(0, len(data), 7):
            peer.feed(data[start : start + 7])
        assert await peer.kinds() == ["SEND_RECEIPT"] * 5

    run(scenario)


def test_a_connection_lost_while_a_request_is_under_way_leaves_nothing() -> None:
    async def scenario(world: World) -> None:
        for turns in range(20):
            peer = world.peer()
            peer.tell(peer.produce_command(topic=f"t{turns}"))
            peer.tell(peer.subscribe_command(topic=f"t{turns}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            peer.lose()
        for _ in range(50):
            await asyncio.sleep(0)
        topics = world.services.topics.loaded()
        assert len(topics) == 20
        for topic in topics:
            assert topic.producers == {}
            assert all(not item.consumers for item in topic.subscriptions.values())
        assert world.services.sessions == {}

    run(scenario)


def test_too_many_connections() -> None:
    async def scenario(world: World) -> None:
        first = world.peer()
        second = world.peer(hello=False)
        assert second.transport.closed
        first.lose()
        assert not world.peer(hello=False).transport.closed

    run(scenario, connections_max=1)


# -- deadlines ----------------------------------------------------------------------------------


class Clocked:
    """A sweeper with a clock of its own; deadlines: handshake 10, frame 20, silence 30."""

    def __init__(self, world: World) -> None:
        self.sweeper = Sweeper(world.services.config, world.services.sessions)
        self.now = 0.0

    def at(self, now: float) -> None:
        """Sweep once a second up to ``now``."""
        while self.now < now:
            self.now += 1
            self.sweeper.sweep(self.now)


SETTINGS = {
    "handshake_timeout_ms": 10_000,
    "frame_timeout_ms": 20_000,
    "keep_alive_ms": 30_000,
}


def test_of_many_some_are_looked_at_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.protocols.pulsar.liveness.PORTION", 2)
    looks: list[int | str] = []
    look_at = Sweeper._look_at

    def told(self: Sweeper, sessions: Sequence[Connection], now: float) -> None:
        looks.append(len(sessions))
        asyncio.get_running_loop().call_soon(looks.append, "others")
        look_at(self, sessions, now)

    monkeypatch.setattr(Sweeper, "_look_at", told)

    async def scenario(world: World) -> None:
        peers = [world.peer(hello=False) for _ in range(5)]
        await asyncio.sleep(0.1)
        assert looks[:6] == [2, "others", 2, "others", 1, "others"]
        assert all(peer.transport.closed for peer in peers), "no CONNECT in time"

    run(scenario, handshake_timeout_ms=20, frame_timeout_ms=20_000, keep_alive_ms=30_000)


async def pings(peer: Peer) -> int:
    return (await peer.kinds()).count("PING")


def test_no_connect_in_time() -> None:
    async def scenario(world: World) -> None:
        clocked, peer, ready = Clocked(world), world.peer(hello=False), world.peer()
        clocked.at(10)
        assert not peer.transport.closed
        clocked.at(12)
        assert peer.transport.closed
        assert not ready.transport.closed

    run(scenario, **SETTINGS)


def test_silence_is_asked_about_once_and_then_ended() -> None:
    async def scenario(world: World) -> None:
        clocked, peer = Clocked(world), world.peer()
        peer.play_dead()
        clocked.at(31)
        assert await pings(peer) == 0
        clocked.at(60)
        assert await pings(peer) == 1
        assert not peer.transport.closed
        clocked.at(63)
        assert peer.transport.closed

    run(scenario, **SETTINGS)


def test_an_answer_is_enough() -> None:
    async def scenario(world: World) -> None:
        clocked, peer = Clocked(world), world.peer()
        for now in range(40, 400, 40):
            clocked.at(now)
            assert await pings(peer) == 1
            peer.tell(BaseCommand(type=BaseCommand.PONG))
        assert not peer.transport.closed

    run(scenario, **SETTINGS)


def test_a_frame_begun_and_not_finished() -> None:
    async def scenario(world: World) -> None:
        clocked, peer = Clocked(world), world.peer()
        peer.feed((1000).to_bytes(4, "big"))
        for now in range(5, 20, 5):
            clocked.at(now)
            peer.feed(b"x")
        assert not peer.transport.closed
        clocked.at(22)
        assert peer.transport.closed

    run(scenario, **SETTINGS)


def test_frame_after_frame_is_fine_however_they_are_cut() -> None:
    async def scenario(world: World) -> None:
        clocked, peer = Clocked(world), world.peer()
        ping = encode_command(BaseCommand(type=BaseCommand.PING))
        peer.feed(ping[:3])
        for now in range(10, 200, 10):
            clocked.at(now)
            peer.feed(ping[3:] + ping[:3])
        assert not peer.transport.closed

    run(scenario, **SETTINGS)


def test_acknowledgement_after_acknowledgement_is_fine_however_they_are_cut() -> None:
    async def scenario(world: World) -> None:
        clocked, peer = Clocked(world), world.peer()
        await peer.subscribe()
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id, command.ack.ack_type = 1, command.ack.Individual
        command.ack.message_id.add(ledgerId=1, entryId=0)
        ack = encode_command(command)
        frames = peer.session.frames
        peer.feed(ack[:3])
        for now in range(10, 200, 10):
            clocked.at(now)
            peer.feed(ack[3:] + ack + ack[:3])
        assert not peer.transport.closed
        assert peer.session.frames > frames

    run(scenario, **SETTINGS)


def test_one_who_takes_no_bytes_is_ended_and_one_who_takes_some_is_not() -> None:
    async def scenario(world: World) -> None:
        clocked, stuck, slow = Clocked(world), world.peer(), world.peer()
        for peer in (stuck, slow):
            peer.transport.buffered = 1 << 20
            peer.session.pause_writing()
        for now in range(10, 100, 10):
            clocked.at(now)
            slow.transport.buffered -= 1000
        assert stuck.transport.closed
        assert not slow.transport.closed

    run(scenario, **SETTINGS)


def test_a_client_that_waits_for_storage_is_not_ended() -> None:
    async def scenario(world: World) -> None:
        clocked, peer = Clocked(world), world.peer()
        await peer.produce()
        world.log().held = True
        peer.feed(send_frame(1, 0, message(bytes(3000))))
        assert not peer.transport.reading
        clocked.at(200)
        assert not peer.transport.closed
        world.log().release()
        await peer.heard()
        assert peer.transport.reading

    run(scenario, pending_publish_bytes_per_connection=1024, **SETTINGS)
