"""The power goes everywhere at once: brokers and bookies under the shim, whose disks forget.

The worst that a power cut may do is done: nothing survives that was not synced (``power_cut.disk``
with a survival of 0), so that a count does not depend on luck. ZooKeeper, whose disk is synced by
itself, is not cut.
"""

from __future__ import annotations

import random
import shutil
import time
from functools import partial
from typing import Final

from magnetar.proving.counting import Observed
from magnetar.proving.faults import Making, Outcome, Play
from magnetar.proving.power_cut.disk import ModelDisk
from magnetar.proving.power_cut.shim import build_shim, under_shim
from magnetar.proving.power_cut.trace import read_trace
from magnetar.proving.scenarios import EXPOSED_MESSAGES
from magnetar.proving.servers import Server
from magnetar.proving.stage import Settings, Stage

RESTARTED_S: Final = 30.0
"""Within which whoever can lead does."""


class _Machines:
    """All servers of a stage, whose disks forget."""

    def __init__(self, making: Making) -> None:
        making.folder.mkdir(parents=True)
        self._shim = build_shim(making.folder)
        self._rng = random.Random(making.seed)
        self._disks: dict[str, ModelDisk] = {}

    def prepare(self, stage: Stage, server: Server) -> None:
        """Before it starts on what its disk holds."""
        if server.name == stage.metadata_name:
            return
        root = stage.data_dir(server)
        root.mkdir(exist_ok=True)
        self._disks[server.name] = ModelDisk(root, stage.rebuilt_files, stage.synced_names)
        trace = root.with_name("trace")
        trace.unlink(missing_ok=True)
        server.environment = under_shim(self._shim, root, trace)

    def cut(self, stage: Stage, servers: list[Server]) -> int:
        """All stop at one moment; returns how many changes were lost with it."""
        for server in servers:
            server.pause()  # before any of them is killed: nobody sees another go
        lost = 0
        for server in servers:
            server.kill()
            root, disk = stage.data_dir(server), self._disks[server.name]
            disk.feed(read_trace(root.with_name("trace")))
            shutil.rmtree(root)
            lost += disk.write(root, self._rng, 0.0)
        return lost


def power_cut_synced(making: Making) -> Outcome:
    return _power_cut(making, synced=True)


def power_cut_unsynced(making: Making) -> Outcome:
    return _power_cut(making, synced=False)


def _power_cut(making: Making, synced: bool) -> dict[str, Observed]:
    """Raises ``NoCompilerError``."""
    cluster, power = making.stage(Settings(synced=synced)), _Machines(making)
    cluster.prepare = partial(power.prepare, cluster)
    with cluster as stage:
        play = Play(making, stage)
        play.each(lambda lane: lane.produce(1))
        play.each(lambda lane: lane.wait_in_sync())
        play.each(lambda lane: lane.produce(EXPOSED_MESSAGES - 1))
        play.each(lambda lane: lane.wait_readable())
        sent = {lane: len(lane.acknowledged) for lane in play.lanes}
        machines = [*stage.brokers, *stage.bookies]
        making.say("the power goes")
        fault_s = time.monotonic()
        lost = power.cut(stage, machines)
        making.say(f"{lost} changes of files are gone; the power is back")
        stage.start(*machines)
        for lane in play.lanes:
            lane.lose_line()
        play.after(RESTARTED_S)
        exposed = {} if synced else sent
        return play.read(fault_s, exposed)
