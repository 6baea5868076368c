"""Ledgers whose bookies answer before entries are durable (UNSAFE until ``force`` returns).

Rules:

* An append is answered when ``Qa`` bookies have taken it; a power cut may lose it. The last add
  confirmed, and with it what readers see and where the ledger is closed, moves with ``force``
  only.
* ``force`` is a journal barrier on every bookie. What a bookie had acknowledged when it was asked
  is durable there when it answers; an entry is confirmed when ``Qa`` bookies of its write set
  hold it so, counted by the same machine as any acknowledgement.
* A bookie that fails or whose connection broke may have lost what it had answered: the ledger
  fails. Its ensemble is never changed.

Why so: docs/adr/0047-deferred-sync.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.env.tasks import TaskScope, awaited
from magnetar.ledger.bookies import BookieClient
from magnetar.ledger.replies import Refusal, listing, reply
from magnetar.ledger.writing.quorum_write import QuorumWrite
from magnetar.model.errors import BookieUnavailableError, LedgerError, MagnetarError
from magnetar.model.ids import NO_ENTRY, BookieId
from magnetar.model.ledger import LedgerMetadata


class DeferredSync:
    """What of one ledger is durable. ``taken`` counts what bookies have taken;
    ``last_add_confirmed`` and ``length`` are of what was forced."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        taken: QuorumWrite,
        clients: Sequence[BookieClient],
        timeout_s: float,
    ) -> None:
        self.last_add_confirmed = NO_ENTRY
        self.length = 0
        self._ledger_id = metadata.ledger_id
        self._taken = taken
        self._clients = clients
        self._timeout_s = timeout_s
        self._durable = QuorumWrite(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )
        self._sessions: list[int | None] = [None] * metadata.ensemble_size
        self._turn = asyncio.Lock()

    def acknowledged(self, slot: int) -> MagnetarError | None:
        """The slot has taken entries; an error if it may have lost earlier ones."""
        session = self._clients[slot].session
        if self._sessions[slot] is None:
            self._sessions[slot] = session
        return self._lost(slot) if self._sessions[slot] != session else None

    def _lost(self, slot: int) -> LedgerError:
        return LedgerError(
            f"ledger {self._ledger_id}: {self._clients[slot].bookie_id} was away and may have lost "
            "entries that it had not made durable (deferred sync); write to a new ledger"
        )

    def broken(self, bookie_id: BookieId, error: MagnetarError) -> LedgerError:
        """A bookie failed: it may have lost what it had answered."""
        return LedgerError(
            f"ledger {self._ledger_id}: {bookie_id} failed ({error}) and the ensemble of a ledger "
            "with deferred sync cannot change; write to a new ledger"
        )

    async def force(self, length: int) -> None:
        """Make durable what is taken now (``length``: payload bytes of it).

        Raises ``LedgerError`` when too few bookies answer, or one may have lost entries.
        """
        target = self._taken.last_add_confirmed
        async with self._turn:
            if target <= self.last_add_confirmed:
                return
            durable, pushed = self._durable, self._taken.last_add_pushed
            durable.pushed(pushed - durable.last_add_pushed)
            refusals = await self._barriers(target)
            if durable.last_add_confirmed < target:
                raise LedgerError(
                    f"ledger {self._ledger_id}: entry {target} could not be forced "
                    f"({listing(refusals)}); write to a new ledger"
                )
            self.last_add_confirmed, self.length = target, length

    async def _barriers(self, target: int) -> list[Refusal]:
        """Ask every bookie at once, until ``target`` is durable."""
        refusals: list[Refusal] = []
        scope = TaskScope(f"force-of-{self._ledger_id}", awaited(by="DeferredSync._barriers"))
        try:
            waiting = {
                scope.spawn(self._barrier(slot, self._taken.mark(slot), refusals), f"slot-{slot}")
                for slot in range(len(self._clients))
            }
            while waiting and self._durable.last_add_confirmed < target:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in ended:
                    each.result()  # a defect is no bookie that does not answer
        finally:
            await scope.close()
        return refusals

    async def _barrier(self, slot: int, mark: int, refusals: list[Refusal]) -> None:
        client = self._clients[slot]
        barrier = client.force_ledger(self._ledger_id)
        told = await reply(client.bookie_id, barrier, self._timeout_s)
        if isinstance(told, Refusal):
            refusals.append(told)
        elif self._sessions[slot] is not None and self._sessions[slot] != client.session:
            away = BookieUnavailableError("it was away since it took the entries")
            refusals.append(Refusal(client.bookie_id, away))
        else:
            durable = self._durable
            forced = durable.stripe(slot, range(durable.mark(slot) + 1, mark + 1))
            durable.acknowledged(slot, forced, 0)
