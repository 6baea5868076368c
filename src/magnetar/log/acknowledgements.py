"""What is acknowledged of a log: the pure state of one cursor.

State: a *mark-delete* position up to which (inclusive) everything is acknowledged; per ledger a
Roaring bitmap of the entries acknowledged after it; per partly acknowledged batch entry its *ack
set* (bit 1 = the message is not acknowledged), held as one ``int``.

Rules and invariants:

* Bits only grow between resets, and every image says after how many resets it was taken (its
  *reset epoch*). So images may be merged twice and in any order: one of an older epoch is dropped,
  of one epoch what any of them acknowledges is acknowledged, and one of a later epoch begins again.
* No bitmap holds an entry at or below mark-delete, nor one that the chain does not hold; no ack
  set belongs to a wholly acknowledged entry; an ack set is never 0.
* The entry after mark-delete (across ledgers) is not acknowledged: mark-delete is always as far
  as it can be. At the end of a ledger it stays there until an entry of a later one is
  acknowledged.
* Ack sets are what clients can make large: all of them take ``PARTIAL_BYTES_MAX`` at most, and what
  would pass that is refused before it is kept.
* Everything takes batches: the cost per acknowledgement is that of setting a bit.
* A *note* is what its reader knows of the log up to mark-delete: bytes that are stored with it, in
  one. Mark-delete may move on without it, never back; a reset forgets it.

This module decides; it does no I/O and reads no clock.

Why: docs/adr/0052-acknowledgements-in-bitmaps.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyroaring import BitMap

from magnetar.model.entry import Entry
from magnetar.model.errors import NotAllowedError
from magnetar.model.ids import EARLIEST, LATEST, Position

ENTRY_ID_LIMIT = 2**32
"""Bitmaps hold entry ids below this; a ledger is rolled long before."""

_WORD_MASK = 2**64 - 1

PARTIAL_BYTES_MAX = 16 << 20
"""What the ack sets of one cursor may take in memory: 100 000 batches of 64 messages."""

PARTIAL_OVERHEAD_BYTES = 160
"""What an ack set costs beside its bits (its key, the slots of two tables)."""


class LedgerChain(Protocol):
    """What the state must know of the log's ledgers."""

    def last_at(self, position: Position) -> Position:
        """The last confirmed entry at or before ``position``; the place before the first entry
        if there is none."""
        ...

    def last_entry(self, ledger_id: int) -> int:
        """The id of the ledger's last confirmed entry; -1 if it has none or is not there."""
        ...

    def is_final(self, ledger_id: int) -> bool:
        """True when the ledger takes no more entries (closed, or gone)."""
        ...

    def following(self, ledger_id: int) -> int | None:
        """The next ledger of the log after that id, which itself may be gone."""
        ...


@dataclass(frozen=True, slots=True)
class AckImage:
    """A state, or what was added to one: the value that is stored.

    ``holes`` are acknowledged entries after ``mark_delete``; ``ack_sets`` are those of partly
    acknowledged entries; ``reset_epoch`` is how often the cursor was reset before. ``note``: empty
    where there is none, or where it did not change. Nobody changes the bitmaps of an image.
    """

    mark_delete: Position
    holes: Mapping[int, BitMap] = field(default_factory=dict)
    ack_sets: Mapping[Position, int] = field(default_factory=dict)
    reset_epoch: int = 0
    note: bytes = b""

    @property
    def last(self) -> Position:
        """The last entry of which anything is acknowledged."""
        holes = (Position(ledger, max(each)) for ledger, each in self.holes.items() if each)
        return max((self.mark_delete, *holes, *self.ack_sets))


def ack_set_bits(words: Iterable[int]) -> int:
    """Pulsar's ack set (64-bit words, lowest first, signed or not) as one integer."""
    data = b"".join((word & _WORD_MASK).to_bytes(8, "little") for word in words)
    return int.from_bytes(data, "little")


def ack_set_words(bits: int) -> list[int]:
    """The inverse of ``ack_set_bits``; signed 64-bit words, as the wire has them."""
    count = (bits.bit_length() + 63) // 64
    return list(struct.unpack(f"<{count}q", bits.to_bytes(8 * count, "little")))


def _partial_bytes(bits: int) -> int:
    return PARTIAL_OVERHEAD_BYTES + bits.bit_length() // 8


def contiguous_end(bitmap: BitMap, first: int) -> int:
    """The last entry of the run of set bits that starts at ``first``; ``first`` - 1 if there is
    none. Gallops, so it takes a few range tests however long the run is."""
    if first not in bitmap:
        return first - 1
    step = 1
    low = first  # known to end a full run
    while bitmap.contains_range(first, low + step + 1):
        low += step
        step *= 2
    while step > 1:
        step //= 2
        if bitmap.contains_range(low + 1, low + step + 1):
            low += step
    return low


class AckState:
    """The acknowledgements of one cursor over ``chain``."""

    __slots__ = (
        "_ack_sets",
        "_chain",
        "_changed",
        "_changed_sets",
        "_holes",
        "_note_changed",
        "_reset",
        "mark_delete",
        "note",
        "out_of_log",
        "partial_bytes",
        "reset_epoch",
        "version",
    )

    def __init__(self, chain: LedgerChain, mark_delete: Position, reset_epoch: int = 0) -> None:
        self.mark_delete = mark_delete
        self.reset_epoch = reset_epoch  # resets in the cursor's life, not in this process's
        self.version = 0  # grows with every change
        self.out_of_log = 0
        """How often something was passed over that the log does not hold, as its owner knows it."""
        self._chain = chain
        self._holes: dict[int, BitMap] = {}
        self._ack_sets: dict[Position, int] = {}
        self.partial_bytes = 0  # what those take
        self._changed: dict[int, BitMap] = {}
        self._changed_sets: dict[Position, None] = {}
        self._reset = False
        self.note = b""
        self._note_changed = False

    # -- asking -------------------------------------------------------------------------------

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        if (ledger_id, entry_id) <= self.mark_delete:
            return True
        holes = self._holes.get(ledger_id)
        return holes is not None and entry_id in holes

    def all_acknowledged(self, ledger_id: int, low: int, high: int) -> bool:
        """Of the entries [low, high) of that ledger, by a few range tests however many they are."""
        mark = self.mark_delete
        if ledger_id <= mark.ledger_id:
            low = high if ledger_id < mark.ledger_id else max(low, mark.entry_id + 1)
        if low >= high:
            return True
        holes = self._holes.get(ledger_id)
        return holes is not None and holes.contains_range(low, high)

    def ack_set(self, position: Position) -> list[int] | None:
        bits = self._ack_sets.get(position)
        return None if bits is None else ack_set_words(bits)

    @property
    def hole_entries(self) -> int:
        """Entries acknowledged after mark-delete."""
        return sum(len(bitmap) for bitmap in self._holes.values())

    def holes(self) -> Mapping[int, BitMap]:
        """Those, by ledger; nobody but the state changes them."""
        return self._holes

    @property
    def simple(self) -> bool:
        """True when mark-delete says everything."""
        return not self._holes and not self._ack_sets and not self.note

    def unacknowledged(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those of ``entries`` (in log order) that are not wholly acknowledged."""
        if not entries:
            return []
        first, last = entries[0], entries[-1]
        if (first.ledger_id, first.entry_id) <= self.mark_delete:
            mark = self.mark_delete
            entries = [e for e in entries if (e.ledger_id, e.entry_id) > mark]
        if not self._holes:
            return list(entries)
        if first.ledger_id == last.ledger_id:
            return self._unacknowledged_of(first.ledger_id, entries)
        kept: list[Entry] = []
        for ledger_id in dict.fromkeys(e.ledger_id for e in entries):
            part = [e for e in entries if e.ledger_id == ledger_id]
            kept += self._unacknowledged_of(ledger_id, part)
        return kept

    def _unacknowledged_of(self, ledger_id: int, entries: Sequence[Entry]) -> list[Entry]:
        holes = self._holes.get(ledger_id)
        if holes is None or not entries:
            return list(entries)
        if holes.range_cardinality(entries[0].entry_id, entries[-1].entry_id + 1) == 0:
            return list(entries)
        return [e for e in entries if e.entry_id not in holes]

    # -- acknowledging ------------------------------------------------------------------------

    def acknowledge(self, positions: Sequence[Position]) -> bool:
        """Acknowledge whole entries, in any order; those that are acknowledged already or that
        the log does not hold are passed over. True if anything may have changed."""
        if len(positions) == 1:
            return self._acknowledge_one(positions[0])
        if not positions:
            return False
        ledger_id = positions[0][0]
        if all(position[0] == ledger_id for position in positions):
            changed = self._set(ledger_id, [position[1] for position in positions])
        else:
            by_ledger: dict[int, list[int]] = {}
            for ledger_id, entry_id in positions:
                by_ledger.setdefault(ledger_id, []).append(entry_id)
            results = [self._set(ledger, ids) for ledger, ids in by_ledger.items()]
            changed = any(results)
        if changed:
            self.version += 1
            self._advance()
        return changed

    def _acknowledge_one(self, position: Position) -> bool:
        """As ``acknowledge``; in order, with nothing else acknowledged, it is a comparison."""
        ledger_id, entry_id = position
        mark = self.mark_delete
        if position <= mark:
            return False
        if entry_id > self._chain.last_entry(ledger_id):
            self.out_of_log += 1
            return False
        follows = ledger_id == mark.ledger_id and entry_id == mark.entry_id + 1
        if follows and not self._holes and not self._ack_sets:
            self.mark_delete = position
            self.version += 1
            return True
        holes = self._holes.get(ledger_id)
        if entry_id < 0 or (holes is not None and entry_id in holes):
            return False  # -1 is the place before a ledger's first entry: clients do name it
        for bitmaps in (self._holes, self._changed):
            bitmap = bitmaps.get(ledger_id)
            if bitmap is None:
                bitmap = bitmaps[ledger_id] = BitMap()
            bitmap.add(entry_id)
        self._drop_set(position)
        self.version += 1
        if follows or ledger_id != mark.ledger_id:
            self._advance()
        return True

    def _set(self, ledger_id: int, entry_ids: list[int]) -> bool:
        if ledger_id < self.mark_delete.ledger_id:
            return False
        low, high = min(entry_ids), max(entry_ids)
        floor = self.mark_delete.entry_id if ledger_id == self.mark_delete.ledger_id else -1
        last = self._chain.last_entry(ledger_id)
        if high > last:
            self.out_of_log += 1
        if low <= floor or high > last:
            entry_ids = [e for e in entry_ids if floor < e <= last]
            if not entry_ids:
                return False
        added = BitMap(entry_ids)
        self._union(self._holes, ledger_id, added)
        self._union(self._changed, ledger_id, added)
        if self._ack_sets:
            for entry_id in entry_ids:
                self._drop_set(Position(ledger_id, entry_id))
        return True

    def acknowledge_all(self, ledger_id: int, entries: BitMap) -> bool:
        """As ``acknowledge``, of one ledger, however many they are."""
        mark, last = self.mark_delete, self._chain.last_entry(ledger_id)
        floor = mark.entry_id if ledger_id == mark.ledger_id else -1
        if ledger_id < mark.ledger_id or last < 0:
            return False
        added = entries.copy()
        added.remove_range(last + 1, ENTRY_ID_LIMIT)
        added.remove_range(0, floor + 1)
        if not added:
            return False
        self._union(self._holes, ledger_id, added)
        self._union(self._changed, ledger_id, added)
        for position in [each for each in self._ack_sets if each.ledger_id == ledger_id]:
            if position.entry_id in added:
                self._drop_set(position)
        self.version += 1
        self._advance()
        return True

    def _drop_set(self, position: Position) -> None:
        bits = self._ack_sets.pop(position, None)
        if bits is not None:
            self.partial_bytes -= _partial_bytes(bits)

    @staticmethod
    def _union(bitmaps: dict[int, BitMap], ledger_id: int, added: BitMap) -> None:
        bitmap = bitmaps.get(ledger_id)
        if bitmap is None:
            bitmaps[ledger_id] = added.copy()
        else:
            bitmap |= added  # in place

    def acknowledge_batch(
        self, position: Position, batch_size: int, ack_set: Sequence[int]
    ) -> bool:
        """Intersect the entry's ack set with ``ack_set``; True when the whole entry is
        acknowledged (now or before). ``batch_size`` says how many of the bits count. Raises
        ``NotAllowedError`` when the cursor has no room for one more."""
        if self.is_acknowledged(*position):
            return True
        if not 0 <= position.entry_id <= self._chain.last_entry(position.ledger_id):
            self.out_of_log += position.entry_id >= 0
            return False
        count = min(batch_size, 64 * len(ack_set))
        bits = ack_set_bits(ack_set) & ((1 << count) - 1)
        stored = self._ack_sets.get(position)
        if stored is not None:
            bits &= stored
        if bits == 0:
            self.acknowledge([position])
            return True
        if bits != stored:
            more = _partial_bytes(bits) - (0 if stored is None else _partial_bytes(stored))
            if self.partial_bytes + more > PARTIAL_BYTES_MAX:
                raise NotAllowedError(
                    f"{len(self._ack_sets)} batches are acknowledged in part, which takes "
                    f"{self.partial_bytes} bytes of {PARTIAL_BYTES_MAX}; acknowledge the rest of "
                    "them first"
                )
            self.partial_bytes += more
            self._ack_sets[position] = bits
            self._changed_sets[position] = None
            self.version += 1
        return False

    def acknowledge_cumulative(self, position: Position) -> bool:
        """Acknowledge everything up to ``position``, or to the log's last entry before it."""
        found = self._chain.last_at(position)
        if found < position:
            self.out_of_log += 1
        if found > position:
            return False  # all before it was trimmed; what survived there is not all read
        position = found
        if position <= self.mark_delete:
            return False
        self.version += 1
        self._mark(position)
        self._advance()
        return True

    def reset(self, mark_delete: Position) -> None:
        """Start again: everything up to ``mark_delete`` is acknowledged and nothing after it. What
        was taken to be stored before is of an older epoch from here on, wherever it is."""
        self._begin(mark_delete, self.reset_epoch + 1)
        self.version += 1
        self._reset = True

    def cut(self, last: Position) -> bool:
        """The log ends with ``last``: what was acknowledged behind it is lost, and what comes in
        its place is not what was acknowledged. As a reset: no image of before brings it back.
        False: there is nothing behind it."""
        holes = {ledger_id: bitmap.copy() for ledger_id, bitmap in self._holes.items()}
        for ledger_id, bitmap in holes.items():
            if ledger_id >= last.ledger_id:
                first = last.entry_id + 1 if ledger_id == last.ledger_id else 0
                bitmap.remove_range(first, ENTRY_ID_LIMIT)
        sets = {position: bits for position, bits in self._ack_sets.items() if position <= last}
        if self.mark_delete <= last and holes == self._holes and sets == self._ack_sets:
            return False
        self.reset(min(self.mark_delete, last))
        self._holes.update((each, bitmap) for each, bitmap in holes.items() if bitmap)
        self._ack_sets.update(sets)
        self.partial_bytes = sum(map(_partial_bytes, sets.values()))
        return True

    def _begin(self, mark_delete: Position, reset_epoch: int) -> None:
        self.mark_delete = mark_delete
        self.reset_epoch = reset_epoch
        self._holes.clear()
        self._ack_sets.clear()
        self.partial_bytes = 0
        self._changed.clear()
        self._changed_sets.clear()
        self.note = b""

    def forget_trimmed(self) -> None:
        """What is acknowledged of ledgers that the log does not hold any more says nothing: nobody
        is given any of it. Mark-delete goes past them as past what is acknowledged. (Whoever owns
        the log trims no ledger that a cursor of its own is not done with; another process hears of
        it late.)"""
        first, chain = self._chain.last_at(EARLIEST).ledger_id, self._chain
        gone = [each for each in self._holes if each <= first and chain.last_entry(each) < 0]
        for ledger_id in gone:
            del self._holes[ledger_id]
            self._changed.pop(ledger_id, None)
        for position in [each for each in self._ack_sets if each.ledger_id < first]:
            self._drop_set(position)
            gone.append(position.ledger_id)
        before = self.mark_delete
        self._advance()
        if gone or self.mark_delete > before:
            self.version += 1

    def take_note(self, note: bytes) -> None:
        """``note`` says all that is to be known up to mark-delete, in the place of any before."""
        self.note = note
        self._note_changed = True
        self.version += 1

    # -- mark-delete --------------------------------------------------------------------------

    def _mark(self, position: Position) -> None:
        """Move mark-delete forward to ``position`` and forget what lies before it."""
        assert position >= self.mark_delete, "only a reset moves mark-delete back"
        self.mark_delete = position
        for bitmaps in (self._holes, self._changed):
            _drop_through(bitmaps, position)
        if self._ack_sets:
            done = [p for p in self._ack_sets if p <= position]
            for p in done:
                self._drop_set(p)

    def _advance(self) -> None:
        """Move mark-delete over the acknowledged entries that follow it."""
        chain = self._chain
        ledger_id, entry_id = self.mark_delete
        reached = self.mark_delete
        while True:
            bitmap = self._holes.get(ledger_id)
            if bitmap is not None:
                end = contiguous_end(bitmap, entry_id + 1)
                if end > entry_id:
                    entry_id = end
                    reached = Position(ledger_id, end)
            if not chain.is_final(ledger_id) or entry_id < chain.last_entry(ledger_id):
                break
            following = chain.following(ledger_id)
            if following is None:
                break
            ledger_id, entry_id = following, -1
        if reached > self.mark_delete:
            self._mark(reached)

    # -- storing ------------------------------------------------------------------------------

    def snapshot(self) -> AckImage:
        """The whole state, as a value of its own."""
        assert self._sound(), f"the state after {self.mark_delete} breaks its invariants"
        holes = {ledger: bitmap.copy() for ledger, bitmap in self._holes.items()}
        sets = dict(self._ack_sets)
        return AckImage(self.mark_delete, holes, sets, self.reset_epoch, self.note)

    def take_changes(self) -> AckImage | None:
        """What was added since the last call, to be merged into what was stored then; None when
        only a snapshot can say it (after a reset)."""
        changes = None if self._reset else self._changes()
        self._changed = {}
        self._changed_sets = {}
        self._reset = self._note_changed = False
        return changes

    def _changes(self) -> AckImage:
        sets = self._ack_sets
        changed = {p: sets[p] for p in self._changed_sets if p in sets}
        note = self.note if self._note_changed else b""
        return AckImage(self.mark_delete, self._changed, changed, self.reset_epoch, note)

    def merge(self, image: AckImage) -> None:
        """Add what ``image`` says is acknowledged: a snapshot or changes, when recovering. One
        from before the last reset says nothing any more: what it acknowledges was taken back.

        The log may have trimmed what the image speaks of: a snapshot is older than what follows it,
        and a ledger goes as soon as that says that it is done with."""
        if image.reset_epoch < self.reset_epoch:
            return
        if image.reset_epoch > self.reset_epoch:
            # All that is here was taken back by a reset that nobody told us of.
            self._begin(image.mark_delete, image.reset_epoch)
        if image.note and image.mark_delete >= self.mark_delete:
            self.note = image.note
        for ledger_id, bitmap in image.holes.items():
            if self._chain.last_entry(ledger_id) >= 0:
                self._union(self._holes, ledger_id, bitmap)
        for position, bits in image.ack_sets.items():
            if self._chain.last_entry(position.ledger_id) >= 0:
                self._ack_sets[position] = self._ack_sets.get(position, bits) & bits
        self._mark(max(self.mark_delete, image.mark_delete))
        self._ack_sets = {
            p: bits for p, bits in self._ack_sets.items() if not self.is_acknowledged(*p)
        }
        self.partial_bytes = sum(map(_partial_bytes, self._ack_sets.values()))
        self._advance()
        # Not against the chain: whoever reads back and does not own the log any more, without
        # knowing it, finds what the next owner has stored of ledgers that it never heard of.
        assert self._sound(whole_chain=False), (
            f"what was stored at {self.mark_delete} breaks the state's invariants"
        )

    def take_over(self, image: AckImage) -> bool:
        """Merge ``image``, which another process that serves this cursor has sent, to be stored as
        what is acknowledged here. True if anything may have changed. Raises ``NotAllowedError`` for
        what cannot be acknowledged of this log."""
        if image.reset_epoch < self.reset_epoch:
            return False
        self._check_image(image)
        if image.reset_epoch > self.reset_epoch:
            self._reset = True  # of changes since the last store only a snapshot can tell now
        self.merge(image)
        for ledger_id, bitmap in image.holes.items():
            held = self._holes.get(ledger_id)
            if held is not None:
                self._union(self._changed, ledger_id, bitmap & held)
        self._changed_sets.update(dict.fromkeys(p for p in image.ack_sets if p in self._ack_sets))
        self.version += 1
        return True

    def _check_image(self, image: AckImage) -> None:
        chain = self._chain
        end = chain.last_at(LATEST)
        if image.mark_delete > end:
            raise NotAllowedError(f"{image.mark_delete} is acknowledged, past the log's end {end}")
        for ledger_id, bitmap in image.holes.items():
            last = chain.last_entry(ledger_id)
            if bitmap and bitmap.max() > last >= 0:
                raise NotAllowedError(
                    f"entry {bitmap.max()} of ledger {ledger_id} is acknowledged, past {last}"
                )
        for position, bits in image.ack_sets.items():
            if bits <= 0 or not 0 <= position.entry_id < ENTRY_ID_LIMIT:
                raise NotAllowedError(f"{position} cannot be acknowledged in part as {bits:b}")
        if sum(map(_partial_bytes, image.ack_sets.values())) > PARTIAL_BYTES_MAX:
            raise NotAllowedError(
                f"{len(image.ack_sets)} batches are acknowledged in part, more than "
                f"{PARTIAL_BYTES_MAX} bytes hold"
            )

    def _sound(self, whole_chain: bool = True) -> bool:
        """The invariants in the module's text, checked where a state is stored and where it is
        read back, once per flush and not per acknowledgement."""
        mark, chain = self.mark_delete, self._chain
        own = self._holes.get(mark.ledger_id)
        return (
            all(ledger_id >= mark.ledger_id for ledger_id in self._holes)
            and (own is None or not own or own.min() > mark.entry_id + 1)
            and (
                not whole_chain
                or all(not b or b.max() <= chain.last_entry(i) for i, b in self._holes.items())
            )
            and all(bits and not self.is_acknowledged(*p) for p, bits in self._ack_sets.items())
        )


def _drop_through(bitmaps: dict[int, BitMap], position: Position) -> None:
    """Take everything up to ``position`` out of ``bitmaps``."""
    if not bitmaps:
        return
    ledger_id, entry_id = position
    for other in [ledger for ledger in bitmaps if ledger < ledger_id]:
        del bitmaps[other]
    bitmap = bitmaps.get(ledger_id)
    if bitmap is None:
        return
    bitmap.remove_range(0, min(entry_id + 1, ENTRY_ID_LIMIT))
    if not bitmap:
        del bitmaps[ledger_id]
