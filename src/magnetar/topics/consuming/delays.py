"""Delayed delivery of one shared subscription: its index of what is not due yet, a clock, a timer.

``dispatch.delayed`` decides. The dispatcher asks in each round: what it has read goes through
``hold``; what is due comes back by ``release``, to be read again and sent before anything new; and
``arm`` sets the timer for the next look.

Exclusive and failover subscriptions have none of this: they get everything in order, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from magnetar.env.tasks import nothing
from magnetar.model.entry import Description, Entry
from magnetar.topics.dispatch.delayed import DelayedEntries, DelayPolicy
from magnetar.topics.dispatch.redelivery import Replays

log = structlog.get_logger(__name__)

LOOK_S_MAX: Final = 60.0
"""However far off the next one is due: the clock may be set meanwhile."""
RELEASED_MAX: Final = 256
"""Waiting to be read again at a time: the index takes an eighth of the memory."""


class Delays:
    """See the module's text. ``name`` is the subscription's, for the log. ``wake`` asks for a
    dispatch round; ``now_ms`` is a wall clock."""

    def __init__(
        self,
        name: str,
        entries_max: int,
        policy: DelayPolicy,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self.index = DelayedEntries(entries_max, policy.tick_ms)
        self._name = name
        self._was_full = False
        self._active = policy.active
        self._now_ms = now_ms
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set_policy(self, policy: DelayPolicy) -> None:
        self._active, self.index.tick_ms = policy.active, policy.tick_ms
        self._wake()

    def hold(
        self, entries: list[Entry], descriptions: list[Description]
    ) -> tuple[list[Entry], list[Description]]:
        """Those that may be delivered now; the others are kept until they are due."""
        # Hardly any topic has some: one look at all of them, and no call.
        if not self._active or not any([each.deliver_at_ms for each in descriptions]):  # noqa: C419
            return entries, descriptions
        due = self.index.hold(entries, descriptions, self._now_ms())
        if self.index.full and not self._was_full:
            self._was_full = True
            log.warning(
                "as many entries wait for their time as may "
                "(broker.delayed_entries_per_subscription_max); what comes behind them waits too",
                subscription=self._name,
                delayed=len(self.index),
            )
        return due

    @property
    def waiting(self) -> bool:
        """Whether ``release`` has any."""
        index = self.index
        return len(index) > 0 and (not self._active or index.is_due(self._now_ms()))

    def release(self, redelivery: Replays) -> None:
        """What is due is to be sent, so many at a time."""
        index, room = self.index, RELEASED_MAX - redelivery.unread
        if room > 0 and len(index) and not redelivery.full:
            active = self._active
            due = index.take_due(self._now_ms(), room) if active else index.take_any(room)
            redelivery.add(due, counted=False)
            self._was_full = self._was_full and not index.below_half

    def arm(self) -> None:
        """A round has ended: look again when the next one is due. What is due already waits for
        somebody's permits, and these wake the dispatcher."""
        if not len(self.index):
            return
        now_ms = self._now_ms()
        look_ms = self.index.look_at_ms(now_ms)
        if look_ms is None:
            return
        at_s = self._loop.time() + min(LOOK_S_MAX, (look_ms - now_ms) / 1000)
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return  # a look too early arms again
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._wake()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake = nothing  # it leads back here, which would be a cycle
