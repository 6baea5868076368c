"""Values of policies as they come in, checked, and how those of a topic lie over its namespace's:
what all policies of ``policies`` have in common.

Pure. What checks raises ``InvalidPolicyError``, with what would be accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

from magnetar.model.errors import InvalidPolicyError

NUMBER_MAX: Final = 2**31 - 1
"""What Pulsar's clients have for numbers of minutes, seconds and megabytes."""
BYTES_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Layered:
    """What one layer (a namespace, a topic) says of several things, a field each; None: nothing of
    that. A value may be ``Layered`` again: where both layers have one, its fields count one by one,
    too."""

    def over(self, other: Self) -> Self:
        """Ours, and what only ``other`` says."""
        return replace(
            self,
            **{
                item.name: _merged(getattr(self, item.name), getattr(other, item.name))
                for item in fields(self)
            },
        )


def _merged(mine: Any, theirs: Any) -> Any:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return mine.over(theirs) if isinstance(mine, Layered) else mine


def as_object(what: str, value: object) -> dict[str, Any]:
    """A copy, to take known fields out of."""
    if not isinstance(value, dict):
        raise InvalidPolicyError(f"{what}: a JSON object is expected, not {str(value)[:80]!r}")
    return dict(value)


def as_number(name: str, value: object, least: int, most: int = NUMBER_MAX) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidPolicyError(
            f"{name}: {str(value)[:80]} cannot be used; accepted: a whole number from {least} to "
            f"{most}"
        )
    return value


def as_limit(name: str, value: object) -> int:
    """0: none."""
    if isinstance(value, int) and value < 0:
        raise InvalidPolicyError(f"{name} must be 0 or more")  # Pulsar's words: programs compare
    return as_number(name, value, 0)


def as_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidPolicyError(
            f"{name}: {str(value)[:80]} cannot be used; accepted: true and false"
        )
    return value


def as_text(name: str, value: object, characters_max: int) -> str:
    """Not empty, and on one line."""
    if not isinstance(value, str) or not 0 < len(value) <= characters_max or not printable(value):
        raise InvalidPolicyError(
            f"{name}: {str(value)[:80]!r} cannot be used; accepted: 1 to {characters_max} "
            "characters, none of them a control character"
        )
    return value


def printable(text: str) -> bool:
    return all(each.isprintable() for each in text)


def as_list(what: str, value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise InvalidPolicyError(
            f"{what}: {str(value)[:80]!r} cannot be used; accepted: a JSON list of {most} at most"
        )
    return value


def no_more(what: str, rest: Mapping[str, object]) -> None:
    """``rest``: what nobody has taken out of an object; fields that say nothing pass."""
    asked = sorted(name for name, value in rest.items() if value is not None)
    if asked:
        raise InvalidPolicyError(f"{what}: {', '.join(asked)[:200]} not served; leave that out")
