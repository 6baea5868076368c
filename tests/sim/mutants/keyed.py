"""Ring 2, with Key_Shared subscriptions: one rule broken each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from magnetar.topics.consuming.feed import EntryFeed
from magnetar.topics.dispatch.key_waiting import KeyedWaiting
from magnetar.topics.dispatch.keyed import KeyShared
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _moves_at_once() -> AbstractContextManager[None]:
    """A hash goes to whom it belongs by now, whatever is out of it elsewhere."""
    return replaced((KeyShared, "goes_to", lambda self, hashed: self._assignment.owner(hashed)))


def _passes_what_waits() -> AbstractContextManager[None]:
    """Of a hash what comes next is sent, whatever waits before it."""
    return replaced((KeyedWaiting, "is_behind", lambda *_: False))


def _drains_for_ever() -> AbstractContextManager[None]:
    """A hash that is drained still belongs to nobody else."""
    original = KeyShared._let_go

    def let_go(self: Any, held: Any) -> bool:
        if held.draining and held.count == 1:
            held.count = 0
            return False
        return original(self, held)

    return replaced((KeyShared, "_let_go", let_go))


def _passes_what_is_read() -> AbstractContextManager[None]:
    """What is in memory goes first, though what lies before it is still being read."""
    return replaced((EntryFeed, "_lower_waits", lambda _: False))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, kind="keyed")


KEYED = (
    _mutant("a hash moves while something of it is out", _moves_at_once),
    _mutant("what comes next of a key passes what waits", _passes_what_waits),
    _mutant("a hash drains for ever", _drains_for_ever),
    _mutant("what is in memory of a key passes what is being read", _passes_what_is_read),
)
