"""Enters a ledger anew whose metadata are gone: closed and empty, at an operator's word.

What was in it is given up with that: entries that bookies may have of it still are in no fragment
any more, and are forgotten. Only for a ledger that a log or a cursor cannot be opened without,
which the caller has looked up; never over metadata that are there.

Why: docs/adr/0237-a-ledger-that-is-gone-is-entered-anew-empty.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.ledger.given_up import GIVEN_UP_KEY, GivenUp, encode_given_up
from magnetar.model.errors import LedgerExistsError, NoSuchLedgerError, NotEnoughBookiesError
from magnetar.model.ids import NO_ENTRY, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata

log = structlog.get_logger(__name__)


class Entering:
    """All may raise ``MetadataError``."""

    def __init__(self, manager: LedgerManager, registry: BookieRegistry) -> None:
        self._manager = manager
        self._registry = registry

    async def check(self, ledger_id: int) -> None:
        """Raises ``LedgerExistsError`` if it has metadata."""
        try:
            await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return
        raise LedgerExistsError(
            f"ledger {ledger_id} is not gone: its metadata are there. Give the command without --of"
        )

    async def enter(
        self, ledger_id: int, custom: Mapping[str, bytes], at_ms: int
    ) -> LedgerMetadata:
        """``custom``: whose it was; ``at_ms``: now. Raises ``LedgerExistsError``, and
        ``NotEnoughBookiesError`` when no bookie is registered."""
        bookies = sorted(await self._registry.all())
        if not bookies:
            raise NotEnoughBookiesError("no bookie is registered: start one")
        told = GivenUp(0, NO_ENTRY, (), (), at_ms, "its metadata were gone", gone=True)
        entered = LedgerMetadata(
            ledger_id=LedgerId(ledger_id),
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            digest_type=DigestType.CRC32C,
            password=b"",
            fragments=(Fragment(0, (bookies[0],)),),  # every ledger has one; no entry is there
            ctime_ms=at_ms,
            custom=tuple(sorted({**custom, GIVEN_UP_KEY: encode_given_up(told)}.items())),
        ).with_close(NO_ENTRY, 0)
        await self._manager.create(entered)
        log.warning(
            "a ledger that was gone was entered anew at an operator's word, closed and empty",
            ledger=ledger_id,
            of=[value.decode() for value in custom.values()],
        )
        return entered
