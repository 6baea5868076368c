"""The location index over a simulated disk: RocksDB's promises, without RocksDB.

Rules: writes are seen at once; they survive a killed process; a power cut keeps those that a sync
has covered and, of the others, a prefix (a write-ahead log is read up to its first hole).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from magnetar.bookie.storage.ledger_record import record_deleted
from magnetar.bookie.storage.location_index import (
    BATCH_MAX,
    LocationIndex,
    Share,
    StoredLog,
    UsageChange,
)
from magnetar.bookie.storage.location_runs import LocationRun
from magnetar.env.files.disk import DiskSpace
from magnetar.model.errors import BookieIOError
from magnetar_sim.world.devices import Device as MountedDevice

Rows = dict[tuple[int, int], tuple[int, int]]
Runs = dict[tuple[int, int], bytes]
Records = dict[int, bytes]


class Families(NamedTuple):
    """``runs``: (ledger id, last entry) -> value; ``records``: of all ledgers; ``shares``:
    (ledger id, log id) -> bytes; ``logs``: log id -> what is stored of it, and of -1 the highest id
    given up."""

    runs: Runs
    records: Records
    shares: dict[tuple[int, int], int]
    logs: dict[int, StoredLog]

    def copy(self) -> Families:
        return Families(dict(self.runs), dict(self.records), dict(self.shares), dict(self.logs))


Change = Callable[[Families], None]
"""One write batch."""


class Device(Protocol):
    """The disk below; ``sim.disk``."""

    loop: asyncio.AbstractEventLoop
    asked_s: float | None
    changed: Callable[[str, Path], None]

    open_indexes: dict[Path, None]
    found_ledger: Callable[[], None]

    @property
    def cursor_s(self) -> float: ...

    def space(self, path: Path) -> DiskSpace: ...

    def device(self, path: Path) -> MountedDevice: ...

    def hinder(self, device: MountedDevice) -> None: ...

    def check_readable(self, path: Path) -> None: ...

    def check_writable(self, path: Path) -> None: ...

    def read_index(self, path: Path) -> float:
        """A lookup's time passes; returns when it is through."""
        ...

    def sync_index(self, path: Path) -> float:
        """A sync's time passes; returns when it is through."""
        ...


class _Batch(NamedTuple):
    at_s: float
    change: Change


class IndexData:
    """What the disk holds of one index."""

    def __init__(self) -> None:
        self.held = Families({}, {}, {}, {})
        self.durable = self.held.copy()
        self.pending: list[_Batch] = []
        self.syncs: list[tuple[float, int]] = []
        self.moved: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {}
        """Entry -> when its location changed last, and what it was before."""
        self._rows: Rows | None = None

    @property
    def rows(self) -> Rows:
        """Entry -> place, by the rows of runs. Of entries that several rows have, which must not
        be, the place is that of the first row: the one that a lookup finds."""
        if self._rows is None:
            found: Rows = {}
            for (ledger_id, last), value in sorted(self.held.runs.items(), reverse=True):
                run = LocationRun(ledger_id, last, value)
                for entry_id in range(run.first, last + 1):
                    place = run.place(entry_id)
                    assert place is not None
                    found[ledger_id, entry_id] = place
            self._rows = found
        return self._rows

    @property
    def records(self) -> Records:
        return self.held.records

    def write(self, at_s: float, change: Change) -> None:
        self._rows = None
        change(self.held)
        self.pending.append(_Batch(at_s, change))

    def sync(self, now_s: float, through_s: float) -> None:
        self.settle(now_s)
        self.syncs.append((through_s, len(self.pending)))

    def settle(self, now_s: float) -> None:
        covered = 0
        while self.syncs and self.syncs[0][0] <= now_s:
            covered = self.syncs.pop(0)[1]
        if covered:
            for batch in self.pending[:covered]:
                batch.change(self.durable)
            del self.pending[:covered]
            self.syncs = [(at_s, count - covered) for at_s, count in self.syncs]

    def crash(self, now_s: float, keep: Callable[[int], int]) -> None:
        self.settle(now_s)
        self.syncs.clear()
        begun = [batch for batch in self.pending if batch.at_s <= now_s]
        self.pending = begun[: keep(len(begun))]
        self.held = self.durable.copy()
        self._rows = None
        for batch in self.pending:
            batch.change(self.held)

    def settle_all(self) -> None:
        """What is there is durable now."""
        self.durable = self.held.copy()
        self.pending.clear()


class SimIndex(LocationIndex):
    """``bookie.storage.location_index.LocationIndex`` as one process has it open."""

    sequence = 0  # nothing is lost here that was synced

    def __init__(self, disk: Device, path: Path, data: IndexData) -> None:
        self.path = path
        self._disk = disk
        self._data = data
        self._ends = {}

    def _check(self, check: Callable[[Path], None]) -> None:
        try:
            check(self.path)
        except OSError as error:
            raise BookieIOError(f"location index {self.path}: Input/output error") from error

    def location(self, ledger_id: int, entry_id: int) -> tuple[int, int] | None:
        """For a job that stalled, as it was when that looked; it looks again for the truth."""
        disk, key = self._disk, (ledger_id, entry_id)
        self._check(disk.check_readable)
        if disk.asked_s is not None:
            asked_s, disk.asked_s = disk.asked_s, None
            moved = self._data.moved.get(key)
            if moved is not None and moved[0] >= asked_s:
                return moved[1]
        return super().location(ledger_id, entry_id)

    def runs(self, ledger_id: int, first: int) -> Iterator[LocationRun]:
        runs = self._data.held.runs
        names = sorted(each for each in runs if each[0] == ledger_id and each[1] >= first)
        return iter([LocationRun(*name, runs[name]) for name in names])

    def ledger(self, ledger_id: int) -> bytes | None:
        self._check(self._disk.check_readable)
        self._disk.read_index(self.path)
        record = self._data.records.get(ledger_id)
        if record is not None:
            self._disk.found_ledger()
        return record

    def ledgers(self, first: int = 0, behind: int = 1 << 63) -> Iterator[tuple[int, bytes]]:
        records = sorted(self._data.records.items())
        return (row for row in records if first <= row[0] < behind and not record_deleted(row[1]))

    @property
    def empty(self) -> bool:
        return not self._data.records

    def separate_deleted(self) -> int:
        return 0

    def located(self, first: int = 0, behind: int = 1 << 63) -> Iterator[int]:
        found = {ledger_id for ledger_id, _ in self._data.held.runs}
        return iter(sorted(each for each in found if first <= each < behind))

    def shares(self, ledger_id: int) -> list[Share]:
        self._check(self._disk.check_readable)
        rows = self._data.held.shares.items()
        return sorted(Share(log_id, size) for (owner, log_id), size in rows if owner == ledger_id)

    def logs(self) -> tuple[list[StoredLog], int]:
        logs = self._data.held.logs
        found = [logs[log_id] for log_id in sorted(logs) if log_id >= 0]
        return found, logs[-1].byte_count if -1 in logs else 0

    def _write_runs(self, gone: Sequence[tuple[int, int]], new: Sequence[LocationRun]) -> None:
        lost, come = tuple(gone), {(run.ledger_id, run.last): run.value for run in new}
        before = self._data.rows

        def apply(held: Families) -> None:
            for name in lost:
                held.runs.pop(name, None)
            held.runs.update(come)

        self._change(apply)
        now = self._data.rows
        self._remember({key: place for key, place in before.items() if now.get(key) != place})

    def _remember(self, old: Rows) -> None:
        now_s = self._disk.loop.time()
        self._data.moved.update((key, (now_s, place)) for key, place in old.items())
        if old:
            self._disk.changed("move", self.path)

    def put_ledgers(self, rows: Sequence[tuple[int, bytes]]) -> None:
        assert len(rows) <= BATCH_MAX
        new = dict(rows)
        self._change(lambda held: held.records.update(new))

    def change_usage(self, change: UsageChange) -> None:
        forgotten = frozenset(change.no_locations)
        for ledger_id in forgotten:
            self._ends.pop(ledger_id, None)

        def apply(held: Families) -> None:
            for name in [name for name in held.runs if name[0] in forgotten]:
                del held.runs[name]
            for key in change.no_shares:
                held.shares.pop(key, None)
            held.shares.update({(ledger, log): size for ledger, log, size in change.shares})
            held.logs.update({each.log_id: each for each in change.logs})
            for log_id in change.no_logs:
                held.logs.pop(log_id, None)
            if change.highest is not None:
                held.logs[-1] = StoredLog(-1, change.highest, 0)

        old = {key: place for key, place in self._data.rows.items() if key[0] in forgotten}
        self._change(apply)
        self._remember(old)

    def _change(self, change: Change) -> None:
        self._check(self._disk.check_writable)
        if not self._disk.space(self.path).free_bytes:
            self._disk.hinder(self._disk.device(self.path))
            raise BookieIOError(f"location index {self.path}: No space left on device")
        self._data.write(self._disk.cursor_s, change)

    def sync(self) -> None:
        self._check(self._disk.check_writable)
        self._data.sync(self._disk.loop.time(), self._disk.sync_index(self.path))

    def close(self) -> None:
        """Nothing is lost by it, and it may be opened again."""
        self._disk.open_indexes.pop(self.path, None)
