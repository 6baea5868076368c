"""Conditions on the columns of messages, as a query pushes them down. Pure.

A condition compares a column with constants, in SQL's three-valued logic: of a null nothing is
known (but by ``IS_NULL`` and ``SAME``), neither is the negation of it, and a row is kept only if
every condition is known to be true. So a row that is dropped here is one that Spark would drop.

Values are as the columns hold them: integers; times as microseconds since 1970 (messages have
milliseconds: what lies between two of them is compared as it is); text as its UTF-8 bytes, which
order as Spark orders strings.

Why: docs/adr/0083-filters-are-an-option.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.pipeline.columns.protobuf_columns import Flags

Value: TypeAlias = int | bytes


class Relation(Enum):
    """How a column is compared with the operands."""

    EQUAL = "="
    SAME = "<=>"  # equal, or both null
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    ONE_OF = "in"
    IS_NULL = "is null"
    STARTS = "starts with"
    ENDS = "ends with"
    CONTAINS = "contains"


CONSTANTS: Final = frozenset({"topic", "partition"})
"""The same for all messages of a topic partition."""

OF_ENTRIES: Final = frozenset({"ledger_id", "entry_id", "publish_time"})
"""The same for all messages of an entry."""

OF_MESSAGES: Final = frozenset({"batch_index", "key", "key_bytes", "event_time", "offset"})

TEXTS: Final = frozenset({"topic", "key", "key_bytes"})
TIMES: Final = frozenset({"publish_time", "event_time"})


@dataclass(frozen=True)
class Condition:
    """``column``: of those above. ``operands``: one, or some for ``ONE_OF``; None is a null."""

    column: str
    relation: Relation
    operands: tuple[Value | None, ...] = ()
    negated: bool = False


Conditions: TypeAlias = tuple[Condition, ...]

_COMPARED = {
    Relation.EQUAL: pc.equal,
    Relation.LESS: pc.less,
    Relation.AT_MOST: pc.less_equal,
    Relation.GREATER: pc.greater,
    Relation.AT_LEAST: pc.greater_equal,
}
_SEARCHED = {
    Relation.STARTS: pc.starts_with,
    Relation.ENDS: pc.ends_with,
    Relation.CONTAINS: pc.match_substring,
}


def type_of(column: str) -> pa.DataType:
    """What an array of the column holds to be compared."""
    return pa.binary() if column in TEXTS else pa.int64()


def on(conditions: Iterable[Condition], columns: Iterable[str]) -> Conditions:
    """Those on these columns."""
    chosen = frozenset(columns)
    return tuple(condition for condition in conditions if condition.column in chosen)


def holds(condition: Condition, column: pa.Array) -> Flags:
    """For which rows the condition is known to be true. ``column``: of ``type_of``."""
    truth = _truth(condition, column)
    if condition.negated:
        truth = pc.invert(truth)
    found: Flags = pc.fill_null(truth, False).to_numpy(zero_copy_only=False)
    return found


def _truth(condition: Condition, column: pa.Array) -> pa.Array:
    """True, false or, as null, not known."""
    relation, operands = condition.relation, condition.operands
    if relation is Relation.IS_NULL:
        return pc.is_null(column)
    if relation is Relation.ONE_OF:
        return _one_of(column, operands)
    (operand,) = operands
    if relation is Relation.SAME:
        if operand is None:
            return pc.is_null(column)
        return pc.fill_null(pc.equal(column, pa.scalar(operand, column.type)), False)
    if operand is None:
        return pa.nulls(len(column), pa.bool_())
    if relation in _COMPARED:
        return _COMPARED[relation](column, pa.scalar(operand, column.type))
    return _SEARCHED[relation](column, operand)


def _one_of(column: pa.Array, operands: Sequence[Value | None]) -> pa.Array:
    values = [operand for operand in operands if operand is not None]
    found = pc.is_in(column, value_set=pa.array(values, column.type))
    unknown = pc.is_null(column)
    if len(values) < len(operands):  # it may be the one that is null
        unknown = pc.or_(unknown, pc.invert(found))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)


def may_hold(conditions: Iterable[Condition], constants: Mapping[str, int | str]) -> bool:
    """Whether all conditions on these columns are true, which have one value each."""
    return all(
        bool(holds(each, pa.array([constants[each.column]], type_of(each.column)))[0])
        for each in on(conditions, constants)
    )


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest value that may be looked for."""

    least: int = -(2**63)
    greatest: int = 2**63 - 1

    def meets(self, least: int, greatest: int) -> bool:
        """Whether a value between these two may be looked for."""
        return self.least <= greatest and least <= self.greatest

    def both(self, other: Bounds) -> Bounds:
        return Bounds(max(self.least, other.least), min(self.greatest, other.greatest))


NOTHING: Final = Bounds(1, 0)


def bounds(conditions: Iterable[Condition], column: str) -> Bounds:
    """Where the values of a column of integers lie in all rows that are kept, no narrower."""
    found = Bounds()
    for condition in on(conditions, (column,)):
        found = found.both(_bounds(condition))
    return found


_NEGATED = {
    Relation.LESS: Relation.AT_LEAST,
    Relation.AT_MOST: Relation.GREATER,
    Relation.GREATER: Relation.AT_MOST,
    Relation.AT_LEAST: Relation.LESS,
}


def _bounds(condition: Condition) -> Bounds:
    relation = condition.relation
    if condition.negated:
        if relation not in _NEGATED:
            return Bounds()
        relation = _NEGATED[relation]
    values = [operand for operand in condition.operands if isinstance(operand, int)]
    if relation is Relation.IS_NULL or relation in _SEARCHED:
        return Bounds()
    if not values:
        return NOTHING if relation is not Relation.SAME else Bounds()
    if relation in (Relation.EQUAL, Relation.SAME, Relation.ONE_OF):
        return Bounds(min(values), max(values))
    (value,) = values
    if relation in (Relation.LESS, Relation.AT_MOST):
        return Bounds(greatest=value - (relation is Relation.LESS))
    return Bounds(least=value + (relation is Relation.GREATER))


def every(flags: Iterable[Flags], count: int) -> Flags:
    """Which of ``count`` rows are marked in all."""
    kept: Flags = np.ones(count, np.bool_)
    for one in flags:
        kept &= one
    return kept
