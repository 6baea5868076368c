"""May this be added, by whom? The answers that every add and every fence asks for.

Rules:

* A master key, once bound, is the only one; a deleted ledger takes nothing, unless a repair adds to
  it: then it is there again, fenced.
* A fenced ledger takes adds with RECOVERY only.
* A bookie that is read-only (full or failing disks, an operator's word) takes adds with RECOVERY
  only, and none when there is no room at all.
* In limbo, a ledger that is not known to have begun since takes adds with RECOVERY only: it may
  have been fenced here, and the fence lost with the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.bookie.ledgers.ledger_state import HeldLedger
from magnetar.bookie.storage.ledger_record import MASTER_KEY_BYTES
from magnetar.model.errors import (
    BookieIOError,
    FencedError,
    NoLedgerError,
    ReadOnlyBookieError,
    UnauthorizedError,
    UnknownLedgerStateError,
)

RECOVERY = 1
"""Add flag: allowed on a fenced ledger."""


class Admission:
    """``refusal(recovery)`` says why a bookie takes no adds, or None; ``look`` is to be called
    whenever what it says may have changed."""

    def __init__(self, refusal: Callable[[bool], str | None]) -> None:
        self.closed = True
        self.writes_refused = False
        """An operator's word."""
        self.hindered = True
        """Whether an add may have to be refused for the bookie's sake. While it is False, only
        the ledger has to be looked at, which spares every add the question."""
        self._refusal = refusal

    def look(self) -> None:
        self.hindered = self.closed or self.writes_refused or self._refusal(False) is not None

    def check_open(self) -> None:
        if self.closed:
            raise BookieIOError("the bookie is closed")

    def check_add(
        self, ledger_id: int, ledger: HeldLedger | None, master_key: bytes, flags: int
    ) -> None:
        """``ledger``: None if it is not known."""
        self.check_open()
        recovery = bool(flags & RECOVERY)
        if self.hindered:
            self._check_takes(ledger_id, recovery)
        if ledger is None:
            check_key_length(ledger_id, master_key)
            return
        if ledger.deleted:
            if recovery:
                raise NoLedgerError(f"ledger {ledger_id} was deleted here")
            raise FencedError(f"ledger {ledger_id} was deleted; this writer must stop")
        check_key(ledger, master_key)
        if ledger.fenced and not recovery:
            raise FencedError(f"ledger {ledger_id} is fenced; this writer must stop")

    def check_revival(self, ledger: HeldLedger, master_key: bytes) -> None:
        """May a repair bring a deleted ledger back?"""
        self.check_open()
        if self.hindered:
            self._check_takes(ledger.ledger_id, recovery=True)
        check_key(ledger, master_key)

    def _check_takes(self, ledger_id: int, recovery: bool) -> None:
        reason = self._refusal(recovery)
        if reason is None and self.writes_refused and not recovery:
            reason = "an operator said so"
        if reason is not None:
            raise ReadOnlyBookieError(
                f"add to ledger {ledger_id}: the bookie is read-only: {reason}; write elsewhere"
            )


def check_certain(ledger_id: int, ledger: HeldLedger | None, begins: bool) -> None:
    """In limbo: a ledger that is not known to have begun since may have been fenced here, and its
    fence lost with the rest."""
    if not (begins if ledger is None else ledger.certain):
        raise UnknownLedgerStateError(
            f"add to ledger {ledger_id}: this bookie has lost entries and perhaps the ledger's "
            "fence; write elsewhere, and repair this bookie"
        )


def check_key_length(ledger_id: int, master_key: bytes) -> None:
    if len(master_key) != MASTER_KEY_BYTES or ledger_id < 0:
        raise UnauthorizedError(
            f"ledger {ledger_id}: a master key has {MASTER_KEY_BYTES} bytes, not "
            f"{len(master_key)}, and a ledger id is not negative"
        )


def check_key(ledger: HeldLedger, master_key: bytes) -> None:
    if ledger.master_key == master_key:
        return
    if ledger.master_key:
        raise UnauthorizedError(
            f"ledger {ledger.ledger_id}: the master key is not the ledger's; is the password right?"
        )
    check_key_length(ledger.ledger_id, master_key)


def unknown_state(what: str) -> UnknownLedgerStateError:
    return UnknownLedgerStateError(
        f"{what}: this bookie may have lost acknowledged entries and cannot say; ask another "
        "bookie, and repair this one"
    )
