"""Tells bookies the last add confirmed of a writer that has become idle.

A writer's LAC travels with its next entry, so readers of an open ledger see an entry only when
another follows. When none does for ``interval_s``, the LAC is written explicitly, once, to every
bookie of the ensemble; to one that did not take it, again after pauses that double, ``TRIES_MAX``
times in all: a reader may reach no other. There is one timer per writer, and only while something
is unannounced; a writer that is not idle writes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from magnetar.env.tasks import TaskScope
from magnetar.ledger.bookies import BookiePool
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.ids import NO_ENTRY, BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata
from magnetar.wire.bookie.digest import EntryDigest

TRIES_MAX = 8
"""With the default interval of a second these go on for two minutes."""


class Announced(Protocol):
    """What is known of the writer."""

    @property
    def metadata(self) -> LedgerMetadata: ...

    @property
    def digest(self) -> EntryDigest: ...

    @property
    def last_add_confirmed(self) -> EntryId: ...

    @property
    def last_add_pushed(self) -> EntryId: ...


class LacAnnouncer:
    """``interval_s`` 0: never. ``timeout_s``: a bookie's time to answer."""

    def __init__(
        self,
        pool: BookiePool,
        interval_s: float,
        timeout_s: float,
        scope: TaskScope,
    ) -> None:
        self._pool = pool
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._scope = scope
        self._announced = NO_ENTRY
        self._idle_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def confirmed(self, writer: Announced) -> None:
        """Everything that was appended is confirmed, for the moment. (``writer``, which has this,
        is named with the call: kept, it would be a cycle for each ledger that was closed.)"""
        self._idle_since_s = self._loop.time()
        if self._timer is None and self._interval_s:
            self._timer = self._loop.call_later(self._interval_s, self._due, writer)

    def _due(self, writer: Announced) -> None:
        self._timer = None
        lac = writer.last_add_confirmed
        if lac <= self._announced or lac < writer.last_add_pushed:
            return  # known, or not idle: ``confirmed`` will be called again
        idle_at_s = self._idle_since_s + self._interval_s
        if idle_at_s > self._loop.time():  # not idle for long enough: entries themselves tell
            self._timer = self._loop.call_at(idle_at_s, self._due, writer)
            return
        self._announced = lac
        self._scope.spawn(self._announce(writer, lac), "explicit-lac")

    async def _announce(self, writer: Announced, lac: EntryId) -> None:
        told: set[BookieId] = set()
        pause_s = self._interval_s
        for _ in range(TRIES_MAX):
            if writer.last_add_pushed != lac:
                return  # entries tell
            told |= await self._tell(writer, lac, told)
            if told.issuperset(writer.metadata.fragments[-1].bookies):
                return
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def _tell(self, writer: Announced, lac: EntryId, told: set[BookieId]) -> set[BookieId]:
        """Tell every bookie but those of ``told``; returns which took it."""
        body = writer.digest.build_lac(lac)
        bookies = [each for each in writer.metadata.fragments[-1].bookies if each not in told]
        if len(bookies) == 1:  # no task for it: with many topics there is one of these per message
            return set(bookies) if await self._write(writer, bookies[0], lac, body) else set()
        taken = await asyncio.gather(*(self._write(writer, each, lac, body) for each in bookies))
        return {bookie_id for bookie_id, took in zip(bookies, taken, strict=True) if took}

    async def _write(
        self, writer: Announced, bookie_id: BookieId, lac: EntryId, body: bytes
    ) -> bool:
        """Whether the bookie took it."""
        ledger_id, key = writer.metadata.ledger_id, writer.digest.master_key
        write = self._pool.client(bookie_id).write_lac(ledger_id, key, lac, body)
        return not isinstance(await reply(bookie_id, write, self._timeout_s), Refusal)

    def stop(self) -> None:
        """Idempotent."""
        self._interval_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
