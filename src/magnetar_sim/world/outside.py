"""What a role of ``magnetar.app`` meets in the simulator: see ``magnetar.app.outside.Outside``."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from magnetar.app.outside import Outside
from magnetar.bookie.bookie import Bookie
from magnetar.config import BookieConfig, Config
from magnetar.env.metadata import MetadataStore
from magnetar.log.managed.history import NoHistory, ProcessHistory
from magnetar.metrics import Metrics
from magnetar_sim.world.disk import SimDisk
from magnetar_sim.world.loop import SimLoop, SimProcess
from magnetar_sim.world.metadata import SimMetadataServer, SimMetadataStore

SINCE_1970_S = 1_700_000_000.0
"""The wall clock when a run begins."""
DESCRIPTORS_MAX = 1 << 20


class Skew:
    """How far the wall clock of a process is off, in seconds; may change while it runs."""

    def __init__(self) -> None:
        self.seconds = 0.0


def simulated(
    process: SimProcess,
    server: SimMetadataServer,
    disk: SimDisk,
    rng: random.Random,
    make_bookie: Callable[[BookieConfig, Metrics], Bookie],
    skew: Skew | None = None,
    make_history: Callable[[], ProcessHistory] = NoHistory,
) -> Outside:
    """That of ``process``, whose machine has ``disk``."""
    loop: SimLoop = server.loop
    off = skew or Skew()

    async def open_metadata(_config: Config, _default_file: Path) -> MetadataStore:
        return SimMetadataStore(server, process)

    return Outside(
        process=f"{process.name}, process {loop.next_serial()}",
        disk=disk,
        open_metadata=open_metadata,
        make_bookie=make_bookie,
        clock_s=lambda: SINCE_1970_S + loop.time() + off.seconds,
        random=rng,
        descriptors_max=DESCRIPTORS_MAX,
        make_history=make_history,
        # A machine here runs one process at a time.
        lock_directory=lambda _path, _role: lambda: None,
    )
