"""Start: what the journals hold beyond the marks goes back into the write caches.

Everything here is blocking and runs before the bookie serves. Damage never stops it: what is
whole is taken, what is not is reported. Torn tails are normal after a crash; anything else may
have been acknowledged, so the ledger directories go into limbo ("no" is not certain any more).

Why: docs/adr/0013-limbo.md.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from magnetar.bookie.journal.journal_blocks import BLOCK_BYTES, ends_commit, first_words
from magnetar.bookie.journal.journal_files import JournalDirectory
from magnetar.bookie.journal.journal_format import (
    DELETE,
    ENTRY,
    LAC,
    LEDGER,
    REVIVE,
    FileHeader,
    JournalPosition,
    decode_delete,
    decode_file_header,
    decode_lac,
    decode_ledger,
    decode_revive,
    seed_of,
)
from magnetar.bookie.journal.journal_scan import Damage, FileScan, Record
from magnetar.bookie.ledgers.ledger_state import HeldLedger
from magnetar.bookie.ledgers.ledger_table import LedgerTable
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.metrics import Metrics

log = structlog.get_logger(__name__)

_entry_head = struct.Struct(">qqq").unpack_from


@dataclass(frozen=True, slots=True)
class JournalDamage:
    """``damage`` in the journal of that index."""

    journal: int
    path: str
    damage: Damage


@dataclass(frozen=True, slots=True)
class StartReport:
    """What a start found. ``damages`` are not torn tails: acknowledged entries may be gone."""

    entries: int
    byte_count: int
    files: int
    torn_tails: tuple[JournalDamage, ...]
    damages: tuple[JournalDamage, ...]
    limbo: bool
    seconds: float


class JournalReplay(NamedTuple):
    """``spent``: ids before the start, not needed any more; ``files``: ids that were read;
    ``last_id``: the last of them that was begun (0: none)."""

    spent: list[int]
    files: list[int]
    last_id: int
    next_id: int
    byte_count: int
    damages: list[Damage]


def replay_journal(
    directory: JournalDirectory,
    start: JournalPosition,
    apply: Callable[[JournalPosition, Record], None],
) -> JournalReplay:
    """Give every whole record from ``start`` on to ``apply``, in order."""
    ids = directory.scan()
    next_id = max(max(ids, default=0), directory.highest_spare_id, start.file_id) + 1
    files = [file_id for file_id in ids if file_id >= start.file_id]
    damages: list[Damage] = []
    if start.file_id and start.file_id not in files:
        damages.append(Damage(start.file_id, start.offset, start.offset, torn=False))
    damages.extend(_cut_before(directory, start, files))
    byte_count = last_id = last_end = last_damage = 0
    for file_id in files:
        offset = start.offset if file_id == start.file_id else 0
        header, scan, bad, read = _read_file(directory, file_id, max(offset, BLOCK_BYTES), apply)
        byte_count += read
        if header is not None:
            known = last_id if last_id or not start.file_id else header.previous_id
            damages.extend(_broken_links(header, known, last_end, last_damage, damages))
            last_id, last_end, last_damage = file_id, scan.end, len(damages)
        damages.extend(scan.damages)
        damages.extend(Damage(file_id, *place, torn=False) for place in bad)
        if offset > BLOCK_BYTES and not scan.damages and not bad and scan.end == offset:
            damages.extend(_other_before(directory, start))
    spent = [file_id for file_id in ids if file_id < start.file_id]
    return JournalReplay(spent, files, last_id, next_id, byte_count, damages)


def _cut_before(
    directory: JournalDirectory, start: JournalPosition, files: Sequence[int]
) -> list[Damage]:
    """A mark lies behind what was synced: if its file ends before that, it was cut, and with it
    what came after the mark. (That is not read then, so that it would pass for never written.)"""
    if start.file_id not in files or start.offset <= BLOCK_BYTES:
        return []  # a file is begun with its first commit
    end = directory.size(start.file_id)
    return [] if end >= start.offset else [Damage(start.file_id, end, start.offset, torn=False)]


def _other_before(directory: JournalDirectory, start: JournalPosition) -> list[Damage]:
    """Nothing lies behind the mark. If the commit that ended at it is not there either, the file is
    an older copy, or was overwritten: what came behind the mark would pass for never written."""
    file_id, end = start
    if directory.size(file_id) < end:
        return []  # told already
    seed = seed_of(file_id)
    last = directory.read_part(file_id, end - BLOCK_BYTES, end)
    if last and ends_commit(first_words(last)[0], seed, end // BLOCK_BYTES - 1):
        return []
    scan = FileScan(directory.read_part(file_id, BLOCK_BYTES, end), BLOCK_BYTES, file_id)
    for _ in scan.records():
        pass
    return [] if scan.end >= end else [Damage(file_id, scan.end, end, torn=False)]


def _read_file(
    directory: JournalDirectory,
    file_id: int,
    offset: int,
    apply: Callable[[JournalPosition, Record], None],
) -> tuple[FileHeader | None, FileScan, Sequence[tuple[int, int]], int]:
    """Records are taken even under a header that is not whole: each is sealed by itself. What is
    taken is durable: a process that was killed may have left it to the kernel, and whoever is told
    of it now (of a fence, say) must still find it after a power cut. What the device cannot read
    (the third of what is returned) may have been acknowledged."""
    directory.sync(file_id)
    header = decode_file_header(directory.read_header(file_id, BLOCK_BYTES), file_id)
    data, bad = directory.read(file_id, offset)
    scan = FileScan(data, offset, file_id)
    for record in scan.records():
        apply(JournalPosition(file_id, record.offset), record)
    return header, scan, bad, max(scan.end - offset, 0)


def _broken_links(
    header: FileHeader, last_id: int, last_end: int, first: int, damages: list[Damage]
) -> list[Damage]:
    """What a file's header tells of the file before it: is that there, and whole to its end?
    Torn damage in a file that was rolled in good order becomes real damage (in place)."""
    if header.previous_id != last_id:
        return [Damage(header.previous_id, 0, 0, torn=False)]
    if not header.previous_end or not last_end:
        return []
    for index in range(first, len(damages)):
        damages[index] = damages[index]._replace(torn=False)
    if last_end < header.previous_end and len(damages) == first:
        return [Damage(header.previous_id, last_end, header.previous_end, torn=False)]
    return []


class Replayer:
    """Applies one journal's records to the ledger table and the write caches."""

    def __init__(self, journal: int, table: LedgerTable) -> None:
        self._journal = journal
        self._table = table
        self.entries = 0

    @property
    def start(self) -> JournalPosition:
        """The least mark of all ledger directories."""
        return min(storage.marks.positions[self._journal] for storage in self._table.storages)

    def apply(self, position: JournalPosition, record: Record) -> None:
        payload = record.payload
        if record.kind == ENTRY:
            self._apply_entry(position, payload)
        elif record.kind == LEDGER:
            ledger_id, master_key, fenced = decode_ledger(payload)
            if (state := self._state(ledger_id, position)) is not None:
                state.master_key = state.master_key or master_key
                state.fenced = state.fence_durable = state.fenced or fenced
        elif record.kind == LAC:
            ledger_id, lac, body = decode_lac(payload)
            state = self._state(ledger_id, position)
            if state is not None and lac > state.explicit_lac:
                state.explicit_lac, state.lac_body = lac, body
        elif record.kind == DELETE:
            ledger_id = decode_delete(payload)
            if (state := self._state(ledger_id, position)) is not None:
                state.deleted = True
                state.storage.cache.drop_ledger(ledger_id)
                state.storage.deleted[ledger_id] = None
                state.storage.deletion_journaled(ledger_id)
                state.storage.revived.pop(ledger_id, None)
        elif record.kind == REVIVE:
            state = self._state(decode_revive(payload), position)
            if state is not None and state.deleted:
                self._revive(state)

    def _revive(self, state: HeldLedger) -> None:
        """What was deleted before goes from the index before anything new is put there."""
        storage = state.storage
        if storage.deletes(state.ledger_id):
            flush_early(storage)
        state.revive()
        storage.dirty[state.ledger_id] = state
        storage.revived[state.ledger_id] = state

    def _apply_entry(self, position: JournalPosition, data: bytes) -> None:
        ledger_id, entry_id, lac = _entry_head(data)
        state = self._state(ledger_id, position)
        if state is None or state.deleted:
            return
        if entry_id > state.last_entry_id:
            state.last_entry_id = entry_id
        if lac > state.lac:
            state.lac = lac
        cache = state.storage.cache
        cache.active.put_one(ledger_id, entry_id, data)
        self.entries += 1
        if cache.active.byte_count >= 2 * cache.half_bytes_max:
            flush_early(state.storage)

    def _state(self, ledger_id: int, position: JournalPosition) -> HeldLedger | None:
        """The ledger's state, made dirty; None if its directory needs nothing of ``position``."""
        storage = self._table.storage_of(ledger_id)
        if position < storage.marks.positions[self._journal]:
            return None
        state = self._table.find_blocking(ledger_id) or self._table.create(ledger_id, b"")
        storage.dirty[ledger_id] = state
        return state


def flush_early(storage: LedgerStorage) -> None:
    """Make room during a replay, when both halves' worth is full; the marks stay."""
    work = storage.take_work()
    storage.write(work, None, paced=False)
    storage.cache.flushed()
    storage.deletions_flushed(work.deleted)


def replay_all(
    table: LedgerTable,
    directories: Sequence[JournalDirectory],
    metrics: Metrics,
    older: Collection[Path] = (),
) -> StartReport:
    """Open the ledger directories, replay and reopen the journals (``directories`` are theirs).
    ``older``: ledger directories that were put back from an older copy.
    Raises ``ConfigError`` for a changed layout, ``BookieIOError`` for an unusable directory."""
    started = time.perf_counter()
    for storage in table.storages:
        storage.open(len(table.storages), len(table.journals))
    entries = byte_count = files = 0
    found: list[JournalDamage] = []
    for journal, directory in zip(table.journals, directories, strict=True):
        replayer = Replayer(journal.index, table)
        result = replay_journal(directory, replayer.start, replayer.apply)
        journal.open([*result.spent, *result.files], result.last_id, result.next_id)
        first = min(result.files, default=journal.committed.file_id)
        for storage in table.storages:
            storage.begin_marks(journal.index, JournalPosition(first, BLOCK_BYTES))
        entries += replayer.entries
        byte_count += result.byte_count
        files += len(result.files)
        for damage in result.damages:
            path = str(directory.file_path(damage.file_id))
            found.append(JournalDamage(journal.index, path, damage))
    torn = tuple(one for one in found if one.damage.torn)
    damages = tuple(one for one in found if not one.damage.torn)
    for storage in table.storages:
        if damages or storage.path in older:
            storage.enter_limbo()
    limbo = any(storage.marks.limbo for storage in table.storages)
    seconds = time.perf_counter() - started
    report = StartReport(entries, byte_count, files, torn, damages, limbo, seconds)
    _tell(report, metrics)
    return report


def _tell(report: StartReport, metrics: Metrics) -> None:
    for one in report.torn_tails:
        log.info(
            "journal ends in an unfinished write, as after a crash; nothing in it was acknowledged",
            file=one.path,
            offset=one.damage.start,
        )
    for one in report.damages:
        log.error(
            "journal damaged: acknowledged entries may be lost; negative answers are withheld "
            "until the bookie is repaired",
            file=one.path,
            start=one.damage.start,
            end=one.damage.end,
        )
    metrics.bookie_journal_damages_total.inc(len(report.damages))
    metrics.bookie_replayed_entries_total.inc(report.entries)
    log.info(
        "bookie started",
        replayed_entries=report.entries,
        replayed_bytes=report.byte_count,
        seconds=round(report.seconds, 3),
        limbo=report.limbo,
    )
