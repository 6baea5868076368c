"""The write cache: entries that are in the journal (or on their way) and not in an entry log yet.

Two halves. Adds fill one; a flush takes it and the other goes on. A half under flush stays
readable until its entries are in the index. Sorting happens once, at the flush.

Bound: each half takes at most ``half_bytes_max`` (one batch more at most), entry overhead
included.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

ENTRY_OVERHEAD_BYTES = 120
"""What an entry costs beside its bytes: dictionary slot, key, object header."""


class EntryColumns(NamedTuple):
    """Entries by ledger and id: ``entries[i]`` is entry ``entry_ids[i]``; ``spans`` are (ledger id,
    how many of them follow). A flush makes no object per entry: that would cost more than what is
    done with it."""

    spans: list[tuple[int, int]]
    entry_ids: list[int]
    entries: list[bytes]

    def chunks(self, count_max: int, bytes_max: int) -> Iterator[EntryColumns]:
        """Pieces of at most ``count_max`` entries, each ended by the entry that takes it to
        ``bytes_max`` or past it."""
        ends = list(accumulate(map(len, self.entries)))
        start = before = 0
        spans = iter(self.spans)
        ledger_id = left = 0
        while start < len(ends):
            stop = bisect_left(ends, before + bytes_max, start, min(start + count_max, len(ends)))
            stop = min(stop + 1, start + count_max, len(ends))
            chunk = EntryColumns([], self.entry_ids[start:stop], self.entries[start:stop])
            before = ends[stop - 1]
            while start < stop:
                if not left:
                    ledger_id, left = next(spans)
                count = min(left, stop - start)
                chunk.spans.append((ledger_id, count))
                left -= count
                start += count
            yield chunk


class WriteHalf:
    """Entries by ledger and id."""

    __slots__ = ("byte_count", "entry_count", "ledgers")

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.byte_count = 0
        self.entry_count = 0

    def put(
        self, ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], size: int
    ) -> None:
        """``size``: the bytes of ``entries`` together. Adding an entry again replaces it."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = {}
        count = len(entries)
        if count == 1:  # a writer of many ledgers adds one at a time: 0.03 instead of 0.3 us
            ledger[entry_ids[0]] = entries[0]
        else:
            ledger.update(zip(entry_ids, entries, strict=True))
        self.byte_count += size + count * ENTRY_OVERHEAD_BYTES
        self.entry_count += count

    def put_one(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        """As ``put``; replay's way."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = {}
        ledger[entry_id] = entry
        self.byte_count += len(entry) + ENTRY_OVERHEAD_BYTES
        self.entry_count += 1

    def sorted_columns(self, entries_max: int) -> Iterator[EntryColumns]:
        """All entries, by ledger and id, in pieces that end with the ledger that takes them to
        ``entries_max`` or past it."""
        columns = EntryColumns([], [], [])
        for ledger_id in sorted(self.ledgers):
            if len(columns.entries) >= entries_max:
                yield columns
                columns = EntryColumns([], [], [])
            entries = self.ledgers[ledger_id]
            came = list(entries)
            ids = sorted(came)
            columns.spans.append((ledger_id, len(ids)))
            columns.entry_ids.extend(ids)
            if ids == came:  # mostly; a lookup for each costs several times as much
                columns.entries.extend(entries.values())
            else:
                columns.entries.extend(map(entries.__getitem__, ids))
        yield columns


class WriteCache:
    """The two halves. Used on the loop; a flush thread only reads the half it was given."""

    def __init__(self, half_bytes_max: int) -> None:
        self.half_bytes_max = half_bytes_max
        self.active = WriteHalf()
        self.flushing: WriteHalf | None = None

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        ledger = self.active.ledgers.get(ledger_id)
        if ledger is not None:
            entry = ledger.get(entry_id)
            if entry is not None:
                return entry
        if self.flushing is not None:
            ledger = self.flushing.ledgers.get(ledger_id)
            if ledger is not None:
                return ledger.get(entry_id)
        return None

    def run(self, ledger_id: int, entry_id: int, count: int) -> list[bytes]:
        """The entry and those that follow it without a gap, at most ``count``."""
        active = self.active.ledgers.get(ledger_id, {})
        flushing = self.flushing.ledgers.get(ledger_id, {}) if self.flushing is not None else {}
        found: list[bytes] = []
        for each in range(entry_id, entry_id + count):
            entry = active.get(each) or flushing.get(each)
            if entry is None:
                break
            found.append(entry)
        return found

    def first_of(self, ledger_id: int, entry_ids: range) -> int | None:
        """The first of ``entry_ids`` that is here."""
        halves = (self.active, self.flushing)
        held = [half.ledgers.get(ledger_id, {}).keys() for half in halves if half is not None]
        if all(ids.isdisjoint(entry_ids) for ids in held):  # mostly; nothing is run per entry
            return None
        return next(each for each in entry_ids if any(each in ids for ids in held))

    def has_ledger(self, ledger_id: int) -> bool:
        """Whether any entry of the ledger is here."""
        flushing = self.flushing
        return ledger_id in self.active.ledgers or (
            flushing is not None and ledger_id in flushing.ledgers
        )

    @property
    def full(self) -> bool:
        return self.active.byte_count >= self.half_bytes_max

    @property
    def byte_count(self) -> int:
        flushing = self.flushing
        return self.active.byte_count + (flushing.byte_count if flushing is not None else 0)

    def swap(self) -> WriteHalf:
        """Begin a flush: the active half becomes the flushing one."""
        assert self.flushing is None
        self.flushing, self.active = self.active, WriteHalf()
        return self.flushing

    def flushed(self) -> None:
        """The flushing half is in the index; let go of it."""
        self.flushing = None

    def entry_ids(self, ledger_id: int) -> set[int]:
        ids = set(self.active.ledgers.get(ledger_id, ()))
        if self.flushing is not None:
            ids.update(self.flushing.ledgers.get(ledger_id, ()))
        return ids

    def drop_ledger(self, ledger_id: int) -> None:
        """Forget the ledger's entries in the active half (a half under flush is left alone; its
        index entries are deleted after the flush)."""
        entries = self.active.ledgers.pop(ledger_id, None)
        if entries:
            size = sum(map(len, entries.values())) + len(entries) * ENTRY_OVERHEAD_BYTES
            self.active.byte_count = max(0, self.active.byte_count - size)
            self.active.entry_count = max(0, self.active.entry_count - len(entries))
