"""Two brokers over one store: who owns a bundle, who is told, and what is closed when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from magnetar.cluster.brokers.brokers import Brokers
from magnetar.cluster.brokers.reporting import Load
from magnetar.cluster.brokers.reports import BrokerReport, decode_report, owner_path
from magnetar.cluster.bundles import Bundle, Layout
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import At, Here
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.cluster.stored.shared_reads import shared_values
from magnetar.cluster.topic_name import parse_topic
from magnetar.env.metadata import SessionState
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import (
    MetadataUnavailableError,
    NotAllowedError,
    ServiceNotReadyError,
)
from tests.doubles.memory_metadata import MemoryMetadata

NAME = parse_topic("t")
TIMEOUT_MS = 50


class One:
    """A broker, as far as it owns bundles. ``events``: what happened to its topics."""

    def __init__(self, store: MemoryMetadata, name: str, start: int) -> None:
        self.store = store
        self.name = name
        self.start = start
        self.events: list[str] = []
        self.lost: list[str] = []
        self.closing = asyncio.Event()
        self.closing.set()
        self.scope = TaskScope(name, awaited(by="the test"))
        self.topics = SharedTopics(store, self.scope, Namespaces(store))

    async def begin(self, read_only: bool = False) -> One:
        url, http_url = f"pulsar://{self.name}:6650", f"http://{self.name}:8080"
        report = BrokerReport(self.name, self.start, url, http_url, read_only=read_only)
        await self.topics.begin(report, TIMEOUT_MS, self._close, self.lost.append)
        return self

    async def _close(self, bundle: Bundle) -> Callable[[str], None]:
        self.events.append("close")
        await self.closing.wait()
        there = owner_path(bundle) in self.store.nodes
        self.events.append(f"closed, node {'there' if there else 'gone'}")

        def tell(url: str) -> None:
            there = owner_path(bundle) in self.store.nodes
            self.events.append(f"told {url or 'nothing'}, node {'there' if there else 'gone'}")

        return tell

    async def end(self) -> None:
        await self.scope.close()
        self.topics.close()


Scenario = Callable[[MemoryMetadata, One, One], Awaitable[None]]


def run(scenario: Scenario) -> None:
    async def main() -> None:
        store = MemoryMetadata()
        await Namespaces(store).prepare()
        a, b = One(store, "a", 1), One(store, "b", 2)
        try:
            await a.begin()
            await b.begin()
            await scenario(store, a, b)
        finally:
            await a.end()
            await b.end()

    asyncio.run(asyncio.wait_for(main(), 30))


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def bundle_of(one: One) -> Bundle:
    return (await one.topics.layout(NAME.namespace)).bundle_of(NAME)


async def owned_by(owner: One, *others: One) -> Bundle:
    """``owner`` has the topic, and the others know."""
    assert await owner.topics.locate(NAME, authoritative=True) == Here()
    bundle = await bundle_of(owner)
    for other in others:
        assert await other.topics.locate(NAME) == At(
            f"pulsar://{owner.name}:6650", f"http://{owner.name}:8080"
        )
    return bundle


def test_one_owns_it_and_the_other_says_so_without_a_read() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        await owned_by(a, b)
        reads = store.reads
        for _ in range(10):
            assert isinstance(await b.topics.locate(NAME), At)
            assert await a.topics.locate(NAME) == Here()
        assert store.reads == reads
        a.topics.check(NAME)
        with pytest.raises(ServiceNotReadyError, match="look it up"):
            b.topics.check(NAME)
        with pytest.raises(ServiceNotReadyError, match="pulsar://a:6650"):
            await b.topics.claim(NAME)

    run(scenario)


def test_a_question_takes_nothing() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        for one in (a, b):
            assert await one.topics.owner_of(NAME) is None
            assert one.topics.owned() == []
        assert not [path for path in store.nodes if "0x" in path]

    run(scenario)


def test_who_is_chosen_by_another_takes_it() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        names = [parse_topic(f"t-{number}") for number in range(40)]
        found = [await a.topics.locate(name) for name in names]
        theirs = [name for name, at in zip(names, found, strict=True) if isinstance(at, At)]
        assert 0 < len(theirs) < len(names)
        assert all(at.candidate for at in found if isinstance(at, At))
        assert await b.topics.owner_of(theirs[0]) is None
        assert await b.topics.locate(theirs[0], authoritative=True) == Here()
        assert len(a.topics.owned()) == len({await bundle(b, n) for n in theirs}) == 2

    async def bundle(one: One, name: object) -> Bundle:
        return (await one.topics.layout(NAME.namespace)).bundle_of(name)  # type: ignore[arg-type]

    run(scenario)


def test_of_many_who_ask_at_once_one_gets_it() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        found = await asyncio.gather(
            *(one.topics.locate(NAME, authoritative=True) for one in (a, b) * 20)
        )
        assert found.count(Here()) == 20
        assert len(a.topics.owned()) + len(b.topics.owned()) == 1

    run(scenario)


def test_a_release_closes_then_gives_then_tells() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a, b)
        a.closing.clear()
        releasing = asyncio.create_task(a.topics.release(bundle))
        await turns()
        with pytest.raises(ServiceNotReadyError):
            a.topics.check(NAME)  # no log is opened while it closes
        asked = asyncio.create_task(a.topics.locate(NAME))
        await turns()
        assert not asked.done()  # whoever asks hears the outcome
        a.closing.set()
        assert await releasing
        assert a.events[:2] == ["close", "closed, node there"]
        assert a.events[2].endswith("node gone")
        await asked
        assert not await b.topics.release(bundle)

    run(scenario)


def test_what_was_given_away_is_not_taken_back_by_a_client_that_asks_on() -> None:
    """Kafka's clients look nothing up before they send on: a broker that gave a bundle away because
    others had less to do had it again within milliseconds, and gave it away half a minute later,
    and so on."""

    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a, b)
        for number in range(20):  # it has more to do than the other
            await a.topics.claim(parse_topic(f"of-a-{number}"))
        await turns()
        a.closing.set()
        assert await a.topics.release(bundle)
        with pytest.raises(ServiceNotReadyError):
            await a.topics.claim(NAME)
        assert isinstance(await a.topics.locate(NAME), At)
        await b.topics.claim(NAME)
        assert bundle in b.topics.owned()
        assert bundle not in a.topics.owned()
        b.closing.set()
        await b.topics.end()
        await turns()
        await a.topics.claim(NAME)  # nobody else is there to take it

    run(scenario)


def test_a_broker_that_leaves_says_where_to_go() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        await owned_by(a, b)
        await a.topics.end()
        assert a.events[2] == "told pulsar://b:6650, node gone"
        assert a.topics.owned() == []
        await turns()
        assert list(await b.topics.reports()) == ["b"]
        assert await b.topics.locate(NAME) == Here()
        assert isinstance(await a.topics.locate(NAME), At)  # it takes nothing any more
        with pytest.raises(ServiceNotReadyError):
            await a.topics.claim(NAME)

    run(scenario)


def test_who_asks_a_broker_that_has_ended_is_told_so() -> None:
    """Who waited for the metadata store comes as late as that."""

    async def scenario(_store: MemoryMetadata, a: One, _b: One) -> None:
        await a.topics.claim(NAME)
        (bundle,) = a.topics.owned()
        await a.scope.close()
        _, high = bundle.halves(bundle.middle())
        for asked in (
            a.topics.release(bundle), a.topics.cut(bundle, high.low), a.topics.drain(),
        ):  # fmt: skip
            with pytest.raises(ServiceNotReadyError, match="is ending"):
                await asked
        assert a.topics.owned() == [bundle]

    run(scenario)


def test_who_waits_while_a_broker_takes_is_told_when_that_ends() -> None:
    """The taking is the broker's and ends with it; who asked is somebody else, and goes on."""

    async def scenario(store: MemoryMetadata, a: One, _b: One) -> None:
        begun = asyncio.Event()

        async def hangs(*_: object, **__: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        with patch.object(store, "create", hangs):
            asked = [asyncio.create_task(a.topics.claim(NAME)) for _ in range(2)]
            await begun.wait()
            await turns()
            await a.scope.close()
            for each in asked:
                with pytest.raises(ServiceNotReadyError, match="is ending"):
                    await each

    run(scenario)


def test_nobody_is_left() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        await b.topics.end()
        await owned_by(a)
        await a.topics.drain()
        with pytest.raises(ServiceNotReadyError, match="no broker takes bundles"):
            await a.topics.locate(NAME)
        report = decode_report("", store.nodes["/loadbalance/brokers/a"].value)
        assert report.draining
        await a.topics.undrain()
        assert await a.topics.locate(NAME) == Here()

    run(scenario)


def test_a_read_only_broker_owns_nothing() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        c = await One(store, "c", 3).begin(read_only=True)
        names = [parse_topic(f"t-{number}") for number in range(40)]
        for name in names:
            for authoritative in (False, True):
                found = await c.topics.locate(name, authoritative)
                assert isinstance(found, At)
                assert found.service_url != "pulsar://c:6650"
            with pytest.raises(ServiceNotReadyError):
                await c.topics.claim(name)
            assert isinstance(await a.topics.locate(name, authoritative=True), At | Here)
        assert c.topics.owned() == []
        report = (await a.topics.reports())["c"]
        assert (report.read_only, report.draining) == (True, False)
        await c.topics.drain()
        await c.topics.undrain()
        for one in (a, b):
            await one.topics.end()
        with pytest.raises(ServiceNotReadyError, match="no broker takes bundles"):
            await c.topics.locate(NAME, authoritative=True)
        await c.end()

    run(scenario)


def test_a_bundle_is_cut_and_nobody_is_interrupted() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a, b)
        first, second = bundle.halves(bundle.middle())
        assert await a.topics.cut(bundle, bundle.middle())
        assert a.events == []  # no topic was closed
        assert a.topics.owned() == [first, second]
        a.topics.check(NAME)
        await a.topics.verify(NAME)
        assert owner_path(bundle) not in store.nodes
        for one in (a, b):
            assert first in (await one.topics.layout(NAME.namespace)).bundles()
        assert isinstance(await b.topics.locate(NAME), At)
        half = await bundle_of(a)
        assert half in (first, second)
        assert await a.topics.release(half)
        assert await b.topics.locate(NAME, authoritative=True) == Here()
        assert not await a.topics.cut(bundle, bundle.middle())  # it is none any more

    run(scenario)


def test_only_the_owner_cuts() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a, b)
        assert not await b.topics.cut(bundle, bundle.middle())
        with pytest.raises(NotAllowedError, match="cannot be cut at"):
            await a.topics.cut(bundle, bundle.low)
        assert (await bundle_of(a), a.topics.owned()) == (bundle, [bundle])

    run(scenario)


def test_who_has_not_heard_of_a_cut_takes_no_range_that_is_none() -> None:
    """What one broker believes of a namespace is older than what another has done to it."""

    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a, b)
        old = await b.topics.layout(NAME.namespace)
        stale = True

        async def layout(namespace: str) -> Layout:
            return old if stale else await plain(namespace)

        plain, b.topics.layout = b.topics.layout, layout  # type: ignore[method-assign]
        assert await a.topics.cut(bundle, bundle.middle())
        for half in a.topics.owned():
            await a.topics.release(half)
        with pytest.raises(ServiceNotReadyError):
            await b.topics.locate(NAME, authoritative=True)
        assert owner_path(bundle) not in store.nodes
        assert b.topics.owned() == []
        stale = False
        assert await b.topics.locate(NAME, authoritative=True) == Here()
        assert b.topics.owned() == [await bundle_of(a)]

    run(scenario)


def test_a_cut_that_fails_leaves_all_as_it_was() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a, b)
        put = store.put

        async def fail(path: str, value: bytes, version: int) -> int:
            if path.startswith("/admin/policies"):
                raise MetadataUnavailableError("not done")
            return await put(path, value, version)

        store.put = fail  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailableError):
            await a.topics.cut(bundle, bundle.middle())
        store.put = put  # type: ignore[method-assign]
        assert a.topics.owned() == [bundle]
        assert [path for path in store.nodes if "0x" in path] == [owner_path(bundle)]
        assert await a.topics.cut(bundle, bundle.middle())

    run(scenario)


def test_a_cut_whose_answer_is_lost_is_a_cut() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a, b)
        put = store.put

        async def lose(path: str, value: bytes, version: int) -> int:
            await put(path, value, version)
            if path.startswith("/admin/policies"):
                raise MetadataUnavailableError("perhaps")
            return version + 1

        store.put = lose  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailableError):
            await a.topics.cut(bundle, bundle.middle())
        store.put = put  # type: ignore[method-assign]
        half = await bundle_of(a)
        assert half != bundle
        assert isinstance(await b.topics.locate(NAME), At)
        assert await a.topics.locate(NAME) == Here()
        await a.topics.verify(NAME)
        assert await a.topics.release(half)
        assert a.events[0] == "close"
        assert await b.topics.locate(NAME, authoritative=True) == Here()
        await a.topics.drain()
        assert await b.topics.locate(NAME) == Here()

    run(scenario)


def test_a_broker_that_leaves_while_it_cuts_gives_both_parts_away() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a, b)
        cutting = asyncio.create_task(a.topics.cut(bundle, bundle.middle()))
        await asyncio.sleep(0)
        await a.topics.end()
        assert await cutting
        assert a.topics.owned() == []
        assert not [path for path in store.nodes if "0x" in path]

    run(scenario)


def test_what_is_taken_away_while_a_cut_fails_is_closed() -> None:
    """What the store told of it meanwhile was not looked at."""

    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a)

        async def taken(*_: object) -> int:
            await store.delete(owner_path(bundle))
            await turns()
            raise MetadataUnavailableError("for a test")

        store.put = taken  # type: ignore[assignment]
        with pytest.raises(MetadataUnavailableError):
            await a.topics.cut(bundle, bundle.middle())
        await turns()
        assert a.events[:1] == ["close"]
        assert a.topics.owned() == []

    run(scenario)


def test_the_guard_asks_the_store_itself() -> None:
    """A broker that was paused has heard of nothing yet."""

    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a)
        await a.topics.verify(NAME)
        del store.nodes[owner_path(bundle)]  # as the end of its session does, untold
        a.topics.check(NAME)
        asked = await asyncio.gather(
            *(a.topics.verify(NAME) for _ in range(3)), return_exceptions=True
        )
        assert [type(each) for each in asked] == [ServiceNotReadyError] * 3
        await turns()
        assert a.events[0] == "close"
        assert a.events.count("close") == 1
        assert await b.topics.locate(NAME, authoritative=True) == Here()
        assert owner_path(bundle) in store.nodes  # the loser left it alone

    run(scenario)


def test_the_guard_asks_the_store_also_while_a_bundle_is_cut() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a)
        put, writing, goes_on = store.put, asyncio.Event(), asyncio.Event()

        async def late(path: str, value: bytes, version: int) -> int:
            writing.set()
            await goes_on.wait()
            return await put(path, value, version)

        store.put = late  # type: ignore[method-assign]
        cutting = asyncio.create_task(a.topics.cut(bundle, bundle.middle()))
        await writing.wait()
        await a.topics.verify(NAME)
        del store.nodes[owner_path(bundle)]  # as the end of its session does, untold
        a.topics.check(NAME)
        with pytest.raises(ServiceNotReadyError):
            await a.topics.verify(NAME)
        goes_on.set()
        assert await cutting
        await a.topics.verify(NAME)
        del store.nodes[owner_path(await bundle_of(a))]
        with pytest.raises(ServiceNotReadyError):
            await a.topics.verify(NAME)

    run(scenario)


def test_what_somebody_takes_away_is_closed() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        bundle = await owned_by(a, b)
        await store.delete(owner_path(bundle))
        await turns()
        assert a.events[0] == "close"
        assert a.topics.owned() == []
        assert await b.topics.locate(NAME, authoritative=True) == Here()

    run(scenario)


def test_an_answer_that_was_lost_is_no_loss() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        create = store.create

        async def lose(path: str, *about: object) -> str:
            await create(path, *about)  # type: ignore[arg-type]
            raise MetadataUnavailableError("perhaps")

        store.create = lose  # type: ignore[method-assign, assignment]
        with pytest.raises(MetadataUnavailableError):
            await a.topics.locate(NAME, authoritative=True)
        store.create = create  # type: ignore[method-assign]
        assert await b.topics.owner_of(NAME) is not None  # the node says so
        assert await a.topics.locate(NAME) == Here()

    run(scenario)


def test_a_broker_takes_over_from_its_own_past() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        await owned_by(a, b)
        again = await One(store, "a", 3).begin()
        assert await again.topics.locate(NAME) == Here()
        again.topics.check(NAME)
        await again.topics.verify(NAME)
        await turns()
        assert a.events[0] == "close"  # were it alive
        await again.end()

    run(scenario)


@pytest.mark.parametrize("state", [SessionState.EXPIRED, SessionState.SUSPENDED])
def test_a_lost_session_is_told_and_nothing_is_taken_any_more(state: SessionState) -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        store.end_session(state)
        await asyncio.sleep(TIMEOUT_MS / 1000 * 2)
        assert len(a.lost) == len(b.lost) == 1
        store.end_session(SessionState.CONNECTED)
        await turns()
        with pytest.raises(ServiceNotReadyError):
            await a.topics.claim(NAME)

    run(scenario)


def test_a_session_that_comes_back_in_time_is_none_lost() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        await owned_by(a, b)
        store.end_session(SessionState.SUSPENDED)
        await turns()
        assert await a.topics.locate(NAME) == Here()
        store.end_session(SessionState.CONNECTED)
        await asyncio.sleep(TIMEOUT_MS / 1000 * 2)
        assert a.lost == []

    run(scenario)


def test_load_is_reported() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        await owned_by(a)
        await a.topics.report(Load(5000, 1.0, 2.0))
        await turns()
        report = (await b.topics.reports())["a"]
        assert (report.bundles, report.topics) == (1, 5000)

    run(scenario)


def test_many_who_ask_for_the_brokers_at_once_cost_two_lists() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        lists = 0
        children = store.children

        async def counted(path: str) -> list[str]:
            nonlocal lists
            lists += 1
            return await children(path)

        store.children = counted  # type: ignore[method-assign]
        brokers = Brokers(store)
        found = await asyncio.gather(*(brokers.reports() for _ in range(100)))
        assert all(list(each) == ["a", "b"] for each in found)
        assert lists <= 2

    run(scenario)


def test_reads_are_shared_and_no_older_than_the_question() -> None:
    async def main() -> None:
        store = MemoryMetadata()
        await store.create("/n", b"1")
        reads = shared_values(store)
        first = asyncio.create_task(reads.get("/n"))
        await asyncio.sleep(0)  # its read is under way
        await store.put("/n", b"2", 0)
        later = [asyncio.create_task(reads.get("/n")) for _ in range(50)]
        await first
        assert await asyncio.gather(*later) == [b"2"] * 50
        assert store.reads <= 3
        later[0].cancel()
        assert await reads.get("/gone") is None

    asyncio.run(main())


def test_a_shared_read_whose_reader_is_cancelled_is_read_by_another() -> None:
    async def main() -> None:
        store = MemoryMetadata()
        await store.create("/n", b"1")
        reads = shared_values(store)
        first = asyncio.create_task(reads.get("/n"))
        await asyncio.sleep(0)
        second = asyncio.create_task(reads.get("/n"))
        third = asyncio.create_task(reads.get("/n"))
        await asyncio.sleep(0)
        second.cancel()
        assert await third == b"1"
        assert await first == b"1"

    asyncio.run(main())
