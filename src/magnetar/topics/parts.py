"""Requests that are about several things, each perhaps at another broker: partitions of a topic,
bundles of a namespace. All are tried, and one answer says what of it failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import (
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicNotFoundError,
)

K = TypeVar("K")
T = TypeVar("T")

FINAL: Final = (NotAllowedError, TopicNotFoundError)
"""What asking again does not mend."""
SHOWN_MAX: Final = 5


async def each_part(
    name: TopicName,
    parts: Sequence[TopicName],
    done: str,
    change: Callable[[TopicName], Awaitable[T]],
) -> dict[TopicName, T]:
    """As ``each_of``, of partitions of ``name``. A topic that is its own only part is no other than
    what was asked for: its error is raised as it is."""
    if len(parts) == 1 and parts[0] == name:
        return {name: await change(name)}
    return await each_of(f"partitions of {name}", parts, done, change, lambda part: part.local)


async def each_of(
    what: str,
    each: Sequence[K],
    done: str,
    change: Callable[[K], Awaitable[T]],
    shown: Callable[[K], str],
    about_all: tuple[type[MagnetarError], ...] = (),
) -> dict[K, T]:
    """``change`` of all, one after the other, and what it gave. ``done``: what those are of which
    it did not fail. Raises, once all were tried, the error of all that failed, if it is one on
    which nobody asks again, else ``ServiceNotReadyError``; and at once what is ``about_all``: the
    others are not tried then."""
    found: dict[K, T] = {}
    failed: dict[str, MagnetarError] = {}
    for one in each:
        try:
            found[one] = await change(one)
        except about_all:
            raise
        except MagnetarError as error:
            failed[shown(one)] = error
    if failed:
        raise together(f"{len(found)} of the {len(each)} {what} are {done}", failed)
    return found


def together(well: str, failed: Mapping[str, MagnetarError]) -> MagnetarError:
    """One error that says what went ``well``, and of the rest, by name, why not."""
    error = next(iter(failed.values()))
    alike = len({type(each) for each in failed.values()}) == 1 and isinstance(error, FINAL)
    kind = type(error) if alike else ServiceNotReadyError
    shown = "; ".join(
        f"{name}: {str(each) or type(each).__name__}"
        for name, each in list(failed.items())[:SHOWN_MAX]
    )
    return kind(f"{well}; not so {shown}{'; ...' if len(failed) > SHOWN_MAX else ''}")
