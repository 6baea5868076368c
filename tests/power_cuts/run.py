"""Power cuts under load, and what must hold after each.

A life of the bookie: it starts, is asked for everything that it ever promised, then takes adds,
fences, deletions over TCP until the power goes. What it has promised:

1. an acknowledged entry of a ledger that was not deleted is there, byte for byte;
2. a ledger whose fence was answered takes no entry of its old writer;
3. it starts: cookie, mark and index are whole, whatever was under way, and it is not in doubt (in
   limbo) for a power cut: that would say that the disk has lost what was durable;
4. once it is in doubt (one of its journal files is taken away, durable as it was), it denies
   nothing after any later cut, until an operator says otherwise.

The first change of files before which the power goes is drawn: often while it starts.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.bookie.journal.journal_files import JOURNAL_SUFFIX
from magnetar.bookie.storage.marks import MARK_NAME, decode_marks
from magnetar.env.metadata import MetadataStore
from magnetar.env.metadata_stores.socket_metadata_server import MetadataServer
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.env.tasks import fails
from magnetar.ledger.bookies import ReadFlag
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.channel import ConnectionOptions
from magnetar.ledger.connections.connection import BookieConnection, fixed_address
from magnetar.model.errors import (
    BookieIOError,
    BookieUnavailableError,
    FencedError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    TooManyRequestsError,
    UnknownLedgerStateError,
)
from magnetar.model.ids import BookieId, EntryId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
from magnetar.wire.bookie.digest import EntryDigest
from tests.power_cuts.machine import BOOKIE_ID, Machine

WRITERS = 6
LEDGERS_KEPT = 18
"""Living ledgers; then the oldest is deleted."""
LIFE_S = 8.0
"""A life in which the power does not go before is ended by ``kill -9``."""
OPTIONS = ConnectionOptions(add_timeout_s=20, read_timeout_s=20, backoff_max_s=0.05)


class BrokenPromiseError(AssertionError):
    """What a power cut took, and must not."""


@dataclass
class Held:
    """A ledger, and what its writer was told. ``size`` is of every entry's payload."""

    ledger_id: int
    digest: EntryDigest
    size: int
    next_entry_id: int = 0
    acknowledged: set[int] = field(default_factory=set)
    fence_asked: bool = False
    """From then on it may be fenced: the answer may not have come."""
    fenced: bool = False
    checked: bool = True
    """Whether what was acknowledged must be there."""

    def entry(self, entry_id: int) -> bytes:
        payload = random.Random(self.ledger_id << 32 | entry_id).randbytes(self.size)
        return self.digest.build(entry_id, entry_id - 1, 0, payload)


@dataclass
class Counts:
    cuts: int = 0
    cuts_while_starting: int = 0
    killed: int = 0
    undone: int = 0
    acknowledged: int = 0
    read_back: int = 0
    fences_held: int = 0
    deleted: int = 0
    in_doubt: int = 0

    def __str__(self) -> str:
        return (
            f"{self.cuts} power cuts ({self.cuts_while_starting} while it started, {self.killed} "
            f"by kill -9), {self.undone} changes not durable at them; {self.acknowledged} entries "
            f"acknowledged, {self.read_back} times one read back; fences held {self.fences_held} "
            f"times, {self.deleted} ledgers deleted, {self.in_doubt} starts in doubt as before"
        )


@asynccontextmanager
async def shared_metadata() -> AsyncIterator[tuple[MetadataStore, str]]:
    """A metadata store on another machine, whose power stays; with its address."""
    problems: list[BaseException] = []
    store = await SqliteMetadataStore.open(":memory:")
    server = MetadataServer(store, fails(lambda _task, error: problems.append(error)))
    with tempfile.TemporaryDirectory(prefix="power-") as folder:
        path = Path(folder) / "metadata"
        await server.start(path)
        try:
            yield store, f"unix:{path}"
        finally:
            await server.close()
            await store.close()
    assert not problems, problems


class PowerCuts:
    """One machine through many power cuts; all that is drawn comes from ``seed``."""

    def __init__(self, machine: Machine, store: MetadataStore, seed: int) -> None:
        self._machine = machine
        self._manager = LedgerManager(store)
        self._rng = random.Random(seed)
        self._ledgers: dict[int, Held] = {}
        self._in_doubt = False
        self.counts = Counts()

    async def run(self, cuts: int, doubt_after: int | None = None) -> Counts:
        """Raises ``BrokenPromiseError``. ``doubt_after``: so many cuts, a journal file is taken
        away; what was acknowledged until then need not be there any more."""
        await self._manager.initialize()
        while self.counts.cuts < cuts:
            await self._life(last=False)
            if doubt_after is not None and self.counts.cuts == doubt_after:
                self._take_a_journal_file()
        await self._life(last=True)
        return self.counts

    async def _life(self, *, last: bool) -> None:
        machine, rng = self._machine, self._rng
        after = 0 if last else rng.choice((rng.randint(1, 300), *[rng.randint(200, 4000)] * 3))
        started = await asyncio.to_thread(machine.start, after)
        if not started and machine.ended_by_itself:
            raise BrokenPromiseError(f"the bookie does not start: {machine.log[-3000:]}")
        if started:
            await self._use(last=last)
        else:
            self.counts.cuts_while_starting += 1
        if machine.ended_by_itself:
            raise BrokenPromiseError(f"the bookie has ended by itself: {machine.log[-3000:]}")
        if last:
            machine.kill()
            return
        self.counts.killed += machine.process is not None and machine.process.poll() is None
        self.counts.undone += await asyncio.to_thread(machine.power_returns, rng)
        self.counts.cuts += 1

    async def _use(self, *, last: bool) -> None:
        address = fixed_address("127.0.0.1", self._machine.port)
        client = BookieConnection(BookieId(BOOKIE_ID), address, OPTIONS)
        try:
            await self._check(client)
            if not last:
                async with asyncio.timeout(LIFE_S):
                    await self._load(client)
        except (BookieUnavailableError, TimeoutError):
            if last:
                raise
        finally:
            await client.close()

    # -- promises -----------------------------------------------------------------------------

    async def _check(self, client: BookieConnection) -> None:
        await self._check_doubt(client)
        for held in list(self._ledgers.values()):
            if held.checked:
                await self._check_entries(client, held)
            if held.fenced and held.checked:
                await self._check_fence(client, held)

    async def _check_doubt(self, client: BookieConnection) -> None:
        try:
            await client.read_entry(1 << 40, 0)
        except (UnknownLedgerStateError, BookieIOError):  # version 2 has no word for doubt
            if not self._in_doubt:
                raise BrokenPromiseError(
                    f"a power cut has left the bookie in doubt: {self._machine.log[-3000:]}"
                ) from None
            self.counts.in_doubt += 1
        except NoLedgerError:
            if self._in_doubt:
                raise BrokenPromiseError("a bookie in doubt denies a ledger") from None

    async def _check_entries(self, client: BookieConnection, held: Held) -> None:
        wanted = sorted(held.acknowledged)
        at = 0
        while at < len(wanted):
            first = wanted[at]
            try:
                found = await client.read_batch(held.ledger_id, first, 200, 1 << 20)
            except BookieUnavailableError:
                raise
            except MagnetarError as error:
                raise BrokenPromiseError(
                    f"entry {held.ledger_id}:{first} was acknowledged and is not there: {error}; "
                    f"{self._machine.log[-3000:]}"
                ) from error
            for offset, entry in enumerate(found):
                if at < len(wanted) and wanted[at] == first + offset:
                    if entry != held.entry(first + offset):
                        raise BrokenPromiseError(f"entry {held.ledger_id}:{wanted[at]} differs")
                    at += 1
                    self.counts.read_back += 1

    async def _check_fence(self, client: BookieConnection, held: Held) -> None:
        errors = await _add(client, held, [held.next_entry_id])
        if not isinstance(errors[0], FencedError | BookieUnavailableError | TooManyRequestsError):
            raise BrokenPromiseError(
                f"ledger {held.ledger_id} was fenced and takes an entry ({errors[0]})"
            )
        if isinstance(errors[0], BookieUnavailableError):
            raise errors[0]
        self.counts.fences_held += 1

    # -- load ---------------------------------------------------------------------------------

    async def _load(self, client: BookieConnection) -> None:
        """Ends with the connection."""
        while len(self._ledgers) < LEDGERS_KEPT:
            await self._new_ledger()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(WRITERS):
                    group.create_task(_until_gone(self._write(client, number)))
        except* BrokenPromiseError as broken:
            raise BrokenPromiseError(str(broken.exceptions[0])) from broken

    async def _new_ledger(self) -> Held:
        size = self._rng.choice((20, 500, 2000, 9000))
        bookies = (BookieId(BOOKIE_ID),)
        metadata = LedgerMetadata(
            LedgerId(0), 1, 1, 1, DigestType.CRC32C, b"pw", (Fragment(EntryId(0), bookies),)
        )
        made, _ = await self._manager.create_new(metadata)
        digest = EntryDigest(DigestType.CRC32C, made.ledger_id, b"pw")
        held = self._ledgers[made.ledger_id] = Held(made.ledger_id, digest, size)
        return held

    async def _write(self, client: BookieConnection, number: int) -> None:
        rng = random.Random(self._rng.random())
        while True:
            open_ledgers = [each for each in self._ledgers.values() if not each.fenced]
            mine = [each for each in open_ledgers if each.ledger_id % WRITERS == number]
            if not mine:
                await self._new_ledger()
                continue
            held = rng.choice(mine)
            count = rng.randint(1, 20)
            ids = list(range(held.next_entry_id, held.next_entry_id + count))
            held.next_entry_id += count
            errors = await _add(client, held, ids)
            if any(isinstance(error, BookieUnavailableError) for error in errors):
                raise BookieUnavailableError("the power is gone")
            for entry_id, error in zip(ids, errors, strict=True):
                if error is None:
                    held.acknowledged.add(entry_id)
                    self.counts.acknowledged += 1
                elif held.fence_asked and isinstance(error, FencedError):
                    continue
                elif not held.fenced and not self._in_doubt:  # it may refuse what it does not know
                    raise BrokenPromiseError(f"an add is refused: {error}")
            await self._now_and_then(client, held, rng)

    async def _now_and_then(self, client: BookieConnection, held: Held, rng: random.Random) -> None:
        drawn = rng.random()
        if drawn < 0.01 and held.checked:
            held.fence_asked = True
            with suppress(NoEntryError):
                await client.read_lac(held.ledger_id, ReadFlag.FENCE, held.digest.master_key)
            held.fenced = True
        elif drawn < 0.03 and len(self._ledgers) > LEDGERS_KEPT // 2:
            oldest = next(iter(self._ledgers))
            del self._ledgers[oldest]  # before it is deleted: it may go at any moment
            await self._manager.delete(LedgerId(oldest))
            self.counts.deleted += 1
            await self._new_ledger()

    # -- doubt --------------------------------------------------------------------------------

    def _take_a_journal_file(self) -> None:
        """The one at which a replay would begin."""
        (mark_path,) = self._machine.root.rglob(MARK_NAME)
        marks = decode_marks(mark_path.read_bytes())
        assert marks is not None
        name = f"{marks.positions[0].file_id:016x}{JOURNAL_SUFFIX}"
        (path,) = self._machine.root.rglob(name)
        path.unlink()
        self._in_doubt = True
        for held in self._ledgers.values():
            held.checked = False
            held.fenced = True  # no adds any more


async def _until_gone(work: Awaitable[None]) -> None:
    try:
        await work
    except BookieUnavailableError:
        return


async def _add(
    client: BookieConnection, held: Held, ids: Sequence[int]
) -> list[MagnetarError | None]:
    """What became of each."""
    outcomes: dict[int, MagnetarError | None] = {}
    finished = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        outcomes.update(dict.fromkeys(entry_ids, error))
        if len(outcomes) == len(ids) and not finished.done():
            finished.set_result(None)

    entries = [held.entry(entry_id) for entry_id in ids]
    client.add_entries(held.ledger_id, held.digest.master_key, ids, entries, 0, done)
    await finished
    return [outcomes[entry_id] for entry_id in ids]
