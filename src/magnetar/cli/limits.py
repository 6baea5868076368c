"""Limits of policies, as options say them: times and sizes with units, and words for no limit."""

from __future__ import annotations

from typing import Final

from magnetar.cli.times import ACCEPTED_UNITS, milliseconds
from magnetar.config_loading import BYTE_UNITS, whole_number
from magnetar.model.errors import ConfigError

NO_LIMIT: Final = -1
WORDS: Final = {"forever": NO_LIMIT, "unlimited": NO_LIMIT, "never": 0}


def as_time(option: str, text: str, unit_ms: int) -> int:
    return _amount(option, text, milliseconds(text), ACCEPTED_UNITS, unit_ms)


def as_size(option: str, text: str, unit_bytes: int) -> int:
    accepted = "bytes, or a number with a unit (KiB, MiB, GiB)"
    return _amount(option, text, whole_number(text, BYTE_UNITS), accepted, unit_bytes)


def _amount(option: str, text: str, value: int | None, accepted: str, unit: int) -> int:
    """In ``unit``, rounded up: what is to be kept is."""
    value = WORDS.get(text.lower(), value)
    if value is None or value < NO_LIMIT:
        raise ConfigError(
            f"{option} {text!r} cannot be used; accepted: {accepted}, or {', '.join(WORDS)}"
        )
    return value if value == NO_LIMIT else -(-value // unit)
