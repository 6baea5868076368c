"""Ring 2, kind ``compacted``: compaction by key with one rule broken each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.managed.compaction import CompactedView, LogCompaction
from magnetar.log.survivors import Survivors
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _trimmed_behind_the_horizon() -> AbstractContextManager[None]:
    """The log after the horizon is trimmed as any other."""
    return replaced((LogCompaction, "needed_after", lambda self: []))


def _horizon_of_the_end() -> AbstractContextManager[None]:
    """What came while the log was compacted counts as compacted."""
    original = LogCompaction._replace

    async def replace(self: Any, horizon: Any, survivors: Any) -> None:
        async def every() -> Any:
            async for some in survivors:
                yield some

        await original(self, self.view.positions.readable, every())

    return replaced((LogCompaction, "_replace", replace))


def _tombstones_forgotten() -> AbstractContextManager[None]:
    """A message without a value deletes itself, and not what was before it."""
    original = Survivors.note

    def note(self: Any, position: Any, entry: Any) -> None:
        if not any(message.tombstone for message in entry.messages):
            original(self, position, entry)

    return replaced((Survivors, "note", note))


def _ledger_not_named() -> AbstractContextManager[None]:
    """A ledger to compact into is named in the record when it is taken over, and not before."""

    async def begin(self: Any, ledger_id: int) -> None:
        """Nothing is written."""

    return replaced((ChainStore, "begin_compacted", begin))


def _search_from_the_first() -> AbstractContextManager[None]:
    """What survived is read from the compacted ledger's start, wherever a reader goes on."""

    async def search(self: Any, reader: Any, found: Any, start: Any) -> int:
        return 0

    return replaced((CompactedView, "_search", search))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, kind="compacted")


COMPACTIONS: tuple[Mutant, ...] = (
    _mutant("the log is trimmed behind the horizon of compaction", _trimmed_behind_the_horizon),
    _mutant("the horizon of compaction is where the log ends then", _horizon_of_the_end),
    _mutant("tombstones delete nothing", _tombstones_forgotten),
    _mutant("a ledger to compact into is not named", _ledger_not_named),
    _mutant("survivors are read from the first on", _search_from_the_first),
)
