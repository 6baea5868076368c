"""Machines with auto-recovery: the product's role, as ``magnetar.app`` builds it, on the simulated
world. One that ends is started again by a supervisor."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from contextvars import Context

from magnetar.app.fate import Fate
from magnetar.app.process import Process
from magnetar.app.roles import open_autorecovery
from magnetar.bookie.bookie import Bookie
from magnetar.config import BookieConfig, Config, MetadataConfig, RepairConfig
from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError
from magnetar_sim.cluster.cluster import DATA, FRAME_BYTES_MAX, Cluster
from magnetar_sim.world.disk import SimDisk
from magnetar_sim.world.loop import SimProcess
from magnetar_sim.world.outside import simulated

RESTART_S = 0.3


def plan_repair(rng: random.Random) -> RepairConfig:
    """What auto-recovery is like, by the seed: everything comes soon, and often."""
    silent = random.Random(rng.random())  # one draw, whatever is drawn of it
    return RepairConfig(
        silent_bookie_delay_ms=silent.choice((1500, 4000)),
        lost_bookie_delay_ms=rng.choice((0, 1000, 2000)),
        open_ledger_grace_ms=rng.choice((200, 1500)),
        copy_bytes_per_s=rng.choice((0, 0, 200_000)),
        give_up_interval_ms=rng.choice((300, 1000)),
        look_interval_ms=rng.choice((100, 400)),
        audit_interval_ms=rng.choice((1500, 6000)),
        check_interval_ms=rng.choice((1500, 4000)),
        ledgers_per_s=rng.choice((50, 1000)),
    )


class RepairMachine:
    """A machine and the auto-recovery that runs on it, again and again."""

    def __init__(
        self, cluster: Cluster, name: str, config: RepairConfig, rng: random.Random
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.process: SimProcess | None = None
        self.starts = 0
        self._config = config
        self._random = rng
        self._disk = SimDisk(cluster.loop, rng)

    def start(self) -> None:
        if self.process is not None and self.process.alive:
            return
        self.starts += 1
        self.process = self.cluster.loop.new_process(self.name)
        self.cluster.network.host_back(self.name)
        self.process.spawn(self._run(), f"auto-recovery, start {self.starts}")

    async def _run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                stopped = asyncio.Event()
                fate = Fate(stopped)
                await self._open(stack, fate)
                await fate.wait()
        except (MagnetarError, OSError) as error:
            self.cluster.trace.note(self.name, f"ends: {error}")
        self._end("exits")
        self._restart_later(RESTART_S)

    async def _open(self, stack: AsyncExitStack, fate: Fate) -> None:
        cluster, process = self.cluster, self.process
        assert process is not None
        plan = cluster.plan
        config = Config(
            data_dir=DATA,
            bookie=BookieConfig(entry_bytes_max=FRAME_BYTES_MAX),
            ledger=plan.ledger,
            repair=self._config,
            metadata=MetadataConfig(session_timeout_ms=int(plan.session_timeout_s * 1000)),
        )
        outside = simulated(process, cluster.metadata, self._disk, self._random, _no_bookie)
        name = await open_autorecovery(Process(config, outside, stack, fate, cluster.metrics))
        cluster.trace.note(self.name, f"repairs, as {name}")
        cluster.count("auto-recoveries started")

    def kill(self, down_s: float) -> None:
        """As ``kill -9``."""
        if self.process is not None and self.process.alive:
            self.cluster.count("auto-recoveries killed")
            self._end("is killed")
            self._restart_later(down_s)

    def _end(self, how: str) -> None:
        process = self.process
        if process is not None and process.alive:
            self.cluster.trace.note(self.name, how)
            process.kill()
            self.cluster.network.process_ended(process, silently=False)

    def _restart_later(self, delay_s: float) -> None:
        """The supervisor's; called by nobody's code, so that it outlives the process."""
        self.cluster.loop.call_later(delay_s, self.start, context=Context())

    def heal(self) -> None:
        if self.process is not None:
            self.process.resume()
        self.start()


def _no_bookie(_config: BookieConfig, _metrics: Metrics) -> Bookie:
    raise AssertionError("auto-recovery has no bookie")
