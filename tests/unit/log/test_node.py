"""A record under compare-and-set: lost answers, lost ownership."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.env.metadata import Versioned
from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import (
    CursorRecord,
    LogRecord,
    cursor_path,
    decode_cursor,
    decode_log,
    decode_name,
    encode_cursor,
    encode_log,
    encode_name,
    log_path,
)
from magnetar.model.errors import (
    LogError,
    LogFencedError,
    MetadataError,
    SessionExpiredError,
)
from magnetar.model.ids import Position
from tests.unit.log.doubles import MemoryMetadata, Process, World

PATH = "/a/b"


class LossyMetadata(MemoryMetadata):
    """Loses the answer of the next put, before or after it took effect."""

    lose: str = ""

    async def put(self, path: str, value: bytes, version: int) -> int:
        lose, self.lose = self.lose, ""
        if lose == "request":
            raise MetadataError("no answer")
        new = await super().put(path, value, version)
        if lose == "answer":
            raise MetadataError("no answer")
        return new


async def load(store: MemoryMetadata) -> RecordNode[int]:
    return await RecordNode.load_or_create(
        store, PATH, lambda n: str(n).encode(), lambda value: int(value), 0
    )


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_write_with_a_lost_answer_is_looked_up(lost: str) -> None:
    async def scenario() -> None:
        world = World()
        store = LossyMetadata(Process(world))
        node = await load(store)
        store.lose = lost
        with pytest.raises(MetadataError):
            await node.update(lambda n: n + 5)
        written = 5 if lost == "answer" else 0
        await node.update(lambda n: n + 100)
        assert node.record == written + 100
        assert world.nodes[PATH].value == str(written + 100).encode()

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", ["", "request", "answer"])
def test_a_write_of_another_owner_is_noticed(lost: str) -> None:
    async def scenario() -> None:
        world = World()
        store = LossyMetadata(Process(world))
        node = await load(store)
        if lost:
            store.lose = lost
            with pytest.raises(MetadataError):
                await node.update(lambda n: n + 1)
        stored = world.nodes[PATH]
        world.nodes[PATH] = Versioned(b"77", stored.version + 1)
        for _ in range(2):
            with pytest.raises(LogFencedError):
                await node.update(lambda n: n + 1)
        assert world.nodes[PATH].value == b"77"
        del world.nodes[PATH]
        with pytest.raises(LogFencedError):
            await node.update(lambda n: n + 1)

    asyncio.run(scenario())


def test_of_two_that_take_a_record_over_at_once_one_loses() -> None:
    async def scenario() -> None:
        world = World()
        first, second = await load(Process(world).metadata), await load(Process(world).metadata)
        await first.update(lambda n: n + 1)
        with pytest.raises(LogFencedError):
            await second.update(lambda n: n + 1)  # the very bytes that the first wrote

    asyncio.run(scenario())


def test_who_makes_a_record_as_its_own_loses_it_to_who_takes_it_over() -> None:
    async def scenario() -> None:
        world = World()

        async def make() -> RecordNode[int]:
            store = Process(world).metadata
            return await RecordNode.create(store, PATH, lambda n: b"%d" % n, int, 1, taken=True)

        first, second = await make(), await make()
        assert first.owned
        assert not second.owned
        await second.update(lambda n: n + 1)
        with pytest.raises(LogFencedError):
            await first.update(lambda n: n)

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", ["", "request", "answer"])
def test_who_asks_whether_the_record_is_still_its_own_hears_of_every_other_write(lost: str) -> None:
    async def scenario() -> None:
        world = World()
        store = LossyMetadata(Process(world))
        node = await load(store)
        await node.update(lambda n: n + 1)
        await node.confirm_owned()
        if lost:
            store.lose = lost
            with pytest.raises(MetadataError):
                await node.update(lambda n: n + 1)
            await node.confirm_owned()
        own = world.nodes[PATH]
        assert node.record == int(own.value)
        for other in (
            Versioned(own.value, own.version + 1),  # the same bytes, and yet another's
            Versioned(b"77", own.version + 1),
            Versioned(own.value, 0),
            Versioned(b"77", own.version),  # deleted, and made anew
        ):
            world.nodes[PATH] = other
            with pytest.raises(LogFencedError):
                await node.confirm_owned()
        del world.nodes[PATH]
        with pytest.raises(LogFencedError):
            await node.confirm_owned()
        world.nodes[PATH] = own
        await node.confirm_owned()

    asyncio.run(scenario())


def test_a_record_is_lost_with_the_session_in_which_it_was_read() -> None:
    """Others were told then that its owner has gone."""

    class Sessions(MemoryMetadata):
        session = 5

        async def session_id(self) -> int:
            return self.session

        async def put_within(self, session_id: int, path: str, value: bytes, version: int) -> int:
            if session_id != self.session:
                raise SessionExpiredError("it is over")
            return await self.put(path, value, version)

        async def delete_within(self, session_id: int, path: str, version: int = -1) -> None:
            raise AssertionError

    async def scenario() -> None:
        world = World()
        store = Sessions(Process(world))
        node = await load(store)
        await node.update(lambda n: n + 1)
        store.session = 6
        with pytest.raises(LogFencedError):
            await node.update(lambda n: n + 1)
        assert world.nodes[PATH].value == b"1"

    asyncio.run(scenario())


@pytest.mark.parametrize("other", [b"1", b"2"])
def test_a_deletion_leaves_a_node_that_others_made_anew(other: bytes) -> None:
    async def scenario() -> None:
        world = World()
        node = await load(Process(world).metadata)
        await node.update(lambda n: n + 1)
        world.nodes[PATH] = Versioned(other, 1 if other == b"2" else 0)
        with pytest.raises(LogFencedError):
            await node.delete()
        assert world.nodes[PATH].value == other
        world.nodes[PATH] = Versioned(b"1", 1)
        await node.delete()
        assert PATH not in world.nodes
        await node.delete()

    asyncio.run(scenario())


def test_records_round_trip_and_refuse_what_they_do_not_know() -> None:
    log = LogRecord(
        (LedgerInfo(3, 10, 1000, 5, 6), LedgerInfo(9, created_ms=7)), (1, 2), Position(2, 8), 4
    )
    assert decode_log("x", encode_log(log)) == log
    cursor = CursorRecord(Position(3, -1), 8, {"k": "ü"}, (5,), 2, True)
    assert decode_cursor("x", encode_cursor(cursor)) == cursor
    bare = CursorRecord(Position(-1, -1))
    assert decode_cursor("x", encode_cursor(bare)) == bare
    assert decode_cursor("x", encode_cursor(CursorRecord(Position(0, 0), 0))).ledger_id == 0
    for broken in (b"", b"\xff", b"\x08\x02"):
        with pytest.raises(LogError, match="log x"):
            decode_log("x", broken)
        with pytest.raises(LogError, match="cursor x"):
            decode_cursor("x", broken)


@pytest.mark.parametrize("name", ["a", "a/b", "ü ä", ".", "..", "a~b*c", "%2F", "+", "a.b"])
def test_names_are_one_segment_and_come_back(name: str) -> None:
    segment = encode_name(name)
    assert "/" not in segment
    assert segment not in (".", "..")
    assert decode_name(segment) == name
    path = cursor_path(f"t/n/persistent/{name}", name)
    assert path == f"/managed-ledgers/t/n/persistent/{segment}/{segment}"


@pytest.mark.parametrize("name", ["", "a", "a/b/c", "a/b/c/", "/b/c/d"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(LogError):
        log_path(name)
