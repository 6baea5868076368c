"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def with_options(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """``command`` with these options of click's, which its help lists in that order."""
    for option in reversed(options):
        command = option(command)
    return command
