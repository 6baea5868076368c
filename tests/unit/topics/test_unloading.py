"""Topics that nobody uses are unloaded; their next use loads them again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import (
    LogClosedError,
    MetadataUnavailableError,
    TooManyConnectionsError,
)
from magnetar.model.ids import Position
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.doubles.memory_log import MemoryLog
from tests.unit.protocols.pulsar.harness import TOPIC, Peer, World, run

IDLE_MS = 10_000


async def until(condition: Callable[[], bool]) -> None:
    """Virtual time passes until ``condition`` holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never holds")


class OtherBroker:
    """It follows the log, and is told that nothing grows or closes."""

    connected = writable = True

    def tell_grew(self, last: Position) -> None:
        raise AssertionError

    def tell_closed(self, service_url: str = "") -> None:
        raise AssertionError


def is_open(world: World, topic: str = TOPIC) -> bool:
    return world.services.topics.find(parse_topic(topic)) is not None


def close_producer(producer_id: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = 77
    return command


def seek_to_start() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id = 1
    command.seek.request_id = 8
    command.seek.message_id.ledgerId, command.seek.message_id.entryId = 1, 0
    return command


async def published(world: World, count: int, first: int = 0) -> Peer:
    """A client that has published and is still connected."""
    peer = world.peer()
    assert (await peer.produce()).type == BaseCommand.PRODUCER_SUCCESS
    peer.publish(count, first)
    assert [c.type for c in await peer.heard()] == [BaseCommand.SEND_RECEIPT] * count
    return peer


def test_an_idle_topic_is_unloaded_and_comes_back_as_it_was() -> None:
    async def scenario(world: World) -> None:
        peer = await published(world, 3)
        await peer.subscribe()
        peer.flow(10)
        assert await peer.entries() == [0, 1, 2]
        peer.acknowledge(0)
        first = world.log()
        peer.lose()
        await until(lambda: not is_open(world))
        await until(lambda: first.closed)
        assert world.services.topics.unloaded == 1
        again = await published(world, 2, 3)
        assert world.log() is not first
        await again.subscribe()
        again.flow(10)
        assert await again.entries() == [1, 2, 3, 4]

    run(scenario, idle_topic_unload_ms=IDLE_MS)


def test_the_time_counts_from_the_last_use() -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        peer = await published(world, 1)
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert is_open(world)
        await peer.ask(close_producer())
        let_go_s = loop.time()
        await until(lambda: not is_open(world))
        assert loop.time() - let_go_s >= IDLE_MS / 1000

    run(scenario, idle_topic_unload_ms=IDLE_MS)


def test_never_by_setting() -> None:
    async def scenario(world: World) -> None:
        (await published(world, 1)).lose()
        await asyncio.sleep(20 * IDLE_MS / 1000)
        assert is_open(world)

    run(scenario, idle_topic_unload_ms=0)


@pytest.mark.parametrize("what", ["consumer", "sends", "reader that seeks", "exclusive"])
def test_what_keeps_a_topic(what: str) -> None:
    """It stays while that lasts, and goes when it has ended."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        if what == "consumer":
            await peer.subscribe()
            other = world.peer()
            await other.produce()
            other.lose()
        elif what == "sends":
            await peer.produce()
            world.log().held = True
            peer.publish(1)
            peer.lose()
        elif what == "reader that seeks":
            await peer.subscribe(durable=False)
            peer.tell(seek_to_start())
            assert sorted(await peer.kinds()) == ["CLOSE_CONSUMER", "SUCCESS"]
            peer.lose()
        else:
            await peer.produce(producer_access_mode=1)
            waiting = world.peer()
            await waiting.produce(producer_access_mode=2)
            peer.lose()
        lasts_s = 50 if what == "reader that seeks" else 5 * IDLE_MS / 1000
        await asyncio.sleep(lasts_s)
        assert is_open(world)
        if what == "sends":
            world.log().release()
        elif what == "exclusive":
            waiting.lose()
        else:
            peer.lose()
        await until(lambda: not is_open(world))

    run(scenario, idle_topic_unload_ms=IDLE_MS)


def test_who_is_sent_away_by_a_seek_hears_of_it_before_the_topic_is_open_again() -> None:
    """Else it takes itself for the active one beside whoever is chosen there."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe()
        cursor = world.log()._cursors.opened["s"]
        resetting, may_end = asyncio.Event(), asyncio.Event()

        async def reset(_target: object) -> None:
            resetting.set()
            await may_end.wait()
            raise LogClosedError("closed meanwhile")

        cursor.reset = reset  # type: ignore[method-assign, assignment]
        peer.tell(seek_to_start())
        await resetting.wait()
        assert await world.services.topics.unload(parse_topic(TOPIC))
        assert await peer.kinds() == ["CLOSE_CONSUMER"]
        may_end.set()
        assert await peer.kinds() == ["ERROR"], "it is told once"

    run(scenario, idle_topic_unload_ms=IDLE_MS)


def test_a_log_that_frees_space_later_stays_unless_its_place_is_needed() -> None:
    async def scenario(world: World) -> None:
        (await published(world, 1)).lose()
        world.log().frees_later = True
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert is_open(world)
        await world.peer().produce(topic="other")
        assert not is_open(world)

    run(scenario, idle_topic_unload_ms=IDLE_MS, open_topics_max=1)


def test_acknowledgements_are_stored_first_or_the_topic_stays() -> None:
    async def scenario(world: World) -> None:
        peer = await published(world, 2)
        await peer.subscribe()
        peer.acknowledge(0)
        cursor = world.log()._cursors.opened["s"]
        failures = 2

        async def wait_stored() -> None:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise MetadataUnavailableError("the store is away")

        cursor.wait_stored = wait_stored  # type: ignore[method-assign]
        peer.lose()
        await until(lambda: failures == 0)
        assert is_open(world)
        await until(lambda: not is_open(world))
        assert failures < 0

    run(scenario, idle_topic_unload_ms=IDLE_MS)


def test_whoever_connects_while_it_stores_keeps_it() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe()
        stores, go_on = asyncio.Event(), asyncio.Event()

        async def wait_stored() -> None:
            stores.set()
            await go_on.wait()

        first = world.log()
        first._cursors.opened["s"].wait_stored = wait_stored  # type: ignore[method-assign]
        peer.lose()
        await stores.wait()
        await published(world, 1)
        go_on.set()
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert world.log() is first
        assert is_open(world)

    run(scenario, idle_topic_unload_ms=IDLE_MS)


def test_whoever_has_asked_for_it_before_and_comes_while_it_stores_keeps_it() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe()
        stores, go_on = asyncio.Event(), asyncio.Event()

        async def wait_stored() -> None:
            stores.set()
            await go_on.wait()

        first = world.log()
        first._cursors.opened["s"].wait_stored = wait_stored  # type: ignore[method-assign]
        topic = world.services.topics.find(parse_topic(TOPIC))
        assert topic is not None
        peer.lose()
        await stores.wait()
        topic.follow("another broker", OtherBroker())
        go_on.set()
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert is_open(world)
        assert world.log() is first
        topic.unfollow("another broker")
        await until(lambda: not is_open(world))

    run(scenario, idle_topic_unload_ms=IDLE_MS)


def test_whoever_connects_while_it_closes_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        (await published(world, 2)).lose()
        closes, go_on = asyncio.Event(), asyncio.Event()
        close = MemoryLog.close

        async def slow_close(self: MemoryLog) -> None:
            closes.set()
            await go_on.wait()
            await close(self)

        monkeypatch.setattr(MemoryLog, "close", slow_close)
        await closes.wait()
        opens = world.store.opens
        peer = world.peer()
        await peer.heard()
        peer.tell(peer.subscribe_command())
        assert await peer.heard() == []
        assert world.store.opens == opens
        go_on.set()
        assert (await peer.next()).type == BaseCommand.SUCCESS
        peer.flow(10)
        assert await peer.entries() == [0, 1]

    run(scenario, idle_topic_unload_ms=IDLE_MS)


def test_stats_and_names_of_an_unloaded_topic_are_told() -> None:
    async def scenario(world: World) -> None:
        peer = await published(world, 4)
        await peer.subscribe()
        peer.lose()
        await until(lambda: not is_open(world))
        assert await world.admin.names("public/default") == [TOPIC]
        assert not await world.admin.create(TOPIC)
        stats = await world.admin.stats(TOPIC)
        assert (stats.stored_entries, stats.msg_in_counter) == (4, 0)
        assert stats.subscriptions["s"].msg_backlog == 4
        await until(lambda: not is_open(world))
        assert await world.admin.subscriptions(TOPIC) == ["s"]
        await until(lambda: not is_open(world))
        await world.admin.delete(TOPIC)
        assert await world.admin.names("public/default") == []

    run(scenario, idle_topic_unload_ms=IDLE_MS, auto_create_topics=True)


def test_a_deletion_while_it_closes_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        (await published(world, 2)).lose()
        closes, done = asyncio.Event(), list[str]()
        close, delete = MemoryLog.close, world.store.delete

        async def slow_close(self: MemoryLog) -> None:
            closes.set()
            await asyncio.sleep(1)
            await close(self)
            done.append("closed")

        async def noted_delete(name: str) -> None:
            await delete(name)
            done.append("deleted")

        monkeypatch.setattr(MemoryLog, "close", slow_close)
        world.store.delete = noted_delete  # type: ignore[method-assign]
        await closes.wait()
        await world.admin.delete(TOPIC)
        assert done == ["closed", "deleted"]

    run(scenario, idle_topic_unload_ms=IDLE_MS)


def test_the_end_of_the_broker_waits_for_logs_that_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        (await published(world, 1)).lose()
        closes = asyncio.Event()
        close = MemoryLog.close

        async def slow_close(self: MemoryLog) -> None:
            closes.set()
            await asyncio.sleep(3)
            await close(self)

        monkeypatch.setattr(MemoryLog, "close", slow_close)
        await closes.wait()
        await world.broker.close()
        assert world.log().closed

    run(scenario, idle_topic_unload_ms=IDLE_MS)


# -- the bound ------------------------------------------------------------------------------------


def test_the_least_recently_used_idle_topic_makes_place() -> None:
    async def scenario(world: World) -> None:
        used = world.peer()
        await used.produce(topic="used")
        for name in ("a", "b", "c"):
            peer = world.peer()
            await peer.produce(topic=name)
            peer.lose()
            await asyncio.sleep(1)
        await world.admin.stats("a")  # a use, too
        assert len(world.services.topics) == 4
        assert (await world.peer().produce(topic="d")).type == BaseCommand.PRODUCER_SUCCESS
        assert [t.name.local for t in world.services.topics.loaded()] == ["used", "a", "c", "d"]

    run(scenario, open_topics_max=4, idle_topic_unload_ms=0)


def test_when_none_is_idle_clients_are_told_to_try_again() -> None:
    async def scenario(world: World) -> None:
        peers = [world.peer() for _ in range(3)]
        for number, peer in enumerate(peers[:2]):
            await peer.produce(topic=f"t{number}")
        refused = await peers[2].produce(topic="t2")
        assert refused.error.error == ServerError.TOO_MANY_REQUESTS
        assert "2 topics are open" in refused.error.message
        assert "open_topics_max" in refused.error.message
        peers[0].lose()
        assert (await peers[2].produce(topic="t2")).type == BaseCommand.PRODUCER_SUCCESS
        with pytest.raises(TooManyConnectionsError):
            await world.admin.stats("t0")

    run(scenario, open_topics_max=2)


def test_many_loads_at_a_time_keep_to_the_bound() -> None:
    async def scenario(world: World) -> None:
        topics = world.services.topics
        most = 0

        async def use(number: int) -> None:
            nonlocal most
            while True:
                try:
                    topic = await topics.get(parse_topic(f"t{number}"), True)
                except TooManyConnectionsError:
                    await asyncio.sleep(1)
                    continue
                if topic.closed:
                    continue
                with topic.held():
                    most = max(most, len(topics))
                    await asyncio.sleep(0.01)
                return

        await asyncio.gather(*(use(number) for number in range(300)))
        assert most <= 20
        assert len(topics) <= 20
        assert topics.unloaded >= 280

    run(scenario, open_topics_max=20)


def test_a_thousand_idle_topics_go_a_few_at_a_time() -> None:
    async def scenario(world: World) -> None:
        topics = world.services.topics
        closing = most = 0

        async def slow(self: MemoryLog) -> None:
            nonlocal closing, most
            closing += 1
            most = max(most, closing)
            await asyncio.sleep(0.5)
            closing -= 1
            self.closed = True

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(MemoryLog, "close", slow)
            for number in range(1000):
                await topics.get(parse_topic(f"t{number}"), True)
            await until(lambda: len(topics) == 0 and closing == 0)
        assert most == 32
        assert topics.unloaded == 1000

    run(scenario, idle_topic_unload_ms=100)
