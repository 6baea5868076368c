"""Times as commands take them: with a unit.

A bare number is refused, but for 0 and -1. Pulsar's tools take it for seconds in one option and for
minutes in the next; here it was milliseconds, so that a retention of ``7`` kept a minute, and with
what is older than ``3600`` all but the last four seconds expired.
"""

from __future__ import annotations

from typing import Final

from magnetar.config_loading import TIME_UNITS, whole_number

ACCEPTED_UNITS: Final = "a number with a unit (ms, s, min, h, d), as 90s, 12h, 7d"

SAY_ALL: Final = (0, -1)
"""Without a unit: nothing, and no limit."""


def milliseconds(text: str) -> int | None:
    """None if it is no time, or a number that does not say of what."""
    named = whole_number(text, {}) in (None, *SAY_ALL)
    return whole_number(text, TIME_UNITS) if named else None
