"""Avro's binary form, many values of one schema at once.

Owns the walk: a *cursor* per value stands where its next field begins. Reading a field moves all of
them, in a few numpy calls whatever their number, and gives a *column*: numbers, or where bytes lie.
Nothing is copied and no object is made per value; ``avro_arrow`` makes arrays of the columns that
are wanted. A union splits the cursors by branch; the items of arrays and maps are read in rounds,
one of each value a round, those of a fixed size all at once.

Invariants:

* A cursor never stands behind its value's end. One that would is *parked* behind the block, on
  zeros, and its value is bad (``faults``); the others go on.
* A value that is well-formed ends where its bytes end.
* What an array or map says to hold is held against the bytes that are left before it is believed.

Pure. Source: Avro 1.11 specification, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from magnetar.cluster.schemas.avro import AvroType
from magnetar.pipeline.columns.protobuf_columns import Bytes, Flags, Ints
from magnetar.pipeline.typed.faults import Faults

EMPTY_ITEMS_MAX: Final = 1000
"""Items that take no bytes (records without fields) are not bounded by those that are left."""

ENDS_EARLY: Final = "the value ends within it"

Values: TypeAlias = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class WalkCursors:
    """``rows``: which of the block's values each is in; ``stop``: where that ends."""

    rows: Ints
    at: Ints
    stop: Ints

    def chosen(self, numbers: Ints) -> WalkCursors:
        return WalkCursors(self.rows[numbers], self.at[numbers], self.stop[numbers])

    def put_back(self, numbers: Ints, part: WalkCursors) -> None:
        self.at[numbers], self.stop[numbers] = part.at, part.stop


@dataclass(slots=True, eq=False)
class Column:
    """``rows``: of which of the block's values each element is."""

    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True, eq=False)
class Numbers(Column):
    """Also of booleans, and the places of an enumeration's symbols."""

    values: Values


@dataclass(slots=True, eq=False)
class ByteSpans(Column):
    at: Ints
    length: Ints


@dataclass(slots=True, eq=False)
class RecordFields(Column):
    """A column for each field of a record, in the writer's order."""

    columns: tuple[Column, ...]


@dataclass(slots=True, eq=False)
class Choice(Column):
    """A union: for each branch the elements that are of it (their numbers), and their column."""

    parts: list[tuple[int, Ints, Column]]


@dataclass(slots=True, eq=False)
class Round:
    """One item each of some elements (``owners``: their numbers), or all of theirs."""

    owners: Ints
    items: Column
    keys: Column | None = None


@dataclass(slots=True, eq=False)
class Items(Column):
    """Of arrays and maps. Rounds are in the order of the items within an element."""

    rounds: list[Round] = field(default_factory=list)


_FIXED_BYTES: Final = {"boolean": 1, "float": 4, "double": 8}


def fixed_bytes(kind: AvroType) -> int:
    """What each value takes, if all take the same and are no records; else 0."""
    return kind.size if kind.name == "fixed" else _FIXED_BYTES.get(kind.name, 0)


class Walk:
    """Over one block. ``bytes_`` has one byte behind the values that is none of theirs."""

    def __init__(self, bytes_: Bytes, faults: Faults) -> None:
        self._bytes = bytes_
        self._faults = faults
        self._parked = bytes_.size

    def values(self, kind: AvroType, rows: Ints, at: Ints, stop: Ints) -> Column:
        """The values of these rows, each from ``at`` to ``stop``."""
        cursors = WalkCursors(rows, at.copy(), stop.copy())
        column = self._read(kind, cursors, kind.full_name)
        over = cursors.at != cursors.stop
        if over.any():
            what = "bytes are left over behind the value"
            self._faults.add(rows[over], kind.full_name, what)
        return column

    def _read(self, kind: AvroType, cursors: WalkCursors, place: str) -> Column:
        name = kind.name
        if name in ("int", "long", "enum"):
            return Numbers(cursors.rows, self._long(cursors, place))
        if name in ("string", "bytes"):
            return self._span(cursors, self._long(cursors, place), place)
        if name == "record":
            parts = [self._read(f.kind, cursors, f"{place}.{f.name}") for f in kind.fields]
            return RecordFields(cursors.rows, tuple(parts))
        if name == "union":
            return self._union(kind, cursors, place)
        if name in ("array", "map"):
            return self._items(kind, cursors, place)
        if name == "fixed":
            length = np.full(len(cursors.rows), kind.size, np.int64)
            return self._span(cursors, length, place)
        if name == "null":
            return Column(cursors.rows)
        return self._fixed_number(name, cursors, place)

    # -- moving cursors -----------------------------------------------------------------------

    def _move(self, cursors: WalkCursors, at: Ints, place: str) -> None:
        over = at > cursors.stop
        if over.any():
            at = self._park(cursors, over, at, place, ENDS_EARLY)
        cursors.at = at

    def _park(self, cursors: WalkCursors, which: Flags, at: Ints, place: str, why: str) -> Ints:
        """Values that cannot be read on; returns ``at`` with their cursors out of the way."""
        self._faults.add(cursors.rows[which], place, why)
        cursors.stop = np.where(which, self._parked, cursors.stop)
        return np.where(which, self._parked, at)

    def _long(self, cursors: WalkCursors, place: str) -> Ints:
        values, at, wrong = self._bytes.zigzags(cursors.at)
        if wrong is not None and wrong.any():
            at = self._park(cursors, wrong, at, place, "an integer of more than 64 bits")
        self._move(cursors, at, place)
        return values

    def _fixed_number(self, name: str, cursors: WalkCursors, place: str) -> Numbers:
        begin = cursors.at
        self._move(cursors, begin + _FIXED_BYTES[name], place)
        values: Values
        if name == "double":
            values = self._bytes.little_endian_u64(begin).view("<f8")
        elif name == "float":
            values = self._bytes.little_endian_u32(begin).view("<f4")
        else:
            values = self._bytes.u8[begin]
            if int(values.max(initial=0)) > 1:
                wrong = (values > 1) & (cursors.at != self._parked)
                cursors.at = self._park(cursors, wrong, cursors.at, place, "no boolean")
            values = values == 1
        return Numbers(cursors.rows, values)

    def _span(self, cursors: WalkCursors, length: Ints, place: str) -> ByteSpans:
        begin = cursors.at
        wrong = (length < 0) | (length > cursors.stop - begin)
        at = begin + length
        if wrong.any():
            at = self._park(cursors, wrong, at, place, ENDS_EARLY)
            begin, length = np.where(wrong, self._parked, begin), np.where(wrong, 0, length)
        cursors.at = at
        return ByteSpans(cursors.rows, begin, length)

    # -- what holds others --------------------------------------------------------------------

    def _union(self, kind: AvroType, cursors: WalkCursors, place: str) -> Choice:
        branch = self._long(cursors, place)
        wrong = (branch < 0) | (branch >= len(kind.branches))
        if wrong.any():
            why = f"a branch that a union of {len(kind.branches)} has not"
            cursors.at = self._park(cursors, wrong, cursors.at, place, why)
        found = Choice(cursors.rows, [])
        for number, each in enumerate(kind.branches):
            chosen = np.flatnonzero(branch == number)
            if len(chosen) == len(branch):
                found.parts.append((number, chosen, self._read(each, cursors, place)))
            elif len(chosen):
                part = cursors.chosen(chosen)
                found.parts.append((number, chosen, self._read(each, part, place)))
                cursors.put_back(chosen, part)
        return found

    def _items(self, kind: AvroType, cursors: WalkCursors, place: str) -> Items:
        assert kind.items is not None
        rounds = self._rounds(kind.name, kind.items, cursors, f"{place}[]")
        return Items(cursors.rows, list(rounds))

    def _rounds(
        self, name: str, kind: AvroType, cursors: WalkCursors, place: str
    ) -> Iterator[Round]:
        size = fixed_bytes(kind) if name == "array" else 0
        left = np.zeros(len(cursors.rows), np.int64)
        open_ = np.arange(len(left))  # elements whose last block has not come
        while len(open_):
            ends = open_[left[open_] == 0]
            if len(ends):
                left[ends] = self._block(kind, name, cursors, ends, place)
                open_ = open_[left[open_] != 0]
                if not len(open_):
                    return
            if size:
                yield self._all_items(kind, cursors, open_, left, size, place)
                left[open_] = 0
                continue
            part = cursors.chosen(open_)
            keys = self._span(part, self._long(part, place), place) if name == "map" else None
            yield Round(open_, self._read(kind, part, place), keys)
            cursors.put_back(open_, part)
            left[open_] -= 1
            left[open_[part.at == self._parked]] = 0
            open_ = open_[part.at != self._parked]

    def _block(
        self, kind: AvroType, name: str, cursors: WalkCursors, which: Ints, place: str
    ) -> Ints:
        """How many items the next block of these elements has; 0: there is none."""
        part = cursors.chosen(which)
        count = self._long(part, place)
        sized = np.flatnonzero(count < 0)
        if len(sized):  # its size in bytes stands there too, for those who skip it
            of_sized = part.chosen(sized)
            self._long(of_sized, place)
            part.put_back(sized, of_sized)
            count = np.abs(count)  # (of the least integer: itself)
        least = _least_bytes(kind, 0) + (1 if name == "map" else 0)
        most = (part.stop - part.at) // least if least else np.int64(EMPTY_ITEMS_MAX)
        wrong = (count < 0) | (count > most)
        if wrong.any():
            why = "more items than there are bytes left"
            part.at = self._park(part, wrong, part.at, place, why)
        cursors.put_back(which, part)
        return np.where(part.at == self._parked, 0, count)

    def _all_items(
        self, kind: AvroType, cursors: WalkCursors, which: Ints, left: Ints, size: int, place: str
    ) -> Round:
        """The whole blocks of these elements: where each item lies is known."""
        counts = left[which]
        begin = np.repeat(cursors.at[which] - size * (np.cumsum(counts) - counts), counts)
        begin += size * np.arange(len(begin))
        owners = np.repeat(which, counts)
        items = WalkCursors(cursors.rows[owners], begin, begin + size)
        cursors.at[which] += size * counts
        return Round(owners, self._read(kind, items, place))


def _least_bytes(kind: AvroType, depth: int) -> int:
    """What a value takes at least; a bound from below, not the exact number."""
    if kind.name == "null" or depth > 20:
        return 0
    if kind.name == "record":
        return sum(_least_bytes(each.kind, depth + 1) for each in kind.fields)
    return fixed_bytes(kind) or (0 if kind.name == "fixed" else 1)
