"""What a broker tells others of itself, as long as it is one of them: that it is there, whether it
takes bundles, and how much it has to do.

Others choose by it who gets the next bundle. What changes in owning is told at once, load only when
it differs enough (``reports.worth_telling``): every report is read by every other broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.brokers.brokers import Brokers, Registration
from magnetar.cluster.brokers.reports import BrokerReport, worth_telling
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import MetadataError

log = structlog.get_logger(__name__)

REPORT_INTERVAL_S: Final = 1.0
REPORT_SOON_S: Final = 0.02
"""After a change of what is owned: others choose by it who gets the next bundle."""
REPORT_SOON_S_PER_BROKER: Final = 0.005
"""The same where there are many: each reads what each of the others tells. So all of them read 200
times as many reports a second as there are brokers, at most, and not the square of their number
every ``REPORT_SOON_S``. What was sent to a broker since its report is counted (``placement``)."""


class Load(NamedTuple):
    """What this broker has to do."""

    topics: int
    messages_in_per_s: float
    messages_out_per_s: float


class Owning(NamedTuple):
    """What this broker owns, and whether it takes more."""

    bundles: int
    draining: bool


class Reporting:
    """``owning`` is asked before each report. Nothing is told before ``begin`` or after ``end``."""

    def __init__(
        self, metadata: MetadataStore, brokers: Brokers, owning: Callable[[], Owning]
    ) -> None:
        self._metadata = metadata
        self._brokers = brokers
        self._owning = owning
        self._registration: Registration | None = None
        self._changed = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._registration is not None

    async def begin(self, report: BrokerReport, lost: Callable[[str], None]) -> None:
        """Register. ``lost`` is told when another has the id. Raises ``MetadataError``."""
        registration = Registration(self._metadata, report, lost)
        self._registration = registration
        await registration.begin()
        self._brokers.forget(report.broker_id)

    def owning_changed(self) -> None:
        """It is told shortly."""
        self._changed.set()

    async def run(self, load: Callable[[], Load]) -> None:
        """Report, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(await self._soon_s())  # what is taken at once is told at once
            self._changed.clear()
            try:
                await self.report(load())
            except MetadataError as error:
                log.warning("load not reported", error=str(error))

    async def _soon_s(self) -> float:
        try:
            brokers = len(await self._brokers.names())
        except MetadataError:  # the report itself says so
            return REPORT_INTERVAL_S
        return max(REPORT_SOON_S, REPORT_SOON_S_PER_BROKER * brokers)

    async def report(self, load: Load) -> None:
        """Tell others, if it is worth it. Raises ``MetadataError``."""
        registration = self._registration
        if registration is None:
            return
        owning = self._owning()
        report = replace(
            registration.report,
            draining=owning.draining,
            bundles=owning.bundles,
            topics=load.topics,
            messages_in_per_s=round(load.messages_in_per_s, 1),
            messages_out_per_s=round(load.messages_out_per_s, 1),
        )
        if worth_telling(registration.report, report):
            await registration.tell(report)
            self._brokers.forget(report.broker_id)

    async def tell_draining(self) -> None:
        """Whether this broker takes bundles, at once."""
        registration = self._registration
        if registration is None:
            return
        try:
            await registration.tell(replace(registration.report, draining=self._owning().draining))
            self._brokers.forget(registration.report.broker_id)
        except MetadataError as error:
            log.warning("draining not told to other brokers", error=str(error))

    async def end(self) -> None:
        """Be seen no more. Idempotent."""
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.end()
