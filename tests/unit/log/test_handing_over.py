"""An owner that ends in order hands its cursors over in the log's record; what that must not
change."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.log.housekeeping import HOUSEKEEPING_S
from magnetar.log.managed import cursors
from magnetar.log.managed.cursor import ManagedCursor
from magnetar.log.managed.cursor_store import CursorStore
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import LogRecord, cursor_path, decode_log, log_path
from magnetar.model.errors import (
    LedgerError,
    LogClosedError,
    LogError,
    LogFencedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from magnetar.model.ids import EARLIEST, Position
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.test_cursor import CONFIG, TINY, acked, filled


def record_of(world: World) -> LogRecord:
    return decode_log(NAME, world.nodes[log_path(NAME)].value)


def handed(world: World) -> list[str] | None:
    found = record_of(world).handed_over
    return None if found is None else sorted(each.name for each in found)


async def owned(
    world: World, holes: bool, process: Process | None = None
) -> tuple[ManagedLog, list[Position]]:
    """A log with a cursor that has stored acknowledgements; with ``holes`` they need its ledger."""
    positions = await filled(world)
    log = await (process or Process(world)).store(CONFIG, TINY).open(NAME)
    cursor = await log.cursors.open("s", EARLIEST)
    cursor.acknowledge_cumulative(positions[4])
    if holes:
        cursor.acknowledge([positions[8]])
    await cursor.wait_stored()
    return log, positions


def store_of(log: ManagedLog) -> CursorStore:
    cursor = log.cursors.durable()["s"]
    assert isinstance(cursor, ManagedCursor)
    assert isinstance(cursor.store, CursorStore)
    return cursor.store


@pytest.mark.parametrize("holes", [False, True])
def test_the_next_owner_neither_asks_for_the_cursors_nor_writes_them(holes: bool) -> None:
    async def scenario() -> None:
        world = World()
        log, positions = await owned(world, holes)
        before = acked(log.cursors.durable()["s"], positions)
        await log.close()
        assert handed(world) == ["s"]
        node = world.nodes[cursor_path(NAME, "s")]
        process = Process(world)
        asked: list[str] = []
        get, children = process.metadata.get, process.metadata.children

        async def noted_get(path: str) -> object:
            asked.append(path)
            return await get(path)

        async def noted_children(path: str) -> list[str]:
            asked.append(f"{path}/")
            return await children(path)

        process.metadata.get = noted_get  # type: ignore[method-assign, assignment]
        process.metadata.children = noted_children  # type: ignore[method-assign]
        again = await process.store(CONFIG, TINY).open(NAME)
        assert asked == [log_path(NAME)]
        assert world.nodes[cursor_path(NAME, "s")] == node
        assert handed(world) is None, "who opens has the cursors now"
        assert acked(again.cursors.durable()["s"], positions) == before

    run_virtual(scenario())


@pytest.mark.parametrize("holes", [False, True])
def test_who_got_them_handed_over_loses_them_to_a_later_owner(holes: bool) -> None:
    """He has not written the cursor's node; the later owner does, first of all."""

    async def scenario() -> None:
        world = World()
        log, positions = await owned(world, holes)
        before = acked(log.cursors.durable()["s"], positions)
        await log.close()
        paused = await Process(world).store(CONFIG, TINY).open(NAME)
        later = await Process(world).store(CONFIG, TINY).open(NAME)
        cursor = paused.cursors.durable()["s"]
        cursor.acknowledge([positions[20]])
        with pytest.raises(LogFencedError):
            await cursor.wait_stored()
        assert acked(later.cursors.durable()["s"], positions) == before
        with pytest.raises(LogFencedError):
            await paused.cursors.open("other", EARLIEST)

    run_virtual(scenario())


def test_of_two_that_open_a_log_at_once_one_gets_what_was_handed_over() -> None:
    async def scenario() -> None:
        world = World()
        log, positions = await owned(world, holes=True)
        await log.close()
        both = await asyncio.gather(
            *(Process(world).store(CONFIG, TINY).open(NAME) for _ in range(2))
        )
        stored = 0
        for each in both:
            cursor = each.cursors.durable()["s"]
            cursor.acknowledge([positions[20]])
            try:
                await cursor.wait_stored()
                stored += 1
            except LogFencedError:
                pass
        assert stored == 1

    run_virtual(scenario())


def test_an_owner_that_dies_hands_nothing_over() -> None:
    async def scenario() -> None:
        world = World()
        log, _ = await owned(world, holes=False)
        assert handed(world) is None
        process = Process(world)
        again = await process.store(CONFIG, TINY).open(NAME)
        await again.cursors.open("t", EARLIEST)
        assert sorted(again.cursors.durable()) == ["s", "t"]
        assert log.lost is None  # it has not noticed; it writes nothing that counts
        await log.close()
        assert handed(world) is None, "it is not its log to hand over"
        assert not again.closed
        await again.close()
        assert handed(world) == ["s", "t"]

    run_virtual(scenario())


def test_a_cursor_that_is_known_by_halves_is_asked_for() -> None:
    """The answer to its creation was lost: it may be there, and nobody has it."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log, _ = await owned(world, False, process)
        create = process.metadata.create

        async def unheard(path: str, value: bytes, *mode: object) -> str:
            await create(path, value)
            raise MetadataUnavailableError("no answer")

        process.metadata.create = unheard  # type: ignore[method-assign, assignment]
        with pytest.raises(MetadataUnavailableError):
            await log.cursors.open("half", EARLIEST)
        await log.close()
        assert handed(world) is None
        again = await Process(world).store(CONFIG, TINY).open(NAME)
        assert sorted(again.cursors.durable()) == ["half", "s"]

    run_virtual(scenario())


def test_a_log_that_cannot_store_its_cursors_hands_none_over() -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world)
        log, positions = await owned(world, True, process)
        log.cursors.durable()["s"].acknowledge([positions[12]])
        process.ledgers.writers[-1].fail(LedgerError("too few bookies"))
        process.ledgers.create_errors = [LedgerError("too few bookies")] * 10
        with pytest.raises(LogError, match="not closed cleanly"):
            await log.close()
        assert handed(world) is None
        again = await Process(world).store(CONFIG, TINY).open(NAME)
        assert positions[8] in acked(again.cursors.durable()["s"], positions)

    run_virtual(scenario())


def test_nothing_is_made_or_deleted_once_they_are_handed_over() -> None:
    """Whoever waited for the log's lock meanwhile finds it closed."""

    async def scenario() -> None:
        world = World()
        log, _ = await owned(world, holes=False)
        closing = asyncio.ensure_future(log.close())
        await asyncio.sleep(0)
        late = [
            asyncio.ensure_future(log.cursors.open("t", EARLIEST)),
            asyncio.ensure_future(log.cursors.delete("s")),
        ]
        await closing
        outcomes = await asyncio.gather(*late, return_exceptions=True)
        assert [type(each) for each in outcomes] == [LogClosedError, LogClosedError]
        assert handed(world) == ["s"]
        again = await Process(world).store(CONFIG, TINY).open(NAME)
        assert sorted(again.cursors.durable()) == ["s"]

    run_virtual(scenario())


def test_who_waits_for_another_cursor_finds_the_log_closed() -> None:
    """It has asked before that, and its turn comes after it."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log, _ = await owned(world, False, process)
        create, gate = process.metadata.create, asyncio.Event()

        async def slow(path: str, value: bytes) -> str:
            await gate.wait()
            return await create(path, value)

        process.metadata.create = slow  # type: ignore[method-assign,assignment]
        first, *late = [
            asyncio.ensure_future(log.cursors.open("first", EARLIEST)),
            asyncio.ensure_future(log.cursors.open("second", EARLIEST)),
            asyncio.ensure_future(log.cursors.delete("s")),
        ]
        await asyncio.sleep(0.001)
        closing = asyncio.ensure_future(log.close())
        await asyncio.sleep(0.001)
        gate.set()
        await closing
        await first
        outcomes = await asyncio.gather(*late, return_exceptions=True)
        assert [type(each) for each in outcomes] == [LogClosedError, LogClosedError]
        again = await Process(world).store(CONFIG, TINY).open(NAME)
        assert sorted(again.cursors.durable()) == ["first", "s"]

    run_virtual(scenario())


def test_too_many_cursors_are_not_put_into_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World()
        log, _ = await owned(world, holes=False)
        await log.cursors.open("t", EARLIEST)
        monkeypatch.setattr(cursors, "HANDED_MAX", 1)
        await log.close()
        assert handed(world) is None
        again = await Process(world).store(CONFIG, TINY).open(NAME)
        assert sorted(again.cursors.durable()) == ["s", "t"]

    run_virtual(scenario())


def test_a_log_that_is_not_there_is_not_made_unless_that_is_asked_for() -> None:
    async def scenario() -> None:
        world = World()
        store = Process(world).store(CONFIG)
        with pytest.raises(NoSuchLogError):
            await store.open(NAME, create=False)
        assert not world.nodes
        log = await store.open(NAME)
        await log.close()
        assert not (await store.open(NAME, create=False)).closed

    run_virtual(scenario())


def test_the_guard_refuses_before_anything_is_changed() -> None:
    async def scenario() -> None:
        world = World()
        log, _ = await owned(world, holes=True)
        before = dict(world.nodes)
        fenced = {ledger_id: each.fenced for ledger_id, each in world.ledgers.items()}

        async def refuse() -> None:
            raise LogFencedError("not yours")

        for create in (False, True):
            with pytest.raises(LogFencedError, match="not yours"):
                await Process(world).store(CONFIG).open(NAME, create=create, guard=refuse)
        assert world.nodes == before
        assert {i: each.fenced for i, each in world.ledgers.items()} == fenced
        with pytest.raises(LogFencedError, match="not yours"):
            await Process(world).store(CONFIG).open(f"{NAME}-new", guard=refuse)
        assert world.nodes == before
        await log.close()

    run_virtual(scenario())


def test_what_a_former_owner_left_is_deleted_later() -> None:
    """Not while the log is opened: others wait for that."""

    async def scenario() -> None:
        world = World()
        log, _ = await owned(world, holes=False)
        await log.close()
        process = Process(world)
        store = process.store(CONFIG, TINY)
        again = await store.open(NAME)
        assert store_of(again).any_left
        operations = process.operations
        await asyncio.sleep(HOUSEKEEPING_S / 2)
        assert process.operations == operations
        await asyncio.sleep(HOUSEKEEPING_S)
        assert not store_of(again).any_left
        assert world.alive() == {each.ledger_id for each in again.stats().ledgers}

    run_virtual(scenario())


def test_leftovers_are_not_looked_at_while_a_cursor_takes_a_ledger() -> None:
    """Until the node points at it, the new ledger is named as left over: it would be deleted."""

    async def scenario() -> None:
        world = World()
        log, positions = await owned(world, holes=False)
        await log.close()
        process = Process(world)
        again = await process.store(CONFIG, TINY).open(NAME)
        cursor = again.cursors.durable()["s"]
        process.ledgers.hold = True  # the first record of the new ledger is not confirmed yet
        cursor.acknowledge([positions[10]])
        storing = asyncio.ensure_future(cursor.wait_stored())
        await asyncio.sleep(3 * HOUSEKEEPING_S)
        assert not storing.done()
        process.ledgers.hold = False
        process.ledgers.writers[-1].confirm()
        await storing
        await asyncio.sleep(3 * HOUSEKEEPING_S)
        newest = await Process(world).store(CONFIG, TINY).open(NAME)
        assert positions[10] in acked(newest.cursors.durable()["s"], positions)

    run_virtual(scenario())


def test_a_cursor_whose_node_is_in_doubt_is_asked_for() -> None:
    """It was stored before, and the answer to its last write, at the log's close, was lost."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log, positions = await owned(world, False, process)
        before = acked(log.cursors.durable()["s"], positions)
        process.metadata.lose_answers = 1
        await log.close()
        assert handed(world) is None
        again = await Process(world).store(CONFIG, TINY).open(NAME)
        assert acked(again.cursors.durable()["s"], positions) == before

    run_virtual(scenario())


def test_a_cursor_whose_node_alone_is_left_keeps_nobody_from_the_log() -> None:
    """Its deletion was cut off when its ledger had gone: there is nothing of it to be read."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log, positions = await owned(world, True, process)

        async def away(path: str, version: int = -1) -> None:
            raise MetadataError("not now")

        process.metadata.delete = away  # type: ignore[method-assign]
        await log.cursors.delete("s")
        assert cursor_path(NAME, "s") in world.nodes
        again = await Process(world).store(CONFIG, TINY).open(NAME)
        assert again.cursors.durable() == {}
        assert cursor_path(NAME, "s") not in world.nodes
        fresh = await again.cursors.open("s", EARLIEST)
        assert acked(fresh, positions) == frozenset()

    run_virtual(scenario())


def test_a_deletion_that_is_not_finished_is_the_next_owners_to_finish() -> None:
    """Else who uses the name again would have what was acknowledged before it was deleted."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log, positions = await owned(world, True, process)

        async def away(_ledger_id: int) -> None:
            raise LedgerError("not now")

        process.ledgers.delete = away  # type: ignore[method-assign]
        await log.cursors.delete("s")
        await log.close()
        assert handed(world) is None
        again = await Process(world).store(CONFIG, TINY).open(NAME)
        assert cursor_path(NAME, "s") not in world.nodes
        fresh = await again.cursors.open("s", EARLIEST)
        assert acked(fresh, positions) == frozenset()

    run_virtual(scenario())
