"""Ledgers of a log that are in a table: what waits, what bookies delete, and who reads it then."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass, field

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.managed.ledgers import ChainReader
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import decode_log, encode_log, log_path
from magnetar.log.managed.rules import past_bookies
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.policy import LogPolicy, Retention, RollRule
from magnetar.log.seam import Checkpoint, StoredAt, TableMark, TakenLedger
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    LogError,
    MagnetarError,
    MetadataUnavailableError,
    NotAllowedError,
)
from magnetar.model.ids import EARLIEST, Position
from magnetar.model.keyed import KeyedEntry, KeyedMessage
from magnetar.topics.compacting import compact
from tests.unit.log.doubles import NAME, OFFSET, Process, World
from tests.unit.log.test_managed_log import publish, read_all, values

NOTHING = LogPolicy(RollRule(4, 1 << 30, 1 << 40), Retention(0, 0))
AT_ONCE = TableMark("t", kept_ms=0)


@dataclass
class Shelf:
    """A table in memory: whole ledgers, as the bookies had them."""

    world: World
    taken: dict[int, list[bytes]] = field(default_factory=dict)
    opened: list[int] = field(default_factory=list)

    def take(self, ledger_id: int) -> None:
        self.taken[ledger_id] = list(self.world.ledgers[ledger_id].entries)

    async def open(self, log: str, where: str, ledger: LedgerInfo) -> ChainReader:
        assert (log, where) == (NAME, "t")
        if ledger.ledger_id not in self.taken:
            raise LogError("it is not in the table")
        self.opened.append(ledger.ledger_id)
        return ShelfReader(ledger.ledger_id, self.taken[ledger.ledger_id])


@dataclass
class ShelfReader:
    ledger_id: int
    entries: list[bytes]
    length: int = 0

    @property
    def last_add_confirmed(self) -> int:
        return len(self.entries) - 1

    async def read(self, first_entry_id: int, max_entries: int, max_bytes: int) -> list[Entry]:
        stop = min(len(self.entries), first_entry_id + max_entries)
        return [
            Entry(self.ledger_id, number, self.entries[number], OFFSET)
            for number in range(first_entry_id, stop)
        ]


class SlowShelf(Shelf):
    """Gives what it holds when it is asked, and gives it late."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.gate = asyncio.Event()
        self.gate.set()
        self.reached = asyncio.Event()

    async def open(self, log: str, where: str, ledger: LedgerInfo) -> ChainReader:
        reader = SlowReader(ledger.ledger_id, self.taken[ledger.ledger_id])
        reader.shelf = self
        await self.wait()
        return reader

    async def wait(self) -> None:
        if not self.gate.is_set():
            self.reached.set()
        await self.gate.wait()


class SlowReader(ShelfReader):
    shelf: SlowShelf

    async def read(self, first_entry_id: int, max_entries: int, max_bytes: int) -> list[Entry]:
        found = await super().read(first_entry_id, max_entries, max_bytes)
        await self.shelf.wait()
        return found


def store_of(process: Process, shelf: Shelf, least_ms: int = 0) -> ManagedLogStore:
    return ManagedLogStore(
        process.metadata,
        process.ledgers,
        LedgerConfig(
            ledger_entries_max=4,
            cursor_flush_interval_ms=1,
            tail_cache_bytes=0,
            tabled_ledger_ms_least=least_ms,
        ),
        now_ms=lambda: process.world.now_ms,
        history=shelf,
    )


async def log_of_three_ledgers(world: World, shelf: Shelf) -> tuple[ManagedLog, list[int]]:
    """The last is open."""
    log = await store_of(Process(world), shelf).open(NAME)
    await publish(log, 0, 10)
    return log, [each.ledger_id for each in log.stats().ledgers]


async def settled(log: ManagedLog) -> list[StoredAt]:
    log.tick()
    await asyncio.sleep(0.05)
    return [each.stored for each in log.stats().ledgers]


def taken_of(log: ManagedLog, ledger_id: int) -> TakenLedger:
    (found,) = [each for each in log.stats().ledgers if each.ledger_id == ledger_id]
    return TakenLedger(ledger_id, found.entries, found.messages)


def test_nothing_is_deleted_that_is_not_in_the_table() -> None:
    async def scenario() -> None:
        world = World()
        log, ids = await log_of_three_ledgers(world, Shelf(world))
        await log.tabled.attach(TableMark("t"))
        log.set_policy(NOTHING)
        assert await settled(log) == [StoredAt.LEDGER] * 3
        assert log.stats().awaiting_table == tuple(ids[:2])
        assert set(ids) <= world.alive()
        # What lies before waits for it: one that is not there yet keeps those behind it.
        await log.tabled.take("t", [taken_of(log, ids[1])])
        assert await settled(log) == [StoredAt.LEDGER, StoredAt.BOTH, StoredAt.LEDGER]
        await log.tabled.take("t", [taken_of(log, ids[0])])
        assert await settled(log) == [StoredAt.TABLE, StoredAt.TABLE, StoredAt.LEDGER]
        assert log.stats().awaiting_table == ()
        assert not {*ids[:2]} & world.alive()

    asyncio.run(scenario())


def test_readers_and_cursors_see_no_border() -> None:
    async def scenario() -> None:
        world = World()
        shelf = Shelf(world)
        log, ids = await log_of_three_ledgers(world, shelf)
        cursor = await log.cursors.open("s", EARLIEST)
        cursor.acknowledge([Position(ids[0], 1), Position(ids[1], 2)])
        before = log.positions.entries_between(EARLIEST, log.positions.readable)
        for ledger_id in ids[:2]:
            shelf.take(ledger_id)
        await log.tabled.attach(AT_ONCE)
        await log.tabled.take("t", [taken_of(log, ledger_id) for ledger_id in ids[:2]])
        assert await settled(log) == [StoredAt.TABLE, StoredAt.TABLE, StoredAt.LEDGER]

        entries = await read_all(log)
        assert values(entries) == list(range(10))
        assert values(cursor.unacknowledged(entries)) == [0, 2, 3, 4, 5, 7, 8, 9]
        assert log.positions.first == Position(ids[0], 0)
        assert log.positions.entries_between(EARLIEST, log.positions.readable) == before
        assert await log.positions.offset_of(Position(ids[1], 1)) == 5
        assert set(shelf.opened) == {*ids[:2]}

        other = await store_of(Process(world), shelf).follow(NAME)
        assert values(await other.read(EARLIEST, 100, 1 << 20)) == [0, 1, 2, 3]
        await other.close()
        again = await store_of(Process(world), shelf).open(NAME)  # another owner
        assert values(await read_all(again)) == list(range(10))
        assert again.tabled.mark == AT_ONCE

    asyncio.run(scenario())


def test_one_that_follows_finds_a_ledger_where_it_went() -> None:
    async def scenario() -> None:
        world = World()
        shelf = Shelf(world)
        log, ids = await log_of_three_ledgers(world, shelf)
        followed = await store_of(Process(world), shelf).follow(NAME)
        assert values(await followed.read(EARLIEST, 2, 1 << 20)) == [0, 1]
        shelf.take(ids[0])
        await log.tabled.attach(AT_ONCE)
        await log.tabled.take("t", [taken_of(log, ids[0])])
        assert (await settled(log))[0] is StoredAt.TABLE
        assert values(await followed.read(Position(ids[0], 2), 100, 1 << 20)) == [2, 3]
        await followed.close()

    asyncio.run(scenario())


def test_what_does_not_agree_with_the_log_is_not_taken() -> None:
    async def scenario() -> None:
        world = World()
        log, ids = await log_of_three_ledgers(world, Shelf(world))
        await log.tabled.attach(AT_ONCE)
        whole = taken_of(log, ids[0])
        for wrong in (
            whole._replace(entries=3),
            whole._replace(messages=5),
            TakenLedger(ids[2], 2, 2),  # it is open
        ):
            with pytest.raises(NotAllowedError):
                await log.tabled.take("t", [taken_of(log, ids[1]), wrong])
        with pytest.raises(NotAllowedError):
            await log.tabled.take("another", [whole])
        with pytest.raises(NotAllowedError):
            await log.tabled.attach(TableMark("another"))
        assert await settled(log) == [StoredAt.LEDGER] * 3
        assert set(ids) <= world.alive()

    asyncio.run(scenario())


def test_history_leaves_the_log_when_the_job_says_so() -> None:
    async def scenario() -> None:
        world = World()
        shelf = Shelf(world)
        log, ids = await log_of_three_ledgers(world, shelf)
        for ledger_id in ids[:2]:
            shelf.take(ledger_id)
        await log.tabled.attach(AT_ONCE)
        await log.tabled.take("t", [taken_of(log, ledger_id) for ledger_id in ids[:2]])
        assert (await settled(log))[:2] == [StoredAt.TABLE, StoredAt.TABLE]
        with pytest.raises(NotAllowedError):
            await log.tabled.detach("t")
        await log.tabled.forget("t", ids[0])
        assert values(await read_all(log)) == list(range(4, 10))
        await log.tabled.forget("t", ids[1])
        await log.tabled.detach("t")
        assert log.stats().table is None
        assert values(await read_all(log)) == [8, 9]
        assert log.stats().trimmed == Position(ids[1], 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("effect", [False, True])
@pytest.mark.parametrize("crash_at", range(1, 9))
def test_a_broker_that_dies_loses_no_ledger(crash_at: int, effect: bool) -> None:
    async def scenario() -> None:
        world = World()
        shelf = Shelf(world)
        log, ids = await log_of_three_ledgers(world, shelf)
        await log.close()
        dying = Process(world)
        log = await store_of(dying, shelf).open(NAME)
        dying.crash_at, dying.effect = dying.operations + crash_at, effect
        for ledger_id in ids:
            shelf.take(ledger_id)
        try:
            await log.tabled.attach(AT_ONCE)
            await log.tabled.take("t", [taken_of(log, ledger_id) for ledger_id in ids])
            await settled(log)
        except MagnetarError:
            assert dying.crashed
        again = await store_of(Process(world), shelf).open(NAME)
        assert values(await read_all(again)) == list(range(10))
        await settled(again)
        assert values(await read_all(again)) == list(range(10))

    asyncio.run(scenario())


def test_what_producers_may_send_again_stays_at_the_bookies_for_a_while() -> None:
    async def scenario() -> None:
        world = World()
        log = await store_of(Process(world), Shelf(world), least_ms=500).open(NAME)
        await publish(log, 0, 6)
        first = log.stats().ledgers[0].ledger_id
        await log.tabled.attach(AT_ONCE)
        await log.tabled.take("t", [taken_of(log, first)])
        assert (await settled(log))[0] is StoredAt.BOTH
        world.now_ms += 500
        assert (await settled(log))[0] is StoredAt.TABLE

    asyncio.run(scenario())


def test_what_a_note_does_not_speak_of_yet_stays_at_the_bookies() -> None:
    """A message was erased from the table before deduplication had stored that it knew it: the next
    owner took what its producer sent again for new."""

    async def scenario() -> None:
        world = World()
        log = await store_of(Process(world), Shelf(world)).open(NAME)
        knows = await log.cursors.open("knows", EARLIEST)
        reads = await log.cursors.open("reads", EARLIEST)
        assert knows.noted is not None
        knows.noted.take(EARLIEST, b"nothing")
        await publish(log, 0, 10)
        ids = [each.ledger_id for each in log.stats().ledgers]
        await log.tabled.attach(AT_ONCE)
        await log.tabled.take("t", [taken_of(log, each) for each in ids[:2]])
        assert (await settled(log))[:2] == [StoredAt.BOTH] * 2
        knows.noted.take(Position(ids[0], 3), b"the first")
        await knows.wait_stored()
        assert (await settled(log))[:2] == [StoredAt.TABLE, StoredAt.BOTH]
        await log.cursors.delete("knows")
        assert (await settled(log))[:2] == [StoredAt.TABLE] * 2
        assert reads.mark_delete < (ids[0], 0), "who has no note reads it from the table"

    asyncio.run(scenario())


def test_what_no_checkpoint_counts_stays_at_the_bookies() -> None:
    """Erased from the table, it was not found by the scan behind the checkpoint."""

    async def scenario() -> None:
        world = World()
        log = await store_of(Process(world), Shelf(world)).open(NAME)
        counted = EARLIEST
        log.checkpoints.keep(lambda: Checkpoint(counted, b"state"))
        await publish(log, 0, 10)
        ids = [each.ledger_id for each in log.stats().ledgers]
        await log.tabled.attach(AT_ONCE)
        await log.tabled.take("t", [taken_of(log, each) for each in ids[:2]])
        assert (await settled(log))[:2] == [StoredAt.BOTH] * 2
        counted = Position(ids[0], 3)
        assert (await settled(log))[:2] == [StoredAt.TABLE, StoredAt.BOTH]

    asyncio.run(scenario())


def test_records_keep_where_ledgers_are() -> None:
    async def scenario() -> None:
        world = World()
        log, ids = await log_of_three_ledgers(world, Shelf(world))
        await log.tabled.attach(TableMark("t", 5, -1))
        await log.tabled.take("t", [taken_of(log, ids[0])])
        record = decode_log(NAME, world.nodes[log_path(NAME)].value)
        assert record.table == TableMark("t", 5, -1)
        assert record.ledgers[0].stored is StoredAt.BOTH
        assert decode_log(NAME, encode_log(record)) == record

    asyncio.run(scenario())


def test_what_could_not_be_stored_is_not_said_and_is_stored_when_it_is_told_again() -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await store_of(process, Shelf(world)).open(NAME)
        await publish(log, 0, 10)
        first = log.stats().ledgers[0].ledger_id
        await log.tabled.attach(TableMark("t"))
        put, failed = process.metadata.put, list[str]()

        async def fail_once(path: str, value: bytes, version: int) -> int:
            if not failed:
                failed.append(path)
                raise MetadataUnavailableError("the store is away")
            return await put(path, value, version)

        process.metadata.put = fail_once  # type: ignore[method-assign]
        told = taken_of(log, first)
        with pytest.raises(MetadataUnavailableError):
            await log.tabled.take("t", [told])
        assert log.stats().ledgers[0].stored is StoredAt.LEDGER
        await log.tabled.take("t", [told])
        assert log.stats().ledgers[0].stored is StoredAt.BOTH
        again = await store_of(Process(world), Shelf(world)).open(NAME)
        assert again.stats().ledgers[0].stored is StoredAt.BOTH, "the next owner knows it"

    asyncio.run(scenario())


@pytest.mark.parametrize("opening", [False, True])
def test_what_is_on_its_way_while_a_table_is_rewritten_is_not_kept(opening: bool) -> None:
    async def scenario() -> None:
        world = World()
        shelf = SlowShelf(world)
        log, ids = await log_of_three_ledgers(world, shelf)
        await log.tabled.attach(AT_ONCE)
        for ledger_id in ids[:2]:
            shelf.take(ledger_id)
        await log.tabled.take("t", [taken_of(log, each) for each in ids[:2]])
        assert (await settled(log))[0] is StoredAt.TABLE
        assert values(await log.read(EARLIEST, 1, 1 << 20)) == [0]
        if opening:
            log.tabled.rewritten("t")  # so that the ledger is opened again
        shelf.gate.clear()
        reading = asyncio.create_task(log.read(Position(ids[0], 1), 1, 1 << 20))
        await shelf.reached.wait()
        shelf.taken[ids[0]] = shelf.taken[ids[1]]  # as if it had been rewritten
        log.tabled.rewritten("t")
        shelf.gate.set()
        assert values(await reading) == [1], "who has begun to read gets what was there"
        assert values(await log.read(Position(ids[0], 2), 2, 1 << 20)) == [6, 7]

    asyncio.run(scenario())


def ledger(number: int, stored: StoredAt = StoredAt.BOTH, closed_ms: int = 1000) -> LedgerInfo:
    return LedgerInfo(number, 4, 100, 1, closed_ms, stored=stored)


def test_bookies_keep_what_the_table_or_the_retention_says() -> None:
    chain = [
        ledger(1, StoredAt.TABLE),
        ledger(2),
        ledger(3, closed_ms=2000),
        ledger(4, closed_ms=0),
    ]
    mark, behind = Position(2, 0), Position(3, 3)

    def ids(
        marks: list[Position], held: list[Position], kept: Retention, own: TableMark
    ) -> list[int]:
        return [each.ledger_id for each in past_bookies(chain, marks, held, kept, own, 0, 2500)]

    forever, none = Retention(), Retention(0, 0)
    assert ids([], [], forever, TableMark("t")) == []
    assert ids([], [], none, TableMark("t")) == [2, 3]
    assert ids([mark], [], none, TableMark("t")) == []  # as the retention says: cursors count
    assert ids([mark], [], forever, TableMark("t", kept_ms=1000)) == [2]
    assert ids([mark], [], forever, TableMark("t", kept_ms=0)) == [2, 3]
    assert ids([], [mark], forever, TableMark("t", kept_ms=0)) == []  # somebody reads at bookies
    assert ids([], [behind], forever, TableMark("t", kept_bytes=250)) == [2]


def test_how_far_the_table_is_behind_and_why() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(LedgerConfig(ledger_entries_max=4)).open(NAME)
        assert log.tabled.lag is None
        await publish(log, 0, 10)
        first, second, _ = log.stats().ledgers
        await log.tabled.attach(TableMark("t"))
        lag = log.tabled.lag
        assert lag is not None
        assert (lag.ledgers, lag.problem) == (2, "")
        assert lag.stored_bytes == first.stored_bytes + second.stored_bytes
        assert lag.closed_ms == log._chain.ledgers[0].closed_ms  # type: ignore[attr-defined]
        await log.tabled.take("t", [TakenLedger(first.ledger_id, 4, 4)])
        log.tabled.note_problem("t", "no way to the catalog")
        lag = log.tabled.lag
        assert lag is not None
        assert (lag.ledgers, lag.problem) == (1, "no way to the catalog")
        with pytest.raises(NotAllowedError):
            log.tabled.note_problem("another", "x")
        await log.tabled.take("t", [TakenLedger(second.ledger_id, 4, 4)])
        log.tabled.note_problem("t", "")
        assert log.tabled.lag == (0, 0, 0, "")


class Keys:
    """Of this file's entries (numbers): the key is the number modulo 5."""

    def is_large(self, payload: memoryview) -> bool:
        return False

    def keyed(self, payload: memoryview) -> KeyedEntry:
        number = int(bytes(payload))
        return KeyedEntry((KeyedMessage(-1, b"%d" % (number % 5), False),))

    def without_others(self, payload: memoryview, kept: Container[int]) -> bytes:
        raise AssertionError("no batches here")


async def left_of(log: ManagedLog) -> list[int]:
    view, found = log.compaction.view, list[int]()
    position = view.positions.first
    while entries := await view.read(position, 10, 1000):
        found += [int(bytes(entry.payload)) for entry in entries]
        position = view.positions.next_position(
            Position(entries[-1].ledger_id, entries[-1].entry_id)
        )
    return found


def test_a_log_with_a_table_is_compacted_and_what_came_since_is_read_there() -> None:
    async def scenario() -> None:
        world = World()
        shelf = Shelf(world)
        log, ids = await log_of_three_ledgers(world, shelf)
        await log.tabled.attach(AT_ONCE)
        for ledger_id in ids[:2]:
            shelf.take(ledger_id)
        with log.compaction.reading():
            await log.tabled.take("t", [taken_of(log, each) for each in ids[:2]])
            assert await settled(log) == [StoredAt.BOTH, StoredAt.BOTH, StoredAt.LEDGER], (
                "while it is read nothing goes"
            )
        assert await settled(log) == [StoredAt.TABLE, StoredAt.TABLE, StoredAt.LEDGER]
        assert not {*ids[:2]} & world.alive()
        await compact(log, Keys())
        assert shelf.opened, "compaction reads ledgers that are in the table only"
        assert await left_of(log) == [5, 6, 7, 8, 9]
        # What came since leaves the bookies, too: the view ends in the table then.
        await publish(log, 10, 7)
        later = [each.ledger_id for each in log.stats().ledgers][2:]
        for ledger_id in later[:2]:
            shelf.take(ledger_id)
        await log.tabled.take("t", [taken_of(log, each) for each in later[:2]])
        assert await settled(log) == [StoredAt.TABLE] * 4 + [StoredAt.LEDGER]
        assert await left_of(log) == [5, 6, 7, 8, 9, *range(10, 17)]
        again = await store_of(Process(world), shelf).open(NAME)
        assert await left_of(again) == [5, 6, 7, 8, 9, *range(10, 17)]

    asyncio.run(scenario())


def test_what_the_compacted_view_needs_does_not_leave_the_table() -> None:
    async def scenario() -> None:
        world = World()
        shelf = Shelf(world)
        log, ids = await log_of_three_ledgers(world, shelf)
        await log.tabled.attach(AT_ONCE)
        await compact(log, Keys())
        await publish(log, 10, 7)
        ids = [each.ledger_id for each in log.stats().ledgers]
        for ledger_id in ids[:-1]:
            shelf.take(ledger_id)
        await log.tabled.take("t", [taken_of(log, each) for each in ids[:-1]])
        assert await settled(log) == [StoredAt.TABLE] * 4 + [StoredAt.LEDGER]
        with pytest.raises(NotAllowedError, match="compact it before"):
            await log.tabled.forget("t", ids[3])
        with log.compaction.reading(), pytest.raises(NotAllowedError, match="compact it before"):
            await log.tabled.forget("t", ids[0])
        assert [each.ledger_id for each in log.stats().ledgers] == ids, "nothing was changed"
        await log.tabled.forget("t", ids[1])
        assert [each.ledger_id for each in log.stats().ledgers] == ids[2:]
        assert await left_of(log) == [5, 6, 7, 8, 9, *range(10, 17)], "what survived is there"
        again = await store_of(Process(world), shelf).open(NAME)
        await again.tabled.forget("t", ids[3], lost=True)  # the table is gone for good
        assert await left_of(again) == [5, 6, 7, 8, 9, 16]

    asyncio.run(scenario())


def test_a_place_that_was_noted_with_a_password_is_noted_without() -> None:
    """As earlier releases did; all who may read the topic saw it."""

    async def scenario() -> None:
        world = World()
        log, _ = await log_of_three_ledgers(world, Shelf(world))
        await log.tabled.attach(TableMark("pg://ann:s3cr3t@db/lake"))
        with pytest.raises(NotAllowedError) as refused:
            await log.tabled.attach(TableMark("pg://ann@other/lake"))
        assert "s3cr3t" not in str(refused.value)
        await log.tabled.attach(TableMark("pg://ann@db/lake"))
        assert log.tabled.mark == TableMark("pg://ann@db/lake")

    asyncio.run(scenario())
