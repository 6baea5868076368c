"""Ring 2, with brokers whose wall clocks are set: something is waited for by them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from magnetar.topics.consuming.delays import Delays
from magnetar.topics.publishing.deduplicating import TopicDeduplication
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _silent_by_the_wall_clock() -> AbstractContextManager[None]:
    """A producer is forgotten when the wall clock says that it has been away for long."""
    return replaced((TopicDeduplication, "_steady_ms", lambda self: self._now_ms()))


def _looks_once() -> AbstractContextManager[None]:
    """What is not due waits until then by the clock as it was: nobody looks again before."""

    def arm(self: Any) -> None:
        now_ms = self._now_ms()
        due_ms = self.index.next_due_ms()
        if self._timer is None and due_ms is not None and due_ms > now_ms:
            self._timer = self._loop.call_later((due_ms - now_ms) / 1000, self._look)

    return replaced((Delays, "arm", arm))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, kind="clocked")


CLOCKED = (
    _mutant("a producer's silence goes by the wall clock", _silent_by_the_wall_clock),
    _mutant("a delay's end is looked for once, however the clock is set", _looks_once),
)
