"""Ring 2: managed logs and cursors with one rule broken each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from magnetar.log.managed.cursor_store import CursorStore
from magnetar.log.managed.node import RecordNode
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 1500


def _record_without_compare() -> AbstractContextManager[None]:
    """The log's record is written whoever wrote it last: two owners at a time."""

    async def update(self: Any, change: Callable[[Any], Any]) -> Any:
        async with self._lock:
            wanted = change(self.record)
            self._version = await self._store.put(self.path, self._encode(wanted), -1)
            self.record = wanted
            return wanted

    return replaced((RecordNode, "update", update))


def _stored_at_once() -> AbstractContextManager[None]:
    """Acknowledgements count as stored while they are in memory only."""

    async def wait_stored(self: Any) -> None:
        return

    return replaced((CursorStore, "wait_stored", wait_stored))


LOGS = (
    Mutant("a log's record is written without compare", 2, "", _record_without_compare, SEEDS_MAX),
    Mutant("acknowledgements count as stored before they are", 2, "", _stored_at_once, SEEDS_MAX),
)
