"""Kafka's primitive types: how each is read out of a frame, and written.

Rules: a reader never reads past its view, and never believes a length: every string, byte field
and array is held against the bytes that are left before anything is made of it, and all arrays of
one message together against ``ELEMENTS_MAX``. What does not fit is a ``ProtocolError``.

Source: Kafka's protocol guide (types; "flexible" versions have compact lengths, plus one, as
unsigned varints, and tagged fields).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Final, TypeAlias

from magnetar.model.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview
Records: TypeAlias = Buffer | Sequence[Buffer] | None
"""Record batches, one after the other: read as one view of the frame, written out of any parts."""

ELEMENTS_MAX: Final = 1_000_000
"""Of all arrays of one message: what a frame of allowed size can make us build is bounded."""

_I8: Final = struct.Struct(">b")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_U16: Final = struct.Struct(">H")


class LongMessageError(ProtocolError):
    """A message has more elements than were to be read, or written."""


class FieldReader:
    """Reads one frame's fields in order. ``left``: how many elements of arrays it may yet have."""

    __slots__ = ("at", "end", "left", "view")

    def __init__(self, view: memoryview, at: int = 0) -> None:
        self.view = view
        self.at = at
        self.end = len(view)
        self.left = ELEMENTS_MAX

    def _unpack(self, form: struct.Struct) -> int:
        at = self.at
        self.at = stop = at + form.size
        if stop > self.end:
            raise ProtocolError(f"a field of {form.size} bytes at {at} of {self.end}")
        value = form.unpack_from(self.view, at)[0]
        assert isinstance(value, int)
        return value

    def int8(self) -> int:
        return self._unpack(_I8)

    def int16(self) -> int:
        return self._unpack(_I16)

    def uint16(self) -> int:
        return self._unpack(_U16)

    def int32(self) -> int:
        return self._unpack(_I32)

    def int64(self) -> int:
        return self._unpack(_I64)

    def float64(self) -> float:
        return float(_F64.unpack(self.take(8))[0])

    def boolean(self) -> bool:
        return self._unpack(_I8) != 0

    def uvarint(self) -> int:
        """At most five bytes."""
        value = shift = 0
        at, end, view = self.at, self.end, self.view
        while at < end and shift < 35:
            byte = view[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return value
            shift += 7
        raise ProtocolError(f"a broken varint at {self.at} of {end}")

    def take(self, size: int) -> memoryview:
        at = self.at
        stop = at + size
        if size < 0 or stop > self.end:
            raise ProtocolError(f"{size} bytes announced at {at}, {self.end - at} are left")
        self.at = stop
        return self.view[at:stop]

    def _text(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a string that is not UTF-8 ({error})") from error

    def size(self, flexible: bool, wide: bool) -> int:
        """A length, -1 for null; ``wide``: of four bytes where it is not a varint."""
        if flexible:
            return self.uvarint() - 1
        return self.int32() if wide else self.int16()

    def text(self, flexible: bool) -> str | None:
        size = self.size(flexible, wide=False)
        return None if size == -1 else self._text(size)

    def blob(self, flexible: bool) -> memoryview | None:
        size = self.size(flexible, wide=True)
        return None if size == -1 else self.take(size)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=bytes(self.take(16)))

    def count(self, flexible: bool, least_bytes: int) -> int:
        """How many elements follow, of so many bytes each at least; -1 for null."""
        count = self.size(flexible, wide=True)
        if count < -1 or count * least_bytes > self.end - self.at:
            raise ProtocolError(
                f"{count} elements announced at {self.at}, {self.end - self.at} bytes are left"
            )
        self.left -= count
        if self.left < 0:
            raise LongMessageError(f"more than {ELEMENTS_MAX} array elements in one message")
        return count

    def done(self, what: str) -> None:
        if self.at != self.end:
            raise ProtocolError(f"{what} has {self.end - self.at} bytes too many")


class FieldWriter:
    """Writes fields in order; large byte fields are kept as the parts that they are. ``left``: how
    many elements of arrays it may yet write; None: any number."""

    __slots__ = ("_parts", "_size", "left", "out")

    def __init__(self, left: int | None = None) -> None:
        self.left = left
        self.out = bytearray()
        self._parts: list[Buffer] = []
        self._size = 0  # of the parts

    def int8(self, value: int) -> None:
        self.out += _I8.pack(value)

    def int16(self, value: int) -> None:
        self.out += _I16.pack(value)

    def uint16(self, value: int) -> None:
        self.out += _U16.pack(value)

    def int32(self, value: int) -> None:
        self.out += _I32.pack(value)

    def int64(self, value: int) -> None:
        self.out += _I64.pack(value)

    def float64(self, value: float) -> None:
        self.out += _F64.pack(value)

    def boolean(self, value: bool) -> None:
        self.out.append(1 if value else 0)

    def uvarint(self, value: int) -> None:
        out = self.out
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)

    def size(self, value: int, flexible: bool, wide: bool) -> None:
        if flexible:
            self.uvarint(value + 1)
        elif wide:
            self.int32(value)
        else:
            self.int16(value)

    def count(self, count: int, flexible: bool) -> None:
        """So many elements follow. Raises ``LongMessageError``."""
        if self.left is not None:
            self.left -= count
            if self.left < 0:
                raise LongMessageError("more array elements in one message than were to be written")
        self.size(count, flexible, wide=True)

    def text(self, value: str | None, flexible: bool) -> None:
        if value is None:
            self.size(-1, flexible, wide=False)
            return
        data = value.encode()
        self.size(len(data), flexible, wide=False)
        self.out += data

    def blob(self, value: Buffer | None, flexible: bool) -> None:
        self.size(-1 if value is None else len(value), flexible, wide=True)
        if value is not None:
            self.out += value

    def records(self, value: Records, flexible: bool) -> None:
        """Not copied: ``parts`` has them as they were given."""
        if value is None:
            self.size(-1, flexible, wide=True)
            return
        parts = [value] if isinstance(value, bytes | bytearray | memoryview) else value
        size = sum(map(len, parts))
        self.size(size, flexible, wide=True)
        if size:
            self._parts.append(self.out)
            self._parts += parts
            self._size += len(self.out) + size
            self.out = bytearray()

    def uuid(self, value: uuid.UUID) -> None:
        self.out += value.bytes

    def parts(self) -> tuple[list[Buffer], int]:
        """All that was written, and how many bytes that is."""
        if self.out:
            self._parts.append(self.out)
            self._size += len(self.out)
            self.out = bytearray()
        return self._parts, self._size
