"""What bookies say to a read, as values: a reader and a recovery weigh many answers.

An answer is a result or the ``MagnetarError`` that stands for it; a deadline passed is a
``BookieUnavailableError``. Nothing is raised but cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import NamedTuple, TypeVar

from magnetar.model.errors import BookieUnavailableError, MagnetarError
from magnetar.model.ids import BookieId

T = TypeVar("T")


class Refusal(NamedTuple):
    """A bookie that could not help, and what it said."""

    bookie_id: BookieId
    error: MagnetarError


async def reply(bookie_id: BookieId, answer: Awaitable[T], timeout_s: float) -> T | Refusal:
    """The bookie's answer, or its refusal (also when ``timeout_s`` pass)."""
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        late = BookieUnavailableError(f"{bookie_id} did not answer within {timeout_s:g} s")
        return Refusal(bookie_id, late)
    except MagnetarError as error:
        return Refusal(bookie_id, error)


def listing(refusals: Iterable[Refusal]) -> str:
    """``bookie: what it said; ...``"""
    return "; ".join(
        f"{refusal.bookie_id}: {type(refusal.error).__name__} ({refusal.error})"
        for refusal in refusals
    )
