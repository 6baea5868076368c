"""Groups whose coordinator assigns, and what serves each here: its writes, timer and lookups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from magnetar.protocols.kafka.consumers.consumer_group import ConsumerGroup
from magnetar.protocols.kafka.shares.share_group import ShareGroup


class Reader(NamedTuple):
    """The client of a member, where clients must show who they are. ``sees``: whether it may know
    of a topic."""

    who: Hashable
    sees: Callable[[str], Awaitable[bool]]


class LiveConsumerGroup:
    """``writing``: who holds it writes what has changed, so that the log has it in order.
    ``looking_up``: who holds it asks for the topics, and joins with what it was told.
    ``look_up_ms``: when they are asked for again. ``readers``: of its members, by their ids, as
    far as they were heard of here. ``heartbeat_ms``: what members are told; 0: as configured."""

    __slots__ = (
        "group",
        "heartbeat_ms",
        "look_up_ms",
        "looking_up",
        "planned_ms",
        "readers",
        "timer",
        "writing",
    )

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.writing = asyncio.Lock()
        self.looking_up = asyncio.Lock()
        self.look_up_ms = 0
        self.heartbeat_ms = 0
        self.readers: dict[str, Reader] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.planned_ms = 0

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class LiveShareGroup:
    """``is_stored``: the log says that there is such a group. ``changing``: who holds it changes
    what the log says of the group as a whole, or of where its partitions start. The others are as
    of ``LiveConsumerGroup``."""

    __slots__ = (
        "changing",
        "group",
        "heartbeat_ms",
        "is_stored",
        "look_up_ms",
        "looking_up",
        "planned_ms",
        "timer",
    )

    def __init__(self, group: ShareGroup, is_stored: bool) -> None:
        self.group = group
        self.is_stored = is_stored
        self.changing = asyncio.Lock()
        self.looking_up = asyncio.Lock()
        self.look_up_ms = 0
        self.heartbeat_ms = 0
        self.timer: asyncio.TimerHandle | None = None
        self.planned_ms = 0

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
