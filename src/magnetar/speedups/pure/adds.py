"""Adds of BookKeeper's protocol, version 2 (``wire.bookie.v2`` has the layouts)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

AddRunParts: TypeAlias = tuple[int, bytes, int, list[int], list[bytes], int]
"""Header word, master key, ledger id, entry ids (ascending), entries, and the bytes of their frames
without lengths."""

AddedRun: TypeAlias = tuple[int, int, list[int]]
"""Ledger id, status, entry ids: of answers that came one after the other."""

ADD_HEADER: Final = 2 << 24 | 1 << 16
_OPERATION_MASK: Final = 0xFFFF0000
_ADD_BYTES_MIN: Final = 4 + 20 + 32
_ENTRY_AT: Final = 4 + 4 + 20
_ANSWER_BYTES: Final = 28
_ANSWER_HEAD: Final = (_ANSWER_BYTES - 4) << 32 | ADD_HEADER

_unpack_add: Final = struct.Struct(">II20sqq").unpack_from
_answers_of: Final = struct.Struct(">Qiqq").iter_unpack
_entry_head: Final = struct.Struct(">qqq").unpack_from


def decode_adds(
    view: memoryview, start: int, end: int, frame_bytes_max: int
) -> tuple[list[AddRunParts], int]:
    """The ADDs at the front of ``view[start:end]``, as runs of one ledger, key and header, and
    where they end: before anything else, an ADD that is not whole, too large, or has no such ids.
    A run takes all that belongs to it, whatever lies between; an id that does not ascend begins
    another. Entries are copied out of ``view``."""
    latest: dict[tuple[int, int, bytes], int] = {}
    found: list[tuple[int, bytes, int, list[int], list[bytes]]] = []
    byte_counts: list[int] = []
    run_header = run_ledger = last_id = place = -1
    run_key = b""
    at = start
    while end - at >= 4 + _ADD_BYTES_MIN:
        size, header, key, ledger_id, entry_id = _unpack_add(view, at)
        stop = at + 4 + size
        if stop > end or not _ADD_BYTES_MIN <= size <= frame_bytes_max:
            break
        if (
            ledger_id != run_ledger
            or entry_id <= last_id
            or header != run_header
            or key != run_key
            or place < 0
        ):
            if header & _OPERATION_MASK != ADD_HEADER or ledger_id < 0 or entry_id < 0:
                break
            name = (header, ledger_id, key)
            place = latest.get(name, -1)
            if place < 0 or entry_id <= found[place][3][-1]:
                place = latest[name] = len(found)
                found.append((header, key, ledger_id, [], []))
                byte_counts.append(0)
            run_header, run_key, run_ledger = header, key, ledger_id
            _, _, _, entry_ids, entries = found[place]
        entry_ids.append(entry_id)
        entries.append(view[at + _ENTRY_AT : stop].tobytes())
        byte_counts[place] += size
        last_id = entry_id
        at = stop
    return [(*run, count) for run, count in zip(found, byte_counts, strict=True)], at


def inspect_adds(
    ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], entry_bytes_max: int
) -> tuple[int, int, int] | None:
    """(bytes, highest last add confirmed, highest id) of entries that have a header of this ledger
    and id each, and at most so many bytes; None if one has not, or there is none."""
    if len(entries) == len(entry_ids) == 1:  # a writer of many ledgers sends runs of one
        (entry_id,), (data,) = entry_ids, entries
        size = len(data)
        if 32 <= size <= entry_bytes_max:
            found_ledger, found_entry, lac = _entry_head(data)
            if found_ledger == ledger_id and found_entry == entry_id >= 0:
                return size, lac if lac > -1 else -1, entry_id
        return None
    size = 0
    lac = last = -1
    if len(entry_ids) != len(entries) or not entries:
        return None
    for entry_id, data in zip(entry_ids, entries, strict=True):
        length = len(data)
        if not 32 <= length <= entry_bytes_max:
            return None
        found_ledger, found_entry, found_lac = _entry_head(data)
        if found_ledger != ledger_id or found_entry != entry_id or entry_id < 0:
            return None
        if found_lac > lac:
            lac = found_lac
        if entry_id > last:
            last = entry_id
        size += length
    return size, lac, last


def decode_add_answers(view: memoryview, start: int, end: int) -> tuple[list[AddedRun], int]:
    """The add answers at the front of ``view[start:end]``, whole frames, as runs of one ledger and
    status, and where they end. One pass that finds the frames too: add answers have one size."""
    runs: list[AddedRun] = []
    run_ledger = run_code = None
    ids: list[int] = []
    whole = start + (end - start) // _ANSWER_BYTES * _ANSWER_BYTES
    for head, code, ledger_id, entry_id in _answers_of(view[start:whole]):
        if ledger_id != run_ledger or code != run_code or head != _ANSWER_HEAD:
            if head != _ANSWER_HEAD:
                return runs, start + sum(len(run[2]) for run in runs) * _ANSWER_BYTES
            run_ledger, run_code, ids = ledger_id, code, []
            runs.append((ledger_id, code, ids))
        ids.append(entry_id)
    return runs, whole
