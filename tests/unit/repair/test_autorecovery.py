"""Auto-recovery as a process does it: what it hears of while it begins."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.config import LedgerConfig, RepairConfig
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.env.tasks import awaited
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connecting import connection_options, open_access
from magnetar.metrics import Metrics
from magnetar.repair.autorecovery import AutoRecovery, Surroundings
from magnetar.repair.switches import Switches


def test_what_is_said_while_it_begins_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repair was switched off between the question and the watch: it repaired on."""
    enabled = Switches.enabled

    async def switched_off_behind_it(self: Switches) -> bool:
        found = await enabled(self)
        if found:
            await self.disable()
        return found

    async def run() -> None:
        async with AsyncExitStack() as parts:
            store = await SqliteMetadataStore.open(tmp_path / "metadata")
            parts.push_async_callback(store.close)
            manager, config = LedgerManager(store), LedgerConfig()
            await manager.initialize()
            options = connection_options(config)
            access = open_access(parts, store, manager, config, options)
            around = Surroundings(
                store, access, config, RepairConfig(), Metrics(), "one", lambda: 1, random.Random(1)
            )
            recovery = AutoRecovery(around, awaited(by="the test"))
            parts.push_async_callback(recovery.close)
            monkeypatch.setattr(Switches, "enabled", switched_off_behind_it)
            await recovery.start()
            async with asyncio.timeout(10):
                while recovery._enabled:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)

    asyncio.run(run())
