"""Bookies, a pool and ledger metadata in memory, with faults to order.

The bookies keep a real bookie's promises: fencing is remembered, a fence creates the ledger, a
negative answer is certain, answers of adds come later and in order. What a test breaks, it breaks
by name (``down``, ``silent``, ``refuse``...).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from magnetar.config import LedgerConfig
from magnetar.ledger.bookies import AddDone, AddFlag, LacReply, LacSource, ReadFlag
from magnetar.ledger.client import LedgerClient
from magnetar.model.errors import (
    BadVersionError,
    BookieUnavailableError,
    FencedError,
    LedgerExistsError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    NoSuchLedgerError,
    TooManyRequestsError,
)
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import LedgerMetadata


class MemoryBookie:
    """One bookie. ``entries[ledger][entry]`` is the data; ``adds`` logs what came in."""

    def __init__(self, name: str) -> None:
        self.bookie_id = BookieId(name)
        self.entries: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()
        self.down = False  # every request fails at once
        self.silent = False  # no request is ever answered
        self.held_back: list[Callable[[], None]] | None = None  # add answers wait here
        self.room_bytes: int | None = None  # adds under way, in bytes, before it is too busy
        self.refuse: MagnetarError | None = None  # what adds are told instead
        self.read_error: MagnetarError | None = None
        self.corrupt: set[int] = set()
        self.adds: list[tuple[Sequence[int], AddFlag]] = []
        self.fencing_reads = 0
        self.reads = 0
        self.long_polls = 0
        self.poll_s: list[float] = []  # how long each was to wait
        self.lacs: dict[int, tuple[int, bytes]] = {}  # explicit ones
        self.lac_source: LacSource | None = None  # which one of this process asks
        self.moved: dict[int, asyncio.Event] = {}
        self.deferred: list[tuple[int, int]] = []  # answered, not durable
        self.forced: list[int] = []
        self.session = 1
        self.free_bytes = 500
        self.read_delay_s = 0.0

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: AddFlag,
        done: AddDone,
    ) -> None:
        assert len(master_key) == 20
        assert len(entry_ids) == len(entries)
        self.adds.append((entry_ids, flags))
        if self.silent:
            return
        error = self._add_error(ledger_id, flags)
        if error is None and self.room_bytes is not None:
            error = self._take_room(sum(map(len, entries)))
        if error is None:
            self.entries.setdefault(ledger_id, {}).update(zip(entry_ids, entries, strict=True))
            if flags & AddFlag.DEFERRED_SYNC:
                self.deferred += [(ledger_id, entry_id) for entry_id in entry_ids]
            self._wake(ledger_id)
        if self.held_back is not None:
            self.held_back.append(lambda: done(error, entry_ids))
        else:
            asyncio.get_running_loop().call_soon(done, error, entry_ids)

    def _add_error(self, ledger_id: int, flags: AddFlag) -> MagnetarError | None:
        if self.down:
            return BookieUnavailableError(f"{self.bookie_id} is down")
        if self.refuse is not None:
            return self.refuse
        if ledger_id in self.fenced and not flags & AddFlag.RECOVERY:
            return FencedError(f"ledger {ledger_id} is fenced")
        return None

    def _take_room(self, byte_count: int) -> MagnetarError | None:
        """As a journal's bounded queue: a batch fits or is refused; room comes back later."""
        assert self.room_bytes is not None
        if byte_count > self.room_bytes:
            return TooManyRequestsError(f"{self.bookie_id} has too much to do")
        self.room_bytes -= byte_count
        asyncio.get_running_loop().call_later(0.01, self._give_room, byte_count)
        return None

    def _give_room(self, byte_count: int) -> None:
        assert self.room_bytes is not None
        self.room_bytes += byte_count

    def answer_held_back(self) -> None:
        """Let the add answers that were held back go, in order."""
        answers, self.held_back = self.held_back or [], None
        for answer in answers:
            answer()

    async def _reached(self, ledger_id: int, flags: ReadFlag) -> None:
        self.reads += 1
        if self.silent:
            await asyncio.Event().wait()
        await asyncio.sleep(self.read_delay_s)
        if self.down:
            raise BookieUnavailableError(f"{self.bookie_id} is down")
        if flags & ReadFlag.FENCE:
            self.fencing_reads += 1
            self.fenced.add(ledger_id)
            self._wake(ledger_id)
            self.entries.setdefault(ledger_id, {})
        if self.read_error is not None:
            raise self.read_error

    def _ledger(self, ledger_id: int) -> dict[int, bytes]:
        if ledger_id not in self.entries:
            raise NoLedgerError(f"{self.bookie_id} has no ledger {ledger_id}")
        return self.entries[ledger_id]

    def _data(self, ledger_id: int, entry_id: int) -> bytes:
        data = self._ledger(ledger_id).get(entry_id)
        if data is None:
            raise NoEntryError(f"{self.bookie_id} has no entry {ledger_id}:{entry_id}")
        if entry_id in self.corrupt:
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    async def read_entry(
        self,
        ledger_id: int,
        entry_id: int,
        flags: ReadFlag = ReadFlag.NONE,
        master_key: bytes = b"",
    ) -> bytes:
        await self._reached(ledger_id, flags)
        if entry_id == -1:
            entry_id = max(self._ledger(ledger_id), default=-1)
        return self._data(ledger_id, entry_id)

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: ReadFlag = ReadFlag.NONE,
        master_key: bytes = b"",
    ) -> list[bytes]:
        await self._reached(ledger_id, flags)
        found = [self._data(ledger_id, first_entry_id)]
        room = max_bytes - len(found[0])
        for entry_id in range(first_entry_id + 1, first_entry_id + max_entries):
            data = self._ledger(ledger_id).get(entry_id)
            if data is None or len(data) > room:
                break
            room -= len(data)
            found.append(self._data(ledger_id, entry_id))
        return found

    async def read_lac(
        self, ledger_id: int, flags: ReadFlag = ReadFlag.NONE, master_key: bytes = b""
    ) -> LacReply:
        await self._reached(ledger_id, flags)
        self._ledger(ledger_id)
        return self._told(ledger_id)

    def _told(self, ledger_id: int) -> LacReply:
        held = self.entries.get(ledger_id)
        asked = self.lac_source(ledger_id) if self.lac_source else None
        explicit, body = asked or self.lacs.get(ledger_id, (-1, None))
        if not held:
            return LacReply(explicit, None, body)
        data = self._data(ledger_id, max(held))
        lac = int.from_bytes(data[16:24], "big", signed=True)
        return LacReply(max(lac, explicit), data, body)

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        await self._reached(ledger_id, ReadFlag.NONE)
        self.lacs[ledger_id] = (lac, body)
        self._wake(ledger_id)

    async def wait_lac(self, ledger_id: int, previous_lac: int, timeout_s: float) -> LacReply:
        await self._reached(ledger_id, ReadFlag.NONE)
        self.long_polls += 1
        self.poll_s.append(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                while self._told(ledger_id).last_add_confirmed <= previous_lac:
                    fenced = ledger_id in self.fenced
                    await self.moved.setdefault(ledger_id, asyncio.Event()).wait()
                    if (ledger_id in self.fenced) != fenced:
                        break
        except TimeoutError:
            pass
        return self._told(ledger_id)

    def _wake(self, ledger_id: int) -> None:
        event = self.moved.pop(ledger_id, None)
        if event is not None:
            event.set()

    async def force_ledger(self, ledger_id: int) -> None:
        await self._reached(ledger_id, ReadFlag.NONE)
        self.forced.append(ledger_id)
        self.deferred.clear()

    def lose_power(self) -> None:
        """What was answered and not made durable is gone; connections break."""
        for ledger_id, entry_id in self.deferred:
            self.entries[ledger_id].pop(entry_id, None)
        self.deferred.clear()
        self.session += 1

    async def disk_space(self) -> tuple[int, int]:
        await self._reached(0, ReadFlag.NONE)
        return 1000, self.free_bytes

    async def close(self) -> None:
        pass


class MemoryPool:
    """Bookies ``b1``, ``b2``, ... ``gone`` are not offered for new ensembles."""

    def __init__(self, count: int) -> None:
        self.bookies = {f"b{i}": MemoryBookie(f"b{i}") for i in range(1, count + 1)}
        self.gone: set[str] = set()
        self.local: set[str] = set()  # in this process

    def client(self, bookie_id: BookieId) -> MemoryBookie:
        return self.bookies[bookie_id]

    def let_ask(self, source: LacSource) -> frozenset[BookieId]:
        for name in self.local:
            self.bookies[name].lac_source = source
        return frozenset(map(BookieId, self.local))

    async def available(self) -> list[BookieId]:
        return sorted(BookieId(name) for name in self.bookies if name not in self.gone)

    async def close(self) -> None:
        pass


Hook = Callable[[LedgerMetadata], Awaitable[None]]


class MemoryManager:
    """Ledger metadata by compare-and-set. ``before_write`` runs ahead of each write, and
    ``after_write`` once it has landed; either may raise what the writer then sees."""

    def __init__(self) -> None:
        self.ledgers: dict[int, tuple[LedgerMetadata, int]] = {}
        self.writes: list[LedgerMetadata] = []
        self.before_write: Hook | None = None
        self.after_write: Hook | None = None
        self.next_id = 0
        self.watches: dict[int, list[Callable[[int], None]]] = {}

    async def new_ledger_id(self) -> int:
        self.next_id += 1
        return self.next_id

    async def create_new(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]:
        metadata = replace(metadata, ledger_id=LedgerId(await self.new_ledger_id()))
        return metadata, await self.create(metadata)

    async def create(self, metadata: LedgerMetadata) -> int:
        if metadata.ledger_id in self.ledgers:
            raise LedgerExistsError(f"ledger {metadata.ledger_id} exists")
        self.ledgers[metadata.ledger_id] = (metadata, 0)
        return 0

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        await asyncio.sleep(0)
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return self.ledgers[ledger_id]

    async def write(self, metadata: LedgerMetadata, version: int) -> int:
        await asyncio.sleep(0)
        if self.before_write is not None:
            await self.before_write(metadata)
        _, current = await self.read(metadata.ledger_id)
        if current != version:
            raise BadVersionError(f"version {current}, not {version}")
        self.writes.append(metadata)
        self.ledgers[metadata.ledger_id] = (metadata, version + 1)
        self._tell(metadata.ledger_id)
        if self.after_write is not None:
            await self.after_write(metadata)
        return version + 1

    async def delete(self, ledger_id: int, version: int = -1) -> None:
        await self.read(ledger_id)
        del self.ledgers[ledger_id]
        self._tell(ledger_id)

    def watch(self, ledger_id: int, changed: Callable[[int], None]) -> Callable[[], None]:
        watches = self.watches.setdefault(ledger_id, [])
        watches.append(changed)
        return lambda: watches.remove(changed)

    def _tell(self, ledger_id: int) -> None:
        for changed in self.watches.get(ledger_id, ()):
            changed(ledger_id)

    async def ledger_ids(self) -> list[int]:
        return sorted(self.ledgers)


class Cluster:
    """Bookies, metadata and clients of one test; ``local`` are in the process of ``client``."""

    def __init__(
        self,
        bookies: int = 3,
        quorums: tuple[int, int, int] = (3, 3, 2),
        timeout_ms: int = 200,
        seed: int = 1,
        local: Sequence[str] = (),
    ) -> None:
        size, write_quorum, ack_quorum = quorums
        self.config = LedgerConfig(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            add_timeout_ms=timeout_ms,
            read_timeout_ms=timeout_ms,
        )
        self.pool = MemoryPool(bookies)
        self.manager = MemoryManager()
        self.seed = seed
        self.pool.local.update(local)
        self.client = self.new_client()
        self.pool.local.clear()

    def new_client(self) -> LedgerClient:
        """Another process's client on the same cluster."""
        return LedgerClient(
            self.manager, self.pool, self.config, lambda: 1.5, random.Random(self.seed)
        )

    def bookie(self, name: str) -> MemoryBookie:
        return self.pool.bookies[name]

    def ensemble(self, ledger_id: int) -> list[MemoryBookie]:
        """The bookies of the ledger's last fragment."""
        metadata, _ = self.manager.ledgers[ledger_id]
        return [self.pool.bookies[name] for name in metadata.fragments[-1].bookies]

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self.manager.ledgers[ledger_id][0]


class Outcomes:
    """Collects what appends are told. ``log`` holds (error, ledger, first entry, count)."""

    def __init__(self) -> None:
        self.log: list[tuple[MagnetarError | None, int, int, int]] = []
        self._changed = asyncio.Event()

    def __call__(self, error: MagnetarError | None, ledger: int, first: int, count: int) -> None:
        self.log.append((error, ledger, first, count))
        self._changed.set()

    @property
    def confirmed(self) -> list[int]:
        """The ids confirmed, in the order they were told."""
        return [
            first + i for error, _, first, count in self.log if error is None for i in range(count)
        ]

    @property
    def errors(self) -> list[MagnetarError]:
        return [error for error, *_ in self.log if error is not None]

    @property
    def total(self) -> int:
        """Payloads told of, one way or the other."""
        return sum(count for *_, count in self.log)

    async def wait(self, total: int) -> None:
        """Wait until ``total`` payloads have been told of."""
        async with asyncio.timeout(10):
            while self.total < total:
                self._changed.clear()
                await self._changed.wait()


def payloads(first: int, count: int) -> list[bytes]:
    return [b"payload %d" % i for i in range(first, first + count)]


async def until(holds: Callable[[], object], timeout_s: float = 5) -> None:
    """Wait until ``holds()`` is true; fails after ``timeout_s``."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def opened(cluster: Cluster):  # type: ignore[no-untyped-def]
    """A writer, abandoned at the end if the test did not close it."""
    writer = await cluster.client.create()
    try:
        yield writer
    finally:
        await writer.abandon()
