"""What repairs one ledger, on bookies and metadata in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence

from magnetar.ledger.placing.placement import ANYWHERE, Placement
from magnetar.ledger.reading.reader import read_policy
from magnetar.model.errors import BookieUnavailableError, NoLedgerError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.checking import Checker
from magnetar.repair.copying import Copier
from magnetar.repair.ledger_repair import LedgerRepair, Outcome, Repaired
from magnetar.repair.silences import Silences
from magnetar.repair.standings import Standings
from magnetar.repair.throttle import Throttle
from magnetar.repair.turns import Turns
from magnetar.wire.bookie.availability import Group, condense
from tests.unit.ledger.doubles import Cluster, MemoryBookie, MemoryPool, payloads

ENTRIES = 60


class Lister:
    """Tells what a bookie holds."""

    def __init__(self, bookie: MemoryBookie) -> None:
        self._bookie = bookie

    async def list_entries(self, ledger_id: int) -> Sequence[Group]:
        bookie = self._bookie
        if bookie.silent:
            await asyncio.Event().wait()
        if bookie.down:
            raise BookieUnavailableError(f"{bookie.bookie_id} is down")
        if ledger_id not in bookie.entries:
            raise NoLedgerError(f"{bookie.bookie_id} has no ledger {ledger_id}")
        return condense(sorted(bookie.entries[ledger_id]))


class RepairCluster(Cluster):
    """A cluster, and what repairs its ledgers. ``away``: who is not registered. A bookie is lost
    at once, and silent after ``silent_s``."""

    def __init__(
        self,
        bookies: int,
        quorums: tuple[int, int, int] = (3, 3, 2),
        silent_s: float = 0.05,
        placement: Placement = ANYWHERE,
    ) -> None:
        super().__init__(bookies, quorums, timeout_ms=20)
        self.away: set[BookieId] = set()
        self.silences = Silences(silent_s)
        self.checker = Checker(_Listing(self.pool), 0.02, self.silences)
        self.standings = Standings(_Registered(self), _Said(), self.silences, 0)
        copier = Copier(
            self.pool,
            self.config,
            read_policy(self.config),
            Throttle(0),
            lambda entries, size: None,
        )
        self.repair = LedgerRepair(
            self.manager,
            _Choice(self, placement),
            self.standings,
            self.silences,
            self.checker,
            copier,
            Turns(0.0),
            random.Random(1),
            self.client.open,
        )

    async def written(self, entries: int = ENTRIES) -> LedgerMetadata:
        """A closed ledger."""
        writer = await self.client.create()
        for first in range(0, entries, 10):
            await writer.add(payloads(first, 10))
        return await writer.close()

    async def repaired(self, ledger_id: int, marked: Sequence[str] = ()) -> Repaired:
        """As a worker does: again and again, for a while."""
        async with asyncio.timeout(20):
            while True:
                told = await self.repair.run(ledger_id, marked)
                if told.outcome is not Outcome.LEFT:
                    return told
                await asyncio.sleep(0.01)

    def lacking(self, ledger_id: int) -> dict[str, list[int]]:
        """Bookie -> the entries that it is named for, and does not have."""
        metadata = self.metadata(ledger_id)
        found: dict[str, list[int]] = {}
        for entry_id in range(metadata.last_entry_id + 1):
            for name in metadata.write_set(entry_id):
                if entry_id not in self.bookie(name).entries.get(ledger_id, {}):
                    found.setdefault(name, []).append(entry_id)
        return found


class _Listing(MemoryPool):
    def __init__(self, pool: MemoryPool) -> None:
        self.bookies, self.gone = pool.bookies, pool.gone

    def lister(self, bookie_id: BookieId) -> Lister:
        return Lister(self.bookies[bookie_id])


class _Registered:
    def __init__(self, cluster: RepairCluster) -> None:
        self._cluster = cluster

    async def all(self) -> Mapping[BookieId, tuple[str, int]]:
        names = (BookieId(name) for name in self._cluster.pool.bookies)
        return {name: ("", 0) for name in names if name not in self._cluster.away}

    def watch(self, changed: object) -> object:
        raise AssertionError("not used")


class _Said:
    async def delay(self, default: int) -> int:
        return default

    async def leaving(self) -> Mapping[BookieId, None]:
        return {}


class _Choice:
    def __init__(self, cluster: RepairCluster, placement: Placement) -> None:
        self._cluster = cluster
        self._placement = placement

    async def available(self) -> list[BookieId]:
        found = await self._cluster.pool.available()
        return [each for each in found if each not in self._cluster.away]

    async def placement(self, bookies: Collection[BookieId]) -> Placement:
        return self._placement
