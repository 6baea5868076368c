"""Marks, locks, switches and votes, in a metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.model.errors import (
    MetadataUnavailableError,
    NoSuchBookieError,
    SessionExpiredError,
)
from magnetar.model.ids import BookieId, EntryId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
from magnetar.repair import operating as operating_module
from magnetar.repair.election import Election
from magnetar.repair.marks import Lock, ShortageMarks
from magnetar.repair.operating import Operating
from magnetar.repair.switches import Switches
from magnetar.wire.bookie.metadata_service import (
    PROCESS_PROPERTY,
    BookieServiceInfo,
    Endpoint,
    encode_service_info,
)
from magnetar.wire.bookie.underreplication import node_path

FAR = 0xCAFEBEEF0000FEED & (2**63 - 1)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteMetadataStore]:
    store = await SqliteMetadataStore.open(path / "metadata")
    try:
        yield store
    finally:
        await store.close()


async def marks_and_lock(store: SqliteMetadataStore) -> tuple[ShortageMarks, Lock]:
    """The lock is that of ledger 7, held by "one"."""
    marks = ShortageMarks(store)
    await marks.initialize()
    lock = await marks.lock(7, "one")
    assert lock is not None
    return marks, lock


def test_a_mark_goes_on_the_version_it_had_and_on_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            marks, lock = await marks_and_lock(store)
            assert await marks.mark(7, ["b1"], 1000)
            before = await marks.read(7)
            assert before is not None
            assert (before.bookies, before.since_ms) == (("b1",), 1000)
            assert not await marks.mark(7, ["b1"], 2000), "it was marked before"
            again = await marks.read(7)
            assert again is not None
            assert (again.bookies, again.since_ms) == (("b1",), 1000)
            assert again.version != before.version, "it was found again since"
            assert not await marks.unmark(lock, before.version)
            await marks.mark(7, ["b2"], 3000)
            last = await marks.read(7)
            assert last is not None
            assert last.bookies == ("b1", "b2")
            assert await marks.unmark(lock, last.version)
            assert await marks.read(7) is None
            assert await marks.unmark(lock, last.version), "an answer that was lost"

    asyncio.run(run())


def test_a_mark_stays_when_the_lock_has_gone_with_its_session(tmp_path: Path) -> None:
    """Another worker may have taken away the one that was read: versions begin at 0 again."""

    async def run() -> None:
        async with opened(tmp_path) as store:
            marks, lock = await marks_and_lock(store)
            await marks.mark(7, ["b1"], 1000)
            mark = await marks.read(7)
            assert mark is not None

            async def expired(session_id: int, path: str, version: int = -1) -> None:
                assert session_id == lock.session_id
                raise SessionExpiredError("the session is over")

            store.delete_within = expired  # type: ignore[method-assign]
            with pytest.raises(SessionExpiredError):
                await marks.unmark(lock, mark.version)
            assert await marks.read(7) == mark

    asyncio.run(run())


def test_marked_ledgers_are_listed_and_their_directories_go_with_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            marks = ShortageMarks(store)
            await marks.initialize()
            await marks.initialize()
            for ledger_id in (FAR, 7, 8, 0):
                await marks.mark(ledger_id, ["b1"], 0)
            assert [each async for each in marks.ledgers()] == [0, 7, 8, FAR]
            for ledger_id in (0, 7, 8, FAR):
                mark, lock = await marks.read(ledger_id), await marks.lock(ledger_id, "one")
                assert mark is not None
                assert lock is not None
                await marks.unmark(lock, mark.version)
            assert await store.children("/ledgers/underreplication/ledgers") == []

    asyncio.run(run())


def test_a_lock_has_one_holder_and_is_not_given_up_by_another(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            marks, lock = await marks_and_lock(store)
            assert await marks.lock(7, "two") is None
            assert await marks.lock(7, "one") == lock, "its answer was lost, and it asks again"
            await marks.unlock(lock._replace(holder="two"))
            assert await marks.holder(7) == "one"
            assert await marks.locked() == {7: None}
            await marks.unlock(lock)
            await marks.unlock(lock)
            assert await marks.lock(7, "two")

    asyncio.run(run())


def test_bookies_of_bookkeepers_do_not_hear_that_they_are_to_be_emptied(tmp_path: Path) -> None:
    """They are known by what they do not say of themselves."""
    rpc = Endpoint("bookie", "127.0.0.1", 3181, "bookie-rpc")
    theirs = BookieServiceInfo((rpc, Endpoint("httpserver", "127.0.0.1", 8000, "http")))
    ours = BookieServiceInfo((rpc,), ((PROCESS_PROPERTY, "some"),))

    async def run() -> None:
        async with opened(tmp_path) as store:
            manager, registry = LedgerManager(store), BookieRegistry(store)
            await store.create("/ledgers/available/theirs", encode_service_info(theirs))
            await store.create("/ledgers/available/ours", encode_service_info(ours))
            await store.create("/ledgers/available/readonly/full", encode_service_info(theirs))
            operating = Operating(store, manager, registry, 0)
            heard = {
                name: await operating.hears_of_leaving(BookieId(name))
                for name in ("theirs", "ours", "full", "gone")
            }
            assert heard == {"theirs": False, "ours": True, "full": True, "gone": True}
            assert operating.http_address(BookieId("theirs")) == ("127.0.0.1", 8000)
            assert operating.http_address(BookieId("ours")) is None
            registry.close()

    asyncio.run(run())


def test_a_bookie_is_known_by_registration_cookie_or_ledgers(tmp_path: Path) -> None:
    """A name that was mistyped was "forgotten", and "takes no new entries, once it is started"."""

    async def run() -> None:
        async with opened(tmp_path) as store:
            manager, registry = LedgerManager(store), BookieRegistry(store)
            info = encode_service_info(BookieServiceInfo.of_address("127.0.0.1", 3181))
            await store.create("/ledgers/available/there", info)
            await store.create("/ledgers/cookies/away", b"")
            await manager.initialize(create=True)
            fragment = Fragment(EntryId(0), (BookieId("named"),))
            crc = DigestType.CRC32C
            await manager.create(LedgerMetadata(LedgerId(1), 1, 1, 1, crc, b"", (fragment,)))
            operating = Operating(store, manager, registry, 0)
            for known in ("there", "away", "named"):
                await operating.check_known(BookieId(known))
            with pytest.raises(NoSuchBookieError, match="no bookie nmaed"):
                await operating.check_known(BookieId("nmaed"))
            registry.close()

    asyncio.run(run())


def test_switches(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            switches = Switches(store)
            assert await switches.enabled()
            assert [await switches.disable(), await switches.disable()] == [True, False]
            assert not await switches.enabled()
            assert [await switches.enable(), await switches.enable()] == [True, False]
            assert await switches.delay(30) == 30
            assert await switches.begin_delay(60) == 60
            assert await switches.begin_delay(90) == 60, "what was said counts"
            await switches.set_delay(5)
            assert await switches.delay(30) == 5
            assert await switches.checked_ms() == 0
            await switches.set_checked(123)
            await switches.set_checked(456)
            assert await switches.checked_ms() == 456
            assert await switches.leaving() == {}
            for _ in range(2):
                await switches.leave(BookieId("127.0.0.1:3181"))
            assert await switches.leaving() == {BookieId("127.0.0.1:3181"): None}
            for _ in range(2):
                await switches.stay(BookieId("127.0.0.1:3181"))
            assert await switches.leaving() == {}

    asyncio.run(run())


def test_writing_the_delay_as_it_is_is_heard(tmp_path: Path) -> None:
    """BookKeeper's shell triggers an audit that way."""

    async def run() -> None:
        async with opened(tmp_path) as store:
            switches, heard = Switches(store), asyncio.Event()
            await switches.begin_delay(60)
            end = switches.watch_delay(heard.set)
            await switches.set_delay(60)
            async with asyncio.timeout(10):
                await heard.wait()
            end()

    asyncio.run(run())


def test_the_next_candidate_is_elected_when_the_auditor_goes(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            first, second, third = (Election(store, name) for name in ("one", "two", "three"))
            assert await first.auditor() is None
            await first.wait_elected()
            waiting = [asyncio.create_task(each.wait_elected()) for each in (second, third)]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in waiting)
            assert await second.auditor() == "one"
            assert await first.is_elected()
            await first.withdraw()
            await first.withdraw()
            async with asyncio.timeout(10):
                await waiting[0]
            assert await first.auditor() == "two"
            assert not await third.is_elected()
            await second.withdraw()
            async with asyncio.timeout(10):
                await waiting[1]
            assert await third.is_elected()

    asyncio.run(run())


DAMAGED = b"\x00of no release"


def test_a_mark_that_cannot_be_read_is_a_mark_still(tmp_path: Path) -> None:
    """One damaged node ended the auditor, and then each that was elected after it."""

    async def run() -> None:
        async with opened(tmp_path) as store:
            marks = ShortageMarks(store)
            await marks.initialize()
            for ledger_id in (7, 8):
                await marks.mark(ledger_id, ["b1"], 1000)
                await store.put(marks._ledgers + node_path(ledger_id), DAMAGED, -1)
            manager = LedgerManager(store)
            operating = Operating(store, manager, BookieRegistry(store), 60)
            listed = [each async for each in operating.marked()]
            assert [(each.ledger_id, each.mark.bookies) for each in listed] == [(7, ()), (8, ())]
            assert not await marks.mark(7, ["b2"], 2000), "it was marked before"
            again = await marks.read(7)
            assert again is not None
            assert (again.bookies, again.since_ms) == (("b2",), 2000)
            damaged = await marks.read(8)
            lock = await marks.lock(8, "one")
            assert damaged is not None
            assert lock is not None
            assert await marks.unmark(lock, damaged.version), "the ledger is whole"
            assert await marks.read(8) is None

    asyncio.run(run())


def test_a_lock_that_cannot_be_read_is_another_s(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            marks, lock = await marks_and_lock(store)
            await store.put(marks._lock(7), DAMAGED, -1)
            assert await marks.lock(7, "one") is None
            await marks.unlock(lock)
            assert await marks.locked() == {7: None}

    asyncio.run(run())


def test_what_was_said_to_repair_and_cannot_be_read_was_not_said(tmp_path: Path) -> None:
    """A bookie with auto-recovery beside it did not start, and running ones ended theirs."""

    async def run() -> None:
        async with opened(tmp_path) as store:
            switches = Switches(store)
            await switches.begin_delay(60)
            await switches.set_checked(5)
            await store.put(switches._delay, DAMAGED, -1)
            await store.put(switches._checked, DAMAGED, -1)
            assert await switches.begin_delay(70) == 70
            assert await switches.delay(80) == 80
            assert await switches.checked_ms() == 0
            await switches.set_delay(90)
            await switches.set_checked(6)
            assert await switches.delay(80) == 90
            assert await switches.checked_ms() == 6

    asyncio.run(run())


def test_a_vote_that_cannot_be_read_has_its_place(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            other, mine = Election(store, "other"), Election(store, "mine")
            await other.wait_elected()
            await store.put(other.vote_path, DAMAGED, -1)
            waiting = asyncio.create_task(mine.wait_elected())
            async with asyncio.timeout(10):
                while await mine.voters() < 2:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            assert await mine.auditor() == "?"
            assert not waiting.done()
            await other.withdraw()
            await asyncio.wait_for(waiting, 10)
            assert await mine.auditor() == "mine"

    asyncio.run(run())


def test_who_waits_for_hours_does_not_end_with_a_pause_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`magnetar bookie decommission` did, after 15 s, though all the work went on."""
    monkeypatch.setattr(operating_module, "LOOK_S", 0.0)

    async def run() -> None:
        async with opened(tmp_path) as store:
            manager, registry = LedgerManager(store), BookieRegistry(store)
            await manager.initialize(create=True)
            operating = Operating(store, manager, registry, 60)
            pauses, children = 3, store.children

            async def sometimes(path: str) -> list[str]:
                nonlocal pauses
                if pauses:
                    pauses -= 1
                    raise MetadataUnavailableError("ZooKeeper did not answer within 15 s")
                return await children(path)

            await operating.switches.leave(BookieId("b1"))
            monkeypatch.setattr(store, "children", sometimes)
            told: list[int] = []
            with capture_logs() as logs:
                await operating.empty(BookieId("b1"), told.append)
                await operating.wait_ended(BookieId("b1"))
            assert told == [0]
            assert [each["event"] for each in logs] == ["waits for the metadata store"] * 3
            registry.close()

    asyncio.run(run())
