"""Auto-recovery as one process does it: a candidate for the auditor, and a worker.

Built on what a role has already (a ledger client, the metadata store); runs in a process of its own
(``magnetar autorecovery``) or beside a bookie. Any number of them work on one cluster, BookKeeper's
among them. It ends without leaving anything half done: see ``ledger_repair``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

import structlog

from magnetar.config import LedgerConfig, RepairConfig
from magnetar.env.metadata import MetadataStore
from magnetar.env.node_changes import NodeChanges
from magnetar.env.tasks import FailurePolicy, TaskScope
from magnetar.ledger.connecting import LedgerAccess
from magnetar.ledger.placing.placement import Placement
from magnetar.ledger.reading.reader import read_policy
from magnetar.metrics import Metrics
from magnetar.model.errors import MetadataError
from magnetar.model.ids import BookieId
from magnetar.repair.auditor import Auditor, AuditPace
from magnetar.repair.checking import Checker
from magnetar.repair.copying import Copier
from magnetar.repair.election import LOOK_AGAIN_S, Election
from magnetar.repair.ledger_repair import LedgerRepair
from magnetar.repair.marks import ShortageMarks
from magnetar.repair.silences import Silences
from magnetar.repair.standings import Standings
from magnetar.repair.superfluous import Beside, Superfluous
from magnetar.repair.switches import Switches
from magnetar.repair.throttle import Throttle
from magnetar.repair.turns import Turns
from magnetar.repair.worker import Worker, WorkerOptions

log = structlog.get_logger(__name__)

RETRY_S = 1.0
HEARD_PER_DELAY = 5
"""So often the auditor asks whether bookies answer, within the time after which one is silent."""


@dataclass(frozen=True)
class Surroundings:
    """What auto-recovery stands on. ``name`` tells people, in the metadata store, which process
    this is, unlike any other; ``now_ms``: since 1970."""

    store: MetadataStore
    access: LedgerAccess
    ledger: LedgerConfig
    repair: RepairConfig
    metrics: Metrics
    name: str
    now_ms: Callable[[], int]
    random: Random


class AutoRecovery:
    """``start`` once, then ``close``."""

    def __init__(
        self, around: Surroundings, policy: FailurePolicy, beside: Beside | None = None
    ) -> None:
        """``policy``: of tasks that fail by a defect. ``beside``: the bookie of this process."""
        access, config = around.access, around.repair
        root = access.manager.root
        self.marks = ShortageMarks(around.store, root)
        self.switches = Switches(around.store, root)
        self.election = Election(around.store, around.name, root)
        self.counts = _Counts(around.metrics)
        self._around = around
        self._policy = policy
        self._scope = TaskScope("auto-recovery", policy)
        self._enabled = False
        self._ends: list[Callable[[], None]] = []
        delay_s = config.lost_bookie_delay_ms // 1000
        self._default_delay_s = delay_s
        silent_s = config.silent_bookie_delay_ms / 1000
        self._look_again_s = max(RETRY_S, min(silent_s, LOOK_AGAIN_S)) if silent_s else LOOK_AGAIN_S
        self._silences = silences = Silences(silent_s)
        self._standings = Standings(access.registry, self.switches, silences, delay_s)
        timeout_s = around.ledger.read_timeout_ms / 1000
        checker = Checker(access.pool, timeout_s, silences)
        turns = Turns(config.open_ledger_grace_ms / 1000)
        self.repair = self._ledger_repair(checker, turns)
        wanted = WorkerOptions(around.name, config.look_interval_ms / 1000, lambda: self._enabled)
        self.worker = Worker(self.marks, self.repair, turns, wanted, around.random, self.counts)
        self.auditor = Auditor(
            access.manager,
            self.marks,
            self.switches,
            self._standings,
            checker,
            AuditPace(
                config.audit_interval_ms / 1000,
                config.check_interval_ms / 1000,
                silent_s / HEARD_PER_DELAY,
                config.ledgers_per_s,
            ),
            around.now_ms,
            lambda: self._enabled,
            self.counts,
        )

        self._superfluous = None
        if beside is not None:
            self._superfluous = Superfluous(
                beside,
                access.manager,
                self.marks,
                self._standings,
                checker,
                f"{around.name}-gives-up",
                config.ledgers_per_s,
                self.counts.given_up,
            )

    def _ledger_repair(self, checker: Checker, turns: Turns) -> LedgerRepair:
        around, access = self._around, self._around.access
        copier = Copier(
            access.pool,
            around.ledger,
            read_policy(around.ledger, access.topology.is_near),
            Throttle(around.repair.copy_bytes_per_s),
            self.counts.copied,
        )
        return LedgerRepair(
            access.manager,
            _Choice(access),
            self._standings,
            self._silences,
            checker,
            copier,
            turns,
            around.random,
            access.client.open,
        )

    @property
    def name(self) -> str:
        """By which it is known in the metadata store."""
        return self._around.name

    async def start(self) -> None:
        """Begin. Raises ``MetadataError``."""
        await self.marks.initialize()
        await self.switches.begin_delay(self._default_delay_s)
        watched = asyncio.Event()
        self._ends += [
            self.switches.watch_enabled(watched.set),
            self.switches.watch_delay(self.auditor.trigger),
            self.switches.watch_leaving(self._changed),
            self.switches.watch_checked(self.auditor.check_changed),
            self._standings.watch(self._changed),
        ]
        # Behind the watch: what an operator says from here on is told of.
        self._enabled = await self.switches.enabled()
        self._scope.spawn(self._follow_enabled(watched), "enabled or not")
        self._scope.spawn(self._audit(), "auditor")
        self._scope.spawn(self.worker.run(), "worker")
        interval_s = self._around.repair.give_up_interval_ms / 1000
        if self._superfluous is not None and interval_s:
            looking = self._superfluous.run(interval_s, lambda: self._enabled)
            self._scope.spawn(looking, "superfluous copies")

    async def close(self) -> None:
        """End; locks and the vote are given up. Idempotent."""
        for end in self._ends:
            end()
        self._ends.clear()
        await self._scope.close()
        self.counts.auditing(False)
        try:
            await self.election.withdraw()
        except MetadataError as error:  # then it goes with the session
            log.debug("vote not withdrawn", error=str(error))

    def _changed(self) -> None:
        self.auditor.changed()
        self.worker.wake()

    async def _follow_enabled(self, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            try:
                enabled = await self.switches.enabled()
            except MetadataError:
                await asyncio.sleep(RETRY_S)
                changed.set()
                continue
            if enabled is not self._enabled:
                log.info("auto-recovery is switched", enabled=enabled)
            self._enabled = enabled
            self._changed()

    async def _audit(self) -> None:
        """Be the auditor whenever elected."""
        while True:
            try:
                await self.election.wait_elected()
                log.info("this process is the auditor", name=self._around.name)
                await self._audit_while_elected()
            except MetadataError as error:
                log.warning("not a candidate for the auditor now", error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _audit_while_elected(self) -> None:
        scope = self._scope.inner("auditor", self._policy)
        self.counts.auditing(True)
        try:
            scope.spawn(self.auditor.run_audits(), "bookies")
            scope.spawn(self.auditor.run_checks(), "ledgers")
            scope.spawn(self.auditor.run_hearings(), "answers")
            with NodeChanges(self._around.store, self.election.vote_path) as changes:
                while await self.election.is_elected():
                    # Before it is judged: what it has not heard was perhaps long ago, and only an
                    # auditor asks all bookies. Whoever gave up at once would do so for ever.
                    await changes.wait(self._look_again_s)
                    if self._silences.cut_off:
                        # Whoever hears bookies finds those that are silent; this one never would.
                        log.warning("most bookies do not answer: others may be the auditor")
                        await self.election.withdraw()
                        break
        finally:
            self.counts.auditing(False)
            await scope.close()
        if self._silences.cut_off:
            await asyncio.sleep(self._look_again_s)


class _Choice:
    """``ledger_repair.Bookies``."""

    def __init__(self, access: LedgerAccess) -> None:
        self._access = access

    async def available(self) -> list[BookieId]:
        return await self._access.pool.available()

    async def placement(self, bookies: Collection[BookieId]) -> Placement:
        return await self._access.topology.placement([*bookies])


class _Counts:
    """What auditor and worker tell, as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.copied_bytes = 0
        self.copied_entries = 0
        self.repaired_ledgers = 0

    def copied(self, entries: int, byte_count: int) -> None:
        self.copied_entries += entries
        self.copied_bytes += byte_count
        self._metrics.repair_copied_entries_total.inc(entries)
        self._metrics.repair_copied_bytes_total.inc(byte_count)

    def repaired(self, ledger_id: int) -> None:
        self.repaired_ledgers += 1
        self._metrics.repair_ledgers_total.inc()

    def left(self, ledger_id: int, why: str) -> None:
        self._metrics.repair_ledgers_left_total.inc()

    def marked(self, ledger_id: int, bookies: Collection[str]) -> None:
        self._metrics.repair_ledgers_found_total.inc()

    def given_up(self, ledger_id: int) -> None:
        self._metrics.repair_given_up_ledgers_total.inc()

    def lost(self, bookies: Collection[BookieId]) -> None:
        self._metrics.repair_bookies_gone.set(len(bookies))

    def auditing(self, elected: bool) -> None:
        self._metrics.repair_auditor.set(elected)
