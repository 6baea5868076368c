"""A world in memory for the managed log: metadata nodes and ledgers that outlive processes.

A ``Process`` is one broker's sight of the world. It can be told to crash at its n-th operation
that changes the world, before or after that operation took effect; from then on nothing that it
does has any effect and every call fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.config import LedgerConfig
from magnetar.env.metadata import CreateMode, SessionState, Versioned
from magnetar.env.metadata_stores.watches import PathWatches
from magnetar.log.managed.cursor_store import CursorLimits
from magnetar.log.managed.ledgers import LedgerAppendDone
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.seam import AppendDone, Buffer, Run
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    BadVersionError,
    EntryDamagedError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    MagnetarError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    NotEmptyError,
)
from magnetar.model.ids import Position
from magnetar.model.ledger import Quorums

OFFSET = 36
NAME = "public/default/persistent/t"


@dataclass
class StoredLedger:
    entries: list[bytes] = field(default_factory=list)
    closed: bool = False
    fenced: bool = False
    deleted: bool = False
    last: int = -1  # when closed
    given_up: bool = False
    damaged: set[int] = field(default_factory=set)

    @property
    def last_entry_id(self) -> int:
        return self.last

    @property
    def length(self) -> int:
        return sum(len(e) - OFFSET for e in self.entries[: self.last + 1])


class World:
    def __init__(self) -> None:
        self.nodes: dict[str, Versioned] = {}
        self.ledgers: dict[int, StoredLedger] = {}
        self.list_changes: dict[str, int] = {}
        """Path -> how often the list of its children has changed."""
        self.now_ms = 1_000_000
        self.watches = PathWatches()
        self._waiting: list[asyncio.Future[None]] = []

    async def changed(self) -> None:
        """Wait for the next change."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def tell(self, path: str | None = None) -> None:
        """Something has changed; with ``path`` that node, or the session to it is new."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        if path is not None:
            paths = (path, path.rpartition("/")[0])
            self.watches.notify(asyncio.get_running_loop(), paths)

    def list_changed(self, path: str) -> None:
        """The node ``path`` was made, or deleted."""
        parent = path.rpartition("/")[0]
        self.list_changes[parent] = self.list_changes.get(parent, 0) + 1

    def alive(self) -> set[int]:
        return {i for i, ledger in self.ledgers.items() if not ledger.deleted}


class CrashedError(MetadataError):
    """The process has crashed (in the test)."""


class Process:
    """One process's access; ``crash_at`` counts the operations that change the world."""

    def __init__(self, world: World, crash_at: int | None = None, effect: bool = False) -> None:
        self.world = world
        self.crash_at = crash_at
        self.effect = effect
        self.operations = 0
        self.crashed = False
        self.metadata = MemoryMetadata(self)
        self.ledgers = MemoryLedgers(self)

    def change(self, apply: Callable[[], None], path: str | None = None) -> None:
        """Do ``apply`` (to the node ``path``) unless the process has crashed or crashes now."""
        if self.crashed:
            raise CrashedError("crashed")
        self.operations += 1
        crashes = self.crash_at == self.operations
        if not crashes or self.effect:
            apply()
            self.world.tell(path)
        if crashes:
            self.crashed = True
            raise CrashedError("crashed")

    def require_alive(self) -> None:
        if self.crashed:
            raise CrashedError("crashed")

    def store(
        self, config: LedgerConfig | None = None, limits: CursorLimits | None = None
    ) -> ManagedLogStore:
        return ManagedLogStore(
            self.metadata,
            self.ledgers,
            config or LedgerConfig(cursor_flush_interval_ms=1),
            now_ms=lambda: self.world.now_ms,
            cursor_limits=limits,
        )


class MemoryMetadata:
    def __init__(self, process: Process) -> None:
        self._process = process
        self.lose_answers = 0  # of the next puts
        self.away: MetadataError | None = None  # what reads fail with

    @property
    def _nodes(self) -> dict[str, Versioned]:
        return self._process.world.nodes

    async def get(self, path: str) -> Versioned:
        await asyncio.sleep(0)
        self._process.require_alive()
        if self.away is not None:
            raise self.away
        if path not in self._nodes:
            raise NoNodeError(path)
        return self._nodes[path]

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        await asyncio.sleep(0)
        if path in self._nodes:
            raise NodeExistsError(path)

        def apply() -> None:
            parts = path.split("/")
            for i in range(2, len(parts)):
                self._nodes.setdefault("/".join(parts[:i]), Versioned(b"", 0))
            self._nodes[path] = Versioned(value, 0)
            self._process.world.list_changed(path)

        self._process.change(apply, path)
        return path

    async def put_beside(self, other: str, path: str, value: bytes, version: int) -> int:
        if other not in self._nodes:
            raise NoNodeError(other)
        return await self.put(path, value, version)

    async def put(self, path: str, value: bytes, version: int) -> int:
        await asyncio.sleep(0)
        self._process.require_alive()
        if path not in self._nodes:
            raise NoNodeError(path)
        stored = self._nodes[path].version
        if version not in (-1, stored):
            raise BadVersionError(path)

        def apply() -> None:
            self._nodes[path] = Versioned(value, stored + 1)

        self._process.change(apply, path)
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise MetadataError("no answer")
        return stored + 1

    async def delete(self, path: str, version: int = -1) -> None:
        await asyncio.sleep(0)
        self._process.require_alive()
        if path not in self._nodes:
            raise NoNodeError(path)
        if version not in (-1, self._nodes[path].version):
            raise BadVersionError(path)
        if any(other.startswith(path + "/") for other in self._nodes):
            raise NotEmptyError(path)

        def apply() -> None:
            del self._nodes[path]
            self._process.world.list_changed(path)

        self._process.change(apply, path)

    async def sync(self) -> None:
        await asyncio.sleep(0)
        self._process.require_alive()

    async def children_stamp(self, path: str) -> int:
        await self.children(path)
        return self._process.world.list_changes.get(path, 0)

    async def children(self, path: str) -> list[str]:
        await asyncio.sleep(0)
        self._process.require_alive()
        if path not in self._nodes:
            raise NoNodeError(path)
        depth = path.count("/") + 1
        below = (p for p in self._nodes if p.startswith(path + "/") and p.count("/") == depth)
        return sorted(p.rsplit("/", 1)[1] for p in below)

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        return self._process.world.watches.add(path, changed)

    watch_value = watch

    def watch_session(self, changed: Callable[[SessionState], None]) -> Callable[[], None]:
        raise NotImplementedError

    async def close(self) -> None:
        return


class MemoryLedgers:
    """``log.managed.ledgers.Ledgers``. ``create_errors`` and ``break_after`` inject faults."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.create_errors: list[MagnetarError] = []
        self.ids: Iterator[int] = iter(())  # the next ids to give
        self.break_after: int | None = None  # appended entries until a writer fails
        self.close_errors: list[MagnetarError] = []
        self.quorums: list[Quorums | None] = []  # asked for, by ledger
        self.asked_space: list[tuple[Quorums | None, int | None]] = []
        self.silent = False  # writers store, but do not confirm
        self.hold = False  # writers do not confirm until ``MemoryWriter.confirm``
        self.writers: list[MemoryWriter] = []
        self.tails = 0  # readers that wait
        self.told: list[tuple[int, int]] = []  # ledger and entry: what tails were told
        self.tail_errors: list[MagnetarError] = []
        self.read_errors: dict[int, MagnetarError] = {}  # by entry
        self.reads: list[tuple[int, int, int]] = []  # ledger, first, entries read

    def _ledger(self, ledger_id: int) -> StoredLedger:
        self.process.require_alive()
        ledger = self.process.world.ledgers.get(ledger_id)
        if ledger is None or ledger.deleted:
            raise NoSuchLedgerError(f"ledger {ledger_id}")
        return ledger

    async def create(
        self, custom: Mapping[str, bytes] | None = None, *, quorums: Quorums | None = None
    ) -> MemoryWriter:
        await asyncio.sleep(0)
        self.quorums.append(quorums)
        if self.create_errors:
            raise self.create_errors.pop(0)
        ledgers = self.process.world.ledgers
        ledger_id = next(self.ids, len(ledgers) + 1)
        if ledger_id in ledgers:
            return MemoryWriter(self, ledger_id, StoredLedger())
        self.process.change(lambda: ledgers.update({ledger_id: StoredLedger()}))
        writer = MemoryWriter(self, ledger_id, ledgers[ledger_id])
        self.writers.append(writer)
        return writer

    async def create_for_another(
        self, custom: Mapping[str, bytes], *, quorums: Quorums | None = None
    ) -> int:
        return (await self.create(custom, quorums=quorums)).ledger_id

    def writer_of(self, ledger_id: int) -> MemoryWriter:
        """As another process writes it."""
        return MemoryWriter(self, ledger_id, self._ledger(ledger_id))

    async def open(self, ledger_id: int) -> MemoryReader:
        await asyncio.sleep(0)
        ledger = self._ledger(ledger_id)

        def apply() -> None:
            ledger.fenced = True
            if not ledger.closed:
                ledger.closed = True
                ledger.last = len(ledger.entries) - 1

        self.process.change(apply)
        return MemoryReader(self, ledger_id, ledger, ledger.last)

    async def given_up(self, ledger_id: int) -> bool:
        return self._ledger(ledger_id).given_up

    async def open_no_recovery(self, ledger_id: int) -> MemoryReader:
        await asyncio.sleep(0)
        ledger = self._ledger(ledger_id)
        last = ledger.last if ledger.closed else len(ledger.entries) - 1
        return MemoryReader(self, ledger_id, ledger, last)

    async def check_space(
        self, quorums: Quorums | None = None, ledger_id: int | None = None
    ) -> None:
        self.asked_space.append((quorums, ledger_id))
        if self.create_errors:
            raise self.create_errors[0]

    async def delete(self, ledger_id: int) -> None:
        await asyncio.sleep(0)
        ledger = self._ledger(ledger_id)

        def apply() -> None:
            ledger.deleted = True

        self.process.change(apply)


@dataclass
class Layout:
    payload_offset: int = OFFSET


class MemoryWriter:
    def __init__(self, owner: MemoryLedgers, ledger_id: int, ledger: StoredLedger) -> None:
        self.ledger_id = ledger_id
        self.last_add_pushed = -1
        self.last_add_confirmed = -1
        self.length = 0
        self.digest = Layout()
        self._owner = owner
        self._ledger = ledger
        self._pending: list[tuple[int, list[bytes], LedgerAppendDone]] = []
        self._ended: MagnetarError | None = None

    def append(
        self, payloads: Sequence[Buffer], done: LedgerAppendDone, prefixes: Sequence[bytes] = ()
    ) -> list[bytes]:
        assert payloads
        loop = asyncio.get_running_loop()
        if self._ended is not None:
            loop.call_soon(done, self._ended, -1, -1, len(payloads))
            return []
        before = prefixes or [b""] * len(payloads)
        entries = [
            bytes(OFFSET) + prefix + bytes(payload)
            for prefix, payload in zip(before, payloads, strict=True)
        ]
        self._pending.append((self.last_add_pushed + 1, entries, done))
        self.last_add_pushed += len(entries)
        self.length += sum(map(len, entries)) - OFFSET * len(entries)
        if not self._owner.hold:
            loop.call_soon(self.confirm)
        return entries

    def confirm(self) -> None:
        """Confirm everything pending, or fail."""
        while self._pending and self._ended is None:
            first, entries, done = self._pending[0]
            try:
                self._store(entries)
            except MagnetarError as error:
                self.fail(error)
                return
            if self._owner.silent:
                return
            self._pending.pop(0)
            self.last_add_confirmed = first + len(entries) - 1
            done(None, self.ledger_id, first, len(entries))

    def _store(self, entries: list[bytes]) -> None:
        if self._ledger.fenced:
            raise LedgerFencedError(f"ledger {self.ledger_id} is fenced")
        owner = self._owner
        if owner.break_after is not None:
            owner.break_after -= len(entries)
            if owner.break_after < 0:
                owner.break_after = None
                raise LedgerError(f"ledger {self.ledger_id} has too few bookies")
        owner.process.change(lambda: self._ledger.entries.extend(entries))

    def fail(self, error: MagnetarError) -> None:
        self._ended = error
        pending, self._pending = self._pending, []
        for _, entries, done in pending:
            done(error, -1, -1, len(entries))

    def reader(self) -> MemoryReader:
        return MemoryReader(self._owner, self.ledger_id, self._ledger, self.last_add_confirmed)

    async def close(self) -> StoredLedger:
        if self._owner.close_errors:
            raise self._owner.close_errors.pop(0)
        self.confirm()
        self._owner.process.require_alive()
        if self._ledger.closed:
            raise LedgerClosedError(f"ledger {self.ledger_id} was closed by another")
        self._ended = self._ended or LedgerClosedError("closed")

        def apply() -> None:
            self._ledger.closed = True
            self._ledger.last = self.last_add_confirmed

        self._owner.process.change(apply)
        return self._ledger


class MemoryReader:
    def __init__(
        self, owner: MemoryLedgers, ledger_id: int, ledger: StoredLedger, last: int
    ) -> None:
        self.last_add_confirmed = last
        self._waited = False
        self._owner = owner
        self._ledger_id = ledger_id
        self._ledger = ledger

    @property
    def length(self) -> int:
        return self._ledger.length

    @property
    def closed(self) -> bool:
        return self._ledger.closed and self.last_add_confirmed == self._ledger.last

    async def wait_past(self, entry_id: int) -> int:
        assert not self._waited, "waiting is for one caller at a time"
        self._waited = True
        self._owner.tails += 1
        try:
            while True:
                ledger = self._owner._ledger(self._ledger_id)
                if self._owner.tail_errors:
                    raise self._owner.tail_errors.pop(0)
                end = ledger.last if ledger.closed else len(ledger.entries) - 1
                self.last_add_confirmed = max(self.last_add_confirmed, end)
                if self.last_add_confirmed > entry_id or self.closed:
                    return self.last_add_confirmed
                await self._owner.process.world.changed()
        finally:
            self._waited = False
            self._owner.tails -= 1

    def told(self, entry_id: int) -> None:
        self.last_add_confirmed = max(self.last_add_confirmed, entry_id)
        self._owner.told.append((self._ledger_id, entry_id))

    def close(self) -> None:
        pass

    async def read(self, first_entry_id: int, max_entries: int, max_bytes: int) -> list[Entry]:
        await asyncio.sleep(0)
        self._owner._ledger(self._ledger_id)
        found: list[Entry] = []
        last = min(self.last_add_confirmed, first_entry_id + max_entries - 1)
        for entry_id in range(first_entry_id, last + 1):
            error = self._owner.read_errors.get(entry_id)
            if error is None and entry_id in self._ledger.damaged:
                error = EntryDamagedError(f"no replica has a sound copy of entry {entry_id}")
            if error is not None and found:
                break
            if error is not None:
                raise error
            data = self._ledger.entries[entry_id]
            max_bytes -= len(data)
            if max_bytes < 0 and found:
                break
            found.append(Entry(self._ledger_id, entry_id, data, OFFSET))
        self._owner.reads.append((self._ledger_id, first_entry_id, len(found)))
        return found


class Outcomes:
    """An ``AppendDone`` that keeps what it is told; ``count`` is of appends."""

    def __init__(self) -> None:
        self.positions: list[Position] = []
        self.errors: list[MagnetarError] = []
        self.count = 0
        self._wanted = 0
        self._reached = asyncio.Event()
        self.order: list[tuple[str, int]] = []

    def for_append(self, label: str) -> AppendDone:
        def done(error: MagnetarError | None, runs: Sequence[Run]) -> None:
            self.order.append((label, sum(run.entries for run in runs)))
            self(error, runs)

        return done

    def __call__(self, error: MagnetarError | None, runs: Sequence[Run]) -> None:
        self.count += 1
        if self.count >= self._wanted:
            self._reached.set()
        if error is not None:
            self.errors.append(error)
        for run in runs:
            first = run.first_entry_id
            self.positions += [Position(run.ledger_id, first + i) for i in range(run.entries)]

    async def wait(self, appends: int) -> None:
        self._wanted = appends
        self._reached.clear()
        if self.count < appends:
            async with asyncio.timeout(20):
                await self._reached.wait()
        assert self.count == appends
