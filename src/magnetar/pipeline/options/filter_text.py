"""The option ``filter``: comparisons of columns with constants, joined by AND -> conditions. Pure.

The language is a part of Spark's SQL and means the same there:

    partition = 3 AND key IN ('a', 'b') AND publish_time >= timestamp'2026-01-31 00:00:00Z'

    comparison:  column =  <>  <  <=  >  >=  <=>  constant      (also !=, ==)
                 column [NOT] IN (constant, ...)    column [NOT] LIKE 'begins%'
                 column IS [NOT] NULL               column BETWEEN constant AND constant
                 NOT comparison                     (comparison)
    constant:    12   'text'   "text"   X'6162'   timestamp'... Z'   NULL

What would not be decided exactly as Spark does is refused, and the error says what is possible: a
time without its zone (Spark takes that of the session), a quote or a backslash in a text, a LIKE
with other wildcards than ``%`` at the ends.

Why: docs/adr/0083-filters-are-an-option.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from magnetar.model.errors import ConfigError
from magnetar.pipeline.columns.conditions import (
    TEXTS,
    TIMES,
    Condition,
    Conditions,
    Relation,
    Value,
)

COLUMNS: Final = {
    "key": "key",
    "topic": "topic",
    "partition": "partition",
    "message_id.ledger_id": "ledger_id",
    "message_id.entry_id": "entry_id",
    "message_id.batch_index": "batch_index",
    "publish_time": "publish_time",
    "event_time": "event_time",
    "offset": "offset",
}
KAFKA_COLUMNS: Final = {
    "key": "key_bytes",
    "topic": "topic",
    "partition": "partition",
    "timestamp": "publish_time",
    "offset": "offset",
}

_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<time>timestamp\s*'(?P<instant>[^']*)')
  | (?P<hex>x'(?P<digits>[^']*)')
  | (?P<text>'(?P<single>[^'\\]*)'|"(?P<double>[^"\\]*)")
  | (?P<number>-?\d+)(?![\w.])
  | (?P<name>[a-z_]\w*(?:\.[a-z_]\w*)?)
  | (?P<sign><=>|<=|>=|<>|!=|==|[=<>(),])
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_INSTANT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d{1,6})?\s*(Z|UTC|[+-]\d\d:\d\d)", re.IGNORECASE
)
_COMPARED: Final = {
    "=": (Relation.EQUAL, False),
    "==": (Relation.EQUAL, False),
    "<>": (Relation.EQUAL, True),
    "!=": (Relation.EQUAL, True),
    "<=>": (Relation.SAME, False),
    "<": (Relation.LESS, False),
    "<=": (Relation.AT_MOST, False),
    ">": (Relation.GREATER, False),
    ">=": (Relation.AT_LEAST, False),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END: Final = "the end"


class _Token(NamedTuple):
    kind: str  # of the groups of ``_TOKEN``; "end"
    text: str
    value: Value | None = None  # of a constant


def parse_filter(text: str, naming: str) -> Conditions:
    """The conditions, of columns as ``columnNames`` names them. Raises ``ConfigError``."""
    return tuple(_FilterParser(text, KAFKA_COLUMNS if naming == "kafka" else COLUMNS).conditions())


class _FilterParser:
    """Reads one filter, from left to right."""

    def __init__(self, text: str, columns: dict[str, str]) -> None:
        self._text = text
        self._columns = columns
        self._tokens = self._split()
        self._next = next(self._tokens)

    def _error(self, what: str) -> ConfigError:
        return ConfigError(
            f"option 'filter': {what}, in {self._text!r}; it takes comparisons of columns with "
            "constants, joined by AND. What it does not take, filter with where()"
        )

    # -- tokens -------------------------------------------------------------------------------

    def _split(self) -> Iterator[_Token]:
        at = 0
        text = self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(f"{text[at : at + 20].strip()!r} is not understood")
            at = found.end()
            yield self._token(found)
        while True:
            yield _Token("end", _END)

    def _token(self, found: re.Match[str]) -> _Token:
        whole = found[0].strip()
        if found["time"]:
            return _Token("time", whole, self._microseconds(found["instant"]))
        if found["hex"]:
            return _Token("text", whole, self._bytes(found["digits"]))
        if found["text"]:
            inner = found["single"] if found["double"] is None else found["double"]
            return _Token("text", whole, inner.encode())
        if found["number"]:
            return _Token("number", whole, self._integer(found["number"]))
        return _Token("name" if found["name"] else "sign", whole)

    def _microseconds(self, text: str) -> int:
        found = _INSTANT.fullmatch(text.strip())
        if found is None:
            raise self._error(
                f"the time {text!r} is not of the form '2026-01-31 12:00:00.5 Z': with a zone, as "
                "Z or as +02:00"
            )
        day, clock, fraction, zone = found.groups()
        zone = "+00:00" if zone.upper() in ("Z", "UTC") else zone
        try:
            instant = datetime.fromisoformat(f"{day}T{clock}{zone}")
        except ValueError as error:
            raise self._error(f"{text!r} is no time: {error}") from error
        micros = int((fraction or ".0")[1:].ljust(6, "0"))
        return (instant - _EPOCH) // timedelta(microseconds=1) + micros

    def _bytes(self, digits: str) -> bytes:
        try:
            return bytes.fromhex(digits)
        except ValueError as error:
            raise self._error(f"X'{digits}' has no pairs of hexadecimal digits") from error

    def _integer(self, text: str) -> int:
        if not -(2**63) <= int(text) < 2**63:
            raise self._error(f"{text} is too large")
        return int(text)

    def _take(self) -> _Token:
        token, self._next = self._next, next(self._tokens)
        return token

    def _word(self, *words: str) -> bool:
        """Take the words if they come next; the first says it."""
        if self._next.kind not in ("name", "sign") or self._next.text.lower() != words[0]:
            return False
        self._take()
        for word in words[1:]:
            self._needed(word)
        return True

    def _needed(self, word: str) -> None:
        if not self._word(word):
            raise self._error(f"{self._next.text!r} stands where {word.upper()!r} should")

    # -- comparisons --------------------------------------------------------------------------

    def conditions(self) -> Iterator[Condition]:
        yield from self._comparison()
        while self._next.kind != "end":
            self._needed("and")
            yield from self._comparison()

    def _comparison(self) -> list[Condition]:
        if self._word("not"):
            found = self._comparison()
            if len(found) != 1:
                raise self._error("NOT of several comparisons cannot be said with AND")
            return [replace(found[0], negated=not found[0].negated)]
        if self._word("("):
            found = self._comparison()
            self._needed(")")
            return found
        return self._of_column()

    def _of_column(self) -> list[Condition]:
        token = self._take()
        if token.kind != "name" or token.text.lower() not in self._columns:
            raise self._error(f"{token.text!r} is none of the columns {', '.join(self._columns)}")
        column = self._columns[token.text.lower()]
        if self._next.text in _COMPARED:
            kind, negated = _COMPARED[self._take().text]
            return [Condition(column, kind, (self._constant(column),), negated)]
        if self._word("is"):
            negated = self._word("not")
            self._needed("null")
            return [Condition(column, Relation.IS_NULL, (), negated)]
        negated = self._word("not")
        if self._word("in", "("):
            return [Condition(column, Relation.ONE_OF, self._constants(column), negated)]
        if self._word("like"):
            return [self._like(column, negated)]
        if not negated and self._word("between"):
            least = self._constant(column)
            self._needed("and")
            greatest = self._constant(column)
            return [
                Condition(column, Relation.AT_LEAST, (least,)),
                Condition(column, Relation.AT_MOST, (greatest,)),
            ]
        raise self._error(f"{self._next.text!r} stands where a comparison of {token.text} should")

    def _constants(self, column: str) -> tuple[Value | None, ...]:
        found = [self._constant(column)]
        while self._word(","):
            found.append(self._constant(column))
        self._needed(")")
        return tuple(found)

    def _constant(self, column: str) -> Value | None:
        if self._word("null"):
            return None
        token = self._take()
        wanted = "text" if column in TEXTS else "time" if column in TIMES else "number"
        if token.kind != wanted:
            forms = {"text": "a text ('a')", "number": "a number (12)"}
            form = forms.get(wanted, "a time (timestamp'2026-01-31 12:00:00 Z')")
            raise self._error(f"{column} is compared with {form}, not with {token.text}")
        return token.value

    def _like(self, column: str, negated: bool) -> Condition:
        pattern = self._constant(column)
        if column not in TEXTS or not isinstance(pattern, bytes):
            raise self._error(f"LIKE is for texts, and {column} is none")
        inner = pattern.strip(b"%")
        if b"%" in inner or b"_" in inner:
            raise self._error("a LIKE takes % at its ends, and no other wildcard")
        starts, ends = not pattern.startswith(b"%"), not pattern.endswith(b"%")
        if not inner:
            kind = Relation.EQUAL if not pattern else Relation.CONTAINS
        elif starts and ends:
            kind = Relation.EQUAL
        else:
            kind = Relation.STARTS if starts else Relation.ENDS if ends else Relation.CONTAINS
        return Condition(column, kind, (inner,), negated)
