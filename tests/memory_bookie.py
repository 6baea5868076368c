"""A storage core in memory, for tests of what stands above it. Not durable, nothing else missing.

``hold`` keeps adds unanswered until ``release``; ``fail_adds`` answers them with an error.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnetar.bookie.core import AddDone, LacSource, RunsDone
from magnetar.model.entry import LacReply
from magnetar.model.errors import (
    FencedError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    UnauthorizedError,
)
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.availability import Group, condense
from magnetar.wire.bookie.messages import AddRun


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait, looking often, until ``condition`` holds. Raises ``TimeoutError``."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (what is waited for announces nothing)
            await asyncio.sleep(0.01)


class Space(NamedTuple):
    total_bytes: int = 1000
    free_bytes: int = 400


class Ledger:
    def __init__(self, master_key: bytes) -> None:
        self.master_key = master_key
        self.entries: dict[int, bytes] = {}
        self.fenced = False
        self.explicit_lac: bytes | None = None


class MemoryBookie:
    def __init__(self, bookie_id: str = "memory:1") -> None:
        self.bookie_id = BookieId(bookie_id)
        self.ledgers: dict[int, Ledger] = {}
        self.add_calls = 0
        self.cached_reads = 0
        self.forced: list[int] = []
        self.fail_adds: MagnetarError | None = None
        self.hold = False
        self.cached = True
        self.read_delay_s = 0.0
        self.reading = 0
        self.most_reading = 0
        self._held: list[tuple[AddDone, MagnetarError | None, list[int]]] = []

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None:
        self.add_calls += 1
        error = self.fail_adds or self._store(ledger_id, master_key, entry_ids, entries, flags)
        if self.hold:
            self._held.append((done, error, list(entry_ids)))
        else:
            asyncio.get_running_loop().call_soon(done, error, list(entry_ids))

    def add_runs(self, runs: Sequence[AddRun], done: RunsDone) -> None:
        for run in runs:

            def each(error: MagnetarError | None, ids: Sequence[int], run: AddRun = run) -> None:
                done(error, (run,), ids)

            asked = (run.ledger_id, run.master_key, run.entry_ids, run.entries, run.flags)
            self.add_entries(*asked, each)

    def _store(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
    ) -> MagnetarError | None:
        ledger = self.ledgers.setdefault(ledger_id, Ledger(master_key))
        if ledger.master_key != master_key:
            return UnauthorizedError(f"ledger {ledger_id}: another master key")
        if ledger.fenced and not flags & 1:
            return FencedError(f"ledger {ledger_id} is fenced")
        ledger.entries.update(zip(entry_ids, entries, strict=True))
        return None

    def release(self, one_by_one: bool = False) -> None:
        """Answer the held adds, the newest first."""
        held, self._held = self._held, []
        for done, error, entry_ids in reversed(held):
            if one_by_one:
                for entry_id in reversed(entry_ids):
                    done(error, [entry_id])
            else:
                done(error, entry_ids)

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        if not self.cached or ledger_id not in self.ledgers:
            return None
        self.cached_reads += 1
        return self.ledgers[ledger_id].entries.get(entry_id)

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes:
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        await asyncio.sleep(self.read_delay_s)
        self.reading -= 1
        if flags & 1:
            self._fence(ledger_id, master_key)
        entries = self._ledger(ledger_id).entries
        if entry_id == -1 and entries:
            return entries[max(entries)]
        if entry_id not in entries:
            raise NoEntryError(f"no entry {ledger_id}:{entry_id}")
        return entries[entry_id]

    def _ledger(self, ledger_id: int) -> Ledger:
        if ledger_id not in self.ledgers:
            raise NoLedgerError(f"no ledger {ledger_id}")
        return self.ledgers[ledger_id]

    def _fence(self, ledger_id: int, master_key: bytes) -> None:
        ledger = self.ledgers.setdefault(ledger_id, Ledger(master_key))
        if ledger.master_key != master_key:
            raise UnauthorizedError(f"ledger {ledger_id}: another master key")
        ledger.fenced = True

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: int = 0,
        master_key: bytes = b"",
    ) -> list[bytes]:
        found = [await self.read_entry(ledger_id, first_entry_id, flags, master_key)]
        entries = self._ledger(ledger_id).entries
        size = len(found[0])
        while len(found) < max_entries:
            entry = entries.get(first_entry_id + len(found))
            if entry is None or size + len(entry) > max_bytes:
                break
            size += len(entry)
            found.append(entry)
        return found

    async def read_lac(self, ledger_id: int, flags: int = 0, master_key: bytes = b"") -> LacReply:
        if flags & 1:
            self._fence(ledger_id, master_key)
        ledger = self._ledger(ledger_id)
        last = ledger.entries[max(ledger.entries)] if ledger.entries else None
        lacs = [struct.unpack_from(">q", entry, 16)[0] for entry in ledger.entries.values()]
        if ledger.explicit_lac is not None:
            lacs.append(struct.unpack_from(">q", ledger.explicit_lac, 8)[0])
        return LacReply(max(lacs, default=-1), last, ledger.explicit_lac or None)

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        ledger = self.ledgers.setdefault(ledger_id, Ledger(master_key))
        if ledger.master_key != master_key:
            raise UnauthorizedError(f"ledger {ledger_id}: another master key")
        ledger.explicit_lac = body

    def add_lac_source(self, source: LacSource) -> None:
        pass

    def remove_lac_source(self, source: LacSource) -> None:
        pass

    async def force(self, ledger_id: int) -> None:
        self.forced.append(ledger_id)

    async def list_entries(self, ledger_id: int) -> Sequence[Group]:
        return condense(sorted(self._ledger(ledger_id).entries))

    def info(self) -> Space:
        return Space()
