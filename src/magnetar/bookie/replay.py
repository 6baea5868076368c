"""Start: what the journals hold beyond the marks goes back into the write caches.

Everything here is blocking and runs before the bookie serves. Damage never stops it: what is
whole is taken, what is not is reported. Torn tails are normal after a crash; anything else may
have been acknowledged, so the ledger directories go into limbo ("no" is not certain any more).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.bookie.journal_files import JournalDirectory
from magnetar.bookie.journal_format import (
    BLOCK_BYTES,
    DELETE,
    ENTRY,
    LAC,
    LEDGER,
    Damage,
    FileHeader,
    FileScan,
    JournalPosition,
    Record,
    decode_delete,
    decode_file_header,
    decode_lac,
    decode_ledger,
)
from magnetar.bookie.ledger_state import LedgerState
from magnetar.bookie.ledger_table import LedgerTable
from magnetar.bookie.storage import LedgerStorage

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
    """``files``: ids that were read; ``last_id``: the last of them that was begun (0: none)."""

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
    byte_count = last_id = last_end = last_damage = 0
    for file_id in files:
        offset = start.offset if file_id == start.file_id else 0
        header, scan, read = _read_file(directory, file_id, max(offset, BLOCK_BYTES), apply)
        byte_count += read
        if header is not None:
            known = last_id if last_id else header.previous_id
            damages.extend(_broken_links(header, known, last_end, last_damage, damages))
            last_id = file_id
        last_damage = len(damages)
        last_end = scan.end
        damages.extend(scan.damages)
    return JournalReplay(files, last_id, next_id, byte_count, damages)


def _read_file(
    directory: JournalDirectory,
    file_id: int,
    offset: int,
    apply: Callable[[JournalPosition, Record], None],
) -> tuple[FileHeader | None, FileScan, int]:
    """Records are taken even under a header that is not whole: each is sealed by itself."""
    header = decode_file_header(directory.read(file_id, 0, BLOCK_BYTES), file_id)
    scan = FileScan(directory.read(file_id, offset), offset, file_id)
    for record in scan.records():
        apply(JournalPosition(file_id, record.offset), record)
    return header, scan, max(scan.end - offset, 0)


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

    def _apply_entry(self, position: JournalPosition, data: bytes) -> None:
        ledger_id, entry_id, lac = _entry_head(data)
        state = self._state(ledger_id, position)
        if state is None or state.deleted:
            return
        if entry_id > state.last_entry_id:
            state.last_entry_id = entry_id
        if lac > state.lac:
            state.lac = lac
        state.storage.cache.active.put(ledger_id, (entry_id,), (data,), len(data))
        self.entries += 1
        if state.storage.cache.full:
            flush_early(state.storage)

    def _state(self, ledger_id: int, position: JournalPosition) -> LedgerState | None:
        """The ledger's state, made dirty; None if its directory needs nothing of ``position``."""
        storage = self._table.storage_of(ledger_id)
        if position < storage.marks.positions[self._journal]:
            return None
        state = self._table.find(ledger_id) or self._table.create(ledger_id, b"")
        storage.dirty[ledger_id] = state
        return state


def flush_early(storage: LedgerStorage) -> None:
    """Make room during a replay; the marks stay."""
    storage.write(storage.take_work(), None, paced=False)
    storage.cache.flushed()


def sort_damages(
    found: Sequence[tuple[int, JournalDirectory, Damage]],
) -> tuple[tuple[JournalDamage, ...], tuple[JournalDamage, ...]]:
    """(torn tails, real damage), with paths for the operator."""
    told = [
        JournalDamage(journal, str(directory.file_path(damage.file_id)), damage)
        for journal, directory, damage in found
    ]
    torn = tuple(one for one in told if one.damage.torn)
    return torn, tuple(one for one in told if not one.damage.torn)
