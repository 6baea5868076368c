"""A bookie as it is registered in the metadata store."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from magnetar.model.ids import BookieId

NOTHING_TOLD: Final[Mapping[str, str]] = MappingProxyType({})


class RegisteredBookie(NamedTuple):
    """``properties``: what it says of itself (rack, zone). ``refusal``: why it takes no new
    entries, for people; None: it takes them. ``lacks_space``: of its disks, which is why."""

    bookie_id: BookieId
    host: str
    port: int
    properties: Mapping[str, str] = NOTHING_TOLD
    refusal: str | None = None
    lacks_space: bool = False
