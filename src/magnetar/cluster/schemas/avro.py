"""Avro schemas: parsed, checked, and brought into one form.

Raises ``InvalidSchemaError`` for text that is no Avro schema, naming the place in it. Defaults of
fields are not held against their types: Pulsar's clients write some that do not fit, and Pulsar
takes them. Nesting is bounded (``DEPTH_MAX``; with what is no type, ``JSON_LEVELS_MAX``), because
whoever reads a schema descends into it.

Pure. Source: Avro 1.11 specification, "Schema Declaration" and "Names".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.model.errors import InvalidSchemaError
from magnetar.model.json_bounded import TooDeepError, load_bounded

DEPTH_MAX: Final = 100
JSON_LEVELS_MAX: Final = 320
"""Of the text: a record in a record takes three (object, list of fields, field). Few enough for
two calls a level under the 1000 that Python's interpreter has."""

PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
NAMED: Final = frozenset(("record", "error", "enum", "fixed"))

_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_FULL_NAME = re.compile(rf"{_NAME.pattern}(\.{_NAME.pattern})*")


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record. ``has_default``: a reader may do without it in what was written."""

    name: str
    kind: AvroType
    has_default: bool
    aliases: tuple[str, ...]
    default: Any = None
    """As JSON has it."""


@dataclass(slots=True, eq=False)
class AvroType:
    """One type in a schema; ``name`` is ``record``, ``array``, ``int`` ...; the rest stands as the
    type needs it. A record may contain itself, so these are compared by identity."""

    name: str
    full_name: str = ""
    fields: tuple[AvroField, ...] = ()
    items: AvroType | None = None
    """Of an array, and the values of a map."""
    branches: tuple[AvroType, ...] = ()
    symbols: frozenset[str] = frozenset()
    symbol_order: tuple[str, ...] = ()
    """Of an enumeration: values name a symbol by its place."""
    has_default: bool = False
    """Of an enumeration: what an unknown symbol is read as."""
    default: str = ""
    size: int = 0
    decimal: tuple[int, int] | None = None
    """Precision and scale."""
    logical: str = ""
    """What else values mean: ``timestamp-millis``, ``date`` ...; what is not known is ignored."""

    @property
    def short_name(self) -> str:
        return self.full_name.rpartition(".")[2]

    def __str__(self) -> str:
        if self.name == "union":
            return f"[{', '.join(map(str, self.branches))}]"
        return f"{self.name} {self.full_name}" if self.full_name else self.name


def parse_avro(data: bytes) -> AvroType:
    """The schema that ``data`` (JSON) declares. Raises ``InvalidSchemaError``."""
    return _Parser().parse(load_json(data), "", "", 0)


def load_json(data: bytes) -> Any:
    """The JSON that ``data`` is. Raises ``InvalidSchemaError``."""
    try:
        return load_bounded(data, JSON_LEVELS_MAX)
    except TooDeepError as error:
        raise InvalidSchemaError(str(error)) from None
    except ValueError as error:
        raise InvalidSchemaError(f"not JSON: {error}") from error


def canonical_json(data: bytes) -> bytes:
    """The same schema for everybody who spells it otherwise: documentation, white space and the
    order of attributes gone. What a reader could tell apart stays. Raises
    ``InvalidSchemaError``."""
    plain = _without_docs(load_json(data))
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def _without_docs(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_docs(each) for each in node]
    if isinstance(node, dict):
        return {
            key: value if key == "default" else _without_docs(value)
            for key, value in node.items()
            if not (key == "doc" and isinstance(value, str))
        }
    return node


@dataclass(slots=True)
class _Parser:
    """Named types are known from their declaration on, their own fields included."""

    known: dict[str, AvroType] = field(default_factory=dict)

    def parse(self, node: Any, namespace: str, place: str, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise InvalidSchemaError(f"{_at(place)}nested deeper than {DEPTH_MAX} levels")
        if isinstance(node, str):
            return self._named(node, namespace, place)
        if isinstance(node, list):
            return self._union(node, namespace, place, depth)
        if not isinstance(node, dict):
            raise InvalidSchemaError(f"{_at(place)}{_shown(node)} is no type")
        kind = node.get("type")
        if isinstance(kind, str) and kind in NAMED:
            return self._declare(node, kind, namespace, place, depth)
        if kind == "array" or kind == "map":
            part = "items" if kind == "array" else "values"
            if part not in node:
                raise InvalidSchemaError(f"{_at(place)}{kind} without {part!r}")
            inner = self.parse(node[part], namespace, f"{place}[]", depth + 1)
            return AvroType(kind, items=inner)
        if kind is None:
            raise InvalidSchemaError(f"{_at(place)}an object without 'type'")
        found = self.parse(kind, namespace, place, depth + 1)
        if found.name not in PRIMITIVES or "logicalType" not in node:
            return found
        decimal = _decimal(node) if found.name == "bytes" else None
        return AvroType(found.name, decimal=decimal, logical=_logical(node))

    def _named(self, name: str, namespace: str, place: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self.known.get(_full_name(name, namespace)) or self.known.get(name)
        if found is None:
            raise InvalidSchemaError(f"{_at(place)}{_shown(name)} is not declared before its use")
        return found

    def _union(self, node: list[Any], namespace: str, place: str, depth: int) -> AvroType:
        branches = tuple(
            self.parse(each, namespace, f"{place}|{index}", depth + 1)
            for index, each in enumerate(node)
        )
        seen: set[str] = set()
        for branch in branches:
            key = branch.full_name or branch.name
            if branch.name == "union" or key in seen:
                raise InvalidSchemaError(f"{_at(place)}a union with {branch} twice, or in a union")
            seen.add(key)
        return AvroType("union", branches=branches)

    def _declare(
        self, node: dict[str, Any], kind: str, namespace: str, place: str, depth: int
    ) -> AvroType:
        full_name = _declared_name(node, namespace, place)
        if full_name in self.known:
            raise InvalidSchemaError(f"{_at(place)}{full_name} is declared twice")
        made = AvroType("record" if kind == "error" else kind, full_name)
        self.known[full_name] = made
        place = place or full_name
        if kind == "enum":
            self._fill_enum(made, node, place)
        elif kind == "fixed":
            size = node.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InvalidSchemaError(f"{_at(place)}fixed with size {_shown(size)}")
            made.size, made.decimal, made.logical = size, _decimal(node), _logical(node)
        else:
            made.fields = self._fields(node, full_name.rpartition(".")[0], place, depth)
        return made

    def _fill_enum(self, made: AvroType, node: dict[str, Any], place: str) -> None:
        symbols = node.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
            raise InvalidSchemaError(f"{_at(place)}enum without a list of 'symbols'")
        if len(set(symbols)) != len(symbols):
            raise InvalidSchemaError(f"{_at(place)}enum with a symbol twice")
        made.symbols, made.symbol_order = frozenset(symbols), tuple(symbols)
        made.has_default, made.default = "default" in node, str(node.get("default", ""))

    def _fields(
        self, node: dict[str, Any], namespace: str, place: str, depth: int
    ) -> tuple[AvroField, ...]:
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise InvalidSchemaError(f"{_at(place)}record without a list of 'fields'")
        made: dict[str, AvroField] = {}
        for each in fields:
            if not isinstance(each, dict) or "type" not in each:
                raise InvalidSchemaError(f"{_at(place)}a field needs 'name' and 'type'")
            name = each.get("name")
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise InvalidSchemaError(f"{_at(place)}{_shown(name)} is no name of a field")
            if name in made:
                raise InvalidSchemaError(f"{_at(place)}field {name} stands there twice")
            kind = self.parse(each["type"], namespace, f"{place}.{name}", depth + 1)
            default = each.get("default")
            made[name] = AvroField(name, kind, "default" in each, _aliases(each), default)
        return tuple(made.values())


def _declared_name(node: dict[str, Any], namespace: str, place: str) -> str:
    name, own = node.get("name"), node.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(own, str | None):
        raise InvalidSchemaError(f"{_at(place)}a {node['type']} without a name")
    full_name = _full_name(name, own or "")
    if not _FULL_NAME.fullmatch(full_name):
        raise InvalidSchemaError(f"{_at(place)}{_shown(full_name)} is no name of a type")
    return full_name


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _aliases(node: dict[str, Any]) -> tuple[str, ...]:
    aliases = node.get("aliases")
    if not isinstance(aliases, list):
        return ()
    return tuple(each for each in aliases if isinstance(each, str))


def _decimal(node: dict[str, Any]) -> tuple[int, int] | None:
    """Unfit logical types are ignored, as the specification has it."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    if node.get("logicalType") != "decimal":
        return None
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    return precision, scale


def _logical(node: dict[str, Any]) -> str:
    found = node.get("logicalType")
    return found if isinstance(found, str) else ""


def _at(place: str) -> str:
    return f"{place}: " if place else ""


def _shown(value: object) -> str:
    return repr(value)[:80]
