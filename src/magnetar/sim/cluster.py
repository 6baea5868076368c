"""A cluster of whole roles on the simulated world: bookies and clients, composed as ``app`` does.

Everything of the product runs unmodified: the bookie's core, its server and registration, the
ledger client with its connections. Only what is outside of it is simulated: time, connections,
disks, the metadata store.

A bookie's process ends when it cannot start or has lost its id, and a supervisor starts it again
a little later, but for one that refuses its disks (``CookieError``): that needs an operator.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from pathlib import Path

from magnetar.bookie.bookie import DEFERRED_SYNC, Bookie
from magnetar.bookie.cookie import check_cookie
from magnetar.bookie.core import AddDone
from magnetar.bookie.registration import BookieRegistration
from magnetar.bookie.serving.server import BookieServer
from magnetar.bookie.serving.session import SessionLimits
from magnetar.config import BookieConfig, JournalConfig, LedgerConfig
from magnetar.env.tasks import TaskScope
from magnetar.ledger.catalog.metadata import DEFAULT_ROOT, LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connections.lane import Address, ConnectionOptions
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieUnavailableError, CookieError, MagnetarError
from magnetar.model.ids import BookieId
from magnetar.sim.disk import SimDisk
from magnetar.sim.loop import SimLoop, SimProcess, run_in, until
from magnetar.sim.metadata import MetadataServer, SimMetadataStore
from magnetar.sim.network import SimNetwork
from magnetar.sim.trace import Trace
from magnetar.wire.bookie.metadata_layout import LedgerLayout, ledger_path
from magnetar.wire.bookie.metadata_service import BookieServiceInfo

BOOKIE_PORT = 3181
RESTART_S = 1.0
INSTANCE_ID = "00000000-0000-0000-0000-000000000001"
DATA = Path("/data")
JOURNALS, LEDGERS = DATA / "journal", DATA / "ledgers"
FRAME_BYTES_MAX = 1 << 20
RESERVE_BYTES = 32 << 10


@dataclass(frozen=True)
class ClusterPlan:
    """What a cluster is like. Small files and caches: they roll, flush and fill all the time."""

    bookies: int
    ledger: LedgerConfig
    bookie: BookieConfig
    session_timeout_s: float
    v3_only: bool = False


def plan_cluster(rng: random.Random, bookies: int, ledger: LedgerConfig) -> ClusterPlan:
    """A cluster by the seed; quorums and times of the client in ``ledger``."""
    journals = rng.choice((1, 1, 2))
    ledgers = rng.choice((1, 1, 1, 2))
    journal = JournalConfig(
        directories=tuple(JOURNALS / str(i) for i in range(journals)),
        group_bytes_max=rng.choice((4096, 64 << 10)),
        file_bytes=rng.choice((8 << 10, 32 << 10)),
        recycled_files_max=rng.choice((0, 2)),
        pending_bytes_max=1 << 20,
    )
    bookie = BookieConfig(
        port=BOOKIE_PORT,
        ledger_directories=tuple(LEDGERS / str(i) for i in range(ledgers)),
        write_cache_bytes=rng.choice((32 << 10, 256 << 10)),
        read_cache_bytes=rng.choice((0, 64 << 10)),
        read_ahead_entries=rng.choice((1, 10)),
        read_ahead_bytes=16 << 10,
        flush_interval_ms=rng.choice((300, 1000, 5000)),
        entry_log_bytes_max=rng.choice((16 << 10, 128 << 10)),
        entry_bytes_max=FRAME_BYTES_MAX,
        disk_reserve_bytes=RESERVE_BYTES,
        journal=journal,
    )
    return ClusterPlan(bookies, ledger, bookie, rng.choice((2.0, 4.0)), rng.random() < 0.2)


class Cluster:
    """All machines of one run."""

    def __init__(
        self, loop: SimLoop, seed: int, plan: ClusterPlan, trace: Trace, metrics: Metrics
    ) -> None:
        self.loop = loop
        self.plan = plan
        self.trace = trace
        self.metrics = metrics
        self.network = SimNetwork(loop, random.Random(f"{seed}/network"))
        loop.network = self.network
        self.metadata = MetadataServer(
            loop, random.Random(f"{seed}/metadata"), plan.session_timeout_s
        )
        self.bookies = [
            BookieMachine(self, f"b{i + 1}", random.Random(f"{seed}/disk {i}"))
            for i in range(plan.bookies)
        ]
        self.clients: list[Client] = []
        self.beside: Callable[[BookieMachine, Bookie], None] = lambda *_: None
        """Called in a bookie's process when it has started, before it serves: begins what goes on
        beside serving."""
        self._random = random.Random(f"{seed}/clients")

    def bookie(self, name: str) -> BookieMachine:
        return next(bookie for bookie in self.bookies if bookie.name == name)

    def has_ledger(self, ledger_id: int) -> bool:
        """Whether the store has it: the truth, at no cost."""
        return self.metadata.has(DEFAULT_ROOT + ledger_path(LedgerLayout.HIERARCHICAL, ledger_id))

    async def start(self) -> None:
        """Make the cluster's nodes, start every bookie and wait until all are registered."""
        maker = self.client("setup")
        await run_in(maker.process, maker.manager.initialize(), "initialize")
        for bookie in self.bookies:
            bookie.start()
        await until(lambda: all(bookie.serving for bookie in self.bookies), 0.1)

    def client(self, name: str) -> Client:
        """A process with a ledger client."""
        client = Client(self, name, random.Random(f"{self._random.random()}"))
        self.clients.append(client)
        return client

    def heal(self) -> None:
        """Every fault ends; processes that are down are started."""
        self.network.heal()
        self.metadata.heal()
        for client in self.clients:
            client.process.resume()
        for bookie in self.bookies:
            bookie.heal()


class Client:
    """A process with a ledger client, as brokers are."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        self.name = name
        self.cluster = cluster
        self.process = process = cluster.loop.new_process(name)
        process.context.run(self._build, cluster, rng)

    def _build(self, cluster: Cluster, rng: random.Random) -> None:
        self.store = SimMetadataStore(cluster.metadata, self.process)
        config = cluster.plan.ledger
        self.manager = LedgerManager(
            self.store,
            new_token=lambda: rng.randrange(1, 2**63),
            new_instance_id=lambda: INSTANCE_ID,
        )
        self.registry = BookieRegistry(self.store)
        options = ConnectionOptions(
            v3_only=cluster.plan.v3_only,
            add_timeout_s=config.add_timeout_ms / 1000,
            read_timeout_s=config.read_timeout_ms / 1000,
            frame_bytes_max=FRAME_BYTES_MAX,
        )
        self.pool = ConnectionPool(self._resolve, self._available, {}, options)
        loop = cluster.loop
        self.ledgers = LedgerClient(self.manager, self.pool, config, clock=loop.time, random=rng)

    async def _resolve(self, bookie_id: BookieId) -> Address:
        address = (await self.registry.all()).get(bookie_id)
        if address is None:
            raise BookieUnavailableError(f"bookie {bookie_id} is not registered")
        return address

    async def _available(self) -> list[BookieId]:
        return list(await self.registry.available())

    def kill(self) -> None:
        if self.process.alive:
            self.cluster.trace.note(self.name, "is killed")
            self.process.kill()
            self.cluster.network.process_ended(self.process, silently=False)


class _WitnessedBookie(Bookie):
    """A bookie; what it acknowledges as durable is noted."""

    durable: dict[tuple[int, int], None]

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None:
        if flags & DEFERRED_SYNC:
            super().add_entries(ledger_id, master_key, entry_ids, entries, flags, done)
            return
        durable = self.durable

        def witnessed(error: MagnetarError | None, answered: Sequence[int]) -> None:
            if error is None:
                durable.update(dict.fromkeys((ledger_id, entry_id) for entry_id in answered))
            done(error, answered)

        super().add_entries(ledger_id, master_key, entry_ids, entries, flags, witnessed)


class BookieMachine:
    """A machine with a disk and, mostly, a bookie on it."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        self.name = name
        self.cluster = cluster
        self.disk = SimDisk(cluster.loop, rng)
        self.disk.make_dir(JOURNALS)
        self.disk.make_dir(LEDGERS)
        self.process: SimProcess | None = None
        self.bookie: Bookie | None = None
        self.serving = False
        self.lost: str | None = None
        """Why the bookie may not have all it acknowledged; for good."""
        self.suffered = False
        """Its disk failed: the journal is broken until a restart."""
        self.starts = 0
        self.durable: dict[tuple[int, int], None] = {}
        """The entries, by ledger and id, that its bookie has ever acknowledged."""

    # -- the life of the process ---------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if self.up:
            return
        self.starts += 1
        self.process = self.cluster.loop.new_process(self.name)
        self.cluster.network.host_back(self.name)
        self.process.spawn(self._run(), f"bookie, start {self.starts}")

    async def _run(self) -> None:
        """Composed as ``app.storage`` does."""
        cluster, plan = self.cluster, self.cluster.plan
        config = replace(plan.bookie, host=self.name, bookie_id=self.name)
        store = SimMetadataStore(cluster.metadata, self.process_now)
        bookie_id = BookieId(self.name)
        manager = LedgerManager(store)
        try:
            instance_id = await manager.initialize(create=False)
            await check_cookie(
                store,
                manager.root,
                bookie_id,
                config.ledger_directories,
                instance_id,
                journal_directories=config.journal.directories,
                disk=self.disk,
            )
            await self._serve(config, store)
        except CookieError as error:
            self.cluster.trace.note(self.name, f"refuses to start: {error}")
            self._exit()
        except (MagnetarError, OSError) as error:
            self.cluster.trace.note(self.name, f"ends: {error}")
            self._exit()
            self.restart_later(RESTART_S)

    async def _serve(self, config: BookieConfig, store: SimMetadataStore) -> None:
        cluster = self.cluster
        bookie = self.bookie = _WitnessedBookie(
            config, cluster.metrics, self.disk, self.disk.open_index, lambda _seconds: None
        )
        bookie.durable = self.durable
        report = await bookie.start()
        cluster.trace.note(self.name, f"has started: {report.entries} entries replayed")
        cluster.beside(self, bookie)
        limits = SessionLimits(frame_bytes_max=config.entry_bytes_max)
        server = BookieServer(bookie, config.host, config.port, limits)
        await server.start()
        gone = asyncio.Event()
        registration = BookieRegistration(
            store,
            bookie.bookie_id,
            BookieServiceInfo.of_address(self.name, server.port),
            session_timeout_ms=int(cluster.plan.session_timeout_s * 1000),
            on_lost=lambda _error: gone.set(),
            token=f"{self.name}-{self.starts}",
        )
        scope = TaskScope(f"bookie {self.name}")

        def tell(read_only: bool) -> None:
            scope.spawn(registration.set_read_only(read_only), "registration")

        await registration.register(read_only=bookie.read_only)
        bookie.read_only_changed = tell
        tell(bookie.read_only)  # it may have changed while it registered
        self.serving = True
        await gone.wait()
        raise BookieUnavailableError(f"bookie {self.name}: its id was taken")

    @property
    def process_now(self) -> SimProcess:
        assert self.process is not None
        return self.process

    def may_hold(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the bookie has the entry, in memory or flushed; one that is down may."""
        if not self.serving or self.lost is not None or self.bookie is None:
            return True
        if self.bookie.read_cached(ledger_id, entry_id) is not None:
            return True
        key = (ledger_id, entry_id)
        return any(key in index.rows for index in self.disk.indexes.values())

    def restart_later(self, delay_s: float) -> None:
        """The supervisor's; called by nobody's code, so that it outlives the process."""
        self.cluster.loop.call_later(delay_s, self.start, context=Context())

    def _exit(self) -> None:
        """The process ends by itself; the page cache stays."""
        self._end("exits", power=False)

    # -- faults --------------------------------------------------------------------------------

    def kill(self) -> None:
        """As ``kill -9``."""
        self._end("is killed", power=False)

    def cut_power(self) -> None:
        self._end("loses power", power=True)

    def _end(self, how: str, power: bool) -> None:
        self.serving = False
        process = self.process
        if process is not None and process.alive:
            self.cluster.trace.note(self.name, how)
            process.kill()
            self.cluster.network.process_ended(process, silently=power)
        self.disk.crash(power)

    def stop_and_wipe(self, root: Path) -> None:
        """The disk below ``root`` is replaced by an empty one."""
        self.kill()
        self.lost = f"{root} was wiped"
        self.disk.wipe(root)
        self.cluster.trace.note(self.name, self.lost)

    def stop_and_rot(self, root: Path, latest: bool = False) -> None:
        """One byte on the disk changes while the bookie is down."""
        self.kill()
        where = self.disk.rot(root, latest)
        if where:
            self.lost = f"a byte of {where} changed"
            self.cluster.trace.note(self.name, self.lost)

    def heal(self) -> None:
        """The disk works again; a bookie that is down, or broken by its disk, is started."""
        disk = self.disk
        suffered = disk.fails_writes or disk.fails_reads or self.suffered
        disk.fails_writes = disk.fails_reads = False
        disk.slowness = 1.0
        disk.capacity_bytes = 1 << 30
        if self.process is not None:
            self.process.resume()
        if suffered:
            self.kill()
            self.suffered = False
        self.start()
