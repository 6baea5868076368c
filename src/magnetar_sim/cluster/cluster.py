"""A cluster of whole roles on the simulated world: bookies, and clients of the ledger library.

Everything of the product runs unmodified, as ``magnetar.app`` and ``magnetar.ledger`` build it:
nothing is composed here. Only what is outside of it is simulated: time, connections, disks, the
metadata store (``outside``).

A bookie's process ends when it cannot start or has lost its id, and a supervisor starts it again
a little later, but for one that refuses its disks (``CookieError``): that needs an operator.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from magnetar.app.fate import Fate
from magnetar.app.process import Process
from magnetar.app.repairing import start_beside_bookie
from magnetar.app.roles import open_bookie
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.replay import StartReport
from magnetar.config import (
    BookieConfig,
    Config,
    JournalConfig,
    LedgerConfig,
    MetadataConfig,
    RepairConfig,
)
from magnetar.ledger.catalog.metadata import DEFAULT_ROOT, LedgerManager
from magnetar.ledger.connecting import connection_options, open_access
from magnetar.metrics import Metrics
from magnetar.model.errors import CookieError, MagnetarError
from magnetar.wire.bookie.metadata_layout import LedgerLayout, ledger_path
from magnetar_sim.cluster.shapes import Shape
from magnetar_sim.cluster.witness import Promises, WitnessedBookie
from magnetar_sim.world.devices import Device
from magnetar_sim.world.disk import SimDisk
from magnetar_sim.world.loop import SimLoop, SimProcess, run_in, until
from magnetar_sim.world.metadata import SimMetadataServer, SimMetadataStore
from magnetar_sim.world.network import SimNetwork
from magnetar_sim.world.outside import simulated
from magnetar_sim.world.trace import Trace

BOOKIE_PORT = 3181
RESTART_S = 1.0
CALM_S = 3.0
"""Without any hindrance: what a bookie has suffered before does not count any more."""
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
    shape: Shape | None = None
    repair: RepairConfig | None = None
    """Of auto-recovery beside bookies; None: there is none."""


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
        batch_read_bytes=16 << 10,
        flush_interval_ms=rng.choice((300, 1000, 5000)),
        entry_log_bytes_max=rng.choice((16 << 10, 128 << 10)),
        entry_bytes_max=FRAME_BYTES_MAX,
        disk_reserve_bytes=RESERVE_BYTES,
        journal=journal,
    )
    return ClusterPlan(bookies, ledger, bookie, rng.choice((2.0, 4.0)), rng.random() < 0.2)


def plan_shape(plan: ClusterPlan, shape: Shape) -> ClusterPlan:
    """``plan``, with bookies of that shape."""
    bookie = replace(
        plan.bookie,
        ledger_directories=tuple(LEDGERS / str(i) for i in range(shape.ledger_directories)),
        ledgers_kept_max=shape.ledgers_kept_max,
        write_cache_bytes=shape.write_cache_bytes,
        flush_interval_ms=shape.flush_interval_ms,
        compaction_bytes_per_s=shape.compaction_bytes_per_s,
        journal=replace(
            plan.bookie.journal,
            directories=tuple(JOURNALS / str(i) for i in range(shape.journals)),
        ),
    )
    return replace(plan, bookie=bookie, shape=shape)


class Cluster:
    """All machines of one run."""

    def __init__(
        self, loop: SimLoop, seed: int, plan: ClusterPlan, trace: Trace, metrics: Metrics
    ) -> None:
        self.loop = loop
        self.plan = plan
        self.trace = trace
        self.metrics = metrics
        self.happened: Counter[str] = Counter()
        """How often: what a run is to meet, for people who want to know whether it does."""
        self.problem: str | None = None
        """A promise of a bookie that was broken."""
        self.network = SimNetwork(loop, random.Random(f"{seed}/network"))
        loop.network = self.network
        self.metadata = SimMetadataServer(
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

    def broken(self, what: str) -> None:
        self.trace.note("WRONG", what)
        self.problem = self.problem or what

    def count(self, what: str) -> None:
        self.happened[what] += 1

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
        options = connection_options(config, FRAME_BYTES_MAX, cluster.plan.v3_only)
        clock_s = cluster.loop.time
        access = open_access(
            AsyncExitStack(), self.store, self.manager, config, options, {}, clock_s, rng
        )
        self.ledgers, self.pool = access.client, access.pool

    def kill(self) -> None:
        if self.process.alive:
            self.cluster.trace.note(self.name, "is killed")
            self.process.kill()
            self.cluster.network.process_ended(self.process, silently=False)


class _Closing(NamedTuple):
    """An orderly close: when it began, how long nothing had been wrong then, and for how long the
    bookie stays away."""

    began_s: float
    calm_s: float
    down_s: float


class BookieMachine:
    """A machine with a disk and, mostly, a bookie on it."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        self.name = name
        self.cluster = cluster
        self.disk = SimDisk(cluster.loop, rng)
        self.disk.make_dir(JOURNALS)
        self.disk.make_dir(LEDGERS)
        self.disk.met_bad_sector = partial(cluster.count, "reads of sectors that are unreadable")
        self.disk.found_ledger = partial(cluster.count, "ledgers looked up again")
        if cluster.plan.shape is not None:
            config = cluster.plan.bookie
            self.disk.mount([*config.journal.directories, *config.ledger_directories])
        self.process: SimProcess | None = None
        self.bookie: Bookie | None = None
        self.serving = False
        self.lost: str | None = None
        """Why the bookie may not have all it acknowledged; for good."""
        self.suffered = False
        """Its disk failed: the journal is broken until a restart."""
        self.starts = 0
        self.spoiled = False
        """It is lost for sectors that cannot be read, and for nothing else."""
        self.closing = False
        """Somebody has asked for an orderly close."""
        self.ending = False
        """Its role ends, because it was asked to or has failed: the parts are being closed."""
        self.closed_in_peace = False
        """It was closed in order the last time, and nothing had been wrong."""
        self.promises = Promises(self._broken, cluster.count)
        self.promises.now_s = cluster.loop.time
        if cluster.plan.shape is not None:
            self.promises.undisturbed_s = self.undisturbed_s
        self._started_s = 0.0
        self._stopped: asyncio.Event | None = None
        self._closing = _Closing(0.0, 0.0, 0.0)
        self._random = rng

    def _broken(self, what: str) -> None:
        if self.lost is None:
            self.cluster.broken(f"{self.name} {what}")

    @property
    def durable(self) -> dict[tuple[int, int], None]:
        return self.promises.durable

    def devices_of(self, ledger_id: int) -> tuple[Device, Device]:
        """That the ledger's journal and directory lie on."""
        config = self.cluster.plan.bookie
        journals, ledgers = config.journal.directories, config.ledger_directories
        return (
            self.disk.device(journals[ledger_id % len(journals)]),
            self.disk.device(ledgers[ledger_id % len(ledgers)]),
        )

    def undisturbed_s(self, ledger_id: int | None = None) -> float:
        """For how long the bookie has run, and no device has hindered it (of the ledger)."""
        devices = self.disk.devices if ledger_id is None else self.devices_of(ledger_id)
        resumed_s = self.process.resumed_s if self.process is not None else 0.0
        since_s = max(self._started_s, resumed_s, *(device.hindered_s for device in devices))
        return self.cluster.loop.time() - since_s

    def told_error(self, what: str) -> None:
        """The bookie has logged an error: something must be wrong."""
        if self.serving and self.undisturbed_s() > CALM_S:
            self.promises.broken(f"logs an error, and nothing is wrong: {what}")

    @property
    def reads_fail(self) -> bool:
        return self.disk.fails_reads or any(device.fails_reads for device in self.disk.devices)

    # -- the life of the process ---------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if self.up:
            return
        self.starts += 1
        self.closing = self.ending = False
        self._stopped = None
        self._started_s = self.cluster.loop.time()
        self.process = self.cluster.loop.new_process(self.name)
        self.cluster.network.host_back(self.name)
        self.process.spawn(self._run(), f"bookie, start {self.starts}")

    async def _run(self) -> None:
        """The bookie's role, until it is told to end, fails, or is killed."""
        stopped = asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                await self._serve(stack, Fate(stopped), stopped)
        except CookieError as error:
            self.cluster.trace.note(self.name, f"refuses to start: {error}")
            self._exit()
        except (MagnetarError, OSError) as error:
            if self.closing:
                self.promises.broken(f"does not close in order: {error}")
            self.cluster.trace.note(self.name, f"ends: {error}")
            self._exit()
            self.restart_later(RESTART_S)
        else:
            self._has_closed()

    async def _serve(self, stack: AsyncExitStack, fate: Fate, stopped: asyncio.Event) -> None:
        cluster, plan = self.cluster, self.cluster.plan
        config = Config(
            data_dir=DATA,
            bookie=replace(plan.bookie, host=self.name, bookie_id=self.name),
            ledger=plan.ledger,
            metadata=MetadataConfig(session_timeout_ms=int(plan.session_timeout_s * 1000)),
            repair=plan.repair or RepairConfig(),
        )
        outside = simulated(
            self.process_now, cluster.metadata, self.disk, self._random, self._make_bookie
        )
        try:
            process = Process(config, outside, stack, fate, cluster.metrics)
            opened, bookie = await open_bookie(process, False)
            if plan.repair is not None:
                await start_beside_bookie(process, opened, bookie.client.bookie_id, bookie.core)
            self.serving = True
            self._stopped = stopped
            await fate.wait()
        finally:
            self.serving, self.ending = False, True

    def _make_bookie(self, config: BookieConfig, metrics: Metrics) -> Bookie:
        self.bookie = WitnessedBookie(self.promises, config, metrics, self.disk, self._has_started)
        return self.bookie

    def _has_started(self, bookie: Bookie, report: StartReport) -> None:
        """It has replayed its journals, and does not serve yet."""
        in_peace, self.closed_in_peace = self.closed_in_peace, False
        if in_peace and report.entries and self.lost is None:
            self.cluster.broken(
                f"{self.name} was closed in order, and replays {report.entries} entries"
            )
        self.cluster.trace.note(self.name, f"has started: {report.entries} entries replayed")
        self.cluster.beside(self, bookie)

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

    def close_in_order(self, down_s: float) -> None:
        """As an operator does; it comes back ``down_s`` after its end."""
        if self._stopped is None or not self.serving or self.closing:
            return
        self.closing, self.serving = True, False
        self.cluster.trace.note(self.name, "is closed in order")
        self._closing = _Closing(self.cluster.loop.time(), self.undisturbed_s(), down_s)
        self.process_now.call(self._stopped.set)

    def _has_closed(self) -> None:
        began_s, calm_s, down_s = self._closing
        took_s = self.cluster.loop.time() - began_s
        self.cluster.trace.note(self.name, f"has closed in {took_s:.3f} s")
        self.cluster.count("orderly closes")
        if self.disk.open_indexes:
            self.promises.broken(f"leaves {next(iter(self.disk.open_indexes))} open behind it")
        self._exit()
        self.closed_in_peace = calm_s > CALM_S and self.undisturbed_s() >= took_s + calm_s
        if not self.closed_in_peace:
            self.cluster.count("orderly closes in trouble")
        self.restart_later(down_s)

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

    def stop_and_spoil(self, root: Path) -> None:
        """Some sectors of one file below ``root`` cannot be read any more."""
        self.kill()
        where = self.disk.spoil(root)
        if where:
            self.lost, self.spoiled = f"{where} cannot be read", True
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
        disk.unwritable.clear()
        disk.slowness = 1.0
        disk.capacity_bytes = 1 << 30
        for device in disk.devices:
            device.heal()
        if self.process is not None:
            self.process.resume()
        if suffered:
            self.kill()
            self.suffered = False
        self.start()
