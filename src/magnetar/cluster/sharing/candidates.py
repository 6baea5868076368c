"""Which broker is to take a bundle that nobody owns: chosen by ``placement`` among those that are
registered and can be connected to (``reach``). Meets every broker that registers.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from magnetar.cluster.brokers.brokers import Brokers
from magnetar.cluster.brokers.reach import Reach
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.bundles import Bundle
from magnetar.cluster.sharing.placement import BundlePlacement
from magnetar.model.errors import MetadataError

log = structlog.get_logger(__name__)

MEET_S: Final = 1.0


class Candidates:
    """See the module's text."""

    def __init__(self, brokers: Brokers, reach: Reach) -> None:
        self._brokers = brokers
        self._reach = reach
        self._placement = BundlePlacement()

    async def choose(self, bundle: Bundle, me: str, takes: bool) -> BrokerReport | None:
        """A broker other than ``me``; None: ``me``, if it ``takes`` bundles, else nobody. Raises
        ``MetadataError``."""
        able = {
            name: report
            for name, report in (await self._brokers.reports()).items()
            if report.takes_bundles and self._reach.gone(report.service_url) is None
        }
        if not takes:
            able.pop(me, None)
        chosen = self._placement.choose(bundle, able)
        return None if chosen is None or chosen == me else able[chosen]

    async def run(self, me: str) -> None:
        """Meet the others, until cancelled."""
        met: list[str] = []
        while True:
            try:
                # Their names alone: a report that has changed is read when it is asked for.
                names = await self._brokers.names()
                if names != met and await self._meet(me):
                    met = names
            except MetadataError as error:
                log.info("other brokers are not looked for now", error=str(error))
            await asyncio.sleep(MEET_S)

    async def _meet(self, me: str) -> bool:
        """Whether none is to be tried again."""
        reports = await self._brokers.reports()
        return await self._reach.meet([each for name, each in reports.items() if name != me])
