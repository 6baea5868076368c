"""Times as commands take them: with a unit.

A bare number is refused, but for 0 and -1. Pulsar's tools take it for seconds in one option and for
minutes in the next; here it was milliseconds, so that a retention of ``7`` kept a minute, and with
what is older than ``3600`` all but the last four seconds expired.
"""

from __future__ import annotations

import math
from typing import Any, Final

import click

from magnetar.config_loading import TIME_UNITS, whole_number

ACCEPTED_UNITS: Final = "a number with a unit (ms, s, min, h, d), as 90s, 12h, 7d"

SAY_ALL: Final = (0, -1)
"""Without a unit: nothing, and no limit."""


class Amount(click.FloatRange):
    """A number of at least 0. What is none (nan) is less than nothing and more than nothing: a rate
    of it was none, and a time was over at once."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is no number", param, ctx)
        return found


def milliseconds(text: str) -> int | None:
    """None if it is no time, or a number that does not say of what."""
    named = whole_number(text, {}) in (None, *SAY_ALL)
    return whole_number(text, TIME_UNITS) if named else None
