"""Operators' words about single bookies: one takes no new entries for as long as it is said."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from magnetar.app.process import Process
from magnetar.app.storage import Cluster
from magnetar.bookie.bookie import Bookie
from magnetar.env.tasks import TaskScope, ends_role
from magnetar.model.errors import MetadataError
from magnetar.model.ids import BookieId
from magnetar.repair.switches import Switches

log = structlog.get_logger(__name__)

RETRY_S: Final = 1.0


async def follow_refusals(
    process: Process, cluster: Cluster, bookie_id: BookieId, bookie: Bookie
) -> None:
    """A bookie that is to be emptied, or to be read-only, takes no new entries, from now on and as
    long as an operator wants it so. Raises ``MetadataError``."""
    switches = Switches(cluster.metadata, cluster.manager.root)
    scope = TaskScope(f"refusals of {bookie_id}", ends_role(process.fate.fail))
    process.stack.push_async_callback(scope.close)
    changed = asyncio.Event()
    process.stack.callback(switches.watch_leaving(changed.set))
    process.stack.callback(switches.watch_held(changed.set))

    async def look() -> None:
        leaving = bookie_id in await switches.leaving()
        held = bookie_id in await switches.held()
        if (leaving or held) is not bookie.writes_refused:
            log.info("an operator's word on new entries", to_be_emptied=leaving, read_only=held)
            bookie.refuse_writes(leaving or held)

    async def follow() -> None:
        while True:
            await changed.wait()
            changed.clear()
            try:
                await look()
            except MetadataError:
                await asyncio.sleep(RETRY_S)
                changed.set()

    await look()
    scope.spawn(follow(), "follow")
