"""Options by name, with typed look-ups that name the option in their errors. Pure.

An option that is not known is refused with the nearest one that is: a misspelt limit or bound that
is passed over would be found out by its absence, much later.

Of a table in Spark's catalog each option comes twice, as ``NAME`` and as ``option.NAME``, among
properties of the table (``owner``), which are none of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from magnetar.model.errors import ConfigError

WHOLE = re.compile(r"-?[0-9]+")
NUMBER_MAX = 2**63 - 1
"""What Spark, and what is asked of brokers, has room for."""
DIGITS_MAX = 40
TIMEOUT_MS_MAX = 10**12
"""Thirty years. Python's sockets wait no longer than three hundred."""

TABLE_PREFIX = "option."
SIZES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
}
DURATIONS_MS = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
QUANTITY = re.compile(r"([0-9]+)\s*([a-z]*)")


class OptionValues:
    """The options of one read or write. ``also`` are accepted and not spoken of; so are ``others``
    if they are a table's, which is read and written with the same options."""

    def __init__(
        self,
        raw: Mapping[str, str],
        known: tuple[str, ...],
        also: tuple[str, ...] = (),
        others: tuple[str, ...] = (),
    ) -> None:
        names = frozenset(name.lower() for name in (*known, *also, "path"))
        self._raw = _of_a_table(raw, names) if is_of_a_table(raw) else _lower(raw)
        of_table = frozenset(name.lower() for name in others) if is_of_a_table(raw) else names
        for key in sorted(self._raw):
            if key not in names and key not in of_table:
                raise ConfigError(_unknown(key, known))
        self.given = frozenset(self._raw)

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._raw.get(name.lower(), default)

    def needed(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise ConfigError(f"option {name!r} is missing; for example {example!r}")
        return value

    def number(
        self, name: str, default: int | None, least: int = 1, most: int = NUMBER_MAX
    ) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        digits = value.strip()
        if not WHOLE.fullmatch(digits) or int(digits[:DIGITS_MAX]) < least:
            raise ConfigError(f"option {name!r} takes a whole number from {least}, not {value!r}")
        if len(digits) > DIGITS_MAX or int(digits) > most:
            raise ConfigError(f"option {name!r} is {_short(value)}; it takes {most} at most")
        return int(digits)

    def timeout_ms(self, name: str, default: int) -> int:
        return self.number(name, default, most=TIMEOUT_MS_MAX) or 0

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false") if default else ("false", "true")) == "true"

    def choice(self, name: str, values: tuple[str, ...]) -> str:
        """One of ``values``, the first of which is the default."""
        value = (self.text(name) or values[0]).strip().lower()
        if value not in values:
            allowed = f"{', '.join(values[:-1])} or {values[-1]}"
            raise ConfigError(f"option {name!r} takes {allowed}, not {value!r}")
        return value

    def size(self, name: str) -> int | None:
        """Bytes: a number, or with ``k``, ``m`` or ``g`` (of 1024)."""
        return self._quantity(name, SIZES, "bytes, such as 67108864 or 64m")

    def duration_ms(self, name: str, default: int) -> int:
        """Milliseconds: a number, or with ``s``, ``m``, ``h`` or ``d``."""
        found = self._quantity(name, DURATIONS_MS, "a time, such as 30s or 15m")
        return default if found is None else found

    def _quantity(self, name: str, units: Mapping[str, int], form: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        found = QUANTITY.fullmatch(value.strip().lower())
        if found is None or found[2] not in units or not found[1].strip("0"):
            raise ConfigError(f"option {name!r} takes {form}, not {value!r}")
        if len(found[1]) > DIGITS_MAX or int(found[1]) * units[found[2]] > NUMBER_MAX:
            raise ConfigError(f"option {name!r} is {_short(value)}; it takes {NUMBER_MAX} at most")
        return int(found[1]) * units[found[2]]


def _short(value: str) -> str:
    return value if len(value) <= DIGITS_MAX else f"{value[:DIGITS_MAX]}..."


def is_of_a_table(raw: Mapping[str, str]) -> bool:
    """Whether these are the options of a table in a catalog."""
    return any(key.lower().startswith(TABLE_PREFIX) for key in raw)


def _lower(raw: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in raw.items()}


def _of_a_table(raw: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    """The options among a table's properties; those that a query adds come without the prefix."""
    given = _lower(raw)
    ours = {key: value for key, value in given.items() if key in known}
    prefixed = [key for key in given if key.startswith(TABLE_PREFIX)]
    return {key.removeprefix(TABLE_PREFIX): given[key] for key in prefixed} | ours


def _unknown(key: str, known: tuple[str, ...]) -> str:
    lower = {name.lower(): name for name in known}
    near = get_close_matches(key, lower, n=1, cutoff=0.6)
    hint = f"did you mean {lower[near[0]]!r}? " if near else ""
    return f"unknown option {key!r}; {hint}there are {', '.join(known)}"
