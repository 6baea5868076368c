"""Ledgers that are not in memory are looked up in a thread: who waits, for how long, in which
order, and that nobody else does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.bookie import DEFERRED_SYNC, FENCE, RECOVERY, Bookie
from magnetar.bookie.ledgers import arrivals, ledger_table
from magnetar.bookie.ledgers.arrivals import Arrivals
from magnetar.bookie.ledgers.parking import Add
from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.config import BookieConfig
from magnetar.metrics import Metrics
from magnetar.model.errors import (
    BookieError,
    BookieIOError,
    FencedError,
    MagnetarError,
    NoLedgerError,
    TooManyRequestsError,
)
from tests.unit.bookie.storage_kit import KEY, add, entry, ids_of, running, settings

OTHER = 1
"""A ledger of the second directory, in memory all the time; those that are looked up are even."""


class GatedIndex(LocationIndex):
    """Of the first directory, with ``closed_to``: a ledger's lookup waits for ``gate``."""

    gate = threading.Event()
    asked: list[int]
    closed_to: frozenset[int] = frozenset()
    fails = False

    def ledger(self, ledger_id: int) -> bytes | None:
        if ledger_id in GatedIndex.closed_to:
            GatedIndex.asked.append(ledger_id)
            assert GatedIndex.gate.wait(timeout=120)
            if GatedIndex.fails:
                raise BookieIOError("Input/output error")
        return super().ledger(ledger_id)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatedIndex, "gate", threading.Event())
    monkeypatch.setattr(GatedIndex, "asked", [], raising=False)
    monkeypatch.setattr(GatedIndex, "closed_to", frozenset())
    monkeypatch.setattr(GatedIndex, "fails", False)


def config_of(root: Path, **changes: object) -> BookieConfig:
    return settings(root, ledgers=2, ledgers_kept_max=100, **changes)


@asynccontextmanager
async def hanging(config: BookieConfig, *ledger_ids: int) -> AsyncIterator[Bookie]:
    """A bookie whose lookups of these hang until the gate is opened; ``OTHER`` is in memory."""
    bookie = Bookie(config, Metrics(), open_index=GatedIndex)
    await bookie.start()
    try:
        await add(bookie, OTHER, [0])
        GatedIndex.closed_to = frozenset(ledger_ids)
        yield bookie
    finally:
        GatedIndex.gate.set()
        await bookie.close()


async def asked(count: int = 1) -> None:
    async with asyncio.timeout(60):
        while len(GatedIndex.asked) < count:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)


class Adds:
    """Adds that are not waited for; ``answers`` in the order in which they come."""

    def __init__(self, bookie: Bookie, ledger_id: int) -> None:
        self._bookie = bookie
        self._ledger_id = ledger_id
        self.answers: list[tuple[int, MagnetarError | None]] = []
        self.sent = 0

    def send(self, *entry_ids: int, flags: int = 0, size: int = 64) -> None:
        data = [entry(self._ledger_id, each, size=size) for each in entry_ids]
        self._bookie.add_entries(self._ledger_id, KEY, entry_ids, data, flags, self._done)
        self.sent += len(entry_ids)

    def _done(self, error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        self.answers += [(each, error) for each in entry_ids]

    async def all_answered(self) -> list[tuple[int, MagnetarError | None]]:
        async with asyncio.timeout(60):
            while len(self.answers) < self.sent:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
        return self.answers


async def with_ledger(config: BookieConfig, *ledger_ids: int, fenced: bool = False) -> None:
    async with running(config) as bookie:
        for ledger_id in ledger_ids:
            await add(bookie, ledger_id, range(3))
            if fenced:
                await bookie.read_lac(ledger_id, FENCE, KEY)


def test_an_index_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = config_of(tmp_path)
        await with_ledger(config, 2)
        async with hanging(config, 2, 4) as bookie:
            waiting, new = Adds(bookie, 2), Adds(bookie, 4)
            waiting.send(3)
            new.send(0)
            reading = asyncio.create_task(bookie.read_entry(2, 1))
            await asked()
            for entry_id in range(1, 20):
                await add(bookie, OTHER, [entry_id])
                assert await bookie.read_entry(OTHER, entry_id) == entry(OTHER, entry_id)
            await add(bookie, 3, [0])  # that directory's index answers
            await bookie.force(OTHER)
            assert not waiting.answers
            assert not new.answers
            assert not reading.done()
            waiting.send(4, 5)
            waiting.send(6)
            GatedIndex.gate.set()
            assert await waiting.all_answered() == [(each, None) for each in (3, 4, 5, 6)]
            assert await new.all_answered() == [(0, None)]
            assert await reading == entry(2, 1)
            assert sorted(GatedIndex.asked) == [2, 4], "one lookup serves all"
        async with running(config) as bookie:
            assert ids_of(await bookie.list_entries(2)) == list(range(7))
            assert ids_of(await bookie.list_entries(4)) == [0]

    asyncio.run(scenario())


def test_adds_are_carried_out_in_order_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes behind the lookup finds them done."""

    async def scenario() -> None:
        config = config_of(tmp_path)
        async with hanging(config, 2) as bookie:
            adds = Adds(bookie, 2)
            for entry_id in range(50):
                adds.send(entry_id)
            fencing = asyncio.create_task(bookie.read_lac(2, FENCE, KEY))
            await asked()
            adds.send(50)
            GatedIndex.gate.set()
            assert (await fencing).last_entry == entry(2, 50)
            adds.send(51)
            answers = await adds.all_answered()
            told = [(each, None if error is None else type(error)) for each, error in answers]
            assert sorted(told, key=lambda row: row[0]) == [
                *((each, None) for each in range(51)),
                (51, FencedError),
            ]
            order = [each for each, error in answers if error is None]
            assert order == sorted(order)

    asyncio.run(scenario())


def test_a_fence_that_the_index_has_holds_for_adds_that_waited(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = config_of(tmp_path)
        await with_ledger(config, 2, fenced=True)
        async with hanging(config, 2) as bookie:
            adds, recovery = Adds(bookie, 2), Adds(bookie, 2)
            adds.send(3)
            recovery.send(4, flags=RECOVERY)
            GatedIndex.gate.set()
            ((_, error),) = await adds.all_answered()
            assert isinstance(error, FencedError)
            assert await recovery.all_answered() == [(4, None)]
            assert await bookie.read_entry(2, 2) == entry(2, 2)
            with pytest.raises(FencedError):
                await add(bookie, 2, [5])

    asyncio.run(scenario())


def test_all_who_wait_are_told_when_the_lookup_fails_and_the_next_asks_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        config = config_of(tmp_path)
        await with_ledger(config, 2)
        async with hanging(config, 2) as bookie:
            GatedIndex.fails = True
            adds = Adds(bookie, 2)
            adds.send(3)
            adds.send(4)
            others = [
                asyncio.create_task(work)
                for work in (
                    bookie.read_entry(2, 0),
                    bookie.read_batch(2, 0, 3, 1000),
                    bookie.read_lac(2),
                    bookie.read_lac(2, FENCE, KEY),
                    bookie.write_lac(2, KEY, 1, b""),
                    bookie.list_entries(2),
                    bookie.delete_ledgers([OTHER, 2]),
                    bookie.force(2),
                )
            ]
            await asked()
            GatedIndex.gate.set()
            assert {type(error) for _, error in await adds.all_answered()} == {BookieIOError}
            for each in others:
                with pytest.raises(BookieIOError):
                    await each
            assert await bookie.read_entry(OTHER, 0) == entry(OTHER, 0), "none or all are deleted"
            GatedIndex.fails = False
            await add(bookie, 2, [3])
            assert await bookie.read_entry(2, 0) == entry(2, 0)
            assert not bookie._table._holds
            assert not bookie._table._lookups

    asyncio.run(scenario())


def test_what_waits_is_bounded_in_bytes_of_each_directory(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = config_of(tmp_path, journal_pending_bytes_max=100_000)
        async with hanging(config, 2, 4) as bookie:
            first, second = Adds(bookie, 2), Adds(bookie, 4)
            for entry_id in range(4):
                first.send(entry_id, size=20_000)
            await asked()
            second.send(0, size=40_000)
            ((_, error),) = await second.all_answered()
            assert isinstance(error, TooManyRequestsError)
            await add(bookie, 3, [0])
            await add(bookie, OTHER, [1])
            GatedIndex.gate.set()
            assert await first.all_answered() == [(each, None) for each in range(4)]
            second.send(1, size=40_000)
            assert (await second.all_answered())[-1] == (1, None)

    asyncio.run(scenario())


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_table, "LOOKUP_MS_MAX", 100)
    monkeypatch.setattr(arrivals, "LOOKUP_MS_MAX", 100)

    async def scenario() -> None:
        config = config_of(tmp_path)
        async with hanging(config, 2) as bookie:
            adds = Adds(bookie, 2)
            adds.send(0)
            ((_, error),) = await adds.all_answered()
            assert isinstance(error, BookieIOError)
            with pytest.raises(BookieIOError, match="not answered"):
                await bookie.read_entry(2, 0)
            adds.send(1)
            assert len(await adds.all_answered()) == 2
            assert GatedIndex.asked == [2]
            monkeypatch.setattr(ledger_table, "LOOKUP_MS_MAX", 60_000)
            monkeypatch.setattr(arrivals, "LOOKUP_MS_MAX", 60_000)
            adds.send(2)
            GatedIndex.gate.set()
            assert (await adds.all_answered())[-1] == (2, None)
            assert ids_of(await bookie.list_entries(2)) == [2]

    asyncio.run(scenario())


def test_a_bookie_that_closes_refuses_what_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = config_of(tmp_path)
        async with hanging(config, 2) as bookie:
            adds = Adds(bookie, 2)
            adds.send(0)
            await asked()
            closing = asyncio.create_task(bookie.close())
            ((_, error),) = await adds.all_answered()
            assert isinstance(error, BookieIOError)
            adds.send(1)
            assert isinstance((await adds.all_answered())[-1][1], BookieIOError)
            GatedIndex.gate.set()
            await closing
            with pytest.raises(BookieError):
                await bookie.read_entry(2, 0)
        async with running(config) as bookie:
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(2, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("when", ["before", "meanwhile", "behind"])
def test_a_ledger_that_is_given_up_keeps_what_waits_for_its_lookup(
    tmp_path: Path, when: str
) -> None:
    async def scenario() -> None:
        config = config_of(tmp_path)
        await with_ledger(config, 2, fenced=True)
        async with hanging(config, 2) as bookie:
            adds = Adds(bookie, 2)
            with bookie.giving_up(2) as delete:
                if when == "before":
                    adds.send(3, flags=RECOVERY)
                deleting = asyncio.create_task(delete())
                await asyncio.sleep(0)
                if when == "meanwhile":
                    adds.send(3, flags=RECOVERY)
                await asyncio.sleep(0)
                GatedIndex.gate.set()
                assert await deleting == (when == "behind")
            if when == "behind":
                adds.send(3, flags=RECOVERY)
                assert isinstance((await adds.all_answered())[0][1], TooManyRequestsError)
                with pytest.raises(NoLedgerError):
                    await bookie.read_entry(2, 0)
            else:
                assert await adds.all_answered() == [(3, None)]
                assert await bookie.read_entry(2, 3) == entry(2, 3)

    asyncio.run(scenario())


def test_force_waits_for_adds_that_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = config_of(tmp_path)
        async with hanging(config, 2) as bookie:
            adds = Adds(bookie, 2)
            adds.send(0, flags=DEFERRED_SYNC)
            forcing = asyncio.create_task(bookie.force(2))
            await asked()
            await bookie.force(OTHER)
            assert not forcing.done()
            GatedIndex.gate.set()
            await forcing
            assert adds.answers == [(0, None)]
            assert await bookie.read_entry(2, 0) == entry(2, 0)

    asyncio.run(scenario())


def test_a_ledger_that_is_waited_for_is_not_forgotten(tmp_path: Path) -> None:
    """Whoever is woken by a lookup must not take what was forgotten since for never heard of."""

    async def scenario() -> None:
        config = settings(tmp_path, ledgers_kept_max=0)
        await with_ledger(config, 2, 4)
        async with running(config) as bookie:
            table = bookie._table
            async with table.loaded((2, 4, 6)):
                await table.shrink()
                assert table.get_loaded(2) is not None
                assert table.get_loaded(4) is not None
                assert table.is_absent(6)
                assert not table.is_absent(8)
            await table.shrink()
            assert table.get_loaded(2) is None
            assert not table.is_absent(6)
            assert not table._holds

    asyncio.run(scenario())


def test_a_ledger_whose_adds_wait_for_room_is_not_forgotten(tmp_path: Path) -> None:
    """Forgotten, it would have to be looked up before they go on, while others overtake them."""

    async def scenario() -> None:
        config = settings(tmp_path, ledgers_kept_max=0, write_cache_bytes=1 << 20)
        await with_ledger(config, 2)
        async with running(config) as bookie:
            storage = bookie._storages[0]
            await bookie.read_entry(2, 0)
            filling, waiting = Adds(bookie, 4), Adds(bookie, 2)
            await add(bookie, 4, [0])
            full, storage.cache.half_bytes_max = storage.cache.half_bytes_max, 0
            waiting.send(3)
            waiting.send(4)
            await bookie._table.shrink()
            assert bookie._table.get_loaded(2) is not None
            storage.cache.half_bytes_max = full
            waiting.send(5)
            filling.send(1)
            await bookie._flusher.flush_all()
            assert await waiting.all_answered() == [(each, None) for each in (3, 4, 5)]
            assert await filling.all_answered() == [(1, None)]
            assert not bookie._table._holds

    asyncio.run(scenario())


def test_a_reader_that_goes_away_holds_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = config_of(tmp_path)
        await with_ledger(config, 2)
        async with hanging(config, 2) as bookie:
            gone, stays = (asyncio.create_task(bookie.read_entry(2, 0)) for _ in range(2))
            await asked()
            gone.cancel()
            GatedIndex.gate.set()
            assert await stays == entry(2, 0)
            assert gone.cancelled()
            assert not bookie._table._holds

    asyncio.run(scenario())


def add_of(entry_id: int, told: dict[int, float] | None = None) -> Add:
    def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        assert error is not None
        if told is not None:
            told[entry_ids[0]] = asyncio.get_running_loop().time()

    return Add(2, KEY, [entry_id], [b""], 0, done)


def test_a_lookup_is_asked_for_once_though_all_who_waited_were_told_off() -> None:
    async def scenario() -> None:
        lookups: list[ledger_table.Told] = []
        carried_out: list[Add] = []
        waiting = Arrivals(1 << 20, lambda _, told: lookups.append(told), carried_out.append)
        waiting.wait(add_of(0), 0)
        waiting.refuse_all(BookieIOError("the bookie is closing"))
        later = add_of(1)
        waiting.wait(later, 0)
        (found,) = lookups
        found(None)
        assert carried_out == [later]
        assert not waiting.has(2)

    asyncio.run(scenario())


def test_each_that_waits_for_a_lookup_is_told_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "LOOKUP_MS_MAX", 60)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        told: dict[int, float] = {}
        begun: dict[int, float] = {}
        waiting = Arrivals(1 << 20, lambda _, told: None, lambda add: None)
        for entry_id in range(3):
            begun[entry_id] = loop.time()
            waiting.wait(add_of(entry_id, told), 0)
            await asyncio.sleep(0.03)
        async with asyncio.timeout(60):
            while len(told) < 3:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        for entry_id, told_s in told.items():
            assert told_s - begun[entry_id] >= 0.06

    asyncio.run(scenario())
