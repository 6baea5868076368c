"""Ring 2: bookies that break what the protocol asks of them (how they keep it: ``bookies``)."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from magnetar.bookie.ledgers.admission import RECOVERY, Admission
from magnetar.bookie.ledgers.fences import Fences
from magnetar.bookie.registration import BookieRegistration
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.model.errors import BookieIOError
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 600
BETWEEN_S = 0.05


def _check_and_insert_apart() -> AbstractContextManager[None]:
    """A fence may come between the check of an add and the add: those checked go in after it."""
    check_add, fence = Admission.check_add, Fences.fence
    fenced_s: dict[tuple[Any, int], float] = {}

    def check(self: Any, ledger_id: int, ledger: Any, master_key: bytes, flags: int) -> None:
        since_s = fenced_s.get((self, ledger_id))
        if since_s is not None and asyncio.get_running_loop().time() - since_s < BETWEEN_S:
            flags |= RECOVERY
        check_add(self, ledger_id, ledger, master_key, flags)

    async def note_and_fence(self: Any, ledger_id: int, master_key: bytes) -> Any:
        fenced_s.setdefault((self._admission, ledger_id), asyncio.get_running_loop().time())
        return await fence(self, ledger_id, master_key)

    return replaced((Admission, "check_add", check), (Fences, "fence", note_and_fence))


def _damage_is_absence() -> AbstractContextManager[None]:
    """An entry that cannot be read whole is not there."""
    original = LedgerStorage.read

    def read(self: Any, *arguments: Any) -> Any:
        read = original(self, *arguments)
        answer = read.get_loop().create_future()

        def told(read: Any) -> None:
            if answer.done() or read.cancelled():
                return
            error = read.exception()
            if error is None or isinstance(error, BookieIOError):
                answer.set_result([] if error else read.result())
            else:
                answer.set_exception(error)

        read.add_done_callback(told)
        return answer

    return replaced((LedgerStorage, "read", read))


def _fence_in_memory() -> AbstractContextManager[None]:
    """A fence is never written down."""

    async def fence(self: Any, ledger_id: int, master_key: bytes) -> Any:
        ledger = await self._table.load(ledger_id)
        if ledger is None or ledger.deleted:
            return await original(self, ledger_id, master_key)
        ledger.fenced = True
        return ledger

    original = Fences.fence
    return replaced((Fences, "fence", fence))


def _no_second_registration() -> AbstractContextManager[None]:
    """A bookie whose session expired stays unknown."""
    return replaced((BookieRegistration, "_repair", lambda self: None))


def _mutant(name: str, known: str, plant: Any) -> Mutant:
    return Mutant(name, 2, known, plant, SEEDS_MAX)


BOOKIE_RULES = (
    _mutant("a fence comes between check and insert", "rule 10", _check_and_insert_apart),
    _mutant("an entry that is damaged is not there", "rule 10", _damage_is_absence),
    _mutant("a fence is kept in memory", "rule 10", _fence_in_memory),
    _mutant("a bookie stays away after its session expired", "", _no_second_registration),
)
