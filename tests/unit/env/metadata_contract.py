"""What every metadata store does alike: one suite, inherited by a test class per implementation.

A class gives the fixture ``tree``: something that opens stores, one after the other, over the
same nodes. The reference is the docstrings of ``magnetar.env.metadata``.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from magnetar.env.metadata import (
    CreateMode,
    GuardedWrites,
    MetadataStore,
    PairedWrites,
    Versioned,
)
from magnetar.env.metadata_stores.metadata_paths import VALUE_BYTES_MAX
from magnetar.model.errors import (
    BadVersionError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from tests.doubles.garbage import in_cycles

T = TypeVar("T")
Scenario = Callable[[MetadataStore], Coroutine[Any, Any, None]]
PATIENCE_S = 60.0


class Tree:
    """Opens stores over the same nodes."""

    def __init__(self, open_store: Callable[[], Awaitable[MetadataStore]]) -> None:
        self._open_store = open_store

    @asynccontextmanager
    async def store(self) -> AsyncIterator[MetadataStore]:
        store = await self._open_store()
        try:
            yield store
        finally:
            await store.close()

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            async with self.store() as store:
                await scenario(store)

        asyncio.run(main())


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until ``condition`` holds."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event to set
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"it did not happen that {what}")


class MetadataContract:
    # -- nodes --------------------------------------------------------------------------------

    def test_a_node_from_its_creation_to_its_end(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            assert await store.create("/a", b"one") == "/a"
            assert await store.get("/a") == Versioned(b"one", 0)
            assert await store.put("/a", b"two", 0) == 1
            assert await store.put("/a", b"three", -1) == 2
            assert await store.get("/a") == Versioned(b"three", 2)
            await store.delete("/a", 2)
            with pytest.raises(NoNodeError, match="/a"):
                await store.get("/a")
            await store.create("/a", b"again")
            assert await store.get("/a") == Versioned(b"again", 0)

        tree.run(scenario)

    def test_values_are_any_bytes(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            values = [b"", b"\0", bytes(range(256)), b"x" * VALUE_BYTES_MAX]
            for number, value in enumerate(values):
                await store.create(f"/value-{number}", value)
                assert (await store.get(f"/value-{number}")).value == value

        tree.run(scenario)

    def test_parents_are_made(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            await asyncio.gather(*(store.create(f"/a/b/{n}/c", b"c") for n in range(10)))
            assert await store.get("/a/b") == Versioned(b"", 0)
            assert await store.children("/a/b") == [str(n) for n in range(10)]
            assert await store.children("/a/b/7/c") == []

        tree.run(scenario)

    def test_a_path_is_created_once(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            outcomes = await asyncio.gather(
                *(store.create("/once", b"%d" % n) for n in range(20)), return_exceptions=True
            )
            winners = [n for n, outcome in enumerate(outcomes) if outcome == "/once"]
            assert len(winners) == 1
            assert sum(isinstance(outcome, NodeExistsError) for outcome in outcomes) == 19
            assert await store.get("/once") == Versioned(b"%d" % winners[0], 0)

        tree.run(scenario)

    def test_what_is_not_there(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            for attempt in (
                store.get("/no/thing"),
                store.put("/no/thing", b"", -1),
                store.delete("/no/thing"),
                store.children("/no/thing"),
            ):
                with pytest.raises(NoNodeError, match="/no/thing"):
                    await attempt
            assert await store.children("/") == []

        tree.run(scenario)

    def test_compare_and_set(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            await store.create("/cas", b"")
            outcomes = await asyncio.gather(
                *(store.put("/cas", b"%d" % n, 0) for n in range(20)), return_exceptions=True
            )
            winners = [n for n, outcome in enumerate(outcomes) if outcome == 1]
            assert len(winners) == 1
            assert sum(isinstance(outcome, BadVersionError) for outcome in outcomes) == 19
            assert await store.get("/cas") == Versioned(b"%d" % winners[0], 1)
            for stale in (0, 2):
                with pytest.raises(BadVersionError, match="/cas"):
                    await store.delete("/cas", stale)
            await store.delete("/cas", 1)

        tree.run(scenario)

    def test_a_put_beside_a_node_that_must_be_there(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            assert isinstance(store, GuardedWrites)
            await store.create("/guards/id", b"")
            await store.create("/guarded", b"")
            assert await store.put_beside("/guards/id", "/guarded", b"one", 0) == 1
            with pytest.raises(BadVersionError, match="/guarded"):
                await store.put_beside("/guards/id", "/guarded", b"two", 0)
            with pytest.raises(NoNodeError, match="/nowhere"):
                await store.put_beside("/guards/id", "/nowhere", b"two", -1)
            await store.put("/guards/id", b"changed", -1)
            assert await store.put_beside("/guards/id", "/guarded", b"two", -1) == 2
            await store.delete("/guards/id")
            for version in (-1, 2, 7):
                with pytest.raises(NoNodeError, match="/guards/id"):
                    await store.put_beside("/guards/id", "/guarded", b"three", version)
            assert await store.get("/guarded") == Versioned(b"two", 2)

        tree.run(scenario)

    def test_two_nodes_change_at_once_or_neither(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            assert isinstance(store, PairedWrites)
            await store.create("/pair/kept", b"old")
            with pytest.raises(NoNodeError, match="/pair/none"):
                await store.create_and_put("/pair/new/deep", b"", "/pair/none", b"", -1)
            with pytest.raises(BadVersionError, match="/pair/kept"):
                await store.create_and_put("/pair/new/deep", b"", "/pair/kept", b"bad", 1)
            with pytest.raises(NoNodeError, match="/pair/new"):
                await store.get("/pair/new/deep")
            made = store.create_and_put("/pair/new/deep", b"one", "/pair/kept", b"two", 0)
            assert await made == 1
            assert await store.get("/pair/new/deep") == Versioned(b"one", 0)
            assert await store.get("/pair/kept") == Versioned(b"two", 1)
            for version in (-1, 1):
                with pytest.raises(NodeExistsError, match="/pair/new/deep"):
                    await store.create_and_put(
                        "/pair/new/deep", b"three", "/pair/kept", b"three", version
                    )
            assert await store.get("/pair/new/deep") == Versioned(b"one", 0)
            assert await store.get("/pair/kept") == Versioned(b"two", 1)
            assert await store.create_and_put("/pair/more", b"", "/pair/kept", b"", -1) == 2
            assert await store.children("/pair") == ["kept", "more", "new"]

        tree.run(scenario)

    def test_a_node_with_children_stays(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            await store.create("/a/b", b"")
            with pytest.raises(NotEmptyError, match="/a"):
                await store.delete("/a")
            await store.delete("/a/b")
            await store.delete("/a")
            assert await store.children("/") == []

        tree.run(scenario)

    def test_the_stamp_of_a_list_of_children_changes_with_it(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            await store.create("/of/first", b"")
            seen = [await store.children_stamp("/of")]
            await store.put("/of/first", b"other bytes", -1)
            await store.create("/of/first/below", b"")
            assert await store.children_stamp("/of") == seen[0], "the list is the same"
            for _ in range(3):
                await store.create("/of/second", b"")
                seen.append(await store.children_stamp("/of"))
                await store.delete("/of/second")
                seen.append(await store.children_stamp("/of"))
            await store.delete("/of/first/below")
            await store.delete("/of/first")
            seen.append(await store.children_stamp("/of"))
            await store.delete("/of")
            with pytest.raises(NoNodeError, match="/of"):
                await store.children_stamp("/of")
            await store.create("/of/first", b"")
            seen.append(await store.children_stamp("/of"))
            assert len({*seen}) == len(seen)

        tree.run(scenario)

    def test_children_are_sorted_names(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            names = ["b", "a", "ä", "A", "a.b", "a-b", "10", "9", "host:3181", "%41"]
            for name in names:
                await store.create(f"/n/{name}", b"")
                await store.create(f"/n/{name}/deeper", b"")
            assert await store.children("/n") == sorted(names)

        tree.run(scenario)

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "a",
            "/a/",
            "//a",
            "/a//b",
            "/a/./b",
            "/a/..",
            "/\0",
            "/\n",
            "/\x9f",
            "/\ud800",
            "/\uffff",
        ],
    )
    def test_bad_paths_are_refused(self, tree: Tree, path: str) -> None:
        async def scenario(store: MetadataStore) -> None:
            for attempt in (store.get(path), store.create(path, b""), store.children(path)):
                with pytest.raises(MetadataError, match="path"):
                    await attempt
            with pytest.raises(MetadataError, match="path"):
                store.watch(path, lambda _path: None)
            assert await store.children("/") == []

        tree.run(scenario)

    def test_the_root_stays(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            with pytest.raises(MetadataError, match="root"):
                await store.create("/", b"")
            with pytest.raises(MetadataError, match="root"):
                await store.delete("/")

        tree.run(scenario)

    def test_values_too_large_are_refused_and_do_no_harm(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            large = b"x" * (VALUE_BYTES_MAX + 1)
            with pytest.raises(MetadataError, match=str(VALUE_BYTES_MAX)):
                await store.create("/large", large)
            await store.create("/large", b"")
            with pytest.raises(MetadataError, match=str(VALUE_BYTES_MAX)):
                await store.put("/large", large, -1)
            assert await store.get("/large") == Versioned(b"", 0)

        tree.run(scenario)

    def test_a_question_that_fails_leaves_nothing_to_the_collector(self, tree: Tree) -> None:
        """It stops the loop to look, and nodes that are not there are asked for all the time."""

        async def scenario(store: MetadataStore) -> None:
            await store.create("/full/node", b"")

            async def fail() -> None:
                with suppress(NoNodeError):
                    await store.get("/no/thing")
                with suppress(NotEmptyError):
                    await store.delete("/full")

            await fail()
            with in_cycles() as left:
                for _ in range(20):
                    await fail()
            assert [each for each in left if isinstance(each, MetadataError)] == []

        tree.run(scenario)

    # -- modes --------------------------------------------------------------------------------

    def test_counters_grow_and_never_repeat(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            paths = []
            for _ in range(4):
                created = await asyncio.gather(
                    *(store.create("/q/x-", b"", CreateMode.SEQUENTIAL) for _ in range(10))
                )
                paths += created
                await asyncio.gather(*(store.delete(path) for path in created))
            assert all(re.fullmatch(r"/q/x-\d{10}", path) for path in paths)
            assert len({*paths}) == len(paths)
            rounds = [paths[start : start + 10] for start in range(0, 40, 10)]
            assert all(max(a) < min(b) for a, b in pairwise(rounds))

        tree.run(scenario)

    def test_a_counter_may_be_the_whole_name(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            path = await store.create("/q/", b"v", CreateMode.SEQUENTIAL)
            assert re.fullmatch(r"/q/\d{10}", path)
            assert await store.get(path) == Versioned(b"v", 0)

        tree.run(scenario)

    def test_ephemeral_nodes_end_with_the_session(self, tree: Tree) -> None:
        async def main() -> None:
            async with tree.store() as store:
                await store.create("/p", b"stays")
                await store.create("/e/node", b"goes", CreateMode.EPHEMERAL)
                counted = await store.create("/e/n-", b"goes", CreateMode.EPHEMERAL_SEQUENTIAL)
                kept = await store.create("/e/p-", b"stays", CreateMode.SEQUENTIAL)
                assert await store.get("/e/node") == Versioned(b"goes", 0)
                assert await store.put("/e/node", b"still goes", 0) == 1
                assert (await store.get(counted)).value == b"goes"
            async with tree.store() as store:
                assert await store.children("/e") == [kept.rpartition("/")[2]]
                assert (await store.get("/p")).value == b"stays"

        asyncio.run(main())

    def test_ephemeral_nodes_have_no_children(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            await store.create("/e", b"", CreateMode.EPHEMERAL)
            with pytest.raises(MetadataError, match="ephemeral"):
                await store.create("/e/child", b"")
            assert await store.children("/e") == []

        tree.run(scenario)

    # -- watches ------------------------------------------------------------------------------

    def test_a_watch_tells_of_the_node_and_its_children(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            told: list[str] = []
            store.watch("/w/node", told.append)
            await store.create("/other", b"")

            async def changes(change: Awaitable[T]) -> T:
                told.clear()
                result = await change
                await eventually(lambda: bool(told), "the watch was told")
                return result

            await changes(store.create("/w/node", b"1"))
            await changes(store.put("/w/node", b"2", 0))
            await changes(store.create("/w/node/child", b""))
            await changes(store.delete("/w/node/child"))
            await changes(store.delete("/w/node"))
            await changes(store.create("/w/node", b"", CreateMode.EPHEMERAL))
            assert {*told} == {"/w/node"}

        tree.run(scenario)

    def test_a_watched_value_tells_of_the_node(self, tree: Tree) -> None:
        """Also beside one who watches its children, and after that one has ended."""

        async def scenario(store: MetadataStore) -> None:
            told: list[str] = []
            listed: list[str] = []
            store.watch_value("/w/node", told.append)

            async def changes(change: Awaitable[T]) -> T:
                told.clear()
                result = await change
                await eventually(lambda: bool(told), "the watch was told")
                return result

            await changes(store.create("/w/node", b"1"))
            end = store.watch("/w/node", listed.append)
            await changes(store.put("/w/node", b"2", 0))
            listed.clear()
            await store.create("/w/node/child", b"")
            await eventually(lambda: bool(listed), "who watches the children was told")
            await store.delete("/w/node/child")
            await changes(store.put("/w/node", b"3", 1))
            end()
            await changes(store.delete("/w/node"))
            await changes(store.create("/w/node", b"", CreateMode.EPHEMERAL))
            assert {*told} == {"/w/node"}

        tree.run(scenario)

    def test_a_watch_does_not_tell_of_grandchildren_values(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            await store.create("/w/child", b"")
            told: list[str] = []
            store.watch("/w", told.append)
            await store.put("/w/child", b"2", -1)
            await store.create("/w/child/grandchild", b"")
            await asyncio.sleep(0.1)
            assert told == []

        tree.run(scenario)

    def test_the_last_change_is_always_told(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            await store.create("/w", b"0")
            seen: list[bytes] = []
            wake = asyncio.Event()
            store.watch("/w", lambda _path: wake.set())

            async def follow() -> None:
                while seen[-1:] != [b"200"]:
                    await wake.wait()
                    wake.clear()
                    seen.append((await store.get("/w")).value)

            async with asyncio.timeout(PATIENCE_S):
                follower = asyncio.create_task(follow())
                for number in range(1, 201):
                    await store.put("/w", b"%d" % number, -1)
                await follower
            assert [*map(int, seen)] == sorted(map(int, seen))

        tree.run(scenario)

    def test_an_ended_watch_is_silent_and_others_go_on(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            first: list[str] = []
            second: list[str] = []
            end = store.watch("/w", first.append)
            store.watch("/w", second.append)
            await store.create("/w", b"")
            await eventually(lambda: bool(first and second), "both watches were told")
            end()
            end()
            first.clear()
            second.clear()
            await store.put("/w", b"", -1)
            await eventually(lambda: bool(second), "the second watch was told")
            assert first == []
            store.watch("/w", first.append)
            await store.put("/w", b"", -1)
            await eventually(lambda: bool(first), "a new watch was told")

        tree.run(scenario)

    def test_a_failing_callback_does_not_silence_the_others(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            reported: list[BaseException] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, report: reported.append(report["exception"]))
            told: list[str] = []

            def fail(path: str) -> None:
                raise ValueError(path)

            store.watch("/w", fail)
            store.watch("/w", told.append)
            await store.create("/w", b"")
            await eventually(lambda: bool(told), "the watch behind the failing one was told")
            assert [repr(error) for error in reported][:1] == ["ValueError('/w')"]

        tree.run(scenario)

    # -- the store ----------------------------------------------------------------------------

    def test_what_is_read_after_a_sync_is_up_to_date(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            for count in range(1, 4):
                await store.create(f"/s/{count}", b"")
                await store.sync()
                assert len(await store.children("/s")) == count

        tree.run(scenario)

    def test_closing(self, tree: Tree) -> None:
        async def main() -> None:
            async with tree.store() as store:
                await store.create("/a", b"")
                await asyncio.gather(store.close(), store.close())
                await store.close()
                for attempt in (store.get("/a"), store.create("/b", b""), store.sync()):
                    with pytest.raises(MetadataError, match="closed"):
                        await attempt

        asyncio.run(main())

    def test_a_cancelled_caller_disturbs_nobody(self, tree: Tree) -> None:
        async def scenario(store: MetadataStore) -> None:
            tasks = [asyncio.create_task(store.create(f"/c/{n}", b"")) for n in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert outcomes[1::2] == [f"/c/{n}" for n in range(1, 20, 2)]
            assert await store.put("/c/1", b"", 0) == 1

        tree.run(scenario)

    @pytest.mark.parametrize("seed", range(4))
    def test_random_operations_match_a_plain_model(self, tree: Tree, seed: int) -> None:
        async def main() -> None:
            chance = random.Random(seed)
            model = Model()
            for _ in range(3):
                async with tree.store() as store:
                    for _ in range(80):
                        await _random_operation(chance, store, model)
                model.end_session()

        asyncio.run(main())


class Model:
    """The tree as a dictionary: path -> (value, version, ephemeral)."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int, bool]] = {"/": (b"", 0, False)}

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        below = [each[len(prefix) :] for each in self.nodes if each.startswith(prefix)]
        return sorted(name for name in below if name and "/" not in name)

    def create(self, path: str, value: bytes, ephemeral: bool) -> str:
        if path in self.nodes:
            raise NodeExistsError
        above = [path[:at] for at in range(1, len(path)) if path[at] == "/"]
        if any(self.nodes.get(each, (b"", 0, False))[2] for each in above):
            raise MetadataError
        for each in above:
            self.nodes.setdefault(each, (b"", 0, False))
        self.nodes[path] = (value, 0, ephemeral)
        return path

    def _found(self, path: str, version: int) -> tuple[bytes, int, bool]:
        if path not in self.nodes:
            raise NoNodeError
        if version not in (-1, self.nodes[path][1]):
            raise BadVersionError
        return self.nodes[path]

    def get(self, path: str) -> Versioned:
        value, version, _ = self._found(path, -1)
        return Versioned(value, version)

    def put(self, path: str, value: bytes, version: int) -> int:
        _, found, ephemeral = self._found(path, version)
        self.nodes[path] = (value, found + 1, ephemeral)
        return found + 1

    def delete(self, path: str, version: int) -> None:
        self._found(path, version)
        if self.children(path):
            raise NotEmptyError
        del self.nodes[path]

    def list(self, path: str) -> list[str]:
        self._found(path, -1)
        return self.children(path)

    def end_session(self) -> None:
        self.nodes = {path: node for path, node in self.nodes.items() if not node[2]}


async def _random_operation(chance: random.Random, store: MetadataStore, model: Model) -> None:
    path = "/" + "/".join(chance.choices("abc", k=chance.randint(1, 3)))
    value, version = chance.randbytes(3), chance.choice([-1, 0, 1, 2])
    ephemeral = chance.random() < 0.3
    mode = CreateMode.EPHEMERAL if ephemeral else CreateMode.PERSISTENT
    kind = chance.choice(["create", "create", "put", "delete", "get", "list"])
    modelled: dict[str, Callable[[], object]] = {
        "create": lambda: model.create(path, value, ephemeral),
        "put": lambda: model.put(path, value, version),
        "delete": lambda: model.delete(path, version),
        "get": lambda: model.get(path),
        "list": lambda: model.list(path),
    }
    operations: dict[str, Callable[[], Awaitable[object]]] = {
        "create": lambda: store.create(path, value, mode),
        "put": lambda: store.put(path, value, version),
        "delete": lambda: store.delete(path, version),
        "get": lambda: store.get(path),
        "list": lambda: store.children(path),
    }
    expected = _attempt(modelled[kind])
    try:
        found: object = await operations[kind]()
    except MetadataError as error:
        found = type(error)
    assert found == expected, (kind, path, version, ephemeral)


def _attempt(operation: Callable[[], object]) -> object:
    try:
        return operation()
    except MetadataError as error:
        return type(error)
