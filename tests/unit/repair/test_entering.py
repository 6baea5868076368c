"""A ledger whose metadata are gone is entered anew: whose it may not be, and what it says then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.bookie.registration import BookieRegistration
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.ledger.given_up import given_up_of
from magnetar.model.errors import LedgerExistsError, NotEnoughBookiesError
from magnetar.model.ids import NO_ENTRY, BookieId
from magnetar.model.ledger import CURSOR_KEY
from magnetar.repair.entering import Entering
from magnetar.wire.bookie.metadata_service import BookieServiceInfo
from tests.unit.repair.test_store import opened

OF = {CURSOR_KEY: b"public/default/persistent/t/s"}


def test_a_ledger_that_is_gone_is_entered_closed_and_empty(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            manager, registry = LedgerManager(store), BookieRegistry(store, cached=False)
            await manager.initialize()
            entering = Entering(manager, registry)
            await entering.check(7)
            with pytest.raises(NotEnoughBookiesError, match="no bookie is registered"):
                await entering.enter(7, OF, 1000)
            bookie = BookieId("b1")
            info = BookieServiceInfo.of_address("127.0.0.1", 3181)
            registration = BookieRegistration(store, bookie, info)
            await registration.register()
            entered = await entering.enter(7, OF, 1000)
            found, _ = await manager.read(7)
            assert found.custom == entered.custom
            assert (found.closed, found.last_entry_id, found.length) == (True, NO_ENTRY, 0)
            assert [each.bookies for each in found.fragments] == [(bookie,)]
            told = given_up_of(found)
            assert told is not None
            assert (told.gone, told.at_ms) == (True, 1000)
            assert told.text == "all that was in it was given up"
            assert dict(found.custom)[CURSOR_KEY] == OF[CURSOR_KEY]
            with pytest.raises(LedgerExistsError, match="its metadata are there"):
                await entering.check(7)
            with pytest.raises(LedgerExistsError):
                await entering.enter(7, OF, 2000)
            assert (await manager.read(7))[0] == found
            await registration.close()
            registry.close()

    asyncio.run(run())
