"""Replaces the failed bookies of a writer's ensemble, or waits for them.

One task per writer, running only while a slot is down. For each round:

1. ask who is available, choose replacements (``placing.placement``);
2. if there are any: stop confirming, compare-and-set the new fragment at LAC + 1, and only when
   that has succeeded use the new bookies and send to them what is not confirmed;
3. if there are none: wait a little (doubling, at most ``BACKOFF_S_MAX``), then try the same
   bookies again. Adds are idempotent, so sending twice is harmless. A busy bookie that has
   taken something meanwhile is tried again soon. The writer gives up when
   nothing was confirmed for its add timeout; with enough other bookies to confirm, it never has
   to.

What was confirmed without a bookie is noted as missing there (``mending``): before it is tried
again, and when it is replaced.

A bookie that is only busy (too many requests) is waited for as in 3; it is replaced when it has
been busy for ``PATIENCE_S``.

``lock`` is held while metadata changes; the writer takes it to close.

Why: docs/adr/0042-when-bookies-fail-a-writer.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from magnetar.env.tasks import TaskScope
from magnetar.ledger.catalog.stored_ledger import StoredLedger
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.placing.placement import ANYWHERE, choose_replacements, no_replacement
from magnetar.ledger.writing.quorum_write import QuorumWrite, Resend, WriteState
from magnetar.model.errors import (
    LedgerError,
    MagnetarError,
    MetadataError,
    NotEnoughBookiesError,
    TooManyRequestsError,
)
from magnetar.model.ids import BookieId

log = structlog.get_logger(__name__)

BACKOFF_S = 0.05
BACKOFF_S_MAX = 1.0
CALM_S = 5.0
"""After this long without a failure the backoff begins anew."""


PATIENCE_S = 2.0
"""How long a busy bookie is waited for before it is replaced."""


class EnsembleOwner(Protocol):
    """What the writer does for an ensemble change."""

    def send_again(self, resend: Resend) -> None:
        """Send entries to a slot, whose bookie may have changed."""
        ...

    def confirm(self) -> None:
        """The LAC may have moved."""
        ...

    def fail(self, error: MagnetarError) -> None:
        """The ledger is lost or the metadata's state is unknown."""
        ...


class EnsembleChange:
    """The healing of one writer's ensemble; see the module's text."""

    def __init__(
        self,
        machine: QuorumWrite,
        stored: StoredLedger,
        context: LedgerContext,
        scope: TaskScope,
    ) -> None:
        self._machine = machine
        self._stored = stored
        self._context = context
        self._pool = context.pool
        self._quarantine = context.quarantine
        self._random = context.random
        self._scope = scope
        self._running = False
        self._changing: dict[int, BookieId] = {}  # what the metadata store is being told
        self._available: Sequence[BookieId] = ()
        self._placement = ANYWHERE
        self._backoff_s = BACKOFF_S
        self._failed_at_s = 0.0
        self._busy: dict[int, tuple[float, int]] = {}  # slot -> since when, at which mark
        self._marks: dict[int, int] = {}  # of busy slots, when they were tried again last
        self.lock = asyncio.Lock()

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """The current ensemble."""
        return self._stored.metadata.fragments[-1].bookies

    def bookie_failed(
        self, owner: EnsembleOwner, slot: int, error: MagnetarError, now_s: float
    ) -> None:
        """The machine has put ``slot`` down because of ``error``. (``owner``, which has this, is
        named with the call: kept, it would be a cycle for each ledger that was closed.)"""
        bookie_id = self.bookies[slot]
        if now_s - self._failed_at_s > CALM_S:
            self._backoff_s = BACKOFF_S
            self._busy.clear()
        self._failed_at_s = now_s
        busy = self._only_busy(slot, error, now_s)
        if not busy:
            self._busy.pop(slot, None)
            self._quarantine.failed(bookie_id, str(error), now_s)
            self._tell(bookie_id, error, now_s)
        if not self._running:
            self._running = True
            self._scope.spawn(self._run(owner), "ensemble-change")

    def _tell(self, bookie_id: BookieId, error: MagnetarError, now_s: float) -> None:
        ledger_id = self._stored.metadata.ledger_id
        note = self._context.failure_notes.failed(bookie_id, ledger_id, now_s)
        if note is not None:
            log.warning(
                "bookie failed adds",
                bookie=bookie_id,
                ledgers=note.ledgers,
                failures=note.failures,
                away_s=round(note.away_s, 1),
                ledger=ledger_id,
                error=str(error),
            )

    def _only_busy(self, slot: int, error: MagnetarError, now_s: float) -> bool:
        """Whether the bookie refuses for a while and takes something now and then."""
        if not isinstance(error, TooManyRequestsError):
            return False
        mark = self._machine.mark(slot)
        since_s, last_mark = self._busy.get(slot, (now_s, mark))
        if mark != last_mark:
            since_s = now_s
        self._busy[slot] = (since_s, mark)
        return now_s - since_s < PATIENCE_S

    def no_replacement_error(self) -> NotEnoughBookiesError:
        """Why nothing gets confirmed, by bookie."""
        if self._changing:
            bookies = self.bookies
            wanted = [f"{bookies[slot]} by {other}" for slot, other in self._changing.items()]
            return NotEnoughBookiesError(
                f"ledger {self._stored.metadata.ledger_id}: the metadata store does not answer, so "
                f"{' and '.join(wanted)} cannot be replaced, and nothing is confirmed meanwhile; "
                "bring the store back, then write to a new ledger"
            )
        excluded = {**self._placement.unfit(self._available), **self._excluded()}
        failed = [slot for slot, bookie_id in enumerate(self.bookies) if bookie_id in excluded]
        return no_replacement(
            self._stored.metadata.ledger_id, self.bookies, failed, self._available, excluded
        )

    async def _run(self, owner: EnsembleOwner) -> None:
        try:
            while self._pending():
                if not await self._replace(owner):
                    await asyncio.sleep(self._next_backoff_s())
                    self._try_again(owner)
        finally:
            self._running = False

    def _pending(self) -> bool:
        return self._machine.state is not WriteState.STOPPED and bool(self._machine.down_slots())

    def _excluded(self) -> dict[BookieId, str]:
        return self._quarantine.reasons(asyncio.get_running_loop().time())

    def _next_backoff_s(self) -> float:
        """Doubling, and from the beginning when a busy bookie has taken something meanwhile."""
        marks = {slot: self._machine.mark(slot) for slot in self._busy}
        if any(marks.get(slot, mark) != mark for slot, mark in self._marks.items()):
            self._backoff_s = BACKOFF_S
        self._marks = marks
        backoff_s = self._backoff_s
        self._backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
        return backoff_s

    def _try_again(self, owner: EnsembleOwner) -> None:
        if not self._pending():
            return
        for slot in self._machine.down_slots():
            # Noted before it is tried again: from then on the machine takes what was confirmed
            # without the bookie for held there.
            self._note_missing(self.bookies[slot], self._machine.lacking(slot))
            owner.send_again(self._machine.retry(slot))

    def _note_missing(self, bookie_id: BookieId, entry_ids: range) -> None:
        self._context.mender.note_missing(bookie_id, self._stored.metadata.ledger_id, entry_ids)

    async def _replace(self, owner: EnsembleOwner) -> bool:
        """Replace as many failed bookies as can be; False if none could."""
        try:
            self._available = await self._pool.available()
            self._placement = await self._context.topology.placement(
                [*self._available, *self.bookies]
            )
        except MetadataError as error:
            log.warning("cannot list the bookies", error=str(error))
            return False
        async with self.lock:
            if not self._pending():
                return True
            down = [s for s in self._machine.down_slots() if s not in self._busy]
            replacements = choose_replacements(
                self.bookies,
                down,
                self._available,
                self._excluded(),
                self._random,
                self._placement,
                self._stored.metadata.write_quorum,
            )
            if replacements:
                await self._change(owner, replacements)
            return bool(replacements)

    async def _change(self, owner: EnsembleOwner, replacements: dict[int, BookieId]) -> None:
        # Confirming stops before the metadata is written: an entry confirmed meanwhile by the old
        # ensemble would lie in the new fragment, whose bookies need not have it.
        first_entry_id = self._machine.begin_change(replacements)
        before = self.bookies
        # Asked now: once the change has succeeded the machine counts the new bookies.
        lacking = {slot: self._machine.lacking(slot) for slot in replacements}
        self._changing = replacements
        try:
            await self._stored.replace_bookies(first_entry_id, replacements)
        except (LedgerError, MetadataError) as error:
            owner.fail(error)
            return
        finally:
            self._changing = {}
        log.info(
            "ensemble changed",
            ledger=self._stored.metadata.ledger_id,
            first_entry=first_entry_id,
            replaced={before[slot]: bookie for slot, bookie in replacements.items()},
        )
        self._backoff_s = BACKOFF_S
        for slot, entry_ids in lacking.items():
            self._note_missing(before[slot], entry_ids)
        for resend in self._machine.change_succeeded(replacements):
            owner.send_again(resend)
        owner.confirm()
