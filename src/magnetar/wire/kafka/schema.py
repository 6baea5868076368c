"""Messages of Kafka's protocol as dataclasses, and their codec.

A message is a dataclass whose fields are made by the functions below (``int16``, ``text``,
``array`` ...), in their order on the wire. Each says from which version on (``since``) and up to
which (``until``) it is there; ``null`` from which version on it may be null; ``tag`` that it is a
tagged field. ``@message(flexible=n)`` says from which version on a message has compact lengths and
tagged fields. So one class stands for all versions of a message: a field that a version does not
have keeps its default when that version is read, and is left out when it is written.

A codec is made of a class per version, once, out of functions: reading or writing a field is a
call or two. Unknown tagged fields are skipped, as Kafka has it.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from magnetar.model.errors import ProtocolError
from magnetar.wire.kafka.primitives import Buffer, FieldReader, FieldWriter

M = TypeVar("M")
Read: TypeAlias = Callable[[FieldReader], Any]
Write: TypeAlias = Callable[[FieldWriter, Any], None]

NO_UUID: Final = uuid.UUID(int=0)
NEVER: Final = 1 << 15
SPEC: Final = "kafka"


class FieldCodec(NamedTuple):
    """A type in one version: ``least`` bytes at least."""

    read: Read
    write: Write
    least: int


Kind: TypeAlias = Callable[[int, bool, bool], FieldCodec]
"""``kind(version, flexible, nullable)``."""


class FieldSpec(NamedTuple):
    kind: Kind
    since: int
    until: int
    null: int
    tag: int

    def there(self, version: int) -> bool:
        return self.since <= version <= self.until


# -- kinds ------------------------------------------------------------------------------------


def _fixed(read: Read, write: Write, size: int) -> Kind:
    codec = FieldCodec(read, write, size)
    return lambda version, flexible, nullable: codec


def _required(read: Read, what: str) -> Read:
    def checked(reader: FieldReader) -> Any:
        value = read(reader)
        if value is None:
            raise ProtocolError(f"{what} is null where it may not be")
        return value

    return checked


def _text_kind(version: int, flexible: bool, nullable: bool) -> FieldCodec:
    def read(reader: FieldReader) -> str | None:
        return reader.text(flexible)

    def write(writer: FieldWriter, value: str | None) -> None:
        writer.text(value, flexible)

    return FieldCodec(read if nullable else _required(read, "a string"), write, 2 - flexible)


def _blob_kind(version: int, flexible: bool, nullable: bool) -> FieldCodec:
    def read(reader: FieldReader) -> Buffer | None:
        found = reader.blob(flexible)
        return None if found is None else bytes(found)

    def write(writer: FieldWriter, value: Buffer | None) -> None:
        writer.blob(value, flexible)

    return FieldCodec(read if nullable else _required(read, "a byte field"), write, 1)


def _records_kind(version: int, flexible: bool, nullable: bool) -> FieldCodec:
    def read(reader: FieldReader) -> memoryview | None:
        return reader.blob(flexible)

    def write(writer: FieldWriter, value: Any) -> None:
        writer.records(value, flexible)

    return FieldCodec(read, write, 1)


def _array_kind(element: Kind) -> Kind:
    def kind(version: int, flexible: bool, nullable: bool) -> FieldCodec:
        read_one, write_one, least = element(version, flexible, False)

        def read(reader: FieldReader) -> list[Any] | None:
            count = reader.count(flexible, least)
            return None if count < 0 else [read_one(reader) for _ in range(count)]

        def write(writer: FieldWriter, value: Any) -> None:
            if value is None:
                writer.size(-1, flexible, wide=True)
                return
            writer.count(len(value), flexible)
            for item in value:
                write_one(writer, item)

        return FieldCodec(read if nullable else _required(read, "an array"), write, 1)

    return kind


def _struct_kind(cls: Any) -> Kind:
    return lambda version, flexible, nullable: _codec(cls, version, flexible)


# -- fields -----------------------------------------------------------------------------------

_INT8: Final = _fixed(FieldReader.int8, FieldWriter.int8, 1)
_INT16: Final = _fixed(FieldReader.int16, FieldWriter.int16, 2)
_UINT16: Final = _fixed(FieldReader.uint16, FieldWriter.uint16, 2)
_INT32: Final = _fixed(FieldReader.int32, FieldWriter.int32, 4)
_INT64: Final = _fixed(FieldReader.int64, FieldWriter.int64, 8)
_FLOAT64: Final = _fixed(FieldReader.float64, FieldWriter.float64, 8)
_BOOLEAN: Final = _fixed(FieldReader.boolean, FieldWriter.boolean, 1)
_UUID: Final = _fixed(FieldReader.uuid, FieldWriter.uuid, 16)


def _field(
    kind: Kind, default: Any, since: int, until: int, null: int = NEVER, tag: int = -1
) -> Any:
    spec = {SPEC: FieldSpec(kind, since, until, null, tag)}
    if default is list:
        return dataclasses.field(default_factory=list, metadata=spec)
    return dataclasses.field(default=default, metadata=spec)


def int8(default: int = 0, *, since: int = 0, until: int = NEVER) -> Any:
    return _field(_INT8, default, since, until)


def int16(default: int = 0, *, since: int = 0, until: int = NEVER, tag: int = -1) -> Any:
    return _field(_INT16, default, since, until, tag=tag)


def int32(default: int = 0, *, since: int = 0, until: int = NEVER) -> Any:
    return _field(_INT32, default, since, until)


def int64(default: int = 0, *, since: int = 0, until: int = NEVER, tag: int = -1) -> Any:
    return _field(_INT64, default, since, until, tag=tag)


def float64() -> Any:
    return _field(_FLOAT64, 0.0, 0, NEVER)


def boolean(default: bool = False, *, since: int = 0, until: int = NEVER, tag: int = -1) -> Any:
    return _field(_BOOLEAN, default, since, until, tag=tag)


def topic_id(*, since: int = 0) -> Any:
    return _field(_UUID, NO_UUID, since, NEVER)


def text(
    default: str | None = "",
    *,
    since: int = 0,
    until: int = NEVER,
    null: int = NEVER,
    tag: int = -1,
) -> Any:
    return _field(_text_kind, default, since, until, null, tag)


def blob(*, since: int = 0, null: int = NEVER) -> Any:
    return _field(_blob_kind, b"", since, NEVER, null)


def records() -> Any:
    return _field(_records_kind, None, 0, NEVER, 0)


def array(
    of: type[Any] | Kind, *, since: int = 0, until: int = NEVER, null: int = NEVER, tag: int = -1
) -> Any:
    """Of a message's parts (their class), or of a plain type: ``BYTES``, ``INTS``, ``LONGS``,
    ``TEXTS``."""
    element = _struct_kind(of) if isinstance(of, type) else of
    return _field(_array_kind(element), list, since, until, null, tag)


def part(of: type[Any], *, since: int = 0, tag: int = -1) -> Any:
    """A part that is there once. As a tagged field it is left out while it is None."""
    return _field(_struct_kind(of), None, since, NEVER, tag=tag)


def _optional_kind(cls: Any) -> Kind:
    """A part that may be null: a byte before it says whether it is there."""

    def kind(version: int, flexible: bool, nullable: bool) -> FieldCodec:
        inner = _codec(cls, version, flexible)

        def read(reader: FieldReader) -> Any:
            return None if reader.int8() < 0 else inner.read(reader)

        def write(writer: FieldWriter, value: Any) -> None:
            writer.int8(-1 if value is None else 1)
            if value is not None:
                inner.write(writer, value)

        return FieldCodec(read, write, 1)

    return kind


def optional_part(of: type[Any], *, since: int = 0) -> Any:
    """A part that is there once, or null."""
    return _field(_optional_kind(of), None, since, NEVER)


BYTES: Final = _INT8
INTS: Final = _INT32
LONGS: Final = _INT64
TEXTS: Final = _text_kind


# -- codecs -----------------------------------------------------------------------------------


@dataclass_transform()
def message(*, flexible: int = NEVER) -> Callable[[type[M]], type[M]]:
    """A request or response: ``flexible`` from that version on."""

    def made(cls: type[M]) -> type[M]:
        cls.FLEXIBLE = flexible  # type: ignore[attr-defined]
        return dataclasses.dataclass(slots=True)(cls)

    return made


def is_flexible(cls: type[Any], version: int) -> bool:
    return bool(version >= cls.FLEXIBLE)


@lru_cache(maxsize=2048)
def _codec(cls: Any, version: int, flexible: bool) -> FieldCodec:
    """Of a message, or a part of one, in one version."""
    plain: list[tuple[str, FieldCodec]] = []
    tagged: dict[int, tuple[str, FieldCodec, Any]] = {}
    for each in dataclasses.fields(cls):
        spec: FieldSpec = each.metadata[SPEC]
        if not spec.there(version):
            continue
        codec = spec.kind(version, flexible, version >= spec.null)
        if spec.tag < 0:
            plain.append((each.name, codec))
        else:
            default = None if each.default is dataclasses.MISSING else each.default
            tagged[spec.tag] = (each.name, codec, default)
    reads = [(name, codec.read) for name, codec in plain]
    writes = [(name, codec.write) for name, codec in plain]

    def read(reader: FieldReader) -> Any:
        made = cls()
        for name, read_field in reads:
            setattr(made, name, read_field(reader))
        if flexible:
            _read_tagged(reader, made, tagged)
        return made

    def write(writer: FieldWriter, value: Any) -> None:
        for name, write_field in writes:
            write_field(writer, getattr(value, name))
        if flexible:
            _write_tagged(writer, value, tagged)

    return FieldCodec(read, write, max(1, sum(codec.least for _, codec in plain) + flexible))


def _read_tagged(
    reader: FieldReader, made: Any, tagged: dict[int, tuple[str, FieldCodec, Any]]
) -> None:
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        body = reader.take(reader.uvarint())
        known = tagged.get(tag)
        if known is None:
            continue
        inner = FieldReader(body)
        inner.left = reader.left
        setattr(made, known[0], known[1].read(inner))
        inner.done(f"tagged field {tag}")
        reader.left = inner.left


def _write_tagged(
    writer: FieldWriter, value: Any, tagged: dict[int, tuple[str, FieldCodec, Any]]
) -> None:
    said = [
        (tag, codec, getattr(value, name))
        for tag, (name, codec, default) in sorted(tagged.items())
        if getattr(value, name) not in (default, [])
    ]
    writer.uvarint(len(said))
    for tag, codec, field_value in said:
        inner = FieldWriter()
        codec.write(inner, field_value)
        writer.uvarint(tag)
        writer.uvarint(len(inner.out))
        writer.out += inner.out


def skip_tagged(reader: FieldReader) -> None:
    """Tagged fields of which none is known."""
    for _ in range(reader.uvarint()):
        reader.uvarint()
        reader.take(reader.uvarint())


def read_message(cls: type[M], version: int, reader: FieldReader) -> M:
    """The message that ``reader`` holds. Raises ``ProtocolError``."""
    kind: Any = cls
    found = _codec(kind, version, is_flexible(kind, version)).read(reader)
    assert isinstance(found, cls)
    return found


def write_message(value: Any, version: int, writer: FieldWriter) -> None:
    cls: Any = type(value)
    _codec(cls, version, is_flexible(cls, version)).write(writer, value)
