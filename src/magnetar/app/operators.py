"""What operators' commands stand on, when no server is asked: the cluster's metadata store, and for
those that look at copies, its bookies."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from magnetar.app.outside import Outside, real
from magnetar.config import Config
from magnetar.env.files.data_dir import metadata_file
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connecting import LedgerAccess, connection_options, open_access
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.ledger.reading.reader import read_policy
from magnetar.log.managed.gone import named_by
from magnetar.model.ids import BookieId
from magnetar.repair.copying import Copier
from magnetar.repair.entering import Entering
from magnetar.repair.giving_up import GivingUp
from magnetar.repair.insight.bookies import KnownBookies
from magnetar.repair.insight.explaining import Explainer
from magnetar.repair.insight.planning import MovePlanner, plan_view
from magnetar.repair.insight.verifying import Verifier
from magnetar.repair.operating import Operating
from magnetar.repair.throttle import Throttle


@asynccontextmanager
async def open_operating(config: Config) -> AsyncIterator[Operating]:
    """Repair, as operators see it, of the cluster that ``metadata.url`` names. Raises
    ``MetadataError``; ``NoNodeError`` when there is no cluster."""
    outside = real()
    store = await outside.open_metadata(config, metadata_file(config.data_dir))
    try:
        manager = LedgerManager(store)
        await manager.initialize(create=False)
        registry = BookieRegistry(store, manager.root)
        try:
            yield _operating(config, manager, registry)
        finally:
            registry.close()
    finally:
        await store.close()


def _operating(config: Config, manager: LedgerManager, registry: BookieRegistry) -> Operating:
    delay_s = config.repair.lost_bookie_delay_ms // 1000
    return Operating(manager.store, manager, registry, delay_s)


@dataclass(frozen=True)
class Insight:
    """A cluster's ledgers and bookies, for who looks at copies."""

    config: Config
    outside: Outside
    access: LedgerAccess
    operating: Operating

    @property
    def explainer(self) -> Explainer:
        return Explainer(self.access.pool, self._timeout_s)

    async def plan_decommission(self, leaving: Sequence[BookieId]) -> dict[str, Any]:
        """What emptying those bookies would take (``planning.plan_view``). Raises
        ``MetadataError``."""
        access, operating, timeout_s = self.access, self.operating, self._timeout_s
        planner = MovePlanner(
            access.manager,
            access.registry,
            access.pool,
            access.topology,
            self.outside.random,
            self.config.bookie.disk_full_percent,
            timeout_s,
        )
        state = await operating.state()
        moves = await planner.plan(leaving, state.leaving)
        refusals = [
            f"bookie {bookie} is not registered: start it, or have its copies made of those of "
            f"others (magnetar bookie recover {bookie})"
            for bookie in leaving
            if bookie not in moves.cluster.registered
        ]
        waits = [] if state.enabled else ["repair is off (magnetar recovery enable)"]
        if state.auditor is None:
            waits.append("nobody repairs (start magnetar autorecovery)")
        rate = self.config.repair.copy_bytes_per_s
        return plan_view(moves, rate, await operating.workers(), refusals, waits)

    @property
    def giving_up(self) -> GivingUp:
        return GivingUp(self.access.manager, self.access.pool, self._timeout_s)

    @property
    def entering(self) -> Entering:
        return Entering(self.access.manager, self.access.registry)

    async def named_by(self, of: str, ledger_id: int) -> dict[str, bytes]:
        """Whose that ledger is (``log.managed.gone``). Raises ``LogError``, ``MetadataError``."""
        return await named_by(self.access.manager.store, of, ledger_id)

    @property
    def bookies(self) -> KnownBookies:
        access, switches = self.access, self.operating.switches
        return KnownBookies(access.manager, access.registry, access.pool, switches, self._timeout_s)

    async def cluster_info(self) -> dict[str, Any]:
        """The cluster at a glance. Raises ``MetadataError``."""
        manager, state = self.access.manager, await self.operating.state()
        space = await self.bookies.space()
        told = [each for each in space if not each["problem"]]
        states = Counter(each["state"] for each in await self.bookies.all())
        return {
            "instanceId": manager.instance_id,
            "ledgersRoot": manager.root,
            "layout": manager.layout.name.lower(),
            "bookies": dict(sorted(states.items())),
            "totalBytes": sum(each["totalBytes"] for each in told),
            "freeBytes": sum(each["freeBytes"] for each in told),
            "silent": [each["bookieId"] for each in space if each["problem"]],
            "repairEnabled": state.enabled,
            "auditor": state.auditor,
            "ledgersThatLackCopies": state.marked,
        }

    async def ledger_metadata(self, ledger_id: int) -> dict[str, Any]:
        """As JSON has it; without the password. Raises ``NoSuchLedgerError``,
        ``MetadataError``."""
        found, version = await self.access.manager.read(ledger_id)
        return {
            "ledgerId": int(found.ledger_id),
            "version": version,
            "state": found.state.name,
            "ensembleSize": found.ensemble_size,
            "writeQuorum": found.write_quorum,
            "ackQuorum": found.ack_quorum,
            "digest": found.digest_type.name,
            "lastEntryId": found.last_entry_id if found.closed else None,
            "length": found.length if found.closed else None,
            "createdMs": found.ctime_ms,
            "custom": {name: value.decode("utf-8", "replace") for name, value in found.custom},
            "fragments": [
                {"firstEntryId": one.first_entry_id, "bookies": list(one.bookies)}
                for one in found.fragments
            ],
        }

    def verifier(self, bytes_per_s: int, told: Callable[[int, int], None]) -> Verifier:
        """``bytes_per_s`` 0: as fast as it can; ``told`` hears of copies and bytes."""
        manager, pool = self.access.manager, self.access.pool
        return Verifier(manager, pool, Throttle(bytes_per_s), self._timeout_s, told)

    def copier(self, bytes_per_s: int) -> Copier:
        config, access = self.config.ledger, self.access
        policy = read_policy(config, access.topology.is_near)
        throttle = Throttle(bytes_per_s)
        return Copier(access.pool, config, policy, throttle, lambda entries, byte_count: None)

    async def mark(self, ledger_id: int, bookies: Sequence[BookieId]) -> None:
        """The ledger lacks copies at ``bookies``: workers repair it. Raises ``MetadataError``."""
        await self.operating.marks.mark(ledger_id, bookies, self.outside.clock_ms())

    @property
    def _timeout_s(self) -> float:
        return self.config.ledger.read_timeout_ms / 1000


@asynccontextmanager
async def open_insight(config: Config) -> AsyncIterator[Insight]:
    """Raises as ``open_operating``."""
    outside = real()
    async with AsyncExitStack() as stack:
        store = await outside.open_metadata(config, metadata_file(config.data_dir))
        stack.push_async_callback(store.close)
        manager = LedgerManager(store)
        await manager.initialize(create=False)
        options = connection_options(config.ledger, config.bookie.entry_bytes_max)
        access = open_access(
            stack, store, manager, config.ledger, options, {}, outside.clock_s, outside.random
        )
        yield Insight(config, outside, access, _operating(config, manager, access.registry))
