"""Namespaces and tenants are deleted, whatever else happens in them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from magnetar.admin import deletions
from magnetar.cluster.namespaces import DELETED, POLICIES
from magnetar.cluster.partitioned_topics import PARTITIONED
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.metadata import Versioned
from magnetar.model.errors import (
    MetadataUnavailableError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, ServerError
from tests.doubles.admin import deletion_service, topic_service
from tests.doubles.ownership import divide
from tests.unit.admin.test_api import Platform, serve

N = "/admin/v2/namespaces/acme/prod"
T = "/admin/v2/persistent/acme/prod"
NAME = "persistent://acme/prod"
NODE = f"{POLICIES}/acme/prod"


async def made(p: Platform) -> None:
    assert await p.status("PUT", "/admin/v2/tenants/acme") == 204
    assert await p.status("PUT", N) == 204


def below(p: Platform, namespace: str = "acme/prod") -> list[str]:
    """Nodes that are about the namespace."""
    return [path for path in p.world.metadata.nodes if namespace in path]


def test_an_empty_namespace_goes_with_all_that_is_said_of_it() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        assert await p.status("POST", f"{N}/messageTTL", json=60) == 204
        # A schema and policies of a topic that is not there.
        schema = {"type": "STRING", "schema": "", "properties": {}}
        assert await p.status("POST", "/admin/v2/schemas/acme/prod/t/schema", json=schema) == 200
        name = parse_topic(f"{NAME}/t")
        await p.world.broker.control.policies.set_topic(name, "engine", "partition")
        await p.world.broker.control.counters.raise_topic_epoch(name)
        assert await p.status("DELETE", N) == 204
        assert below(p) == []
        assert p.world.values.values == {}
        assert (await p.client.get("/admin/v2/namespaces/acme")).json() == []
        assert (await p.reason("GET", f"{N}/topics"))[0] == 404
        assert (await p.reason("DELETE", N))[0] == 404
        assert (await p.reason("PUT", f"{T}/t"))[0] == 404
        assert await p.status("PUT", N) == 204
        assert await p.status("GET", f"{N}/messageTTL") == 204
        assert await p.status("PUT", f"{T}/t") == 204
        assert await p.status("GET", f"{T}/t/engine") == 204

    serve(scenario)


def test_a_topic_goes_though_nobody_can_read_how_many_partitions_it_has() -> None:
    """Neither it nor its namespace could be deleted, ever."""

    async def scenario(p: Platform) -> None:
        await made(p)
        assert await p.status("PUT", f"{T}/p/partitions", json=3) == 204
        assert await p.status("PUT", f"{T}/p-partition-1/subscription/s") == 204
        await p.world.metadata.put(f"{PARTITIONED}/acme/prod/persistent/p", b"of no release", -1)
        assert (await p.client.get(N + "/topics")).json() == [f"{NAME}/p-partition-1"]
        assert await p.status("DELETE", f"{N}?force=true") == 204
        assert below(p) == []

    serve(scenario)


def test_a_namespace_with_topics_stays_as_it_is() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        assert await p.status("PUT", f"{T}/t") == 204
        topic = p.world.topic(f"{NAME}/t")
        status, reason = await p.reason("DELETE", N)
        assert status == 409
        assert "acme/prod has 1 topics (t); delete them first, or force it" in reason
        assert p.world.topic(f"{NAME}/t") is topic
        assert await p.status("DELETE", f"{T}/t") == 204
        # So is one of which it cannot be read how many partitions it has.
        damaged = f"{PARTITIONED}/acme/prod/persistent/p"
        await p.world.metadata.create(damaged, b"of no release")
        status, reason = await p.reason("DELETE", N)
        assert status == 409
        assert "acme/prod has 1 topics (p)" in reason
        await p.world.metadata.delete(damaged)
        # Partitions that were never used are topics, too.
        assert await p.status("PUT", f"{T}/p/partitions", json=2) == 204
        assert "has 2 topics (p-partition-0, p-partition-1)" in (await p.reason("DELETE", N))[1]
        assert await p.status("DELETE", f"{T}/p/partitions") == 204
        assert await p.status("DELETE", N) == 204

    serve(scenario)


def test_what_brokers_make_by_themselves_stays() -> None:
    async def scenario(p: Platform) -> None:
        for path in ("namespaces/public/default", "namespaces/public/kafka-groups"):
            await p.status("PUT", f"/admin/v2/{path}")
            for query in ("", "?force=true"):
                status, reason = await p.reason("DELETE", f"/admin/v2/{path}{query}")
                assert (status, "cannot be deleted" in reason) == (409, True)
        assert (await p.reason("DELETE", "/admin/v2/tenants/public?force=true"))[0] == 409

    serve(scenario)


def test_forced_it_goes_with_its_topics_and_nobody_comes_back() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        peer = p.world.peer()
        await peer.heard()
        await peer.produce(f"{NAME}/t", producer_id=1)
        assert await p.status("PUT", f"{T}/p/partitions", json=40) == 204
        await peer.produce(f"{NAME}/p-partition-3", producer_id=2)
        await peer.produce(f"{NAME}/lone-partition-7x", producer_id=3)
        assert (await p.reason("DELETE", N))[0] == 409
        assert await p.status("DELETE", f"{N}?force=true") == 204
        assert below(p) == []
        assert p.world.store.logs == {}
        await peer.heard()
        refused = await peer.produce(f"{NAME}/t", producer_id=4)
        assert refused.error.error == ServerError.TopicNotFound
        assert await p.status("PUT", N) == 204
        assert (await p.client.get(f"{N}/topics")).json() == []

    serve(scenario)


class Held:
    """A function that waits before it is called, or after."""

    def __init__(self, call: Callable[..., Awaitable[object]], after: bool) -> None:
        self._call = call
        self._after = after
        self.come, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, *args: object, **options: object) -> object:
        if not self._after:
            self.come.set()
            await self.go.wait()
        found = await self._call(*args, **options)
        if self._after:
            self.come.set()
            await self.go.wait()
        return found


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_a_topic_that_comes_meanwhile_is_found_or_is_refused(after: bool, force: bool) -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        store, topics = p.world.store, p.world.broker.topics
        held = Held(store.open, after)
        store.open = held  # type: ignore[method-assign,assignment]
        name = parse_topic(f"{NAME}/t")
        making = asyncio.create_task(topics.create(name))
        await held.come.wait()
        goes = asyncio.Event()
        p.world.metadata.watch_value(NODE, lambda _path: goes.set())
        query = f"{N}?force={str(force).lower()}"
        deleting = asyncio.create_task(p.status("DELETE", query))
        if after and not force:
            assert await deleting == 409
        else:  # it waits for what is under way
            await goes.wait()
        held.go.set()
        if after and not force:
            assert await making  # it was refused for its sake
            assert (await p.client.get(f"{N}/topics")).json() == [str(name)]
            return
        with pytest.raises(TopicNotFoundError):
            await making
        assert await deleting == 204
        assert p.world.store.logs == {}
        assert "acme/prod" not in await p.world.broker.control.namespaces.everywhere()

    serve(scenario)


@pytest.mark.parametrize("force", [False, True])
def test_so_is_a_partitioned_one(force: bool) -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        metadata, control = p.world.metadata, p.world.broker.control
        held = Held(metadata.create, after=False)
        metadata.create = held  # type: ignore[method-assign,assignment]
        making = asyncio.create_task(control.partitioned.create(parse_topic(f"{NAME}/p"), 3))
        await held.come.wait()
        assert await p.status("DELETE", f"{N}?force={str(force).lower()}") == 204
        held.go.set()
        with pytest.raises(TopicNotFoundError):
            await making
        assert below(p) == []

    serve(scenario)


def test_one_that_comes_before_it_is_known_to_go_keeps_the_namespace() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        metadata, control = p.world.metadata, p.world.broker.control
        held = Held(metadata.put, after=False)
        metadata.put = held  # type: ignore[method-assign,assignment]
        deleting = asyncio.create_task(p.reason("DELETE", N))
        await held.come.wait()
        assert await control.partitioned.create(parse_topic(f"{NAME}/p"), 1)
        held.go.set()
        status, reason = await deleting
        assert (status, "has 1 topics" in reason) == (409, True)
        assert DELETED.encode() not in metadata.nodes[NODE].value
        assert await p.status("PUT", f"{T}/t") == 204

    serve(scenario)


def test_a_deletion_that_fails_half_way_is_asked_for_again() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        control = p.world.broker.control
        for local in ("ours", "theirs"):
            assert await p.status("PUT", f"{T}/{local}") == 204

        def theirs(name: TopicName) -> bool:
            return name.local == "theirs"

        divided = divide(control, theirs)
        assert (await p.reason("DELETE", f"{N}?force=true"))[0] == 503  # the other is not there
        assert (await p.reason("PUT", f"{T}/new"))[0] == 404
        assert (await p.reason("POST", f"{N}/messageTTL", json=5))[0] == 404
        status, reason = await p.reason("PUT", N)
        assert (status, "is being deleted" in reason) == (409, True)
        divided._theirs = lambda name: False
        # What is refused is there again.
        assert "has 1 topics (theirs)" in (await p.reason("DELETE", N))[1]
        assert await p.status("PUT", f"{T}/new") == 204
        assert await p.status("DELETE", f"{N}?force=true") == 204
        assert below(p) == []

    serve(scenario)


def test_what_keeps_one_topic_keeps_none_of_the_others() -> None:
    """The first topic that failed ended it: those behind it stayed, with all that they held."""

    async def scenario(p: Platform) -> None:
        await made(p)
        control = p.world.broker.control
        assert await p.status("PUT", f"{T}/a-theirs/partitions", json=2) == 204
        for local in ("ours", "z"):
            assert await p.status("PUT", f"{T}/{local}") == 204
        divided = divide(control, lambda name: name.local == "a-theirs-partition-0")
        status, reason = await p.reason("DELETE", f"{N}?force=true")
        assert status == 503
        assert reason.startswith("2 of the 3 topics of acme/prod are deleted; not so a-theirs: ")
        assert "1 of the 2 partitions" in reason
        divided._theirs = lambda name: False
        partitioned, topics = await topic_service(p.world.broker).all_of("acme/prod")
        assert [each.local for each in partitioned] == ["a-theirs"]
        assert await p.status("DELETE", f"{N}?force=true") == 204
        assert below(p) == []
        assert topics

    serve(scenario)


@pytest.mark.parametrize("away", [0, 1])
def test_an_empty_namespace_whose_deletion_fails_stays(
    monkeypatch: pytest.MonkeyPatch, away: int
) -> None:
    """It said that it goes from then on, and nothing was opened in it. ``away``: so often the store
    does not answer who takes that back."""
    monkeypatch.setattr(deletions, "UNDO_WAITS_S", (0.0, 0.0, 0.0))

    async def scenario(p: Platform) -> None:
        await made(p)
        control = p.world.broker.control
        undo, failures = control.namespaces.undo_deletion, [MetadataUnavailableError("away")] * away

        async def sometimes(namespace: str) -> None:
            if failures:
                raise failures.pop()
            await undo(namespace)

        async def failing(namespace: str) -> None:
            raise ServiceNotReadyError("not now")

        monkeypatch.setattr(control.namespaces, "undo_deletion", sometimes)
        monkeypatch.setattr(control.policies, "forget_namespace", failing)
        assert (await p.reason("DELETE", N)) == (503, "not now")
        assert DELETED.encode() not in p.world.metadata.nodes[NODE].value
        assert await p.status("PUT", f"{T}/t") == 204

    serve(scenario)


def test_a_deletion_that_is_broken_off_leaves_the_namespace() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        control = p.world.broker.control
        held = Held(control.policies.forget_namespace, after=False)
        control.policies.forget_namespace = held  # type: ignore[method-assign,assignment]
        service = deletion_service(p.world.broker)
        deleting = asyncio.create_task(service.delete_namespace("acme/prod"))
        await held.come.wait()
        deleting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deleting
        await control.namespaces.check_namespace("acme/prod")

    serve(scenario)


def test_a_deletion_that_another_undid_does_not_end() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        namespaces = p.world.broker.control.namespaces
        held = Held(namespaces.end_deletion, after=False)
        namespaces.end_deletion = held  # type: ignore[method-assign,assignment]
        deleting = asyncio.create_task(p.reason("DELETE", N))
        await held.come.wait()
        await namespaces.undo_deletion("acme/prod")
        held.go.set()
        status, reason = await deleting
        assert (status, "delete it again" in reason) == (409, True)
        await namespaces.check_namespace("acme/prod")

    serve(scenario)


def test_tenants() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        path = "/admin/v2/tenants/acme"
        status, reason = await p.reason("DELETE", path)
        assert (status, "acme has 1 namespaces (prod)" in reason) == (409, True)
        assert await p.status("PUT", f"{T}/t") == 204
        assert await p.status("DELETE", f"{path}?force=true") == 204
        assert below(p, "acme") == []
        assert (await p.reason("DELETE", path))[0] == 404
        assert (await p.reason("PUT", N))[0] == 404
        assert await p.status("PUT", path) == 204
        assert await p.status("DELETE", path) == 204

    serve(scenario)


def test_a_namespace_does_not_make_a_tenant_again_that_is_deleted_meanwhile() -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", "/admin/v2/tenants/acme") == 204
        metadata = p.world.metadata
        held = Held(metadata.create, after=False)
        metadata.create = held  # type: ignore[method-assign,assignment]
        making = asyncio.create_task(p.reason("PUT", N))
        await held.come.wait()
        assert await p.status("DELETE", "/admin/v2/tenants/acme") == 204
        held.go.set()
        assert (await making)[0] == 404
        assert [path for path in metadata.nodes if "acme" in path] == []

    serve(scenario)


def test_a_word_in_policies_that_is_none_of_ours_deletes_nothing() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        metadata, path = p.world.metadata, NODE
        for value in (b'{"deleted": false}', b'{"x": "deleted"}'):
            metadata.nodes[path] = Versioned(value, metadata.nodes[path].version + 1)
            metadata.tell(path)
            await asyncio.sleep(0)
            await p.world.broker.control.namespaces.check_namespace("acme/prod")

    serve(scenario)


def test_refused_to_clients_as_a_topic_that_is_not_there() -> None:
    async def scenario(p: Platform) -> None:
        await made(p)
        await p.world.broker.control.namespaces.begin_deletion("acme/prod")
        peer = p.world.peer()
        await peer.heard()
        lookup = BaseCommand(type=BaseCommand.LOOKUP)
        lookup.lookupTopic.topic = f"{NAME}/t"
        lookup.lookupTopic.request_id = 1
        answer = await peer.ask(lookup)
        assert answer.lookupTopicResponse.error == ServerError.TopicNotFound
        assert (await peer.produce(f"{NAME}/t")).error.error == ServerError.TopicNotFound
        assert "being deleted" in (await peer.subscribe("s", topic=f"{NAME}/t")).error.message

    serve(scenario)
