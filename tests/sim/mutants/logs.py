"""Ring 2: managed logs and cursors with one rule broken each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.log.managed import cursor, cursor_search, cursor_store
from magnetar.log.managed.cursor_store import CursorStore
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.store import ManagedLogStore
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 600


def _record_without_compare() -> AbstractContextManager[None]:
    """The log's record is written whoever wrote it last: two owners at a time."""

    async def update(self: Any, change: Callable[[Any], Any]) -> Any:
        async with self._lock:
            wanted = change(self.record)
            await self._store.put(self.path, self._encode(wanted), -1)
            self.record = wanted
            return wanted

    return replaced((RecordNode, "update", update))


def _stored_at_once() -> AbstractContextManager[None]:
    """Acknowledgements count as stored while they are in memory only."""

    async def wait_stored(self: Any) -> None:
        return

    return replaced((CursorStore, "wait_stored", wait_stored))


class _OpensWithoutFencing:
    """Ledgers whose last writer is left alone."""

    def __init__(self, ledgers: Any) -> None:
        self._ledgers = ledgers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledgers, name)

    async def open(self, ledger_id: int) -> Any:
        return await self._ledgers.open_no_recovery(ledger_id)


def _owner_before_not_fenced() -> AbstractContextManager[None]:
    """A new owner reads how far the log goes and leaves the ledger to its writer."""
    original = ManagedLogStore._take_over

    async def take_over(self: Any, name: str, node: Any, ready: Any) -> Any:
        ledgers = self._ledgers
        self._ledgers = _OpensWithoutFencing(ledgers)
        try:
            return await original(self, name, node, ready)
        finally:
            self._ledgers = ledgers

    return replaced((ManagedLogStore, "_take_over", take_over))


def _node_before_the_snapshot() -> AbstractContextManager[None]:
    """A cursor's node points at its new ledger before that holds anything."""

    async def append_all(writer: Any, records: Any) -> None:
        writer.append(records, lambda *_: None)

    return replaced((cursor_store, "append_all", append_all))


def _cursor_rolled_back() -> AbstractContextManager[None]:
    """A cursor is opened as its node says, without what its ledger has since."""
    original = cursor.stored_images

    async def images(name: str, record: Any, ledgers: Any) -> Any:
        return await original(name, replace(record, ledger_id=None), ledgers)

    return replaced((cursor_search, "stored_images", images), (cursor, "stored_images", images))


LOGS = (
    Mutant("the owner before is not fenced", 2, "", _owner_before_not_fenced, SEEDS_MAX),
    Mutant(
        "a cursor points at a ledger without a snapshot",
        2,
        "",
        _node_before_the_snapshot,
        SEEDS_MAX,
    ),
    Mutant("a cursor is rolled back", 2, "", _cursor_rolled_back, SEEDS_MAX),
    Mutant("a log's record is written without compare", 2, "", _record_without_compare, SEEDS_MAX),
    Mutant("acknowledgements count as stored before they are", 2, "", _stored_at_once, SEEDS_MAX),
)
