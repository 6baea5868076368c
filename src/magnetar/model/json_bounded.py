"""JSON from outside, nested as deeply as its reader says and no deeper.

How deep ``json`` itself goes is the interpreter's affair: about 1000 levels with Python 3.11 and
3.12, less the callers it has, and some 10 000 from 3.13 on. What one server took and stored,
another one, or the same one called from elsewhere, could not read or write again. So it is counted
here, before anything descends.

Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

_TEXT_OR_BRACKET: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
"""Possessive: a text without an end costs no second look."""


class TooDeepError(ValueError):
    """JSON that is nested too deeply."""


def load_bounded(
    data: bytes,
    levels_max: int,
    parse_float: Callable[[str], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """What ``json.loads`` makes of it. Raises ``TooDeepError`` (whatever else is wrong with it),
    and ``ValueError`` if it is not JSON."""
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    if text.count("[") + text.count("{") > levels_max and _deeper(text, levels_max):
        raise TooDeepError(f"nested deeper than {levels_max} levels")
    return json.loads(text, parse_float=parse_float, parse_constant=parse_constant)


def _deeper(text: str, levels_max: int) -> bool:
    depth = 0
    for found in _TEXT_OR_BRACKET.finditer(text):
        first = text[found.start()]
        if first in "[{":
            depth += 1
            if depth > levels_max:
                return True
        elif first != '"':
            depth -= 1
    return False
