"""The registry of topics, the control plane's metadata, and the broker's front."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.log.policy import LogPolicy
from magnetar.model.errors import (
    BrokerMetadataError,
    LogFencedError,
    MetadataUnavailableError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from magnetar.model.ids import EARLIEST
from magnetar.topics.load_queue import LoadQueue
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.doubles.admin import namespace_service
from tests.doubles.memory_log import MemoryLog
from tests.unit.protocols.pulsar.harness import TOPIC, World, run


def partitions_of(topic: str, create: bool = True) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.topic = topic
    command.partitionMetadata.request_id = 1
    command.partitionMetadata.metadata_auto_creation_enabled = create
    return command


def test_a_topic_is_loaded_once() -> None:
    async def scenario(world: World) -> None:
        topics = world.services.topics
        found = await asyncio.gather(*(topics.get(parse_topic("t"), True) for _ in range(20)))
        assert all(topic is found[0] for topic in found)
        assert world.store.opens == 1

    run(scenario)


def test_a_client_that_opens_many_topics_does_not_hold_up_another() -> None:
    """Both come at once, when the owner of their topics has died."""

    async def scenario(world: World) -> None:
        topics, store = world.services.topics, world.store
        topics._turns = LoadQueue(1)
        opened: list[str] = []
        good = store.open

        async def noted(name: str, *others: Any, **more: Any) -> MemoryLog:
            opened.append(name.rpartition("/")[2])
            return await good(name, *others, **more)

        store.open = noted  # type: ignore[method-assign]
        many = [parse_topic(f"many-{n}") for n in range(50)]
        asked = [topics.get(name, True, "one client") for name in many]
        await asyncio.gather(*asked, topics.get(parse_topic("single"), True, "another"))
        assert opened.index("single") < 4
        assert set(opened) == {name.local for name in many} | {"single"}

    run(scenario)


def test_who_looks_for_a_topic_does_not_fail_who_may_make_it() -> None:
    async def scenario(world: World) -> None:
        topics = world.services.topics
        name = parse_topic("t")
        looks = [topics.get(name, create=False) for _ in range(3)]
        makes = [topics.get(name, create=True) for _ in range(3)]
        found = await asyncio.gather(*looks, *makes, return_exceptions=True)
        assert all(each is topics.find(name) for each in found[3:])
        for each in found[:3]:
            assert each is topics.find(name) or isinstance(each, TopicNotFoundError)
        assert world.store.opens == 1

    run(scenario)


def test_a_load_that_fails_fails_for_all_and_can_be_repeated() -> None:
    async def scenario(world: World) -> None:
        topics, store = world.services.topics, world.store
        good = store.open

        async def bad(name: str, policy: LogPolicy | None = None, **_more: object) -> None:
            await asyncio.sleep(0)
            raise MetadataUnavailableError("the store is away")

        store.open = bad  # type: ignore[method-assign, assignment]
        loads = (topics.get(parse_topic("t"), True) for _ in range(3))
        results = await asyncio.gather(*loads, return_exceptions=True)
        assert [type(r) for r in results] == [MetadataUnavailableError] * 3
        peer = world.peer()
        answer = await peer.produce()
        assert answer.error.error == ServerError.SERVICE_NOT_READY
        assert "the store is away" in answer.error.message
        store.open = good  # type: ignore[method-assign]
        assert (await peer.produce()).type == BaseCommand.PRODUCER_SUCCESS

    run(scenario)


def test_a_log_whose_topic_cannot_be_made_is_closed_again() -> None:
    async def scenario(world: World) -> None:
        ownership = world.services.control.ownership
        check = ownership.check

        def taken(name: TopicName) -> None:
            raise ServiceNotReadyError(f"{name} was given away meanwhile")

        ownership.check = taken  # type: ignore[method-assign]
        peer = world.peer()
        answer = await peer.produce()
        assert "given away" in answer.error.message
        assert world.log().closed
        ownership.check = check  # type: ignore[method-assign]
        assert (await peer.produce()).type == BaseCommand.PRODUCER_SUCCESS

    run(scenario)


def test_how_many_exclusive_producers_a_topic_had_is_asked_for_when_one_comes() -> None:
    async def scenario(world: World) -> None:
        epochs = "/admin/topic-epochs/public/default/persistent/t"
        await world.metadata.create(epochs, b"no number")
        peer = world.peer()
        assert (await peer.produce()).type == BaseCommand.PRODUCER_SUCCESS
        assert world.topic().epoch is None
        close = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        close.close_producer.producer_id = 1
        close.close_producer.request_id = 9
        assert (await peer.ask(close)).type == BaseCommand.SUCCESS
        answer = await peer.produce(producer_access_mode=1)
        assert "not a number" in answer.error.message
        await world.metadata.put(epochs, b"7", -1)
        answer = await peer.produce(producer_access_mode=1)
        assert answer.producer_success.topic_epoch == 8
        assert world.topic().epoch == 8

    run(scenario)


def test_without_automatic_creation() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        assert (await peer.produce()).error.error == ServerError.TOPIC_NOT_FOUND
        assert await world.admin.create(TOPIC)
        assert not await world.admin.create(TOPIC)
        assert (await peer.produce()).type == BaseCommand.PRODUCER_SUCCESS
        assert await world.admin.create_partitioned("parts", 2)
        answer = await peer.produce(topic="parts-partition-1", producer_id=2)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS

    run(scenario, auto_create_topics=False)


def test_who_asks_for_partitions_is_told_that_a_topic_is_not_made() -> None:
    """Rows that are written exactly once were committed for it and never taken in: its partitions
    are all that is asked for before."""

    async def without(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        for create in (True, False):
            answer = (await peer.ask(partitions_of("p", create))).partitionMetadataResponse
            assert answer.error == ServerError.TOPIC_NOT_FOUND
        assert await world.admin.create("p")
        assert await world.admin.create_partitioned("parts", 2)
        for name, count in (("p", 0), ("parts", 2), ("parts-partition-1", 0)):
            answer = (await peer.ask(partitions_of(name))).partitionMetadataResponse
            assert (answer.HasField("error"), answer.partitions) == (False, count)

    async def with_it(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        assert await world.admin.create_partitioned("parts", 2)
        answer = (await peer.ask(partitions_of("parts-partition-2"))).partitionMetadataResponse
        assert answer.error == ServerError.TOPIC_NOT_FOUND
        for name in ("parts-partition-1", "alone-partition-2", "p"):
            answer = (await peer.ask(partitions_of(name))).partitionMetadataResponse
            assert (answer.HasField("error"), answer.partitions) == (False, 0)

    run(without, auto_create_topics=False)
    run(with_it)


def test_a_subscriber_may_ask_not_to_create() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        answer = await peer.subscribe(force_topic_creation=False)
        assert answer.error.error == ServerError.TOPIC_NOT_FOUND
        assert world.store.logs == {}

    run(scenario)


def test_partitions() -> None:
    async def scenario(world: World) -> None:
        admin, peer = world.admin, world.peer()
        await peer.heard()
        assert await admin.create_partitioned("p", 3)
        assert not await admin.create_partitioned("p", 4)
        answer = await peer.ask(partitions_of("p"))
        assert answer.partitionMetadataResponse.partitions == 3
        assert (await peer.produce(topic="p")).error.error == ServerError.NOT_ALLOWED
        outside = await peer.produce(topic="p-partition-3")
        assert outside.error.error == ServerError.TOPIC_NOT_FOUND
        assert (await peer.produce(topic="p-partition-2")).type == BaseCommand.PRODUCER_SUCCESS
        names = [f"persistent://public/default/p-partition-{n}" for n in range(3)]
        assert await admin.names("public/default") == names
        assert await admin.partitioned_names("public/default") == ["persistent://public/default/p"]
        with pytest.raises(NotAllowedError, match="shrink"):
            await admin.grow_partitions("p", 2)
        with pytest.raises(TopicNotFoundError):
            await admin.grow_partitions("other", 2)
        for count in (0, -1, 10**9):
            with pytest.raises(NotAllowedError):
                await admin.create_partitioned("q", count)

    run(scenario)


def test_new_partitions_have_the_subscriptions_of_the_old() -> None:
    async def scenario(world: World) -> None:
        admin, peer = world.admin, world.peer()
        await admin.create_partitioned("p", 1)
        await peer.subscribe(topic="p-partition-0", name="s")
        await admin.grow_partitions("p", 3)
        assert await admin.partitions("p") == 3
        assert await admin.subscriptions("p-partition-2") == ["s"]
        assert await admin.subscriptions("p") == ["s"]

    run(scenario)


def test_topics_may_be_created_with_partitions() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.heard()
        assert (await peer.ask(partitions_of("p", create=False))).partitionMetadataResponse.error
        answer = await peer.ask(partitions_of("p"))
        assert answer.partitionMetadataResponse.partitions == 2
        answer = await peer.ask(partitions_of("p-partition-0"))
        assert answer.partitionMetadataResponse.partitions == 0

    run(scenario, auto_create_partitions=2)


def test_namespaces_and_tenants() -> None:
    async def scenario(world: World) -> None:
        admin = namespace_service(world.broker)
        with pytest.raises(TopicNotFoundError):
            await admin.create_namespace("acme/prod")
        assert await admin.create_tenant("acme")
        assert not await admin.create_tenant("acme")
        assert await admin.create_namespace("acme/prod")
        assert not await admin.create_namespace("acme/prod")
        assert await admin.tenants() == ["acme", "public"]
        assert await admin.namespaces("acme") == ["acme/prod"]
        with pytest.raises(TopicNotFoundError):
            await admin.namespaces("nobody")
        answer = await world.peer().produce(topic="acme/prod/t")
        assert answer.type == BaseCommand.PRODUCER_SUCCESS
        assert await world.admin.names("acme/prod") == ["persistent://acme/prod/t"]
        answer = await world.peer().produce(topic="acme/test/t")
        assert answer.error.error == ServerError.TOPIC_NOT_FOUND

    run(scenario)


def test_deleting() -> None:
    async def scenario(world: World) -> None:
        admin, peer = world.admin, world.peer()
        await peer.produce()
        await peer.subscribe()
        with pytest.raises(NotAllowedError, match="1 producers and 1 consumers"):
            await admin.delete(TOPIC)
        await admin.delete(TOPIC, force=True)
        assert sorted(await peer.kinds()) == ["CLOSE_CONSUMER", "CLOSE_PRODUCER"]
        assert world.store.logs == {}
        with pytest.raises(TopicNotFoundError):
            await admin.delete(TOPIC)
        await admin.create_partitioned("p", 2)
        await peer.produce(topic="p-partition-0")
        with pytest.raises(NotAllowedError):
            await admin.delete_partitioned("p")
        peer.lose()
        await admin.delete_partitioned("p")
        assert await admin.names("public/default") == []
        with pytest.raises(TopicNotFoundError):
            await admin.partitions("p")

    run(scenario)


def test_a_topic_that_is_loaded_for_somebody_is_not_deleted_without_force() -> None:
    async def scenario(world: World) -> None:
        await world.admin.create(TOPIC)
        await world.services.topics._unload(parse_topic(TOPIC))
        open_log = world.store.open

        async def slow_open(name: str, policy: LogPolicy | None = None, **more: Any) -> MemoryLog:
            await asyncio.sleep(1)
            return await open_log(name, policy, **more)

        world.store.open = slow_open  # type: ignore[method-assign, assignment]
        peer = world.peer()
        await peer.heard()
        peer.tell(peer.produce_command())
        await asyncio.sleep(0.5)
        with pytest.raises(NotAllowedError, match="1 producers"):
            await world.admin.delete(TOPIC)
        assert await peer.kinds() == ["PRODUCER_SUCCESS"]
        assert await world.services.topics.exists(parse_topic(TOPIC))

    run(scenario)


def test_one_deletion_at_a_time() -> None:
    async def scenario(world: World) -> None:
        await world.admin.create(TOPIC)
        delete, deleted = world.store.delete, []

        async def slow_delete(name: str) -> None:
            deleted.append(name)
            await asyncio.sleep(1)
            await delete(name)

        world.store.delete = slow_delete  # type: ignore[method-assign]
        deletions = (world.admin.delete(TOPIC) for _ in range(2))
        first, second = await asyncio.gather(*deletions, return_exceptions=True)
        assert first is None
        assert isinstance(second, TopicNotFoundError)
        assert len(deleted) == 1
        assert await world.admin.create(TOPIC)

    run(scenario)


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_deletion_that_failed_half_way_is_finished_by_the_next(partitions: int) -> None:
    async def scenario(world: World) -> None:
        admin, peer = world.admin, world.peer()
        if partitions:
            await admin.create_partitioned("t", partitions)
            await peer.produce(topic="t-partition-0")
        else:
            await peer.produce()
        peer.lose()
        delete, calls = world.store.delete, list[str]()

        async def half(name: str) -> None:
            calls.append(name)
            await delete(name)  # it exists no more, but something of it is left
            if len(calls) == 1:
                raise MetadataUnavailableError("no answer")

        again = admin.delete_partitioned if partitions else admin.delete
        world.store.delete = half  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailableError):
            await again(TOPIC)
        if partitions:
            await again(TOPIC)
        else:
            with pytest.raises(TopicNotFoundError):
                await again(TOPIC)
        assert calls.count(calls[0]) == 2

    run(scenario)


def test_a_reader_and_a_subscription_of_one_name_are_not_taken_for_each_other() -> None:
    async def scenario(world: World) -> None:
        one, other = world.peer(), world.peer()
        await one.produce()
        await one.heard()
        async with world.topic().lock:
            one.tell(one.subscribe_command())  # durable; it waits for the lock
            await asyncio.sleep(0)
            assert (await other.subscribe(durable=False)).type == BaseCommand.SUCCESS
        answer = await one.next()
        assert answer.error.error == ServerError.NOT_ALLOWED
        assert "is not durable" in answer.error.message
        answer = await one.produce(producer_id=2, initial_subscription_name="s")
        assert "is not durable" in answer.error.message

    run(scenario)


class LateCalls:
    """Of a loop, whose time the test says."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def call_later(self, delay_s: float, call: Callable[..., object], *args: object) -> None:
        assert delay_s > 1
        self.calls.append(partial(call, *args))


def test_a_reader_that_seeks_again_keeps_its_place_however_long_ago_it_sought_before() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe("r", durable=False)
        topic, late = world.topic(), LateCalls()
        topic._loop = late  # type: ignore[assignment]
        reader = topic.subscriptions["r"]
        seek = BaseCommand(type=BaseCommand.SEEK)
        seek.seek.consumer_id, seek.seek.request_id = 1, 8
        seek.seek.message_id.ledgerId, seek.seek.message_id.entryId = 1, 0
        peer.tell(seek)
        assert "SUCCESS" in await peer.kinds()
        await peer.subscribe("r", durable=False)
        peer.tell(seek)
        assert "SUCCESS" in await peer.kinds()
        first, second = late.calls
        first()  # the reader has sought, and is not back yet
        assert topic.subscriptions.get("r") is reader
        second()
        assert "r" not in topic.subscriptions, "nobody has come back"

    run(scenario)


def test_a_subscription_too_many_leaves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.topics.subscribable.SUBSCRIPTIONS_MAX", 1)

    async def scenario(world: World) -> None:
        peer = world.peer()
        assert (await peer.subscribe("s")).type == BaseCommand.SUCCESS
        answer = await peer.subscribe("another", consumer_id=2)
        assert answer.error.error == ServerError.TOO_MANY_REQUESTS
        assert list(world.log().cursors.durable()) == ["s"]

    run(scenario)


@pytest.mark.parametrize("is_producer", [False, True])
def test_no_subscription_is_made_for_a_client_that_has_gone(is_producer: bool) -> None:
    """It broke off while the topic was opened. The subscription was made after that, also if it
    was deleted meanwhile, and kept what nobody would acknowledge."""

    async def scenario(world: World) -> None:
        await world.admin.create(TOPIC)
        await world.admin.create_subscription(TOPIC, "there", EARLIEST)
        await world.services.topics._unload(parse_topic(TOPIC))
        open_log = world.store.open

        async def slow_open(name: str, policy: LogPolicy | None = None, **more: Any) -> MemoryLog:
            await asyncio.sleep(1)
            return await open_log(name, policy, **more)

        world.store.open = slow_open  # type: ignore[method-assign, assignment]
        peers = world.peer(), world.peer()
        for peer in peers:
            await peer.heard()
            if is_producer:
                peer.tell(peer.produce_command(initial_subscription_name="new"))
            else:
                peer.tell(peer.subscribe_command("there"))
                peer.tell(peer.subscribe_command("new", consumer_id=2))
            await asyncio.sleep(0.2)
            peer.lose()
        await asyncio.sleep(2)
        assert await world.admin.subscriptions(TOPIC) == ["there"]
        assert not world.topic().subscriptions["there"].consumers
        if is_producer:
            again = await world.peer().produce(initial_subscription_name="new")
        else:
            again = await world.peer().subscribe("new")
        assert again.type in (BaseCommand.SUCCESS, BaseCommand.PRODUCER_SUCCESS)
        assert await world.admin.subscriptions(TOPIC) == ["new", "there"]

    run(scenario)


def test_deleting_a_subscription() -> None:
    async def scenario(world: World) -> None:
        admin, peer = world.admin, world.peer()
        await peer.subscribe()
        with pytest.raises(NotAllowedError):
            await admin.delete_subscription(TOPIC, "s")
        with pytest.raises(SubscriptionNotFoundError):
            await admin.delete_subscription(TOPIC, "other")
        await admin.delete_subscription(TOPIC, "s", force=True)
        assert await peer.kinds() == ["CLOSE_CONSUMER"]
        assert await admin.subscriptions(TOPIC) == []

    run(scenario)


def test_a_subscription_that_could_not_be_deleted_goes_on() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(3)
        await peer.subscribe()
        peer.flow(10)
        assert await peer.entries() == [0, 1, 2]
        peer.acknowledge(0)
        world.log().failing = MetadataUnavailableError("the store is away")
        command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
        command.unsubscribe.consumer_id = 1
        command.unsubscribe.request_id = 9
        peer.tell(command)
        refused, closed = await peer.heard()
        assert "the store is away" in refused.error.message
        # the client goes on with its consumer, which has to subscribe again
        assert closed.close_consumer.consumer_id == 1
        world.log().failing = None
        assert (await peer.subscribe()).type == BaseCommand.SUCCESS
        peer.flow(10)
        assert await peer.entries() == [1, 2]
        assert (await peer.ask(command)).type == BaseCommand.SUCCESS
        assert await world.admin.subscriptions(TOPIC) == []

    run(scenario)


def test_consumers_of_a_lost_log_are_sent_away() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe()
        lost = world.log()
        for watcher in lost.lost_watchers:
            watcher(LogFencedError("another broker has it"))
        assert await peer.kinds() == ["CLOSE_CONSUMER"]
        assert lost.closed
        assert (await peer.subscribe()).type == BaseCommand.SUCCESS
        assert world.log() is not lost

    run(scenario)


def test_stats() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce(name="p")
        await peer.subscribe()
        peer.flow(2)
        peer.publish(5)
        await peer.heard()
        peer.acknowledge(0)
        stats = await world.admin.stats(TOPIC)
        assert (stats.msg_in_counter, stats.msg_out_counter) == (5, 2)
        assert (stats.entries_in_counter, stats.stored_entries) == (5, 5)
        assert stats.bytes_in_counter > 0
        assert [p.producer_name for p in stats.publishers] == ["p"]
        found = stats.subscriptions["s"]
        assert (found.type, found.msg_backlog, found.unacked_messages) == ("Shared", 4, 1)
        assert found.mark_delete_position == "1:0"
        assert (await world.admin.internal_stats(TOPIC)).number_of_entries == 5
        with pytest.raises(TopicNotFoundError):
            await world.admin.stats("nothing")

    run(scenario)


def test_unreadable_partition_metadata_is_an_error_not_a_guess() -> None:
    async def scenario(world: World) -> None:
        path = "/admin/partitioned-topics/public/default/persistent/p"
        for value in (b"", b"[]", b'{"partitions": "3"}', b'{"partitions": -1}'):
            await world.metadata.create(path, value)
            with pytest.raises(BrokerMetadataError):
                await world.admin.partitions("p")
            await world.metadata.delete(path)

    run(scenario)


def test_starts_are_numbered() -> None:
    async def scenario(world: World) -> None:
        first = await world.peer().produce()
        names = [first.producer_success.producer_name]
        assert await world.services.control.counters.count_start() == 2
        assert names == ["standalone-1-1"]

    run(scenario)


def test_closing_sends_everybody_away_and_closes_logs() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        await peer.subscribe()
        await world.broker.close()
        peer.session._flush()
        assert peer.transport.closed
        assert world.log().closed

    run(scenario)


def test_who_gives_topics_away_waits_for_those_that_end_with_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else their logs would be written when they are another's already."""

    async def scenario(world: World) -> None:
        await world.peer().produce(TOPIC)
        topics, topic = world.services.topics, world.topic()
        may_close, close = asyncio.Event(), topic.close

        async def slowly(_topic: Topic) -> None:
            await may_close.wait()
            await close()

        monkeypatch.setattr(Topic, "close", slowly)
        ending = asyncio.create_task(topics.close())
        await asyncio.sleep(0.01)
        giving = asyncio.create_task(topics.hand_over(lambda _name: True))
        await asyncio.sleep(1)
        assert not giving.done()
        may_close.set()
        await giving
        await ending

    run(scenario)


def test_who_gives_topics_away_waits_for_those_that_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else what the next owner makes under the name would be deleted."""

    async def scenario(world: World) -> None:
        await world.services.topics.get(parse_topic(TOPIC), create=True)
        topics, delete, may_delete = world.services.topics, world.store.delete, asyncio.Event()

        async def slowly(name: str) -> None:
            await may_delete.wait()
            await delete(name)

        monkeypatch.setattr(world.store, "delete", slowly)
        deleting = asyncio.create_task(topics.delete(parse_topic(TOPIC), force=False))
        await asyncio.sleep(0.01)
        giving = asyncio.create_task(topics.hand_over(lambda _name: True))
        await asyncio.sleep(1)
        assert not giving.done()
        may_delete.set()
        await giving
        assert deleting.done()
        await deleting

    run(scenario)
