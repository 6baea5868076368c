"""Compaction of a log by another process: what its owner does for it, and how it takes it over.

The process reads the log at the bookies, under a hold (``holds``), and writes what is left into a
ledger that the owner has made for it. Rules:

* The ledger is named in the log's record, among those to be deleted, before the process knows of
  it: it goes when the hold ends, when it is begun anew (a task that is tried again), when the
  process gives up, and when another owner comes.
* It takes the place of what was read, or nothing does: between the comparison and the write of the
  record nobody else has a turn. The owner's own compaction, and a second process, are refused then,
  or were done first.
* What is taken over is looked at first: closed, as many entries as told, the last one where it is
  said to be. It is in the format of ``compacted_entries``.

Why: docs/adr/0147-compaction-by-another-process.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.managed.compacted_entries import position_of
from magnetar.log.managed.ledgers import Ledgers
from magnetar.log.managed.records import NO_LEDGER, Compacted
from magnetar.log.policy import LogPolicy
from magnetar.log.seam import CompactedElsewhere, CompactedStats, Positions, ReaderHold
from magnetar.model.errors import LogFencedError, NotAllowedError
from magnetar.model.ledger import COMPACTING_KEY

ONE_ENTRY_BYTES: Final = 1 << 30
"""Of one entry that is looked at: no bound but that of bookies."""


class CompactionElsewhere:
    """See the module's text."""

    def __init__(
        self,
        name: str,
        store: ChainStore,
        ledgers: Ledgers,
        policy: Callable[[], LogPolicy],
        now_ms: Callable[[], int],
        positions: Positions,
        holds: Callable[[], Sequence[ReaderHold]],
    ) -> None:
        self._name = name
        self._store = store
        self._ledgers = ledgers
        self._policy = policy
        self._now_ms = now_ms
        self._positions = positions
        self._holds = holds
        self._given: dict[str, int] = {}
        """By holder: the ledger that is written."""
        self._beginning = asyncio.Lock()

    async def begin(self, holder: str) -> int:
        """See ``log.seam.KeyCompaction.begin_elsewhere``."""
        async with self._beginning:  # one that is tried again gives up what the first has made
            return await self._begin(holder)

    async def _begin(self, holder: str) -> int:
        self.clean_up()
        self._check_holder(holder)
        other = next((each for each in self._given if each != holder), None)
        if other is not None:
            raise NotAllowedError(
                f"log {self._name} is being compacted by {other}; wait until that is over, or its "
                "hold ends"
            )
        self.give_up(holder)
        self._given[holder] = NO_LEDGER  # so that no second one begins meanwhile
        try:
            ledger_id = await self._make()
        except BaseException:
            self._given.pop(holder, None)
            raise
        if holder not in self._given:  # given up meanwhile: nobody would have it deleted
            self._store.give_up_compacted(ledger_id)
            raise NotAllowedError(
                f"log {self._name}: {holder} has given up, or its hold has ended meanwhile; "
                "compact again"
            )
        self._given[holder] = ledger_id
        return ledger_id

    def _check_holder(self, holder: str) -> None:
        if holder not in [each.holder for each in self._holds()]:
            raise NotAllowedError(
                f"log {self._name} is not held by {holder!r}; what is read would be trimmed "
                "meanwhile: hold it first, and again in time"
            )

    async def _make(self) -> int:
        about = {COMPACTING_KEY: self._name.encode()}
        ledger_id = await self._ledgers.create_for_another(about, quorums=self._policy().quorums)
        try:
            await self._store.begin_compacted(ledger_id)
        except LogFencedError:
            await self._store.discard(ledger_id)
            raise
        except BaseException:
            self._store.give_up_compacted(ledger_id)
            raise
        return ledger_id

    async def take(
        self, holder: str, base: CompactedStats | None, found: CompactedElsewhere
    ) -> None:
        """See ``log.seam.KeyCompaction.take``."""
        former = self._store.compacted
        if former is not None and (former.ledger_id, former.horizon) == found[:2]:
            await self._store.save()  # the answer to the first time was lost, or that it is stored
            return
        self._check_base(base)
        length = await self._check_found(holder, found)
        self._check_base(base)
        # Once more: what is given up is about to be deleted, whatever was read of it.
        self._check_given(holder, found)
        given = self._given.pop(holder, NO_LEDGER)
        if given != found.ledger_id:
            self._store.give_up_compacted(given)
        # From here to the write of the record nobody else has a turn.
        await self._store.end_compacted(Compacted(*found[:3], length, self._now_ms(), found.last))

    def _check_base(self, base: CompactedStats | None) -> None:
        there = self._store.compacted
        then = None if base is None else (base.ledger_id, base.horizon)
        now = None if there is None else (there.ledger_id, there.horizon)
        if then != now:
            raise NotAllowedError(
                f"log {self._name} was compacted by somebody else meanwhile, up to "
                f"{'nothing' if there is None else there.horizon}; what that has left is the view"
            )

    async def _check_found(self, holder: str, found: CompactedElsewhere) -> int:
        """How many bytes the ledger has."""
        former = self._store.compacted
        after = former is None or former.horizon < found.horizon
        if not after or not found.last <= found.horizon <= self._positions.readable:
            raise NotAllowedError(
                f"log {self._name}: it is not compacted up to {found.horizon}, with {found.last} "
                f"as the last that is left: it reaches to {self._positions.readable}, and was "
                f"compacted up to {'nothing' if former is None else former.horizon} before"
            )
        if found.ledger_id == NO_LEDGER:
            self._check_holder(holder)
            if found.entries:
                raise NotAllowedError(f"log {self._name}: {found.entries} entries in no ledger")
            return 0
        self._check_given(holder, found)
        return await self._check_ledger(found)

    def _check_given(self, holder: str, found: CompactedElsewhere) -> None:
        given = self._given.get(holder, NO_LEDGER)
        if found.ledger_id not in (NO_LEDGER, given):
            raise NotAllowedError(
                f"log {self._name}: ledger {found.ledger_id} was not made for {holder}, or the "
                "hold has ended meanwhile; compact again"
            )

    async def _check_ledger(self, found: CompactedElsewhere) -> int:
        reader = await self._ledgers.open_no_recovery(found.ledger_id)
        if not reader.closed or reader.last_add_confirmed != found.entries - 1:
            raise NotAllowedError(
                f"log {self._name}: ledger {found.ledger_id} is not closed with {found.entries} "
                f"entries ({reader.last_add_confirmed + 1} are confirmed); compact again"
            )
        (last,) = await reader.read(found.entries - 1, 1, ONE_ENTRY_BYTES)
        if position_of(last) != found.last:
            raise NotAllowedError(
                f"log {self._name}: the last entry of ledger {found.ledger_id} was at "
                f"{position_of(last)}, and not at {found.last}; compact again"
            )
        return reader.length

    def give_up(self, holder: str) -> None:
        """See ``log.seam.KeyCompaction.give_up``."""
        ledger_id = self._given.pop(holder, NO_LEDGER)
        if ledger_id != NO_LEDGER:
            self._store.give_up_compacted(ledger_id)

    def clean_up(self) -> None:
        """What nobody holds any more is given up."""
        if not self._given:
            return
        holders = {each.holder for each in self._holds()}
        for holder in [each for each in self._given if each not in holders]:
            self.give_up(holder)
