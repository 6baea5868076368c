"""Order by key on Key_Shared subscriptions, from what brokers send: invariant 18 of
``topic_history``.

Of each subscription at each broker, until its last consumer there leaves: what was sent, and what
of it has come back (its consumer left, or refused it). In one instant of virtual time what was
written may have been decided before what was read then, so what came back in this instant counts
for nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from magnetar.model.ids import Position
from magnetar_sim.brokers.topic_history import Subscription, Topic

Served: TypeAlias = tuple[int, Subscription]
"""A subscription, as a process serves it."""


class KeyWatch:
    """See the module's text."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._sent: dict[Served, dict[Position, None]] = {}
        self._back: dict[Served, dict[Position, float]] = {}

    def forget(self, served: Served) -> None:
        """Nobody is connected there: who comes next is served from the cursor on."""
        self._sent.pop(served, None)
        self._back.pop(served, None)

    def came_back(self, served: Served, position: Position) -> None:
        if served in self._sent:
            self._back.setdefault(served, {})[position] = self._now_s()

    def sent(
        self,
        served: Served,
        topic: Topic,
        position: Position,
        who: str,
        out: Mapping[Position, str],
    ) -> str | None:
        """What is wrong with sending ``position`` to ``who``; ``out``: what else is out, and at
        whom."""
        sent = self._sent.setdefault(served, {})
        back, now_s = self._back.setdefault(served, {}), self._now_s()
        first = position not in sent
        sent[position] = None
        back.pop(position, None)
        content = topic.content
        key = content[position].key
        if not key:
            return None
        for at, holder in out.items():
            # What expires is out no more, whoever has it.
            if content[at].key == key and holder != who and not topic.expired(served[1], at):
                return f"of which {at} is out at {holder}"
        if content[position].deliver_at_ms:
            return None
        for at in sent:
            if content[at].key == key and at > position and first:
                return f"after {at}"
        for at, since_s in back.items():
            if content[at].key != key or at > position or since_s >= now_s:
                continue
            if topic.owed(served[1], at):
                return f"and {at} has come back and waits"
        return None
