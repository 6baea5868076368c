"""Tells bookies the last add confirmed of a writer that has become idle.

A writer's LAC travels with its next entry, so readers of an open ledger see an entry only when
another follows. When none does for ``interval_s``, the LAC is written explicitly, once, to every
bookie of the ensemble; to one that did not take it, again after pauses that double, ``TRIES_MAX``
times in all: a reader may reach no other. A writer waits in the timer of all (``context.quiet``),
and only while something is unannounced; a writer that is not idle writes nothing.

With many topics there is an announcement for nearly every message. A bookie of the same process is
told by a call: no task, no coroutine, no time-out.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from magnetar.env.tasks import TaskScope
from magnetar.ledger.bookies import takes_lacs
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import MagnetarError
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
        "_announced", "_context", "_idle_since_s", "_interval_s", "_loop", "_scope", "_waits",
    )  # fmt: skip

    def __init__(self, context: LedgerContext, interval_s: float, scope: TaskScope) -> None:
        self._context = context
        self._interval_s = interval_s
        self._scope = scope
        self._announced = NO_ENTRY
        self._idle_since_s = 0.0
        self._waits = False
        self._loop = asyncio.get_running_loop()

    def confirmed(self, writer: Announced) -> None:
        """Everything that was appended is confirmed, for the moment. (``writer``, which has this,
        is named with the call: kept, it would be a cycle for each ledger that was closed.)"""
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
        told = self._tell_nowait(writer, lac)
        if not told.issuperset(writer.metadata.fragments[-1].bookies):
            self._scope.spawn(self._announce(writer, lac, told), "explicit-lac")

    def _tell_nowait(self, writer: Announced, lac: EntryId) -> set[BookieId]:
        """Tell the bookies of this process; returns which took it."""
        client = self._context.pool.client
        ledger_id, digest = writer.metadata.ledger_id, writer.digest
        body, told = digest.build_lac(lac), set[BookieId]()
        for bookie_id in writer.metadata.fragments[-1].bookies:
            bookie = client(bookie_id)
            try:
                if takes_lacs(bookie) and bookie.write_lac_nowait(
                    ledger_id, digest.master_key, lac, body
                ):
                    told.add(bookie_id)
            except MagnetarError:
                pass  # asked again, as one that does not answer
        return told

    async def _announce(self, writer: Announced, lac: EntryId, told: set[BookieId]) -> None:
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
