"""WATCH_TOPIC_LIST: what watchers are told, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.cluster.topic_patterns import TopicPattern
from magnetar.model.errors import MagnetarError, MetadataFormatError, MetadataUnavailableError
from magnetar.protocols.pulsar import topic_list_watch
from magnetar.protocols.pulsar.handlers import topic_lists
from magnetar.topics.name_lists import CHECK_S
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandWatchTopicUpdate,
)
from magnetar.wire.pulsar.topic_lists import topics_hash
from tests.unit.protocols.pulsar.harness import ANNOUNCEMENTS, Peer, World, run

NAMESPACE = "public/default"
PREFIX = f"persistent://{NAMESPACE}/"
LATER_S = 1.0


def watch(
    expression: str, watcher_id: int = 7, topics_hash: str = "", namespace: str = NAMESPACE
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id, request.watcher_id = 1, watcher_id
    request.namespace, request.topics_pattern = namespace, expression
    if topics_hash:
        request.topics_hash = topics_hash
    return command


def end(watcher_id: int = 7) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_CLOSE)
    command.watchTopicListClose.request_id = 2
    command.watchTopicListClose.watcher_id = watcher_id
    return command


def listing(namespace: str, mode: CommandGetTopicsOfNamespace.Mode) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
    request = command.getTopicsOfNamespace
    request.request_id, request.namespace, request.mode = 1, namespace, mode
    return command


async def greeted(world: World) -> Peer:
    peer = world.peer()
    (hello,) = await peer.heard()
    assert hello.connected.feature_flags.supports_topic_watchers
    return peer


async def updates(peer: Peer, wait_s: float = LATER_S) -> list[CommandWatchTopicUpdate]:
    await asyncio.sleep(wait_s)
    heard = [each for each in await peer.heard() if each.type not in ANNOUNCEMENTS]
    assert all(each.type == BaseCommand.WATCH_TOPIC_UPDATE for each in heard)
    return [each.watchTopicUpdate for each in heard]


async def make(world: World, *locals_: str) -> None:
    for each in locals_:
        await world.services.topics.get(parse_topic(PREFIX + each), create=True)


async def delete(world: World, local: str) -> None:
    await world.admin.delete(PREFIX + local, force=True)


def named(*locals_: str) -> list[str]:
    return [PREFIX + each for each in locals_]


def test_a_namespace_that_is_not_there_has_no_persistent_topics() -> None:
    """A consumer by pattern may come before its namespace; Go's gave up after 30 s."""

    async def scenario(world: World) -> None:
        await make(world, "a")
        peer = await greeted(world)
        persistent = CommandGetTopicsOfNamespace.PERSISTENT
        here = (await peer.ask(listing(NAMESPACE, persistent))).getTopicsOfNamespaceResponse
        assert list(here.topics) == named("a")
        for namespace in ("public/later", "nobody/here"):
            answer = await peer.ask(listing(namespace, persistent))
            assert answer.type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
            assert list(answer.getTopicsOfNamespaceResponse.topics) == []
            for mode in (
                CommandGetTopicsOfNamespace.ALL,
                CommandGetTopicsOfNamespace.NON_PERSISTENT,
            ):
                answer = await peer.ask(listing(namespace, mode))
                assert answer.error.error == ServerError.TOPIC_NOT_FOUND
        all_kinds = await peer.ask(listing(NAMESPACE, CommandGetTopicsOfNamespace.ALL))
        assert list(all_kinds.getTopicsOfNamespaceResponse.topics) == named("a")

    run(scenario)


@pytest.mark.parametrize("namespace", ["public/later", "nobody/here"])
def test_a_namespace_that_is_not_there_is_watched(namespace: str) -> None:
    """Refused, Java's client would hear of its first topic a minute later."""

    async def scenario(world: World) -> None:
        peer = await greeted(world)
        answer = (await peer.ask(watch(".*", namespace=namespace))).watchTopicListSuccess
        assert (list(answer.topic), answer.topics_hash) == ([], topics_hash([]))
        namespaces = world.broker.control.namespaces
        if namespace.startswith("nobody"):
            await namespaces.create_tenant("nobody")
        await namespaces.create_namespace(namespace)
        name = f"persistent://{namespace}/first"
        await world.services.topics.get(parse_topic(name), create=True)
        (update,) = await updates(peer)
        assert list(update.new_topics) == [name]

    run(scenario)


def test_a_watcher_gets_the_list_and_then_what_changes() -> None:
    async def scenario(world: World) -> None:
        await make(world, "a-1", "b-1", "a-0")
        peer = await greeted(world)
        answer = await peer.ask(watch(PREFIX + "a-.*"))
        told = answer.watchTopicListSuccess
        assert (told.request_id, told.watcher_id) == (1, 7)
        assert list(told.topic) == named("a-0", "a-1")
        assert told.topics_hash == topics_hash(named("a-0", "a-1"))
        await make(world, "b-2", "a-2")
        (update,) = await updates(peer)
        assert (update.watcher_id, list(update.new_topics)) == (7, named("a-2"))
        assert list(update.deleted_topics) == []
        assert update.topics_hash == topics_hash(named("a-0", "a-1", "a-2"))
        await delete(world, "a-1")
        await delete(world, "b-1")
        (update,) = await updates(peer)
        assert list(update.deleted_topics) == named("a-1")
        assert update.topics_hash == topics_hash(named("a-0", "a-2"))
        assert (await peer.ask(end())).type == BaseCommand.SUCCESS
        await make(world, "a-3")
        assert await updates(peer) == []

    run(scenario)


def test_partitions_are_told_by_themselves_and_chosen_by_their_topic() -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        await peer.ask(watch(f"{NAMESPACE}/orders"))
        partitioned, name = world.broker.control.partitioned, parse_topic(PREFIX + "orders")
        await partitioned.create(name, 2)
        (update,) = await updates(peer)
        assert list(update.new_topics) == named("orders-partition-0", "orders-partition-1")
        await partitioned.grow(name, 3)
        (update,) = await updates(peer)
        assert list(update.new_topics) == named("orders-partition-2")
        await make(world, "orders-partition-1")  # its log, too, says that it is there
        assert await updates(peer) == []

    run(scenario)


def test_a_list_that_the_client_has_is_not_sent_again() -> None:
    async def scenario(world: World) -> None:
        await make(world, "a")
        peer = await greeted(world)
        answer = await peer.ask(watch(".*", topics_hash=topics_hash(named("a"))))
        assert list(answer.watchTopicListSuccess.topic) == []
        answer = await peer.ask(watch(".*", topics_hash="00000000"))
        assert list(answer.watchTopicListSuccess.topic) == named("a")
        await make(world, "b")
        assert len(await updates(peer)) == 1, "asked for twice, it is one watch"

    run(scenario)


def test_two_watchers_of_a_connection_hear_of_their_own() -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        await peer.ask(watch(".*/a.*", 1))
        await peer.ask(watch(".*/ab.*", 2))
        await make(world, "ax", "ab")
        told = await updates(peer)
        heard = {1: set(named("ab", "ax")), 2: set(named("ab"))}
        for number, names in heard.items():
            own = [each.new_topics for each in told if each.watcher_id == number]
            assert {name for some in own for name in some} == names

    run(scenario)


def test_a_client_that_does_not_read_is_told_all_of_it_later() -> None:
    async def scenario(world: World) -> None:
        await make(world, "gone", "kept")
        peer = await greeted(world)
        await peer.ask(watch(".*"))
        peer.session.pause_writing()
        await make(world, "new", "short")
        await asyncio.sleep(LATER_S)
        await delete(world, "gone")
        await delete(world, "short")
        assert await updates(peer) == []
        peer.session.resume_writing()
        removed, added = await updates(peer)
        assert list(removed.deleted_topics) == named("gone")
        assert list(added.new_topics) == named("new")
        assert added.topics_hash == topics_hash(named("kept", "new"))
        await make(world, "more")
        (update,) = await updates(peer)
        assert list(update.new_topics) == named("more")

    run(scenario)


def test_many_changes_come_in_several_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_list_watch, "NAMES_PER_UPDATE", 2)

    async def scenario(world: World) -> None:
        peer = await greeted(world)
        await peer.ask(watch(".*"))
        await make(world, *"abcde")
        told = await updates(peer)
        assert [each for update in told for each in update.new_topics] == named(*"abcde")
        assert max(len(each.new_topics) for each in told) == 2
        assert told[-1].topics_hash == topics_hash(named(*"abcde"))

    run(scenario)


def test_lists_are_kept_while_somebody_watches() -> None:
    async def scenario(world: World) -> None:
        lists = world.services.name_lists
        assert lists is not None
        peer, other = await greeted(world), await greeted(world)
        await peer.ask(watch(".*"))
        await other.ask(watch(".*"))
        assert lists.listeners == 2
        peer.lose()
        assert lists.listeners == 1
        await make(world, "a")
        assert len(await updates(other)) == 1
        other.lose()
        await asyncio.sleep(2 * CHECK_S)
        assert lists.listeners == 0
        assert world.store._name_watches == {}
        third = await greeted(world)
        answer = await third.ask(watch(".*"))
        assert list(answer.watchTopicListSuccess.topic) == named("a")

    run(scenario)


def test_watches_by_one_expression_share_what_matches() -> None:
    """An application has thousands of consumers with the same, a namespace thousands of names."""

    async def scenario(world: World) -> None:
        await make(world, "a")
        peers = [await greeted(world) for _ in range(3)]
        for peer in peers:
            await peer.ask(watch(".*"))
        await make(world, "b")
        for peer in peers:
            (update,) = await updates(peer)
            assert list(update.new_topics) == named("b")
        told = [peer.session.watches[7].told for peer in peers]
        assert list(told[0]) == named("a", "b")
        assert told[0] is told[1] is told[2]

    run(scenario)


def test_expressions_that_nobody_watches_by_are_not_kept() -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        await peer.ask(watch(".*", 1))
        for number in range(10):
            await peer.ask(watch(f"a{number}.*"))
        await peer.ask(end())
        lists = world.services.name_lists
        assert lists is not None
        (kept,) = lists._kept
        assert len(kept._choices) <= 2
        await make(world, "a")
        assert len(await updates(peer)) == 1
        assert list(kept._choices) == [".*"]

    run(scenario)


def test_many_ask_at_once_for_a_list_that_nobody_has_yet() -> None:
    async def scenario(world: World) -> None:
        await make(world, "a", "b")
        peers = [await greeted(world) for _ in range(5)]
        for peer in peers:
            peer.tell(watch(".*"))
            peer.tell(watch(".*/b", 8))
        peers.pop().lose()
        for peer in peers:
            answers = [(await peer.next()).watchTopicListSuccess for _ in range(2)]
            told = {each.watcher_id: list(each.topic) for each in answers}
            assert told == {7: named("a", "b"), 8: named("b")}
        assert world.store._name_watches != {}
        lists = world.services.name_lists
        assert lists is not None
        assert lists.listeners == 8

    run(scenario)


def test_a_topic_of_which_the_store_told_nothing_is_found_all_the_same() -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        await peer.ask(watch(".*"))
        world.store._tell_names = lambda _name: None  # type: ignore[method-assign]
        await make(world, "a")
        assert await updates(peer) == []
        (update,) = await updates(peer, CHECK_S)
        assert list(update.new_topics) == named("a")

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [MetadataUnavailableError("it does not answer"), MetadataFormatError("no record of a log")],
    ids=["the store is away", "a record is damaged"],
)
def test_it_goes_on_when_names_are_known_again(error: MagnetarError) -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        await peer.ask(watch(".*"))
        store, names = world.store, world.store.names

        async def unavailable(prefix: str, known: object = ()) -> list[str]:
            raise error

        store.names = unavailable  # type: ignore[method-assign]
        await make(world, "a")
        assert await updates(peer) == []
        refused = await (await greeted(world)).ask(watch(".*", namespace="public/other"))
        assert refused.type == BaseCommand.ERROR
        store.names = names  # type: ignore[method-assign]
        (update,) = await updates(peer, 5.0)
        assert list(update.new_topics) == named("a")

    run(scenario)


@pytest.mark.parametrize(
    ("command", "code", "why"),
    [
        (watch("a("), ServerError.NOT_ALLOWED, "missing"),
        (watch("(?!a).*"), ServerError.NOT_ALLOWED, "RE2"),
        (watch("a" * 1025), ServerError.NOT_ALLOWED, "1024"),
        (watch("kafka://a"), ServerError.NOT_ALLOWED, "domain"),
        (watch(".*", namespace="here"), ServerError.NOT_ALLOWED, "tenant/namespace"),
    ],
)
def test_what_cannot_be_watched_is_refused(command: BaseCommand, code: int, why: str) -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        answer = await peer.ask(command)
        assert (answer.error.request_id, answer.error.error) == (1, code)
        assert why in answer.error.message
        assert (await peer.ask(end())).type == BaseCommand.SUCCESS

    run(scenario)


def test_watches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_lists, "WATCHES_MAX", 2)

    async def scenario(world: World) -> None:
        peer = await greeted(world)
        for number in (1, 2):
            answer = await peer.ask(watch(".*", number))
            assert answer.type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS
        answer = await peer.ask(watch(".*", 3))
        assert answer.error.error == ServerError.NOT_ALLOWED
        answer = await peer.ask(watch(".*", 2))
        assert answer.type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS, "in place of the one it has"

    run(scenario)


def test_watches_that_are_asked_for_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart, while the list is looked at first."""
    monkeypatch.setattr(topic_lists, "WATCHES_MAX", 2)

    async def scenario(world: World) -> None:
        peers = [await greeted(world) for _ in range(4)]
        answers = await asyncio.gather(*(peer.ask(watch(".*")) for peer in peers))
        types = [answer.type for answer in answers]
        assert types.count(BaseCommand.WATCH_TOPIC_LIST_SUCCESS) == 2
        assert types.count(BaseCommand.ERROR) == 2

    run(scenario)


def test_a_connection_that_ends_while_its_list_is_looked_at_watches_nothing() -> None:
    async def scenario(world: World) -> None:
        lists, store, gate = world.services.name_lists, world.store, asyncio.Event()
        assert lists is not None
        names = store.names

        async def slow(prefix: str, known: Container[str] = ()) -> list[str]:
            await gate.wait()
            return await names(prefix, known)

        store.names = slow  # type: ignore[method-assign]
        peer = await greeted(world)
        asking = asyncio.ensure_future(peer.ask(watch(".*")))
        await asyncio.sleep(0.01)
        session = peer.session
        peer.lose()
        gate.set()
        await asyncio.sleep(1)
        assert lists.listeners == 0
        assert len(session.watches) == 0
        asking.cancel()

    run(scenario)


def test_names_are_looked_at_when_they_change() -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        await peer.ask(watch(".*"))
        looks, names = list[str](), world.store.names

        async def counted(prefix: str, known: Container[str] = ()) -> list[str]:
            looks.append(prefix)
            return await names(prefix, known)

        world.store.names = counted  # type: ignore[method-assign]
        await make(world, "a")
        await updates(peer)
        assert len(looks) == 1
        await asyncio.sleep(CHECK_S / 2)
        assert len(looks) == 1

    run(scenario)


def test_who_leaves_or_catches_up_while_others_are_told_hears_nothing_twice() -> None:
    async def scenario(world: World) -> None:
        lists = world.services.name_lists
        assert lists is not None
        names = await lists.choose(NAMESPACE, ".*", TopicPattern(".*", 1024, 1 << 16))
        heard: list[str] = []
        ends: list[Callable[[], None]] = []
        behind = await greeted(world)

        def first(added: Collection[str], removed: Collection[str]) -> None:
            heard.extend(added)
            for each in ends:
                each()
            if named("b")[0] in added:
                behind.session.resume_writing()

        names.listen(first)
        ends.append(names.listen(lambda added, removed: heard.append("who has left")))
        await behind.ask(watch(".*"))
        behind.session.pause_writing()
        await make(world, "a")
        assert await updates(behind) == []
        await make(world, "b")
        told = [name for each in await updates(behind) for name in each.new_topics]
        assert heard == named("a", "b")
        assert told == named("a", "b"), "each once"

    run(scenario)


def test_a_list_that_nobody_watches_ends_though_its_topics_change() -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        await peer.ask(watch(".*"))
        peer.lose()
        for number in range(12):
            await make(world, f"a-{number}")
            await asyncio.sleep(CHECK_S / 6)
        assert world.store._name_watches == {}

    run(scenario)


def test_of_a_connection_they_are_bounded_with_producers() -> None:
    async def scenario(world: World) -> None:
        peer = await greeted(world)
        await peer.produce()
        answer = await peer.ask(watch(".*"))
        assert "attached_per_connection_max" in answer.error.message

    run(scenario, attached_per_connection_max=1)


def test_a_list_that_no_frame_holds_is_refused() -> None:
    async def scenario(world: World) -> None:
        await make(world, *("x" * 500 + str(number) for number in range(30)))
        peer = await greeted(world)
        answer = await peer.ask(watch(".*"))
        assert answer.error.error == ServerError.NOT_ALLOWED
        assert "fewer" in answer.error.message
        lists = world.services.name_lists
        assert lists is not None
        assert lists.listeners == 0

    run(scenario, message_bytes_max=10_000)


def test_a_list_that_no_frame_of_its_client_holds_is_not_sent() -> None:
    """It would drop its connection over it, with all that is on it, and ask again on the next."""

    async def scenario(world: World) -> None:
        await make(world, *("x" * 500 + str(number) for number in range(30)))
        ask = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
        ask.getTopicsOfNamespace.namespace = "public/default"
        ask.getTopicsOfNamespace.request_id = 3
        peer = await greeted(world)
        answer = await peer.ask(ask)
        assert (answer.error.request_id, answer.error.error) == (3, ServerError.NOT_ALLOWED)
        pipeline = world.peer(version="magnetar-pipeline")
        await pipeline.heard()
        answer = await pipeline.ask(ask)
        assert len(answer.getTopicsOfNamespaceResponse.topics) == 30

    run(scenario, message_bytes_max=10_000)
