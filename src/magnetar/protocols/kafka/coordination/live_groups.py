"""A group whose coordinator assigns, and what serves it here: its writes, timer and lookups."""

from __future__ import annotations

import asyncio

from magnetar.protocols.kafka.consumers.consumer_group import ConsumerGroup


class LiveConsumerGroup:
    """``writing``: who holds it writes what has changed, so that the log has it in order.
    ``looking_up``: who holds it asks for the topics, and joins with what it was told.
    ``look_up_ms``: when they are asked for again."""

    __slots__ = (
        "group",
        "look_up_ms",
        "looking_up",
        "planned_ms",
        "timer",
        "writing",
    )

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.writing = asyncio.Lock()
        self.looking_up = asyncio.Lock()
        self.look_up_ms = 0
        self.timer: asyncio.TimerHandle | None = None
        self.planned_ms = 0

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
