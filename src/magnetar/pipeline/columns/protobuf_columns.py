"""Many protobuf messages of one type at once: a field of all of them is an array.

Owns the walk over their fields. Every round reads the next field of every message that has one;
messages that a client wrote are alike, so a round is a few numpy calls whatever their number, and
there is no Python object per message.

Rules:

* A field that is not in the ``FieldTable`` is skipped, as protobuf does. Of a field that comes
  twice the last counts.
* What cannot be read here is marked in ``odd``, and nothing is said of it: groups, integers of more
  than 63 bits, more than ``ROUNDS_MAX`` fields, bytes that are no message. The caller reads such
  messages with protobuf itself, which says what is wrong with them, if anything is.
* ``Bytes`` has slack behind it, so that a look ahead of a varint stays inside.

Source: the Protocol Buffers encoding (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

SLACK: Final = bytes(16)
"""Zeros behind the bytes: more than any look ahead."""

ROUNDS_MAX: Final = 64
ABSENT: Final = -1

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STOPS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)
_SEVEN: Final = np.uint64(0x7F)
_FOLDS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
"""Seven bits of every byte side by side: pairs of groups, then pairs of those."""


class Bytes:
    """Bytes to look at by columns. ``data`` ends with ``SLACK``."""

    def __init__(self, data: bytes) -> None:
        assert data.endswith(SLACK)
        self.data = data
        self.size = len(data) - len(SLACK)
        self.u8 = np.frombuffer(data, np.uint8)
        self._u64: npt.NDArray[np.uint64] = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))

    def big_endian_u32(self, at: Ints) -> Ints:
        return ((self._u64[at] & np.uint64(0xFFFFFFFF)).astype("<u4").byteswap()).astype(np.int64)

    def little_endian_u64(self, at: Ints) -> npt.NDArray[np.uint64]:
        return self._u64[at]

    def little_endian_u32(self, at: Ints) -> npt.NDArray[np.uint32]:
        return (self._u64[at] & np.uint64(0xFFFFFFFF)).astype("<u4")

    def varints(self, at: Ints) -> tuple[Ints, Ints]:
        """The integers at ``at`` and where each ends; ``ABSENT`` for one of more than 63 bits."""
        first = self.u8[at]
        if int(first.max(initial=0)) < 0x80:
            return first.astype(np.int64), at + 1
        value, lengths, long = self._up_to_eight(at)
        found = value.astype(np.int64)
        if long.any():
            ninth = self.u8[at[long] + 8].astype(np.int64)
            nine = ninth < 0x80
            found[long] = np.where(nine, found[long] | ninth << 56, ABSENT)
            lengths[long] = np.where(nine, 9, 10)
        return found, at + lengths

    def zigzags(self, at: Ints) -> tuple[Ints, Ints, Flags | None]:
        """The signed integers at ``at``, as Avro and protobuf's ``sint64`` write them, where each
        ends, and which are none, having more than 64 bits (None: all are)."""
        first = self.u8[at]
        if int(first.max(initial=0)) < 0x80:
            small = first.astype(np.int64)
            return (small >> 1) ^ -(small & 1), at + 1, None
        value, lengths, long = self._up_to_eight(at)
        wrong: Flags | None = None
        if long.any():
            ninth, tenth = (self.u8[at[long] + k].astype(np.uint64) for k in (8, 9))
            ten = ninth >= 0x80
            more = (ninth & _SEVEN) << np.uint64(56) | np.where(ten, tenth << np.uint64(63), 0)
            value[long] |= more.astype(np.uint64)
            lengths[long] = np.where(ten, 10, 9)
            wrong = np.zeros(len(at), np.bool_)
            wrong[long] = ten & (tenth > 1)
        signed = (value >> _ONE) ^ (~(value & _ONE) + _ONE)
        return signed.view(np.int64), at + lengths, wrong

    def _up_to_eight(self, at: Ints) -> tuple[npt.NDArray[np.uint64], Ints, Flags]:
        """The integers, of those of more than eight bytes the first 56 bits; how many bytes each
        takes; and which take more than eight."""
        window = self._u64[at]
        stops = ~window & _STOPS
        last = stops & (~stops + _ONE)  # the lowest: the last byte of the varint
        lengths = np.frexp(last.astype(np.float64))[1].astype(np.int64) >> 3
        value = window & ~_STOPS & (last - _ONE)  # without a last byte, as it is 0: all of it
        for low, high, shift in _FOLDS:
            value = (value & low) | ((value & high) >> shift)
        return value, lengths, stops == 0


class FieldKind(Enum):
    """What is kept of a field."""

    INT = "int"  # its value
    SPAN = "span"  # where its bytes lie
    SPANS = "spans"  # where those of every repetition lie
    SEEN = "seen"  # whether it is there


class FieldTable:
    """The fields that are read: name -> (number, kind)."""

    def __init__(self, fields: Mapping[str, tuple[int, FieldKind]]) -> None:
        self.kinds = {name: kind for name, (_, kind) in fields.items()}
        self.by_tag: dict[int, tuple[str, FieldKind]] = {}
        for name, (number, kind) in fields.items():
            for wire_type in _WIRE_TYPES[kind]:
                self.by_tag[number << 3 | wire_type] = (name, kind)


_WIRE_TYPES: Final[Mapping[FieldKind, tuple[int, ...]]] = {
    FieldKind.INT: (_VARINT,),
    FieldKind.SPAN: (_BYTES,),
    FieldKind.SPANS: (_BYTES,),
    FieldKind.SEEN: (_VARINT, _BYTES),
}


class Spans(NamedTuple):
    """Where bytes lie: begin and length, which is ``ABSENT`` for none."""

    at: Ints
    length: Ints


class Repeated(NamedTuple):
    """Where the repetitions of a field lie, and of which message each is; in order within it."""

    rows: Ints
    at: Ints
    length: Ints


class Fields:
    """What was read of ``count`` messages. Integers that are absent are ``ABSENT``."""

    def __init__(self, count: int, table: FieldTable) -> None:
        self.count = count
        self.odd: Flags = np.zeros(count, np.bool_)
        self.ints: dict[str, Ints] = {}
        self.spans: dict[str, Spans] = {}
        self._repeated: dict[str, list[Repeated]] = {}
        for name, kind in table.kinds.items():
            if kind is FieldKind.SPANS:
                self._repeated[name] = []
            elif kind is FieldKind.SPAN:
                self.spans[name] = Spans(np.zeros(count, np.int64), self._absent())
            else:
                self.ints[name] = self._absent()

    def _absent(self) -> Ints:
        return np.full(self.count, ABSENT, np.int64)

    def repeated(self, name: str) -> Repeated:
        parts = self._repeated.get(name, [])
        if len(parts) == 1:
            return parts[0]
        if not parts:
            none = np.zeros(0, np.int64)
            return Repeated(none, none, none)
        rows, at, length = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        return Repeated(rows[order], at[order], length[order])

    def chosen(self, rows: Flags) -> Fields:
        """Of the messages that are marked."""
        found = copy(self)
        found.count, found.odd = int(rows.sum()), self.odd[rows]
        found.ints = {name: column[rows] for name, column in self.ints.items()}
        found.spans = {
            name: Spans(span.at[rows], span.length[rows]) for name, span in self.spans.items()
        }
        numbers = np.cumsum(rows) - 1
        found._repeated = {}
        for name in self._repeated:
            all_ = self.repeated(name)
            kept = rows[all_.rows]
            of_rows = Repeated(numbers[all_.rows[kept]], all_.at[kept], all_.length[kept])
            found._repeated[name] = [of_rows]
        return found

    def keep(self, name: str, kind: FieldKind, rows: Ints, at: Ints, value: Ints) -> None:
        """Take a field of some rows: its value, or its length where it has bytes at ``at``."""
        if kind is FieldKind.SPANS:
            self._repeated[name].append(Repeated(rows, at, value))
        elif kind is FieldKind.SPAN:
            self.spans[name].at[rows] = at
            self.spans[name].length[rows] = value
        else:
            if kind is FieldKind.INT:
                self.odd[rows] |= value == ABSENT
            self.ints[name][rows] = value if kind is FieldKind.INT else 1


def read_fields(bytes_: Bytes, at: Ints, stop: Ints, table: FieldTable) -> Fields:
    """The fields of the messages that lie from ``at`` to ``stop``, both within the bytes."""
    fields = Fields(len(at), table)
    rows: Ints = np.arange(len(at), dtype=np.int64)
    for _ in range(ROUNDS_MAX):
        left = at < stop
        if not left.all():
            fields.odd[rows[at > stop]] = True
            rows, at, stop = rows[left], at[left], stop[left]
        if not len(rows):
            return fields
        at = _round(bytes_, rows, at, stop, table, fields)
    fields.odd[rows[at != stop]] = True
    return fields


def _round(
    bytes_: Bytes, rows: Ints, at: Ints, stop: Ints, table: FieldTable, fields: Fields
) -> Ints:
    """Read one field of each message; where the next begins."""
    tags, first = bytes_.varints(at)
    if (tags == tags[0]).all():
        return _read(bytes_, int(tags[0]), rows, first, stop, table, fields)
    following = np.empty_like(at)
    for tag in _distinct(tags):
        chosen = np.flatnonzero(tags == tag)
        following[chosen] = _read(
            bytes_, tag, rows[chosen], first[chosen], stop[chosen], table, fields
        )
    return following


def _distinct(tags: Ints) -> Iterable[int]:
    return [int(tag) for tag in np.unique(tags)]


def _read(
    bytes_: Bytes, tag: int, rows: Ints, at: Ints, stop: Ints, table: FieldTable, fields: Fields
) -> Ints:
    """Read a field of some messages, whose tag was read; where the next begins, past ``stop`` for
    a message that ends before."""
    wire_type = tag & 7
    if tag < 8 or wire_type not in (_VARINT, _FIXED64, _BYTES, _FIXED32):
        return stop + 1  # no field, a group, or what is no message at all
    if wire_type in (_FIXED64, _FIXED32):
        return at + (8 if wire_type == _FIXED64 else 4)
    within = np.minimum(at, bytes_.size)  # the tag may be the last that there is
    value, following = bytes_.varints(within)
    if wire_type == _BYTES:
        at = following
        following = np.where((value >= 0) & (value <= stop - at), at + value, stop + 1)
    name, kind = table.by_tag.get(tag, ("", FieldKind.SEEN))
    if name:
        fields.keep(name, kind, rows, at, value)
    return following
