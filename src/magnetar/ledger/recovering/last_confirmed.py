"""Asks the bookies of a ledger's last fragment how far it is confirmed, fencing it or not.

The writer's LAC travels in the header of each entry, so the header of the entry of highest id on
a bookie tells it, one entry or more late; an idle writer may have told it explicitly. Both carry
a digest and count only when it is right; a bookie with a corrupt last entry has not answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from magnetar.env.tasks import TaskScope, awaited
from magnetar.ledger.bookies import BookiePool, LacReply, ReadFlag
from magnetar.ledger.recovering.recovery_plan import LacCoverage
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import DigestError, NoLedgerError
from magnetar.model.ids import BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata
from magnetar.wire.bookie.digest import EntryDigest


class LastConfirmed(NamedTuple):
    """``start_after`` is known to be confirmed (-1: nothing is); ``covered`` says whether enough
    bookies answered to trust (and, when fencing, to go on); ``refusals`` are those that did not."""

    covered: bool
    start_after: EntryId
    refusals: Sequence[Refusal]


async def read_last_confirmed(
    metadata: LedgerMetadata, pool: BookiePool, timeout_s: float, flags: ReadFlag
) -> LastConfirmed:
    """Ask every bookie of the last fragment at once; returns when enough have answered."""
    asking = _Asking(metadata, pool, timeout_s, flags)
    return await asking.run()


class _Asking:
    def __init__(
        self, metadata: LedgerMetadata, pool: BookiePool, timeout_s: float, flags: ReadFlag
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._timeout_s = timeout_s
        self._flags = flags
        self._digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        self._coverage = LacCoverage(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )
        self._refusals: list[Refusal] = []

    async def run(self) -> LastConfirmed:
        fragment = self._metadata.fragments[-1]
        scope = TaskScope(f"lac-of-{self._metadata.ledger_id}", awaited(by="_Asking.run"))
        try:
            waiting = {
                scope.spawn(self._ask(slot, bookie_id), bookie_id)
                for slot, bookie_id in enumerate(fragment.bookies)
            }
            while waiting and not self._coverage.covered:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in ended:
                    each.result()  # a defect is no bookie that does not answer
        finally:
            await scope.close()
        start_after = self._coverage.start_after(fragment.first_entry_id)
        return LastConfirmed(self._coverage.covered, start_after, self._refusals)

    async def _ask(self, slot: int, bookie_id: BookieId) -> None:
        client = self._pool.client(bookie_id)
        answer = client.read_lac(self._metadata.ledger_id, self._flags, self._digest.master_key)
        told = await reply(bookie_id, answer, self._timeout_s)
        lac = told if isinstance(told, Refusal) else self._verified(bookie_id, told)
        if not isinstance(lac, Refusal):
            self._coverage.answered(slot, lac)
        elif isinstance(lac.error, NoLedgerError):
            self._coverage.answered(slot)
        else:
            self._coverage.unknown(slot)
            self._refusals.append(lac)

    def _verified(self, bookie_id: BookieId, told: LacReply) -> EntryId | Refusal:
        try:
            return self._digest.verify_reply(told)
        except DigestError as error:
            return Refusal(bookie_id, error)
