"""How long a group waits for the metadata store with what it can do without.

A read that finds the store out of reach waits for it, ``metadata`` settings say how long: 15 s as a
rule. Members of groups do not: a heartbeat that has no answer after five seconds is one that was
lost to librdkafka, which looks for the coordinator then (from the same store), and a commit holds
back all answers behind it on its connection. So what is only to be known again, or better, is
waited for ``ANSWER_S``; whoever asks goes on with what is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from magnetar.model.errors import BrokerMetadataError

T = TypeVar("T")

ANSWER_S: Final = 1.0


class StoreSilentError(BrokerMetadataError):
    """The metadata store does not answer, or not in time: of whatever else it was to be asked."""


async def in_time(asked: Awaitable[T], deadline_s: float | None = None) -> T:
    """``deadline_s``: by the loop's clock, of several questions that are one; else in ``ANSWER_S``.
    Raises ``StoreSilentError`` when it is over, and what ``asked`` raises."""
    if deadline_s is None:
        deadline_s = asyncio.get_running_loop().time() + ANSWER_S
    try:
        async with asyncio.timeout_at(deadline_s):
            return await asked
    except TimeoutError as error:
        raise StoreSilentError("the metadata store does not answer in time") from error
