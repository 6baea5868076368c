"""Durable cursors: what was stored survives, whatever happens; ledgers do not pile up."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyroaring import BitMap
from structlog.testing import capture_logs

from magnetar.config import LedgerConfig
from magnetar.env.metadata import Versioned
from magnetar.log.acknowledgements import AckImage
from magnetar.log.managed.cursor import ManagedCursor
from magnetar.log.managed.cursor_format import CHUNK_BYTES_MAX, DELTA, decode_header
from magnetar.log.managed.cursor_store import CursorLimits, CursorStore
from magnetar.log.managed.ledgers import LedgerAppendDone
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import cursor_path, decode_cursor, decode_log, log_path
from magnetar.log.seam import Buffer, Cursor
from magnetar.model.errors import (
    CursorNotFoundError,
    LedgerError,
    LogError,
    LogFencedError,
    MagnetarError,
    MetadataError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.doubles import NAME, OFFSET, MemoryWriter, Process, StoredLedger, World
from tests.unit.log.test_managed_log import publish, read_all

TINY = CursorLimits(snapshot_deltas=2, ledger_records_max=5)
CONFIG = LedgerConfig(ledger_entries_max=10, cursor_flush_interval_ms=1)
ENTRIES = 45


async def filled(world: World) -> list[Position]:
    store = Process(world).store(CONFIG)
    positions = await publish(await store.open(NAME), 0, ENTRIES)
    await store.close()
    return positions


def acked(cursor: Cursor, positions: list[Position]) -> frozenset[Position]:
    return frozenset(p for p in positions if cursor.is_acknowledged(*p))


class Life:
    """One process acknowledging in rounds, until it crashes or is done."""

    def __init__(self, process: Process, positions: list[Position]) -> None:
        self.process = process
        self.positions = positions
        self.states: list[tuple[frozenset[Position], tuple[int, ...]]] = [(frozenset(), ())]
        self.stored = 0  # index of the last state that was reported as stored

    async def run(self) -> None:
        try:
            log = await self.process.store(CONFIG, TINY).open(NAME)
            cursor = await log.cursors.open("s", EARLIEST)
            await self._rounds(cursor)
            await log.close()
        except MagnetarError:
            assert self.process.crashed

    async def _rounds(self, cursor: Cursor) -> None:
        order = self.positions[1:-1]
        random.Random(3).shuffle(order)
        for round_number in range(24):
            batch = order[: round_number % 2 + 1]
            order = order[len(batch) :]
            if round_number == 6:
                resetting = asyncio.ensure_future(cursor.reset(self.positions[4]))
                await asyncio.sleep(0)
                self._note(cursor)
                await resetting
                self.stored = len(self.states) - 1
                continue
            if round_number == 9:
                cursor.acknowledge_cumulative(self.positions[5])
            cursor.acknowledge(batch)
            self._note(cursor)
            cursor.acknowledge_batch(self.positions[-1], 70, [-1 << (round_number + 1), 63])
            self._note(cursor)
            await cursor.wait_stored()
            self.stored = len(self.states) - 1

    def _note(self, cursor: Cursor) -> None:
        self.states.append(state_of(cursor, self.positions))


def state_of(
    cursor: Cursor, positions: list[Position]
) -> tuple[frozenset[Position], tuple[int, ...]]:
    return acked(cursor, positions), tuple(cursor.ack_set(positions[-1]) or ())


async def operations_of_a_life() -> int:
    world = World()
    positions = await filled(world)
    process = Process(world)
    life = Life(process, positions)
    await life.run()
    assert life.stored == len(life.states) - 1
    assert not process.crashed
    return process.operations


def acks_ledger(world: World) -> StoredLedger:
    """Of the cursor that the tests open."""
    ledger_id = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value).ledger_id
    assert ledger_id is not None
    return world.ledgers[ledger_id]


def expected_ledgers(world: World, log: ManagedLog) -> set[int]:
    record = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value)
    own = set() if record.ledger_id is None else {record.ledger_id}
    return {ledger[0] for ledger in log.stats().ledgers} | own


@pytest.mark.parametrize("effect", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_loses_nothing_that_was_stored(effect: bool) -> None:
    async def crash(step: int) -> None:
        world = World()
        positions = await filled(world)
        life = Life(Process(world, crash_at=step, effect=effect), positions)
        await life.run()
        assert life.process.crashed
        for _ in range(2):  # the second opening finds what the first made of it
            store = Process(world).store(CONFIG, TINY)
            log = await store.open(NAME)
            cursor = await log.cursors.open("s", EARLIEST)
            found = state_of(cursor, positions)
            assert found in life.states[life.stored :], f"crash at step {step}"
            for _ in range(30):
                await asyncio.sleep(0)
            left_over = world.alive() - expected_ledgers(world, log)
            named = {*decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value).deleting}
            assert len(left_over - named) <= 1, "at most the ledger created just before the crash"
            assert len(left_over) <= 2, "and the former one, which housekeeping deletes"
            await store.close()

    async def scenario() -> None:
        steps = await operations_of_a_life()
        assert steps > 40
        for step in range(1, steps + 1):
            await crash(step)

    run_virtual(scenario())


def test_a_cursor_with_nothing_acknowledged_after_its_mark_has_no_ledger() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        store = Process(world).store(CONFIG)
        log = await store.open(NAME)
        before = world.alive()
        cursor = await log.cursors.open("s", positions[3], {"a": "b"})
        assert cursor.mark_delete == positions[2]
        assert world.alive() == before
        cursor.acknowledge([positions[3], positions[4]])
        await cursor.wait_stored()
        assert len(world.alive() - before) == 1
        await store.close()
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = log.cursors.durable()["s"]
        assert cursor.mark_delete == positions[4]
        assert cursor.properties == {"a": "b"}
        log.tick()  # when there is time
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.alive() == before, "the mark-delete position moved into the metadata"

    run_virtual(scenario())


@pytest.mark.parametrize("closing", [True, False], ids=["closed", "waited for"])
def test_one_that_is_ended_while_it_takes_a_ledger_keeps_nobody(
    closing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends cancels what is under way: storing, and whoever waits for that. None of
    it is told of as a defect."""

    async def no_answer(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        monkeypatch.setattr(process.ledgers, "create", no_answer)
        cursor.acknowledge([positions[7]])
        process.ledgers.hold = True
        log.append([b"on its way"], lambda *_: None)
        waiting = asyncio.ensure_future(log.close() if closing else cursor.wait_stored())
        await asyncio.sleep(1)
        storing = asyncio.all_tasks() - {asyncio.current_task(), waiting}
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        assert storing
        assert not waiting.done()
        for task in (*storing, waiting) if closing else storing:
            task.cancel()
        ended, late = await asyncio.wait({*storing, waiting}, timeout=60)
        assert not late
        if not closing:
            assert isinstance(waiting.exception(), LogError)
        del storing, waiting, task, ended
        gc.collect()
        assert told == []

    run_virtual(scenario())


def test_positions_of_new_cursors() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        earliest = await log.cursors.open("earliest", EARLIEST)
        latest = await log.cursors.open("latest", LATEST)
        again = await log.cursors.open("earliest", LATEST)
        assert again is earliest
        assert earliest.backlog_entries() == ENTRIES
        assert latest.backlog_entries() == 0
        assert log.positions.next_position(earliest.mark_delete) == positions[0]
        reader = log.cursors.reader("r", positions[10])
        assert not reader.durable
        assert reader.backlog_entries() == ENTRIES - 10
        reader.acknowledge([positions[12]])
        await reader.wait_stored()
        assert reader.backlog_entries() == ENTRIES - 11
        assert sorted(log.cursors.durable()) == ["earliest", "latest"]

    run_virtual(scenario())


def test_acknowledgements_are_stored_without_being_asked_within_the_interval() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[7]])
        await asyncio.sleep(0.1)
        taken = await Process(world).store(CONFIG).open(NAME)  # without closing the other
        assert acked(taken.cursors.durable()["s"], positions) == {positions[7]}

    run_virtual(scenario())


def test_closing_stores_what_is_not_stored_yet() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        config = LedgerConfig(cursor_flush_interval_ms=60_000)
        store = Process(world).store(config)
        log = await store.open(NAME)
        for name in ("a", "b"):
            cursor = await log.cursors.open(name, EARLIEST)
            cursor.acknowledge([positions[6]])
            if name == "b":
                await cursor.wait_stored()
            cursor.acknowledge([positions[8]])
        await store.close()
        assert all(ledger.closed for ledger in world.ledgers.values())
        log = await Process(world).store(config).open(NAME)
        for cursor in log.cursors.durable().values():
            assert acked(cursor, positions) == {positions[6], positions[8]}

    run_virtual(scenario())


@pytest.mark.parametrize("last_owner", ["closed it", "died"])
def test_a_part_of_a_batch_that_is_acknowledged_alone_is_found_by_the_next_owners(
    last_owner: str,
) -> None:
    """The mark-delete position does not say it, so it must not be all that is kept."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        for left in (0b1100, 0b1000):
            assert not cursor.acknowledge_batch(positions[0], 4, [left])
            await cursor.wait_stored()
            if last_owner == "closed it":
                await log.close()
            log = await Process(world).store(CONFIG).open(NAME)
            cursor = log.cursors.durable()["s"]
            assert cursor.ack_set(positions[0]) == [left]
            log.tick()  # when there is time: the state may move into the metadata
            for _ in range(20):
                await asyncio.sleep(0)
        await log.close()
        log = await Process(world).store(CONFIG).open(NAME)
        assert log.cursors.durable()["s"].ack_set(positions[0]) == [0b1000]

    run_virtual(scenario())


def test_recovery_reads_from_the_last_snapshot_only() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        limits = CursorLimits(snapshot_deltas=8)
        log = await Process(world).store(CONFIG, limits).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        for position in positions[1:]:
            cursor.acknowledge([position])
            await cursor.wait_stored()
        process = Process(world)
        taken = await process.store(CONFIG, limits).open(NAME)
        assert acked(taken.cursors.durable()["s"], positions) == set(positions[1:])
        assert 1 < sum(read for _, _, read in process.ledgers.reads) <= 1 + 9

    run_virtual(scenario())


def test_many_holes_make_a_chunked_snapshot_that_is_read_back() -> None:
    async def scenario() -> None:
        world = World()
        config = LedgerConfig(ledger_entries_max=1 << 24, cursor_flush_interval_ms=1)
        log = await Process(world).store(config).open(NAME)
        entries = 1 << 15
        ledgers = 3
        for _ in range(ledgers):
            await publish(log, 0, entries, batch=1 << 14)
            world.now_ms += config.ledger_age_ms_max
            log.tick()
            for _ in range(10):
                await asyncio.sleep(0)
        assert len(log.stats().ledgers) == ledgers
        cursor = await log.cursors.open("s", EARLIEST)
        rng = random.Random(1)
        for ledger in log.stats().ledgers:
            chosen = rng.sample(range(1, entries), entries // 2)
            cursor.acknowledge([Position(ledger[0], e) for e in chosen])
        # ack sets make it larger than one record may be
        batch = log.positions.first
        words = [-1] * (CHUNK_BYTES_MAX // 8)
        cursor.acknowledge_batch(batch, 8 * CHUNK_BYTES_MAX, words)
        holes = cursor.backlog_entries()
        await cursor.wait_stored()
        taken = await Process(world).store(config).open(NAME)
        again = taken.cursors.durable()["s"]
        assert again.backlog_entries() == holes
        assert again.ack_set(batch) == cursor.ack_set(batch)
        ledger_id = log.stats().ledgers[1][0]
        sample = [(ledger_id, e) for e in rng.sample(range(entries), 2000)]
        assert [cursor.is_acknowledged(*p) for p in sample] == [
            again.is_acknowledged(*p) for p in sample
        ]

    run_virtual(scenario())


def test_records_are_no_larger_than_an_entry_may_be() -> None:
    """Where bookies take small entries only, many holes are many records, and not an error."""

    async def scenario() -> None:
        world = World()
        config = LedgerConfig(payload_bytes_max=1024, cursor_flush_interval_ms=1)
        log = await Process(world).store(config).open(NAME)
        positions = await publish(log, 0, 20_000, batch=1000)
        cursor = await log.cursors.open("s", EARLIEST)
        rng = random.Random(1)
        before = dict(world.ledgers)
        for _ in range(2):  # a snapshot, then what would be a delta
            cursor.acknowledge(rng.sample(positions[1:], 8000))
            await cursor.wait_stored()
        (stored,) = [each for ledger_id, each in world.ledgers.items() if ledger_id not in before]
        assert len(stored.entries) > 4
        assert max(map(len, stored.entries)) <= OFFSET + 1024
        taken = await Process(world).store(config).open(NAME)
        again = taken.cursors.durable()["s"]
        assert acked(again, positions) == acked(cursor, positions)

    run_virtual(scenario())


def record_by_record(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writers get the records of one append one by one, to confirm each for itself."""
    create = process.ledgers.create

    async def creates(*arguments: Any, **options: Any) -> MemoryWriter:
        writer = await create(*arguments, **options)
        append = writer.append

        def appends(
            records: Sequence[Buffer], done: LedgerAppendDone, prefixes: Sequence[bytes] = ()
        ) -> list[bytes]:
            if prefixes:  # a log's
                return append(records, done, prefixes)
            return [entry for record in records for entry in append([record], done)]

        monkeypatch.setattr(writer, "append", appends)
        return writer

    monkeypatch.setattr(process.ledgers, "create", creates)


def confirm_first(writer: MemoryWriter) -> None:
    """And none of the others that are on their way."""
    rest = writer._pending[1:]
    assert rest
    del writer._pending[1:]
    writer.confirm()
    writer._pending += rest


@pytest.mark.parametrize("new_ledger", [True, False], ids=["new ledger", "its ledger"])
def test_a_snapshot_of_many_records_is_not_stored_with_the_first_one(
    new_ledger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bookies confirm a part of what was appended at once; of that nothing is found again."""

    async def scenario() -> None:
        world = World()
        config = LedgerConfig(payload_bytes_max=1024, cursor_flush_interval_ms=1)
        process = Process(world)
        record_by_record(process, monkeypatch)
        log = await process.store(config).open(NAME)
        positions = await publish(log, 0, 20_000, batch=1000)
        cursor = await log.cursors.open("s", EARLIEST)
        rng = random.Random(1)
        if not new_ledger:
            cursor.acknowledge(rng.sample(positions[1:], 8000))
            await cursor.wait_stored()
        process.ledgers.hold = True
        cursor.acknowledge(rng.sample(positions[1:], 8000))
        storing = asyncio.ensure_future(cursor.wait_stored())
        await asyncio.sleep(1)
        writer = process.ledgers.writers[-1]
        confirm_first(writer)
        await asyncio.sleep(1)
        assert not storing.done()
        writer.confirm()
        await storing
        again = (await Process(world).store(config).open(NAME)).cursors.durable()["s"]
        assert acked(again, positions) == acked(cursor, positions)

    run_virtual(scenario())


def test_what_came_with_a_new_ledger_is_not_stored_once_more() -> None:
    """A delta behind its snapshot says what is new: a few bytes, however much lies before."""

    async def scenario() -> None:
        world = World()
        log = await Process(world).store(CONFIG).open(NAME)
        positions = await publish(log, 0, 20_000, batch=1000)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge(positions[2::2])
        await cursor.wait_stored()
        cursor.acknowledge([positions[9]])
        await cursor.wait_stored()
        ledger_id = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value).ledger_id
        assert ledger_id is not None
        *_, snapshot, delta = world.ledgers[ledger_id].entries
        assert decode_header(delta[OFFSET:]).kind == DELTA
        assert len(delta) < OFFSET + 200 < len(snapshot)

    run_virtual(scenario())


def test_closing_waits_for_what_is_being_stored() -> None:
    """Its ledger would be closed under it, and whoever waits for that be told of a failure."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[3]])
        await cursor.wait_stored()
        process.ledgers.hold = True
        cursor.acknowledge_cumulative(positions[9])
        storing = asyncio.ensure_future(cursor.wait_stored())
        await asyncio.sleep(1)
        closing = asyncio.ensure_future(log.close())
        await asyncio.sleep(1)
        assert not closing.done()
        assert not storing.done()
        (writer,) = process.ledgers.writers
        process.ledgers.hold = False
        writer.confirm()
        await storing
        await closing
        taken = await Process(world).store(CONFIG).open(NAME)
        assert taken.cursors.durable()["s"].mark_delete == positions[9]

    run_virtual(scenario())


def test_closing_that_is_given_up_half_way_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge_cumulative(positions[3])
        assert isinstance(cursor, ManagedCursor)
        store = cursor.store
        assert isinstance(store, CursorStore)
        writing = asyncio.Event()

        async def hangs(_: object) -> None:
            writing.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(store._node, "update", hangs)
        closing = asyncio.create_task(store.close())
        await writing.wait()
        closing.cancel()
        await asyncio.wait([closing], timeout=5)
        assert closing.cancelled()

    run_virtual(scenario())


def test_a_failed_store_is_told_and_tried_again_in_a_new_ledger() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[3]])
        await cursor.wait_stored()
        process.ledgers.break_after = 0
        cursor.acknowledge([positions[5]])
        with pytest.raises(LedgerError):
            await cursor.wait_stored()
        async with asyncio.timeout(5):
            await cursor.wait_stored()
        taken = await Process(world).store(CONFIG).open(NAME)
        assert acked(taken.cursors.durable()["s"], positions) == {positions[3], positions[5]}

    run_virtual(scenario())


def test_former_cursor_ledgers_do_not_pile_up() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG, TINY).open(NAME)
        before = len(world.ledgers)
        cursor = await log.cursors.open("s", EARLIEST)
        for i, position in enumerate(positions[1:]):
            if i == 20:  # closing a ledger that goes anyway may fail
                process.ledgers.close_errors = [LedgerError("no answer")]
            cursor.acknowledge([position])
            await cursor.wait_stored()
        assert len(world.ledgers) - before > 8
        for _ in range(20):
            await asyncio.sleep(0)
        record = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value)
        assert len(record.deleting) <= 1
        assert world.alive() == expected_ledgers(world, log)

    run_virtual(scenario())


def test_a_ledger_that_is_pointed_at_is_never_deleted() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        store = process.store(CONFIG, TINY)
        log = await store.open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        process.metadata.lose_answers = 1  # the node points at the ledger; nobody was told
        cursor.acknowledge([positions[3]])
        with pytest.raises(MetadataError):
            await cursor.wait_stored()
        managed = log.cursors.durable()["s"]
        assert isinstance(managed, ManagedCursor)
        assert isinstance(managed.store, CursorStore)
        await managed.store.forget_leftovers()
        taken = await Process(world).store(CONFIG, TINY).open(NAME)
        for _ in range(20):
            await asyncio.sleep(0)
        again = await Process(world).store(CONFIG, TINY).open(NAME)
        assert acked(again.cursors.durable()["s"], positions) == {positions[3]}
        await taken.close()

    run_virtual(scenario())


def test_a_seek_whose_store_failed_is_stored_later() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge_cumulative(positions[20])
        await cursor.wait_stored()
        await asyncio.sleep(0.01)
        process.ledgers.break_after = 0
        with pytest.raises(LedgerError):
            await cursor.reset(positions[10])
        await asyncio.sleep(0.1)
        taken = await Process(world).store(CONFIG).open(NAME)
        assert acked(taken.cursors.durable()["s"], positions) == set(positions[:10])

    run_virtual(scenario())


def test_a_former_owner_stores_nothing_more() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        old = await Process(world).store(CONFIG).open(NAME)
        cursor = await old.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[3]])
        await cursor.wait_stored()
        idle = await old.cursors.open("idle", EARLIEST)
        new = await Process(world).store(CONFIG).open(NAME)
        for late in (cursor, idle):
            late.acknowledge([positions[8]])
            with pytest.raises(LogFencedError):
                await late.wait_stored()
        assert acked(new.cursors.durable()["s"], positions) == {positions[3]}
        assert acked(new.cursors.durable()["idle"], positions) == set()
        assert world.alive() == expected_ledgers(world, new)
        with pytest.raises(LogFencedError):
            await old.cursors.open("other", EARLIEST)
        made = len(world.ledgers)
        await asyncio.sleep(60)
        assert len(world.ledgers) == made, "nor does it take ledgers for it"
        for late in (cursor, idle):
            with pytest.raises(LogFencedError):
                await late.wait_stored()

    run_virtual(scenario())


def test_a_former_owner_forgets_nothing_that_a_later_one_stored() -> None:
    """It reads the later owner's cursor against a chain that lacks the later owner's ledgers."""

    async def scenario() -> None:
        world = World()
        await filled(world)
        told: list[LogFencedError] = []
        old = await Process(world).store(CONFIG).open(NAME)
        old.watch_lost(told.append)
        new = await Process(world).store(CONFIG).open(NAME)
        positions = await publish(new, ENTRIES, 4)
        cursor = await new.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[0], positions[2]])
        await cursor.wait_stored()
        with pytest.raises(LogFencedError):
            await old.cursors.open("s", EARLIEST)
        await asyncio.sleep(0)
        assert len(told) == 1
        newest = await Process(world).store(CONFIG).open(NAME)
        found = newest.cursors.durable()["s"]
        assert acked(found, positions) == {positions[0], positions[2]}

    run_virtual(scenario())


def test_how_often_a_cursor_was_reset_is_known_after_two_owners_that_die() -> None:
    """The second one finds nothing but a mark in the cursor's ledger, and keeps it in the node."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge_cumulative(positions[7])
        await cursor.wait_stored()
        await cursor.reset(positions[3])
        for _ in range(2):
            log = await Process(world).store(CONFIG).open(NAME)
        lending = log.cursors.durable()["s"].lending
        assert lending is not None
        assert lending.image() == AckImage(positions[2], reset_epoch=1)

    run_virtual(scenario())


def test_an_owner_that_opens_slowly_forgets_nothing_that_a_later_one_stored() -> None:
    """It has written the log's record, and reads the cursors when another has the log."""

    async def scenario() -> None:
        world = World()
        await filled(world)
        first = await Process(world).store(CONFIG).open(NAME)
        await first.cursors.open("s", LATEST)
        slow, go = Process(world), asyncio.Event()
        children = slow.metadata.children

        async def later(path: str) -> list[str]:
            await go.wait()
            return await children(path)

        slow.metadata.children = later  # type: ignore[method-assign]
        opening = asyncio.ensure_future(slow.store(CONFIG).open(NAME))
        await asyncio.sleep(1)
        new = await Process(world).store(CONFIG).open(NAME)
        positions = await publish(new, ENTRIES, 4)
        cursor = new.cursors.durable()["s"]
        cursor.acknowledge([positions[0], positions[2]])
        await cursor.wait_stored()
        go.set()
        opened = await opening
        assert acked(opened.cursors.durable()["s"], positions) == {positions[0], positions[2]}

    run_virtual(scenario())


def test_an_owner_that_lists_the_cursors_late_forgets_nothing_that_a_later_one_stored() -> None:
    """It has written the log's record, and another has the log when it hears which there are."""

    async def scenario() -> None:
        world = World()
        await filled(world)
        await Process(world).store(CONFIG).open(NAME)  # and dies: else all is handed over
        slow, go = Process(world), asyncio.Event()
        children, epoch = slow.metadata.children, epoch_of(world)

        async def later(path: str) -> list[str]:
            if epoch_of(world) > epoch:
                await go.wait()
            return await children(path)

        slow.metadata.children = later  # type: ignore[method-assign]
        opening = asyncio.ensure_future(slow.store(CONFIG).open(NAME))
        await asyncio.sleep(1)
        assert epoch_of(world) > epoch
        new = await Process(world).store(CONFIG).open(NAME)
        positions = await publish(new, ENTRIES, 4)
        cursor = await new.cursors.open("made meanwhile", EARLIEST)
        cursor.acknowledge([positions[0], positions[2]])
        await cursor.wait_stored()
        go.set()
        opened = await opening
        found = opened.cursors.durable()["made meanwhile"]
        assert acked(found, positions) == {positions[0], positions[2]}

    run_virtual(scenario())


def epoch_of(world: World) -> int:
    """Of the log's record."""
    return decode_log(NAME, world.nodes[log_path(NAME)].value).epoch


async def watched(world: World) -> tuple[ManagedLog, list[LogFencedError]]:
    """The log, opened by an owner, and what it was lost for."""
    told: list[LogFencedError] = []
    log = await Process(world).store(CONFIG).open(NAME)
    log.watch_lost(told.append)
    return log, told


Acknowledges = Callable[[Cursor, list[Position]], object]
SHAPES: dict[str, Acknowledges] = {
    "one": lambda cursor, news: cursor.acknowledge(news[:1]),
    "many": lambda cursor, news: cursor.acknowledge(news),
    "known and new": lambda cursor, news: cursor.acknowledge([EARLIEST, news[0]]),
    "a part": lambda cursor, news: cursor.acknowledge_batch(news[0], 2, [1]),
    "cumulative": lambda cursor, news: cursor.acknowledge_cumulative(news[1]),
}


def merged(cursor: Cursor, image: AckImage) -> None:
    """As a read-only broker that serves it sends it."""
    assert cursor.lending is not None
    cursor.lending.merge(image)


IMAGES: dict[str, Acknowledges] = {
    "an image": lambda cursor, news: merged(
        cursor, AckImage(EARLIEST, {news[0].ledger_id: BitMap([news[0].entry_id])})
    ),
    "a part in an image": lambda cursor, news: merged(cursor, AckImage(EARLIEST, {}, {news[0]: 1})),
}


@pytest.mark.parametrize("shape", [*SHAPES, *IMAGES])
def test_a_former_owner_confirms_nothing_of_what_only_a_later_one_has(shape: str) -> None:
    """There is nothing to store for it, so that no fence says that the log is lost."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        old, told = await watched(world)
        cursor = await old.cursors.open("s", EARLIEST)
        cursor.acknowledge_cumulative(positions[-1])
        await cursor.wait_stored()
        new = await Process(world).store(CONFIG).open(NAME)
        news = await publish(new, ENTRIES, 4)
        (SHAPES | IMAGES)[shape](cursor, news)
        waits = (cursor.wait_stored(), cursor.wait_stored())
        outcomes = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in outcomes] == [LogFencedError, LogFencedError]
        await asyncio.sleep(0)
        assert len(told) == 1
        assert acked(new.cursors.durable()["s"], news) == set()

    run_virtual(scenario())


def test_what_comes_while_the_log_is_asked_for_is_asked_for_itself() -> None:
    """The log may be a later owner's by then."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        old = await process.store(CONFIG).open(NAME)
        cursor = await old.cursors.open("s", EARLIEST)
        cursor.acknowledge_cumulative(positions[-1])
        await cursor.wait_stored()
        get, gate = process.metadata.get, asyncio.Event()

        async def slow(path: str) -> Versioned:
            process.metadata.get = get  # type: ignore[method-assign]
            found = await get(path)
            await gate.wait()
            return found

        process.metadata.get = slow  # type: ignore[method-assign]
        cursor.acknowledge([Position(999, 0)])
        first = asyncio.ensure_future(cursor.wait_stored())
        await asyncio.sleep(0.001)
        new = await Process(world).store(CONFIG).open(NAME)
        cursor.acknowledge(await publish(new, ENTRIES, 1))
        gate.set()
        await first
        with pytest.raises(LogFencedError):
            await cursor.wait_stored()

    run_virtual(scenario())


@pytest.mark.parametrize("shape", SHAPES)
def test_an_owner_passes_over_what_its_log_does_not_have(shape: str) -> None:
    """Clients may say anything. While nobody can say whose the log is, that is no answer."""

    async def scenario() -> None:
        world = World()
        await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        SHAPES[shape](cursor, [Position(1_000_000, 0), Position(1_000_000, 1)])
        process.metadata.away = MetadataError("nobody answers")
        with pytest.raises(MetadataError, match="nobody"):
            await cursor.wait_stored()
        process.metadata.away = None
        await cursor.wait_stored()
        await log.close()

    run_virtual(scenario())


def test_a_log_that_only_acknowledges_hears_that_it_is_lost() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        old, told = await watched(world)
        cursor = await old.cursors.open("s", EARLIEST)
        await Process(world).store(CONFIG).open(NAME)
        assert not told
        cursor.acknowledge([positions[3]])
        with pytest.raises(LogFencedError):
            await cursor.wait_stored()
        await asyncio.sleep(0)
        assert len(told) == 1
        old.watch_lost(told.append)
        await asyncio.sleep(0)
        assert told[0] is told[1]
        await old.close()

    run_virtual(scenario())


def test_a_term_ends_with_an_owner_that_may_not_have_stored_all() -> None:
    """Whoever is lent a cursor tells by it what the owner may have forgotten."""

    async def scenario() -> None:
        world = World()
        await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        await log.cursors.open("s", EARLIEST)
        terms = []
        for ends in ("dies", "in order", "dies", "dies"):
            lending = log.cursors.durable()["s"].lending
            assert lending is not None
            terms.append(lending.term)
            if ends == "in order":
                await log.close()
            log = await Process(world).store(CONFIG).open(NAME)
        first, second, handed, third = terms
        assert second == handed, "which has all that the second one had"
        assert len({first, second, third}) == 3

    run_virtual(scenario())


def test_seek_back_and_forth() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge_cumulative(positions[20])
        cursor.acknowledge([positions[22]])
        await cursor.reset(positions[10])
        assert log.positions.next_position(cursor.mark_delete) == positions[10]
        assert cursor.backlog_entries() == ENTRIES - 10
        entries = await read_all(log)
        assert len(cursor.unacknowledged(entries)) == ENTRIES - 10
        taken = await Process(world).store(CONFIG).open(NAME)
        again = taken.cursors.durable()["s"]
        assert acked(again, positions) == set(positions[:10])
        await again.reset(EARLIEST)
        assert again.backlog_entries() == ENTRIES
        await again.reset(LATEST)
        assert again.backlog_entries() == 0

    run_virtual(scenario())


def test_a_change_from_before_a_seek_is_not_merged_after_it() -> None:
    """However it came to lie behind the seek's snapshot in the cursor's ledger."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge_cumulative(positions[20])
        await cursor.wait_stored()
        cursor.acknowledge([positions[25]])
        await cursor.wait_stored()
        late = acks_ledger(world).entries[-1]
        assert decode_header(late[OFFSET:]).kind == DELTA
        await cursor.reset(positions[10])
        cursor.acknowledge([positions[12]])
        await cursor.wait_stored()
        acks_ledger(world).entries.append(late)
        for _ in range(2):  # the second opening has it from what the first stored
            taken = await Process(world).store(CONFIG).open(NAME)
            again = taken.cursors.durable()["s"]
            assert acked(again, positions) == {*positions[:10], positions[12]}
            await again.wait_stored()

    run_virtual(scenario())


def test_how_often_a_cursor_was_reset_outlives_its_ledger() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)

        def stored() -> tuple[int | None, int]:
            record = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value)
            return record.ledger_id, record.reset_epoch

        for opening in range(3):
            log = await Process(world).store(CONFIG).open(NAME)
            cursor = await log.cursors.open("s", EARLIEST)
            assert stored() == (None, 2 * opening), "mark-delete is all: there is no ledger"
            for place in (7, 5):
                await cursor.reset(positions[place])
            await log.close()

    run_virtual(scenario())


def test_a_deleted_cursor_leaves_nothing() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        before = world.alive()
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[3]])
        await cursor.wait_stored()
        cursor.acknowledge([positions[4]])
        await log.cursors.delete("s")
        assert world.alive() == before
        assert cursor_path(NAME, "s") not in world.nodes
        with pytest.raises(CursorNotFoundError):
            await log.cursors.delete("s")
        fresh = await log.cursors.open("s", EARLIEST)
        assert fresh.backlog_entries() == ENTRIES

    run_virtual(scenario())


def test_what_is_acknowledged_while_a_ledger_is_taken_is_not_stored_with_it() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        process.ledgers.hold = True
        cursor.acknowledge([positions[3]])
        first = asyncio.ensure_future(cursor.wait_stored())
        await asyncio.sleep(1)
        (writer,) = process.ledgers.writers  # its snapshot is on the way
        cursor.acknowledge([positions[5]])
        second = asyncio.ensure_future(cursor.wait_stored())
        await asyncio.sleep(1)
        writer.confirm()
        await first
        await asyncio.sleep(1)
        assert not second.done(), "the ledger does not have it"
        writer.confirm()
        await second
        taken = await Process(world).store(CONFIG).open(NAME)
        assert acked(taken.cursors.durable()["s"], positions) == {positions[3], positions[5]}

    run_virtual(scenario())


@pytest.mark.parametrize("new_ledger", [True, False], ids=["new ledger", "its ledger"])
def test_what_is_acknowledged_while_a_store_is_under_way_is_not_let_go(new_ledger: bool) -> None:
    """The log deletes what no cursor needs: if this owner died now, the next one would need it."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        assert isinstance(cursor, ManagedCursor)
        if not new_ledger:
            cursor.acknowledge([positions[7]])
            await cursor.wait_stored()
        before = cursor.store.stored_mark_delete
        assert before < positions[0]
        process.ledgers.hold = True
        cursor.acknowledge_cumulative(positions[3])
        storing = asyncio.ensure_future(cursor.wait_stored())
        await asyncio.sleep(1)
        cursor.acknowledge_cumulative(positions[30])
        assert cursor.store.stored_mark_delete == before
        process.ledgers.writers[-1].confirm()
        await storing
        assert cursor.store.stored_mark_delete == positions[3]
        await asyncio.sleep(1)
        process.ledgers.writers[-1].confirm()
        assert cursor.store.stored_mark_delete == positions[30]

    run_virtual(scenario())


def test_a_store_that_failed_is_tried_again_soon_and_then_less_and_less_often() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(LedgerConfig(cursor_flush_interval_ms=100)).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        process.ledgers.create_errors = [LedgerError("too few bookies")]
        cursor.acknowledge([positions[3]])
        with pytest.raises(LedgerError):
            await cursor.wait_stored()
        async with asyncio.timeout(1):
            await cursor.wait_stored()
        process.ledgers.create_errors = [LedgerError("too few bookies")] * 1000
        process.ledgers.break_after = 0
        cursor.acknowledge([positions[5]])
        await asyncio.sleep(60)
        assert 5 < 1000 - len(process.ledgers.create_errors) < 30
        process.ledgers.create_errors.clear()
        await asyncio.sleep(10)
        taken = await Process(world).store(CONFIG).open(NAME)
        assert acked(taken.cursors.durable()["s"], positions) == {positions[3], positions[5]}

    run_virtual(scenario())


def test_a_ledger_that_the_node_did_not_get_goes_with_the_cursor() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(LedgerConfig(cursor_flush_interval_ms=60_000)).open(NAME)
        before = world.alive()
        cursor = await log.cursors.open("s", EARLIEST)
        put = process.metadata.put

        async def away(path: str, value: bytes, version: int) -> int:
            raise MetadataError("no answer")

        process.metadata.put = away  # type: ignore[method-assign]
        cursor.acknowledge([positions[3]])
        with pytest.raises(MetadataError):
            await cursor.wait_stored()
        process.metadata.put = put  # type: ignore[method-assign]
        assert len(world.alive() - before) == 1
        await log.cursors.delete("s")
        assert world.alive() == before

    run_virtual(scenario())


def test_a_ledger_that_a_former_owner_left_goes_with_the_log() -> None:
    """Its cursor's state is in the node by then, and only that names it."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge(positions[:2])
        await cursor.wait_stored()
        before = world.alive()
        await Process(world).store(CONFIG).open(NAME)
        record = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value)
        assert record.ledger_id is None
        assert {*record.deleting} <= before
        assert len(record.deleting) == 1
        await Process(world).store(CONFIG).delete(NAME)
        assert world.alive() == set()

    run_virtual(scenario())


def test_leftovers_are_not_forgotten_behind_the_last_store() -> None:
    """The next owner has the node as it was then."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        assert isinstance(cursor, ManagedCursor)
        assert isinstance(cursor.store, CursorStore)
        cursor.acknowledge([positions[5]])
        await cursor.wait_stored()
        await cursor.store.close()
        node = world.nodes[cursor_path(NAME, "s")]
        await cursor.store.forget_leftovers()  # it has waited for its turn
        assert world.nodes[cursor_path(NAME, "s")] == node

    run_virtual(scenario())


def test_a_ledger_that_is_about_to_be_taken_is_not_named_as_left_over() -> None:
    """What is named is deleted sooner or later, by then perhaps under the cursor."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        owner = await Process(world).store(CONFIG).open(NAME)
        cursor = await owner.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[0]])
        await cursor.wait_stored()
        process, go = Process(world), asyncio.Event()
        log = await process.store(CONFIG).open(NAME)  # the state is in the node, its ledger left
        cursor = log.cursors.durable()["s"]
        delete = process.ledgers.delete

        async def slow(ledger_id: int) -> None:
            await go.wait()
            await delete(ledger_id)

        process.ledgers.delete = slow  # type: ignore[method-assign]
        assert isinstance(cursor, ManagedCursor)
        assert isinstance(cursor.store, CursorStore)
        forgetting = asyncio.ensure_future(cursor.store.forget_leftovers())
        await asyncio.sleep(1)
        cursor.acknowledge([positions[5]])
        process.ledgers.hold = True
        storing = asyncio.ensure_future(cursor.wait_stored())
        await asyncio.sleep(1)
        go.set()
        await forgetting
        await asyncio.sleep(1)
        node = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value)
        assert not {each.ledger_id for each in process.ledgers.writers} & {*node.deleting}
        (writer,) = process.ledgers.writers
        process.ledgers.hold = False
        writer.confirm()
        await storing

    run_virtual(scenario())


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_deletion_that_failed_leaves_a_cursor_that_stores(lost: str) -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[3]])
        await cursor.wait_stored()
        put = process.metadata.put

        async def away(path: str, value: bytes, version: int) -> int:
            raise MetadataError("no answer")

        if lost == "answer":
            process.metadata.lose_answers = 1
        else:
            process.metadata.put = away  # type: ignore[method-assign]
        with pytest.raises(MetadataError):
            await log.cursors.delete("s")
        process.metadata.put = put  # type: ignore[method-assign]
        assert log.cursors.durable()["s"] is cursor
        await cursor.wait_stored()
        cursor.acknowledge([positions[5]])
        await cursor.wait_stored()
        taken = await Process(world).store(CONFIG).open(NAME)
        assert acked(taken.cursors.durable()["s"], positions) == {positions[3], positions[5]}
        for _ in range(30):
            await asyncio.sleep(0)
        assert world.alive() == expected_ledgers(world, taken)

    run_virtual(scenario())


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("holes", [True, False])
def test_a_deletion_that_failed_is_taken_back_though_nothing_is_acknowledged_after_it(
    closes: bool, holes: bool
) -> None:
    """The node says that the cursor is deleted: the next owner would do it. (The cursor is stored
    in its node when the log is closed, unless it has holes.)"""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[0], *positions[3 : 4 if holes else 3]])
        await cursor.wait_stored()
        process.metadata.lose_answers = 1
        with pytest.raises(MetadataError):
            await log.cursors.delete("s")
        if closes:
            await log.close()
        else:
            await cursor.wait_stored()
        expected = {positions[0], positions[3]} if holes else {positions[0]}
        for _ in range(2):  # the second owner has nothing handed over, and reads what is stored
            taken = await Process(world).store(CONFIG).open(NAME)
            assert acked(taken.cursors.durable()["s"], positions) == expected

    run_virtual(scenario())


def test_a_deletion_that_stops_half_way_is_finished_before_the_name_is_used_again() -> None:
    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        before = world.alive()
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[3]])
        await cursor.wait_stored()
        delete = process.ledgers.delete

        async def away(ledger_id: int) -> None:
            raise MetadataError("no answer")

        process.ledgers.delete = away  # type: ignore[method-assign]
        await log.cursors.delete("s")
        assert "s" not in log.cursors.durable()
        with pytest.raises(LogError, match="not wholly deleted"):
            await log.cursors.open("s", EARLIEST)
        process.ledgers.delete = delete  # type: ignore[method-assign]
        log.tick()
        for _ in range(30):
            await asyncio.sleep(0)
        assert world.alive() == before
        assert cursor_path(NAME, "s") not in world.nodes
        assert (await log.cursors.open("s", EARLIEST)).backlog_entries() == ENTRIES

    run_virtual(scenario())


def test_a_former_owner_that_finishes_a_deletion_hears_that_it_is_lost() -> None:
    """Which is no defect of this program."""

    async def scenario() -> None:
        world = World()
        await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        await log.cursors.open("s", EARLIEST)
        delete, defects = process.metadata.delete, list[dict[str, object]]()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, about: defects.append(about))

        async def away(path: str, version: int = -1) -> None:
            raise MetadataError("no answer")

        process.metadata.delete = away  # type: ignore[method-assign]
        await log.cursors.delete("s")
        process.metadata.delete = delete  # type: ignore[method-assign]
        taken = await Process(world).store(CONFIG).open(NAME)
        await taken.cursors.open("s", EARLIEST)  # made anew
        log.tick()
        for _ in range(30):
            await asyncio.sleep(0)
        assert log.lost is not None
        assert defects == []
        assert cursor_path(NAME, "s") in world.nodes

    run_virtual(scenario())


def test_a_log_that_closes_while_a_cursor_is_deleted_takes_no_deletion_back() -> None:
    """The deletion was answered; what is left of it is the next owner's to delete."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge([positions[1]])
        await cursor.wait_stored()
        cursor.acknowledge([positions[0]])
        await cursor.wait_stored()
        put, gate = process.metadata.put, asyncio.Event()

        async def slow(path: str, value: bytes, version: int) -> int:
            process.metadata.put = put  # type: ignore[method-assign]
            await gate.wait()
            return await put(path, value, version)

        async def away(ledger_id: int) -> None:
            raise MetadataError("no answer")

        process.metadata.put = slow  # type: ignore[method-assign]
        deleting = asyncio.ensure_future(log.cursors.delete("s"))
        await asyncio.sleep(0.001)
        closing = asyncio.ensure_future(log.close())
        await asyncio.sleep(0.001)
        process.ledgers.delete = away  # type: ignore[method-assign]
        gate.set()
        await deleting
        await closing
        taken = await Process(world).store(CONFIG).open(NAME)
        assert taken.cursors.durable() == {}

    run_virtual(scenario())


@pytest.mark.parametrize("place", ["_snapshot_records", "_store", "_roll_ledger"])
def test_a_defect_in_storing_ends_this_log_and_no_other(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, reported = ["log-0"], []
    good = getattr(CursorStore, place)

    def bad(store: CursorStore, *arguments: object) -> object:
        if planted[0] in store.name:
            raise RuntimeError("planted")
        return good(store, *arguments)

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
        store = Process(World()).store(CONFIG)
        names = [f"public/default/persistent/log-{n}" for n in range(2)]
        logs = [await store.open(name) for name in names]
        ids = [await publish(each, 0, 20) for each in logs]
        cursors = [await each.cursors.open("s", EARLIEST) for each in logs]
        for cursor, positions in zip(cursors, ids, strict=True):
            cursor.acknowledge([positions[3]])
            await cursor.wait_stored()
        monkeypatch.setattr(CursorStore, place, bad)
        if place == "_roll_ledger":
            for cursor in cursors:
                assert isinstance(cursor, ManagedCursor)
                assert isinstance(cursor.store, CursorStore)
                cursor.store._writer = None
        for cursor, positions in zip(cursors, ids, strict=True):
            cursor.acknowledge_cumulative(positions[9])
        if place == "_snapshot_records":
            for cursor in cursors:
                cursor.store._deltas = 1 << 20  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        assert cursors[1].store.stored_mark_delete == ids[1][9]  # type: ignore[attr-defined]
        with pytest.raises(LogFencedError, match="planted"):
            await cursors[0].wait_stored()
        assert logs[0].lost is not None
        assert logs[1].lost is None
        await asyncio.wait_for(logs[0].close(), 100)
        monkeypatch.setattr(CursorStore, place, good)
        again = await store.open(names[0])
        assert again.cursors.durable()["s"].is_acknowledged(*ids[0][3])
        await store.close()

    run_virtual(scenario())
    assert reported


def test_a_note_and_its_position_survive_a_crash_together() -> None:
    """What was stored last, or something newer, but never one with the other's position."""

    async def scenario() -> None:
        world = World()
        positions = await filled(world)
        process = Process(world)
        log = await process.store(CONFIG, TINY).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        assert cursor.noted is not None
        for number, place in enumerate(positions[:40]):
            cursor.noted.take(place, str(place).encode())
            if number % 3 == 0:
                await cursor.wait_stored()
            if number % 10 == 9:  # without a word
                process = Process(world)
                log = await process.store(CONFIG, TINY).open(NAME)
                cursor = log.cursors.durable()["s"]
                assert cursor.noted is not None
                assert cursor.noted.value == str(cursor.mark_delete).encode()
                assert cursor.mark_delete >= positions[number - number % 3]
        await log.close()
        log = await Process(world).store(CONFIG, TINY).open(NAME)
        cursor = log.cursors.durable()["s"]
        assert cursor.noted is not None
        assert cursor.noted.value == str(positions[39]).encode()
        cursor.acknowledge_cumulative(positions[42])
        await log.close()
        log = await Process(world).store(CONFIG, TINY).open(NAME)
        cursor = log.cursors.durable()["s"]
        assert cursor.noted is not None
        assert (cursor.mark_delete, cursor.noted.value) == (
            positions[42],
            str(positions[39]).encode(),
        ), "it stays when others move the cursor on"
        await log.close()

    run_virtual(scenario())


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("given_up", [False, True])
def test_acknowledgements_are_given_up_with_their_ledger_at_an_operators_word(
    given_up: bool, left: int
) -> None:
    """Of the cursor's ledger nothing is left, or a record that makes no sense: its log was never
    opened again."""

    async def run() -> None:
        world = World()
        positions = await filled(world)
        log = await Process(world).store(CONFIG, TINY).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge_cumulative(positions[3])
        cursor.acknowledge([positions[20]])
        await cursor.wait_stored()
        record = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value)
        assert record.ledger_id is not None
        ledger = world.ledgers[record.ledger_id]
        ledger.entries, ledger.closed = [bytes(OFFSET) + b"no record"] * left, True
        ledger.last = left - 1
        ledger.given_up = given_up
        store = Process(world).store(CONFIG, TINY)
        if not given_up:
            with pytest.raises(LogError):
                await store.open(NAME)
            return
        with capture_logs() as logs:
            cursor = (await store.open(NAME)).cursors.durable()["s"]
        assert cursor.mark_delete == record.mark_delete == positions[3]
        assert acked(cursor, positions) == {*positions[:4]}
        assert any("were given up" in each["event"] for each in logs)

    run_virtual(run())


async def stored_piecemeal(world: World) -> list[Position]:
    """A snapshot, and a delta for each of eight acknowledgements; the ledger is closed."""
    positions = await filled(world)
    log = await Process(world).store(CONFIG).open(NAME)
    cursor = await log.cursors.open("s", EARLIEST)
    cursor.acknowledge_cumulative(positions[3])
    for place in range(10, 18):
        cursor.acknowledge([positions[place]])
        await cursor.wait_stored()
    cursor.acknowledge_cumulative(positions[6])
    await cursor.wait_stored()
    ledger = acks_ledger(world)
    ledger.closed, ledger.last = True, len(ledger.entries) - 1
    assert ledger.last == 8
    return positions


@pytest.mark.parametrize("lost", [{4}, {2, 3, 7}, {8}, {0}, {*range(9)}])
def test_a_cursor_goes_on_from_what_can_be_read_of_its_ledger_at_an_operators_word(
    lost: set[int],
) -> None:
    """Damaged in its middle it kept its topic shut, and no command helped."""

    async def run() -> None:
        world = World()
        positions = await stored_piecemeal(world)
        acks_ledger(world).damaged = lost
        with pytest.raises(LogError) as told:
            await Process(world).store(CONFIG).open(NAME)
        ledger_id = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value).ledger_id
        for each in (f"'s' of topic {NAME}", f"close-at-loss {ledger_id}", "verify"):
            assert each in str(told.value)
        acks_ledger(world).given_up = True
        with capture_logs() as logs:
            log = await Process(world).store(CONFIG).open(NAME)
        cursor = log.cursors.durable()["s"]
        marked = 4 if 8 in lost else 7
        holes = [10 + each for each in range(8) if each not in lost]
        assert acked(cursor, positions) == {*positions[:marked], *(positions[i] for i in holes)}
        (warning,) = [each for each in logs if "were given up" in each["event"]]
        assert warning["mark_delete"] == str(positions[marked - 1])
        cursor.acknowledge([positions[30]])
        await cursor.wait_stored()
        again = (await Process(world).store(CONFIG).open(NAME)).cursors.durable()["s"]
        assert acked(again, positions) == acked(cursor, positions)

    run_virtual(run())


def test_what_was_sought_back_is_not_skipped_when_its_ledger_is_given_up() -> None:
    """The metadata store had the mark-delete position of before: all since was skipped."""

    async def run() -> None:
        world = World()
        positions = await stored_piecemeal(world)
        log = await Process(world).store(CONFIG).open(NAME)
        cursor = log.cursors.durable()["s"]
        cursor.acknowledge_cumulative(positions[20])
        cursor.acknowledge([positions[30]])
        await cursor.wait_stored()
        await cursor.reset(positions[10])
        cursor.acknowledge([positions[12]])
        await cursor.wait_stored()
        ledger = acks_ledger(world)
        ledger.damaged, ledger.given_up = {*range(len(ledger.entries))}, True
        again = (await Process(world).store(CONFIG).open(NAME)).cursors.durable()["s"]
        assert acked(again, positions) == {*positions[:10]}

    run_virtual(run())


def test_what_may_be_read_later_is_not_given_up() -> None:
    async def run() -> None:
        world = World()
        await stored_piecemeal(world)
        ledger = acks_ledger(world)
        ledger.damaged, ledger.given_up = {4}, True
        process = Process(world)
        process.ledgers.read_errors = {6: LedgerError("b1 does not answer")}
        with pytest.raises(MagnetarError, match="does not answer"):
            await process.store(CONFIG).open(NAME)

    run_virtual(run())
