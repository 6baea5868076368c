"""A machine whose power is cut: a real bookie process on real files, under the shim.

    start            the bookie runs on the disk's files; every change is in the trace
    it dies          by the shim, before a change of its own, or by ``kill -9``
    power_returns    the disk has what was durable, and of the rest what the coin says

The files live in the same place in each life, as on a machine.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from magnetar.env.network.free_ports import free_port
from magnetar.proving.power_cut.disk import ModelDisk
from magnetar.proving.power_cut.shim import under_shim
from magnetar.proving.power_cut.trace import read_trace

START_S = 120.0
BOOKIE_ID = "powered"
SETTINGS = (
    f"bookie.bookie_id={BOOKIE_ID}",
    "bookie.write_cache_bytes=1048576",
    "bookie.flush_interval_ms=40",
    "bookie.entry_log_bytes_max=1048576",
    "bookie.journal.file_bytes=1048576",
    "bookie.entry_bytes_max=65536",
    "broker.message_bytes_max=32768",
    "bookie.journal.recycled_files_max=2",
    "bookie.collect_interval_ms=200",
    "bookie.collect_grace_ms=0",
    "bookie.compaction_minor_percent=70",
    "bookie.compaction_minor_interval_ms=150",
    "bookie.compaction_bytes_per_s=67108864",
    "bookie.disk_check_interval_ms=50",
    "bookie.disk_reserve_bytes=0",
    "bookie.disk_warn_percent=100",
    "bookie.disk_full_percent=100",
    "bookie.disk_low_water_percent=100",
    "repair.in_bookies=false",
)
"""All that happens seldom happens all the time: files are begun, removed, recycled, compacted."""


class Machine:
    """``folder``: for the machine's files, the traces, the logs. ``plant``: ``bookie.PLANTS``."""

    def __init__(self, folder: Path, shim: Path, metadata_url: str, plant: str = "none") -> None:
        self.root = folder / "disk"
        self._folder = folder
        self._shim = shim
        self._metadata_url = metadata_url
        self._plant = plant
        self._life = 0
        self.root.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def log(self) -> str:
        """What the bookie has said in its last life."""
        return self._path("log").read_text(errors="replace")

    @property
    def trace_path(self) -> Path:
        """Of the last life."""
        return self._path("trace")

    def _path(self, suffix: str) -> Path:
        return self._folder / f"life-{self._life}.{suffix}"

    def start(self, cut_after: int) -> bool:
        """Whether it came up; else it died on the way. ``cut_after``: changes of files; 0: it is
        killed by ``kill`` only."""
        self._life += 1
        self._disk = ModelDisk(self.root)
        shimmed = under_shim(self._shim, self.root, self.trace_path, cut_after)
        environment = {**os.environ, **shimmed}
        command = [sys.executable, "-m", "tests.power_cuts.bookie", self._plant]
        self.port = free_port()
        command += ["--data-dir", str(self.root), "--port", str(self.port)]
        command += ["--metadata", self._metadata_url]
        for setting in SETTINGS:
            command += ["--set", setting]
        with self._path("log").open("wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=log
            )
        return self._wait_ready(self.process)

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], START_S)[0]:
            raise TimeoutError(self.log)
        if not process.stdout.readline():
            process.wait()
            return False
        return True

    @property
    def ended_by_itself(self) -> bool:
        """It refused to start, or gave up: no power cut."""
        assert self.process is not None
        return self.process.poll() not in (None, -signal.SIGKILL)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def power_returns(self, rng: random.Random) -> int:
        """The disk as a power cut has left it; returns how many changes were not durable."""
        self.kill()
        self._disk.feed(read_trace(self.trace_path))
        shutil.rmtree(self.root)
        survival = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        pending = self._disk.write(self.root, rng, survival)
        if self._life > 1:
            for suffix in ("trace", "log"):
                (self._folder / f"life-{self._life - 1}.{suffix}").unlink(missing_ok=True)
        return pending

    def wait_dead(self, at_most_s: float) -> None:
        assert self.process is not None
        deadline = time.monotonic() + at_most_s
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
