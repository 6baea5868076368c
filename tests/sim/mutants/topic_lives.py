"""Ring 2, with brokers: topics that are deleted, messages in chunks, and who follows a log."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from magnetar.log.managed.followed_log import FollowedLog
from magnetar.log.managed.store import ManagedLogStore
from magnetar.topics.dispatch.shared import SharedRoundRobin
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _deleted_is_closed() -> AbstractContextManager[None]:
    """A topic that is deleted is closed, and its log stays."""

    async def delete(self: Any, name: str) -> None: ...

    return replaced((ManagedLogStore, "delete", delete))


def _chunks_go_round() -> AbstractContextManager[None]:
    """The chunks of a message go to the shared consumers in turn."""
    return replaced((SharedRoundRobin, "_seat_of", lambda self, chunk: self._turn()))


def _record_is_read_once() -> AbstractContextManager[None]:
    """Who follows a log does not learn of its next ledger."""

    async def follow_record(self: Any) -> None: ...

    return replaced((FollowedLog, "_follow_record", follow_record))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, brokers=True)


TOPIC_LIVES = (
    _mutant("a topic that is deleted is only closed", _deleted_is_closed),
    _mutant("chunks of a message go to consumers in turn", _chunks_go_round),
    _mutant("a follower does not learn of the next ledger", _record_is_read_once),
)
