"""A bookie gives up copies that are nobody's, and none that somebody may need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.model.errors import BadVersionError, BookieIOError, MetadataUnavailableError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata, LedgerState
from magnetar.repair import superfluous
from magnetar.repair.marks import ShortageMarks
from magnetar.repair.superfluous import Beside, Superfluous
from tests.unit.repair.doubles import RepairCluster


class Giving:
    """A bookie with some ledgers. ``watched`` is called when it begins to watch one; ``needed``:
    somebody comes for it meanwhile; ``damaged``: one that cannot be deleted."""

    def __init__(self, *ledger_ids: int) -> None:
        self.held = list(ledger_ids)
        self.needed = False
        self.damaged = -1
        self.watched: Callable[[], None] = lambda: None

    async def ledgers(self) -> list[int]:
        return list(self.held)

    @contextmanager
    def giving_up(self, ledger_id: int) -> Iterator[Callable[[], Awaitable[bool]]]:
        self.watched()

        async def delete() -> bool:
            if ledger_id == self.damaged:
                raise BookieIOError("what the index has of a ledger is damaged")
            if not self.needed:
                self.held.remove(ledger_id)
            return not self.needed

        yield delete


class World:
    """A closed ledger on three of four bookies; the fourth has copies, too."""

    def __init__(
        self,
        cluster: RepairCluster,
        metadata: LedgerMetadata,
        marks: ShortageMarks,
        store_at: SqliteMetadataStore,
    ) -> None:
        self.store_at = store_at
        self.cluster = cluster
        self.ledger_id = metadata.ledger_id
        self.marks = marks
        named = metadata.fragments[0].bookies
        self.me = next(BookieId(each) for each in cluster.pool.bookies if each not in named)
        copies = cluster.bookie(named[0]).entries[metadata.ledger_id]
        cluster.bookie(self.me).entries[metadata.ledger_id] = dict(copies)
        self.bookie = Giving(metadata.ledger_id)
        self.superfluous = Superfluous(
            Beside(self.me, self.bookie),
            cluster.manager,
            marks,
            cluster.standings,
            cluster.checker,
            "me",
            1e9,
            lambda ledger_id: None,
        )

    def store(self, metadata: LedgerMetadata) -> None:
        _, version = self.cluster.manager.ledgers[self.ledger_id]
        self.cluster.manager.ledgers[self.ledger_id] = metadata, version + 1

    def named_here(self) -> LedgerMetadata:
        metadata = self.cluster.metadata(self.ledger_id)
        fragment = metadata.fragments[0]
        bookies = (self.me, *fragment.bookies[1:])
        return replace(metadata, fragments=(replace(fragment, bookies=bookies),))


@asynccontextmanager
async def world(path: Path) -> AsyncIterator[World]:
    store = await SqliteMetadataStore.open(path / "metadata")
    try:
        marks = ShortageMarks(store)
        await marks.initialize()
        cluster = RepairCluster(4)
        yield World(cluster, await cluster.written(), marks, store)
    finally:
        await store.close()


async def given_up(found: World) -> bool:
    told = await found.superfluous.sweep()
    assert (told == [found.ledger_id]) is (found.bookie.held == [])
    return bool(told)


def test_copies_that_are_nobodys_are_given_up(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as found:
            before = found.cluster.manager.ledgers[found.ledger_id]
            assert await given_up(found)
            # Whoever read the metadata before cannot name this bookie any more.
            with pytest.raises(BadVersionError):
                await found.cluster.manager.write(found.named_here(), before[1])
            assert found.cluster.metadata(found.ledger_id) == before[0]

    asyncio.run(run())


def test_a_ledger_that_cannot_be_deleted_keeps_no_other(tmp_path: Path) -> None:
    """What the index has of the first is damaged: no other was looked at any more."""

    async def run() -> None:
        async with world(tmp_path) as found:
            second = (await found.cluster.written()).ledger_id
            while found.me in found.cluster.metadata(second).fragments[0].bookies:
                second = (await found.cluster.written()).ledger_id
            found.bookie.held.append(second)
            found.bookie.damaged = found.ledger_id
            assert await found.superfluous.sweep() == [second]
            assert found.bookie.held == [found.ledger_id]

    asyncio.run(run())


@pytest.mark.parametrize("lost", ["create", "delete_within"], ids=["taken", "given up"])
def test_a_lock_that_the_store_did_not_answer_for_is_let_go_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Nobody would repair the ledger until the session is over, which may be never."""
    monkeypatch.setattr(superfluous, "RETRY_S", 0.01)

    async def run() -> None:
        async with world(tmp_path) as found:
            real, failures = getattr(found.store_at, lost), 2

            async def lossy(*arguments: object) -> object:
                """The first is done and not answered; another one is neither."""
                nonlocal failures
                failures -= 1
                if failures == 1 and lost == "create":
                    await real(*arguments)
                if failures >= 0:
                    raise MetadataUnavailableError("no answer")
                return await real(*arguments)

            monkeypatch.setattr(found.store_at, lost, lossy)
            looking = asyncio.create_task(found.superfluous.run(0.01, lambda: True))
            for _ in range(3000):
                if not found.bookie.held and await found.marks.holder(found.ledger_id) is None:
                    break
                await asyncio.sleep(0.01)
            looking.cancel()
            await asyncio.wait([looking])
            assert await found.marks.lock(found.ledger_id, "who repairs it")

    asyncio.run(run())


async def _marked(found: World) -> None:
    await found.marks.mark(found.ledger_id, ["b1"], 0)


async def _locked(found: World) -> None:
    assert await found.marks.lock(found.ledger_id, "another")


async def _lacking(found: World) -> None:
    name = found.cluster.metadata(found.ledger_id).fragments[0].bookies[0]
    del found.cluster.bookie(name).entries[found.ledger_id][7]


async def _mute(found: World) -> None:
    name = found.cluster.metadata(found.ledger_id).fragments[0].bookies[0]
    found.cluster.bookie(name).down = True


async def _not_durable(found: World) -> None:
    """What is named has them all, and one of them in memory only."""

    async def fail(_ledger_id: int) -> None:
        raise BookieIOError("its journal cannot write")

    name = found.cluster.metadata(found.ledger_id).fragments[0].bookies[0]
    found.cluster.bookie(name).force_ledger = fail  # type: ignore[method-assign]


async def _open(found: World) -> None:
    metadata = found.cluster.metadata(found.ledger_id)
    found.store(replace(metadata, state=LedgerState.IN_RECOVERY))


async def _named(found: World) -> None:
    found.store(found.named_here())


async def _named_since(found: World) -> None:
    """Behind the first look at the metadata; the bookie watches already."""
    found.bookie.watched = lambda: found.store(found.named_here())


async def _named_at_last(found: World) -> None:
    """Behind the second."""

    async def name(_: LedgerMetadata) -> None:
        found.cluster.manager.before_write = None
        found.store(found.named_here())

    found.cluster.manager.before_write = name


async def _needed(found: World) -> None:
    found.bookie.needed = True


@pytest.mark.parametrize(
    "happens",
    [
        _marked,
        _locked,
        _lacking,
        _mute,
        _not_durable,
        _open,
        _named,
        _named_since,
        _named_at_last,
        _needed,
    ],
)
def test_copies_that_somebody_may_need_stay(
    tmp_path: Path, happens: Callable[[World], Awaitable[None]]
) -> None:
    async def run() -> None:
        async with world(tmp_path) as found:
            await happens(found)
            assert not await given_up(found)

    asyncio.run(run())
