"""Forgets ledgers that the metadata store no longer has, so that their space can be given back.

Rules (which ledgers: ``missing_ledgers.py``):

* The bookie's ledgers are listed before the store's, range by range of ids. A ledger's metadata is
  made before its first entry and lives as long as anybody may read it, so one that the bookie has
  and the store has not was deleted.
* A range in which nothing was missed is not looked at again while the store says that it is as it
  was then (its stamp, taken before both lists): what came to the bookie since was made before that.
  One whose metadata was deleted before its first entry came (a writer that nobody has told) is the
  exception; so with each sweep ``ROUNDS`` ranges are looked at all the same, in turn.
* A sweep that cannot be sure of the store (``living`` raises: also because what says how ledgers
  are laid out cannot be read) deletes nothing and counts for
  nothing.
* The store is asked for lists, a directory of ledgers each, never for one ledger, and not where
  the bookie holds none. A pause lies between any two lists. Of the answers only what the bookie
  holds is kept.
* A look comes every ``interval_s``. Who knows of a deletion in this process says so (``hurry``):
  then one comes soon, and the next as soon as the time of grace is over.
* Deletions are a journal record each, ``DELETE_BATCH`` of them a commit. A pause lies between. One
  that fails (what the index has of the ledger is damaged) keeps no other from being deleted.

Why: docs/adr/0075-deleted-ledgers.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Protocol

import structlog

from magnetar.bookie.space.missing_ledgers import MissingLedgers
from magnetar.model.errors import BookieError, MetadataError, MetadataFormatError

log = structlog.get_logger(__name__)

ROUNDS = 2
PAUSE_S = 0.002
DELETE_BATCH = 50
"""Each is looked up in the index first, on the loop."""
HURRY_S = 1.0
"""Deletions mostly come in groups: a topic has many ledgers."""


class LedgerHolder(Protocol):
    """The bookie, as far as this is concerned."""

    async def ledgers(self, first: int, behind: int) -> list[int]: ...

    async def delete_ledgers(self, ledger_ids: Sequence[int]) -> None: ...


class IdRange(Protocol):
    """The ledgers of the cluster with ids in [``first``, ``behind``). ``stamp``: as long as it is
    the same, so are they; None: it cannot be told. ``ids`` raises ``MetadataError``."""

    @property
    def first(self) -> int: ...

    @property
    def behind(self) -> int: ...

    @property
    def stamp(self) -> int | None: ...

    async def ids(self) -> Sequence[int]: ...


class LivingLedgers(Protocol):
    """All ids that there may be, in ranges, ascending. Raises ``MetadataError`` when the store
    cannot be asked, or is not the one that the bookie belongs to, ``MetadataFormatError`` when
    it says how ledgers are laid out and that cannot be read."""

    def __call__(self) -> AsyncGenerator[IdRange, None]: ...


class Collector:
    """``grace_s``: how long a ledger must be missing before it is deleted here."""

    def __init__(
        self,
        bookie: LedgerHolder,
        living: LivingLedgers,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bookie = bookie
        self._living = living
        self._grace_s = grace_s
        self._missing = MissingLedgers(grace_s)
        self._hurried = asyncio.Event()
        self._clock = clock
        self._held_missing = 0
        self._settled: dict[tuple[int, int], int] = {}
        """Ranges in which nothing was missed, by the stamp that they had; the one that was looked
        at longest ago first."""
        self.next_look_s = clock()
        """When it looks again, of ``clock``."""

    @property
    def waiting(self) -> int:
        """Ledgers that the store missed at the last look and that are held still."""
        return self._held_missing

    async def run(self, interval_s: float) -> None:
        """Sweep for ever, every ``interval_s``."""
        while True:
            hurried = await self._wait(interval_s)
            await self._look()
            if hurried:  # what this look has missed is certain when the time of grace is over
                await self._sleep(min(self._grace_s + HURRY_S, interval_s))
                await self._look()

    def hurry(self) -> None:
        """A ledger was deleted just now."""
        self._hurried.set()

    async def _wait(self, interval_s: float) -> bool:
        """Until the next look is due; True: since somebody is in a hurry."""
        self.next_look_s = self._clock() + interval_s
        try:
            async with asyncio.timeout(interval_s):
                await self._hurried.wait()
        except TimeoutError:
            return False
        await self._sleep(HURRY_S)
        self._hurried.clear()  # what comes from here on may come too late for the look
        return True

    async def _sleep(self, seconds: float) -> None:
        self.next_look_s = self._clock() + seconds
        await asyncio.sleep(seconds)

    async def _look(self) -> None:
        try:
            deleted = await self.sweep()
        except (MetadataError, MetadataFormatError, BookieError) as error:
            log.warning("deleted ledgers not looked for", error=str(error))
            return
        if deleted:
            log.info("deleted ledgers forgotten", count=len(deleted), first=deleted[0])

    async def sweep(self) -> list[int]:
        """One look; returns what it deleted. Raises ``MetadataError``, ``MetadataFormatError``,
        ``BookieError``."""
        before = self._settled
        try:
            missed = await self._look_at_ranges()
        except (MetadataError, MetadataFormatError):
            self._settled = before  # it counts for nothing
            self._missing.start_again()
            raise
        gone = self._missing.look(missed, (), self._clock())
        self._held_missing = self._missing.waiting
        deleted: list[int] = []
        for start in range(0, len(gone), DELETE_BATCH):
            if start:
                await asyncio.sleep(PAUSE_S)
            some = await self._delete(gone[start : start + DELETE_BATCH])
            self._held_missing -= len(some)
            deleted += some
        return deleted

    async def _delete(self, ledger_ids: Sequence[int]) -> Sequence[int]:
        """Returns those that were. Raises ``BookieError`` if none can be."""
        try:
            await self._bookie.delete_ledgers(ledger_ids)
        except BookieError as error:
            deleted = await self._delete_singly(ledger_ids)
            if not deleted:
                raise
            log.warning("some deleted ledgers cannot be forgotten", error=str(error))
            return deleted
        return ledger_ids

    async def _delete_singly(self, ledger_ids: Sequence[int]) -> list[int]:
        deleted = []
        for ledger_id in ledger_ids:
            await asyncio.sleep(PAUSE_S)
            try:
                await self._bookie.delete_ledgers([ledger_id])
            except BookieError as error:
                log.debug("ledger not forgotten", ledger=ledger_id, error=str(error))
            else:
                deleted.append(ledger_id)
        return deleted

    async def _look_at_ranges(self) -> list[int]:
        """The ledgers that are held and that the store has not, ascending."""
        again = frozenset(islice(self._settled, ROUNDS))
        same: set[tuple[int, int]] = set()
        looked: dict[tuple[int, int], int] = {}
        missed: list[int] = []
        async with aclosing(self._living()) as living:
            async for each in living:
                key = (each.first, each.behind)
                known = each.stamp is not None and self._settled.get(key) == each.stamp
                if known and key not in again:
                    same.add(key)
                    continue
                found = await self._missed_in(each)
                missed += found
                if not found and each.stamp is not None:
                    looked[key] = each.stamp
        kept = {key: stamp for key, stamp in self._settled.items() if key in same}
        self._settled = kept | looked
        return missed

    async def _missed_in(self, ids: IdRange) -> list[int]:
        # In this order: a ledger that is made in between is in the store's list only.
        held = await self._bookie.ledgers(ids.first, ids.behind)
        if not held:
            return []
        living = frozenset(await ids.ids())
        await asyncio.sleep(PAUSE_S)
        return [ledger_id for ledger_id in held if ledger_id not in living]
