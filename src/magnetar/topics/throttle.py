"""Who passes at a limited rate, and who waits for that: connections that publish to a topic, and
subscriptions that dispatch from it.

Rules:

* Who comes while others wait, waits behind them; each has a turn, in order, so that nobody takes
  all that comes. A turn is one turn of the loop: what is left of what may pass is the next one's.
* One timer for all who wait, and none while nobody does.

Why: docs/adr/0217-rates-hold-back.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TypeAlias

from magnetar.topics.rate_limits import Allowance, MayPass, RateLimit

Published: TypeAlias = Callable[[], tuple[int, int]]
"""How many messages and bytes have been published so far."""


class TopicThrottle:
    """See the module's text. ``published``: for a limit that is relative to it."""

    def __init__(self, limit: RateLimit, published: Published | None = None) -> None:
        self.held = 0
        """How often somebody had to wait."""
        self._loop = asyncio.get_running_loop()
        self._allowance = Allowance(limit, self._loop.time())
        self._published = published if limit.relative else None
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._turn: Hashable | None = None
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, who: Hashable, wake: Callable[[], None]) -> MayPass | None:
        """What may pass now; None: nothing, and ``wake`` is called when it is ``who``'s turn. It is
        asked again then: what passes is said (``take``)."""
        if not self._waiting or who is self._turn:
            left = self.left()
            if left is not None:
                return left
        if who not in self._waiting:
            self._waiting[who] = wake
            self.held += 1
        self._arm()
        return None

    def left(self) -> MayPass | None:
        """What may pass now, whoever waits; None: nothing."""
        now_s = self._loop.time()
        if self._published is not None:
            self._allowance.published(self._published(), now_s)
        return self._allowance.left(now_s)

    def take(self, messages: int, byte_count: int) -> None:
        """So much has passed."""
        self._allowance.take(messages, byte_count)

    def wait_s(self) -> float:
        """How long until something may pass; 0: it may now."""
        return self._allowance.wait_s(self._loop.time())

    def forget(self, who: Hashable) -> None:
        """It does not wait any more."""
        self._waiting.pop(who, None)

    def close(self) -> None:
        """The rate is limited no longer: all go on."""
        waiting, self._waiting = self._waiting, {}
        self._published = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for wake in waiting.values():
            wake()

    def _arm(self) -> None:
        if self._timer is None and self._turn is None and self._waiting:
            self._timer = self._loop.call_later(self.wait_s(), self._next)

    def _next(self) -> None:
        self._timer = None
        if not self._waiting or self.left() is None:
            self._arm()
            return
        who = next(iter(self._waiting))
        wake = self._waiting.pop(who)
        self._turn = who
        wake()
        self._loop.call_soon(self._end_turn)  # behind what ``wake`` has asked for

    def _end_turn(self) -> None:
        self._turn = None
        self._arm()


def throttle_of(limit: RateLimit, published: Published | None) -> TopicThrottle | None:
    """None: nothing is held back. Where nobody knows what is published, nothing is either by a
    limit that is relative to it."""
    if not limit.limits or (limit.relative and published is None):
        return None
    return TopicThrottle(limit, published)
