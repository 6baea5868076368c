"""Requests that are about every partition of a topic, each perhaps at another broker: all are
tried, and one answer says what of it failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import (
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicNotFoundError,
)

T = TypeVar("T")

FINAL: Final = (NotAllowedError, TopicNotFoundError)
"""What asking again does not mend."""
SHOWN_MAX: Final = 5


async def each_part(
    parts: Sequence[TopicName], done: str, change: Callable[[TopicName], Awaitable[T]]
) -> dict[TopicName, T]:
    """``change`` of each of ``parts``, one after the other, and what it gave. A topic without
    partitions is its only part, and its error is raised as it is. ``done``: what those are of which
    it did not fail. Raises, once all were tried, the error of all that failed, if it is one on
    which nobody asks again, else ``ServiceNotReadyError``."""
    found: dict[TopicName, T] = {}
    failed: dict[TopicName, MagnetarError] = {}
    for part in parts:
        try:
            found[part] = await change(part)
        except MagnetarError as error:
            if part.partition < 0:
                raise
            failed[part] = error
    if failed:
        raise _together(len(parts), done, failed)
    return found


def _together(count: int, done: str, failed: dict[TopicName, MagnetarError]) -> MagnetarError:
    first, error = next(iter(failed.items()))
    kinds = {type(each) for each in failed.values()}
    kind = type(error) if len(kinds) == 1 and isinstance(error, FINAL) else ServiceNotReadyError
    shown = "; ".join(
        f"{part.local}: {str(each) or type(each).__name__}"
        for part, each in list(failed.items())[:SHOWN_MAX]
    )
    more = "; ..." if len(failed) > SHOWN_MAX else ""
    return kind(
        f"{count - len(failed)} of the {count} partitions of {first.partitioned} are {done}; not "
        f"so {shown}{more}"
    )
