"""Which entries a partition's log holds: the offsets at which its batches begin, and positions.

Owns the set of first offsets of all batches that may be read, and with it the order of the log's
positions. Pure.

Rules:

* The position of an entry is the offset of its first message, as ``Position(offset // span, offset
  % span)``: ledger ids are only what the seam's positions need to stay in 32 bits.
* Entry ids have gaps: the next entry is the next offset that is in the set. Offsets between belong
  to the entry before, or to none (compaction took it).
* Every batch in the set is committed, begins at ``start`` or later, and ends at ``end`` or before.
* It is changed on the loop, and looked into beside it, too (``begins``, ``following``): there it is
  whole at any moment, with what compaction has taken or without.

The set is a Roaring bitmap per ``span``: a batch takes two bytes at most. Bytes beside a sealed
segment (``.batches``), big-endian: version 1 (``0``), CRC-32C 4 of what follows, bytes of the
``.log`` 8, next offset 8, then the bitmap of first offsets less the segment's, portable Roaring.

Why: docs/adr/0111-partitions-behind-the-seam.md.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from pyroaring import BitMap

from magnetar.model.errors import MetadataFormatError
from magnetar.model.ids import NO_ENTRY, Position
from magnetar.wire.checksum import crc32c

SPAN: Final = 1 << 31
"""Offsets of one ledger id."""
_OFFSETS: Final = 1 << 32
"""Of a bitmap."""
_HEAD: Final = struct.Struct(">bI")
_SEGMENT: Final = struct.Struct(">qq")
_VERSION: Final = 0


class BatchPlaces:
    """Of one log. Offsets are exclusive at the end, as everywhere in a partition."""

    __slots__ = ("_held_starts", "_starts", "end", "held_end", "span", "start")

    def __init__(self, start: int = 0, end: int = 0, span: int = SPAN) -> None:
        self.start = start
        self.end = end
        """Where the next entry that can be read will begin."""
        self.held_end = end
        """Where what the log held when it was opened ends: past ``end``, while it is not known that
        all of that is committed. It may have been acknowledged by consumers, for it is."""
        self.span = span
        self._starts: dict[int, BitMap] = {}
        self._held_starts = array("q")  # of what lay between those two then

    # -- changing -----------------------------------------------------------------------------

    def add(self, first_offset: int, next_offset: int) -> None:
        """A batch can be read from now on."""
        assert first_offset >= self.end, "batches follow one another"
        ledger, entry = divmod(first_offset, self.span)
        bitmap = self._starts.get(ledger)
        if bitmap is None:
            self._starts[ledger] = BitMap([entry])  # never an empty one
        else:
            bitmap.add(entry)
        self.end = next_offset

    def add_all(self, first_offsets: Iterable[int]) -> None:
        """As they are found in files."""
        by_ledger: dict[int, list[int]] = {}
        for offset in first_offsets:
            ledger, entry = divmod(offset, self.span)
            by_ledger.setdefault(ledger, []).append(entry)
        for ledger, entries in by_ledger.items():
            self._starts.setdefault(ledger, BitMap()).update(entries)

    def hold(self, first_offsets: Iterable[int], end: int) -> None:
        """The log holds those batches and ends there; they follow what can be read. While it is
        being opened."""
        self._held_starts = array("q", first_offsets)
        self.held_end = max(self.end, end)

    def pack(self) -> None:
        """Runs of single messages take next to nothing from here on."""
        for bitmap in self._starts.values():
            bitmap.run_optimize()

    def trim(self, start: int) -> None:
        """Nothing before ``start`` is there any more."""
        if start <= self.start:
            return
        self.start = start
        self.end = max(self.end, start)
        self.remove(0, start)

    def remove(self, first: int, end: int) -> None:
        """No batch begins in [first, end): compaction took them."""
        self._starts = self._without(first, end)

    def _without(self, first: int, end: int) -> dict[int, BitMap]:
        """Those of now stay as they are: whoever reads a file looks into them on its lane."""
        low, high = divmod(first, self.span), divmod(end, self.span)
        left: dict[int, BitMap] = {}
        for ledger, bitmap in self._starts.items():
            if low[0] <= ledger <= high[0]:
                begin = low[1] if ledger == low[0] else 0
                stop = high[1] if ledger == high[0] else self.span
                bitmap = bitmap.copy()
                bitmap.remove_range(begin, stop)
            if bitmap:
                left[ledger] = bitmap
        return left

    def replace(self, first: int, end: int, starts: BitMap) -> None:
        """Of the batches of [first, end) those that begin at ``starts`` (less ``first``) are left.
        What is before ``start`` or not in the set yet stays out of it."""
        end = min(end, self.end)
        starts_left = self._without(max(first, self.start), end)
        # All at once: a segment may have millions, and the loop waits.
        ledger, low = divmod(first, self.span)
        base = ledger * self.span
        left = starts.shift(low)
        left.remove_range(0, max(0, self.start - base))
        left.remove_range(max(0, end - base), _OFFSETS)
        while left:
            part = left.copy()
            part.remove_range(self.span, _OFFSETS)
            if part:
                starts_left[ledger] = starts_left.get(ledger, BitMap()) | part
                starts_left[ledger].run_optimize()
            left.remove_range(0, self.span)
            left, ledger = left.shift(-self.span), ledger + 1
        self._starts = starts_left

    # -- offsets and positions ----------------------------------------------------------------

    def position(self, offset: int) -> Position:
        if offset < 0:
            return Position(0, NO_ENTRY)
        return Position(*divmod(offset, self.span))

    def offset(self, position: Position) -> int:
        """Of any position, also of one that no log has: what lies past a ledger's span is its
        end."""
        ledger, entry = position
        if ledger < 0:
            return -1
        return ledger * self.span + min(entry, self.span - 1)

    def following(self, offset: int) -> int:
        """The first offset of the first entry at ``offset`` or after it; ``end`` if there is
        none."""
        offset = max(offset, self.start)
        if offset >= self.end:
            return self.end
        ledger, entry = divmod(offset, self.span)
        starts = self._starts
        for each in sorted(starts):  # one, but for logs of 2^31 messages
            if each < ledger:
                continue
            bitmap = starts[each]
            low = entry if each == ledger else 0
            if low <= bitmap.max():
                return each * self.span + bitmap.next_set_bit(low)
        return self.end

    def begins(self, offset: int) -> bool:
        """Whether an entry begins there."""
        ledger, entry = divmod(offset, self.span)
        starts = self._starts
        return ledger in starts and entry in starts[ledger]

    def next_held(self, offset: int) -> int:
        """As ``following``, of all that the log held when it was opened; the end of that if there
        is none."""
        if offset < self.end:
            return self.following(offset)
        at = bisect_left(self._held_starts, offset)
        return self._held_starts[at] if at < len(self._held_starts) else self.log_end

    def last_held(self, offset: int) -> int:
        """As ``holding``, of all that the log held when it was opened."""
        if offset >= self.end:
            at = bisect_right(self._held_starts, offset)
            if at and self._held_starts[at - 1] >= self.end:
                return self._held_starts[at - 1]
        return self.holding(offset)

    @property
    def log_end(self) -> int:
        """What was acknowledged before the log was opened, or is since, lies before it, readable
        yet or not."""
        return max(self.end, self.held_end)

    def holding(self, offset: int) -> int:
        """The first offset of the last entry that begins at ``offset`` or before; -1 if there is
        none."""
        ledger, entry = divmod(offset, self.span)
        for each in sorted(self._starts, reverse=True):
            if each > ledger:
                continue
            bitmap = self._starts[each]
            rank = bitmap.rank(entry) if each == ledger else len(bitmap)
            if rank:
                return each * self.span + bitmap[rank - 1]
        return -1

    def count_before(self, offset: int) -> int:
        """How many entries begin before ``offset``."""
        if offset <= 0:
            return 0
        ledger, entry = divmod(offset - 1, self.span)
        before = sum(len(bitmap) for each, bitmap in self._starts.items() if each < ledger)
        bitmap = self._starts.get(ledger)
        return before if bitmap is None else before + bitmap.rank(entry)

    @property
    def entries(self) -> int:
        return sum(map(len, self._starts.values()))

    def entries_by_ledger(self) -> list[tuple[int, int]]:
        return [(ledger, len(self._starts[ledger])) for ledger in sorted(self._starts)]

    def none_begins(self, ledger: int, low: int, high: int) -> BitMap:
        """Where in [low, high) of that ledger no entry begins."""
        found = BitMap(range(low, high))
        return found - self._starts[ledger] if ledger in self._starts else found

    def among(self, ledger: int, entries: BitMap) -> int:
        """How many of ``entries`` of that ledger are where an entry begins."""
        bitmap = self._starts.get(ledger)
        return 0 if bitmap is None else bitmap.intersection_cardinality(entries)


# -- bytes --------------------------------------------------------------------------------------


def encode_starts(starts: BitMap, byte_count: int, next_offset: int) -> bytes:
    body = _SEGMENT.pack(byte_count, next_offset) + starts.serialize()
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_starts(data: bytes, byte_count: int, next_offset: int, name: str) -> BitMap:
    """Raises ``MetadataFormatError``: it is not what such a segment has beside it."""
    body = memoryview(data)[_HEAD.size :]
    if len(body) < _SEGMENT.size:
        raise MetadataFormatError(f"{name} has {len(data)} bytes: it is no list of batches")
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION or crc32c(body) != crc:
        raise MetadataFormatError(f"{name} (version {version}) fails its checksum or is too new")
    if _SEGMENT.unpack_from(body) != (byte_count, next_offset):
        raise MetadataFormatError(f"{name} is of another state of its segment")
    return BitMap.deserialize(bytes(body[_SEGMENT.size :]))
