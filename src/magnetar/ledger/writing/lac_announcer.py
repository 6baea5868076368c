"""Tells bookies the last add confirmed of a writer that has become idle.

A writer's LAC travels with its next entry, so readers of an open ledger see an entry only when
another follows. When none does for ``interval_s``, the LAC is written explicitly, once, to every
bookie of the ensemble; to one that did not take it, again after pauses that double, ``TRIES_MAX``
times in all: a reader may reach no other. A writer waits in the timer of all (``context.quiet``),
and only while something is unannounced; a writer that is not idle writes nothing.

With many topics there would be an announcement for nearly every message. Bookies of the same
process are not told: they ask the writer when a reader asks them (``LedgerContext.asking``), and a
writer all of whose bookies do has no timer.

Why: docs/adr/0122-lacs-within-a-process-are-not-journaled.md, and what took its place,
docs/adr/0186-bookies-of-the-process-ask-for-lacs.md.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from magnetar.env.tasks import TaskScope
from magnetar.ledger.context import LedgerContext
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
    """``interval_s`` 0: never."""

    __slots__ = (
        "_announced", "_asked_of", "_context", "_idle_since_s", "_interval_s", "_loop", "_scope",
        "_waits",
    )  # fmt: skip

    def __init__(self, context: LedgerContext, interval_s: float, scope: TaskScope) -> None:
        self._context = context
        self._interval_s = interval_s
        self._scope = scope
        self._announced = NO_ENTRY
        self._asked_of: LedgerMetadata | None = None  # all its bookies ask
        self._idle_since_s = 0.0
        self._waits = False
        self._loop = asyncio.get_running_loop()

    @property
    def tells(self) -> bool:
        """Whether readers may hear of LACs otherwise than from entries."""
        return self._interval_s > 0

    def confirmed(self, writer: Announced) -> None:
        """Everything that was appended is confirmed, for the moment. (``writer``, which has this,
        is named with the call: kept, it would be a cycle for each ledger that was closed.)"""
        metadata = writer.metadata
        if metadata is self._asked_of:
            return
        if self._context.asking.issuperset(metadata.fragments[-1].bookies):
            self._asked_of = metadata
            return
        self._idle_since_s = self._loop.time()
        if not self._waits and self._interval_s:
            self._waits = True
            self._context.quiet.call_later(self._interval_s, partial(self._due, writer))

    def _due(self, writer: Announced) -> None:
        self._waits = False
        lac = writer.last_add_confirmed
        if not self._interval_s or lac <= self._announced or lac < writer.last_add_pushed:
            return  # stopped, known, or not idle: ``confirmed`` will be called again
        left_s = self._idle_since_s + self._interval_s - self._loop.time()
        if left_s > self._context.quiet.step_s:  # not idle for long enough: entries tell
            self._waits = True
            self._context.quiet.call_later(left_s, partial(self._due, writer))
            return
        self._announced = lac
        self._scope.spawn(self._announce(writer, lac), "explicit-lac")

    async def _announce(self, writer: Announced, lac: EntryId) -> None:
        pause_s, told = self._interval_s, set(self._context.asking)
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
        if len(bookies) == 1:  # no task for it
            return set(bookies) if await self._write(writer, bookies[0], lac, body) else set()
        taken = await asyncio.gather(*(self._write(writer, each, lac, body) for each in bookies))
        return {bookie_id for bookie_id, took in zip(bookies, taken, strict=True) if took}

    async def _write(
        self, writer: Announced, bookie_id: BookieId, lac: EntryId, body: bytes
    ) -> bool:
        """Whether the bookie took it."""
        ledger_id, key = writer.metadata.ledger_id, writer.digest.master_key
        write = self._context.pool.client(bookie_id).write_lac(ledger_id, key, lac, body)
        timeout_s = self._context.config.add_timeout_ms / 1000
        return not isinstance(await reply(bookie_id, write, timeout_s), Refusal)

    def stop(self) -> None:
        """Idempotent."""
        self._interval_s = 0.0
