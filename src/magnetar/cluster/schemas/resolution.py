"""Whether values that were written with one Avro schema can be read with another.

| written | read as | |
|---|---|---|
| any | the same primitive type | yes |
| int | long, float, double | promoted |
| long | float, double | promoted |
| float | double | promoted |
| string, bytes | bytes, string | promoted |
| array, map | array, map | as their items |
| enum | enum | same short name; each written symbol known, or the reader's enum has a default |
| fixed | fixed | same short name and size |
| record | record | each of the reader's fields is written (by name or alias) and can be read, or has a default; names of records need not agree |
| union | any | every branch can be read |
| any | union | one branch can read it: that of the same full name for a named type, else the first that fits |

Decimals agree in precision and scale. Names of records are not compared, because Pulsar's clients
take them from classes, and Pulsar does not compare them either (a union prefers the branch of the
same name). An enum that lacks a written symbol is refused, although Java's Avro lets it pass and
fails when it meets the symbol.

``COMPARISONS_MAX`` bounds the work: the answer is wanted while others wait.

Pure. Source: Avro 1.11 specification, "Schema Resolution".
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from magnetar.cluster.schemas.avro import AvroField, AvroType
from magnetar.model.errors import InvalidSchemaError

COMPARISONS_MAX: Final = 100_000
"""Pairs of types; some hundred milliseconds of one processor."""

DESCENT_MAX: Final = 150
"""Pairs within pairs; declarations that name each other in a row can be much longer."""

PROMOTIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "int": frozenset(("long", "float", "double")),
        "long": frozenset(("float", "double")),
        "float": frozenset(("double",)),
        "string": frozenset(("bytes",)),
        "bytes": frozenset(("string",)),
    }
)
"""Written type -> the types that it may be read as, beside itself."""


def unreadable(reader: AvroType, writer: AvroType) -> str | None:
    """Why what ``writer`` wrote cannot be read with ``reader``, with the place; None if it can.
    Raises ``InvalidSchemaError`` for schemas that are too large to compare."""
    return _Resolution().reason(reader, writer, "")


class _Resolution:
    """One comparison. A pair that is being compared is taken to fit: a record that contains itself
    comes back to its own pair. Should it not fit after all, what was found to fit below it may
    have been so by that alone, and is forgotten."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[int, int], str | None] = {}
        self._order: list[tuple[int, int]] = []
        self._depth = 0
        self._comparisons = 0

    def reason(self, reader: AvroType, writer: AvroType, place: str) -> str | None:
        place = place or reader.full_name
        key = (id(reader), id(writer))
        if key in self._reasons:
            return self._reasons[key]
        self._comparisons += 1
        if self._comparisons > COMPARISONS_MAX or self._depth >= DESCENT_MAX:
            raise InvalidSchemaError(
                f"{place[:200]}: too large to compare: more than {COMPARISONS_MAX} pairs of types, "
                f"or {DESCENT_MAX} within each other"
            )
        began = len(self._order)
        self._order.append(key)
        self._reasons[key] = None
        self._depth += 1
        found = self._compare(reader, writer, place)
        self._depth -= 1
        self._reasons[key] = found
        if found is not None:
            self._forget_fits(began + 1)
        return found

    def _forget_fits(self, began: int) -> None:
        for key in self._order[began:]:
            if self._reasons[key] is None:
                del self._reasons[key]
        self._order[began:] = [key for key in self._order[began:] if key in self._reasons]

    def _compare(self, reader: AvroType, writer: AvroType, place: str) -> str | None:
        if writer.name == "union":
            reasons = (self.reason(reader, each, place) for each in writer.branches)
            return next(filter(None, reasons), None)
        if reader.name == "union":
            return self._into_union(reader, writer, place)
        if reader.name != writer.name:
            if reader.name in PROMOTIONS.get(writer.name, ()):
                return None
            return f"{_at(place)}{writer} cannot be read as {reader}"
        if reader.decimal and writer.decimal and reader.decimal != writer.decimal:
            return (
                f"{_at(place)}a decimal of precision and scale {writer.decimal} cannot be read as "
                f"one of {reader.decimal}"
            )
        if reader.items is not None and writer.items is not None:
            return self.reason(reader.items, writer.items, f"{place}[]")
        if reader.name == "record":
            return self._record(reader, writer, place)
        return _named(reader, writer, place)

    def _into_union(self, reader: AvroType, writer: AvroType, place: str) -> str | None:
        reasons = []
        for branch in reader.branches:
            if writer.full_name and branch.full_name == writer.full_name:
                return self.reason(branch, writer, place)
        for branch in reader.branches:
            reason = self.reason(branch, writer, place)
            if reason is None:
                return None
            reasons.append(reason)
        alike = [each for each in reader.branches if each.name == writer.name]
        if len(alike) == 1:  # then why that one does not fit says more
            return reasons[reader.branches.index(alike[0])]
        return f"{_at(place)}{writer} cannot be read as any of {reader}"

    def _record(self, reader: AvroType, writer: AvroType, place: str) -> str | None:
        written = {each.name: each for each in writer.fields}
        for wanted in reader.fields:
            found = _written_as(wanted, written)
            if found is None:
                if not wanted.has_default:
                    return f"{place}.{wanted.name}: not written, and the reader has no default"
                continue
            reason = self.reason(wanted.kind, found.kind, f"{place}.{wanted.name}")
            if reason is not None:
                return reason
        return None


def _written_as(wanted: AvroField, written: Mapping[str, AvroField]) -> AvroField | None:
    for name in (wanted.name, *wanted.aliases):
        if name in written:
            return written[name]
    return None


def _named(reader: AvroType, writer: AvroType, place: str) -> str | None:
    """Enumerations and fixed ones; nothing is left to compare in other types."""
    if reader.short_name != writer.short_name:
        return f"{_at(place)}{writer} cannot be read as {reader}"
    if reader.size != writer.size:
        return f"{_at(place)}{writer} of {writer.size} bytes cannot be read as {reader.size} bytes"
    unknown = writer.symbols - reader.symbols
    if unknown and not reader.has_default:
        return (
            f"{_at(place)}{', '.join(sorted(unknown)[:5])} of {writer} cannot be read: the "
            "reader's enum has neither them nor a default"
        )
    return None


def _at(place: str) -> str:
    return f"{place}: " if place else ""
