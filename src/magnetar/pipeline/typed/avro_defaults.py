"""Defaults of fields, which stand in schemas as JSON, as values that Arrow takes.

Pure. ``InvalidSchemaError`` for one that is no value of its type.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

from magnetar.cluster.schemas.avro import AvroType
from magnetar.model.errors import InvalidSchemaError
from magnetar.pipeline.typed.spark_types import DECIMAL_DIGITS_MAX, choices, decimal_of


def default_value(kind: AvroType, default: Any) -> Any:
    """A union's default is of its first branch, says the specification; clients write others too,
    so it is of the first that takes it."""
    if kind.name == "union":
        return _of_union(kind, default)
    if kind.name == "record":
        return _of_record(kind, default)
    if kind.items is not None:
        return _of_items(kind, kind.items, default)
    if kind.name in ("bytes", "fixed"):
        return _of_bytes(kind, default)
    if kind.name in ("int", "long"):
        return _of_whole(kind, default)
    right = {
        "null": default is None,
        "boolean": isinstance(default, bool),
        "float": _is_number(default),
        "double": _is_number(default),
        "string": isinstance(default, str),
        "enum": default in kind.symbols if isinstance(default, str) else False,
    }
    if not right[kind.name]:
        raise _wrong(kind, default)
    return default


def _of_union(kind: AvroType, default: Any) -> Any:
    if default is None and any(each.name == "null" for each in kind.branches):
        return None
    members = choices(kind)
    for number, each in enumerate(members):
        try:
            value = default_value(each, default)
        except InvalidSchemaError:
            continue
        return value if len(members) == 1 else {f"member{number}": value}
    raise _wrong(kind, default)


def _of_record(kind: AvroType, default: Any) -> Any:
    if not isinstance(default, dict):
        raise _wrong(kind, default)
    found = {}
    for each in kind.fields:
        if each.name not in default and not each.has_default:
            raise _wrong(kind, default)
        found[each.name] = default_value(each.kind, default.get(each.name, each.default))
    return found


def _of_items(kind: AvroType, items: AvroType, default: Any) -> Any:
    if kind.name == "array" and isinstance(default, list):
        return [default_value(items, each) for each in default]
    if kind.name == "map" and isinstance(default, dict):
        return [(key, default_value(items, each)) for key, each in default.items()]
    raise _wrong(kind, default)


def _of_bytes(kind: AvroType, default: Any) -> Any:
    """A character for each byte."""
    if not isinstance(default, str):
        raise _wrong(kind, default)
    try:
        data = default.encode("latin-1")
    except UnicodeEncodeError:
        raise _wrong(kind, default) from None
    decimal = decimal_of(kind)
    if decimal is None:
        return data
    whole = Decimal(int.from_bytes(data, "big", signed=True))
    return whole.scaleb(-decimal[1], Context(prec=DECIMAL_DIGITS_MAX))


def _of_whole(kind: AvroType, default: Any) -> Any:
    if not isinstance(default, int) or isinstance(default, bool):
        raise _wrong(kind, default)
    return default * 1000 if kind.logical.endswith("timestamp-millis") else default


def _is_number(default: Any) -> bool:
    return isinstance(default, int | float) and not isinstance(default, bool)


def _wrong(kind: AvroType, default: Any) -> InvalidSchemaError:
    return InvalidSchemaError(f"{str(default)[:80]!r} is no {kind}")
