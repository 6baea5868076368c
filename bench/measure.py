"""What every benchmark measures with: latency histograms, CPU times, the machine's name."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

_STEPS_PER_E = 100  # a bucket is 1 % wide
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Histogram:
    """Latencies in buckets of 1 %, from a microsecond up."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})

    def record(self, seconds: float, count: int = 1) -> None:
        """Count ``count`` events that took ``seconds`` each."""
        bucket = int(math.log(max(seconds * 1e6, 1.0)) * _STEPS_PER_E)
        self.counts[bucket] = self.counts.get(bucket, 0) + count

    def merge(self, other: Histogram) -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def percentile_ms(self, percent: float) -> float:
        """The latency that ``percent`` of the events did not pass, in milliseconds."""
        total = sum(self.counts.values())
        if not total:
            return 0.0
        left = math.ceil(total * percent / 100)
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return math.exp((bucket + 1) / _STEPS_PER_E) / 1e3
        raise AssertionError("counts do not add up")

    def summary_ms(self) -> dict[str, float]:
        percents = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9, "max": 100.0}
        return {name: round(self.percentile_ms(value), 3) for name, value in percents.items()}


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process (all its threads); zeros if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S


def tree_cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of processes and of all children that they have waited for: of a whole tree it never
    goes back when threads or processes of it end. In ticks of 10 ms."""
    ticks = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(field) for field in text.rpartition(")")[2].split()[11:15])
    return ticks / _TICKS_PER_S


def process_table() -> dict[int, tuple[int, float]]:
    """All processes at one moment: their parent, and CPU time with that of children that they have
    waited for. Unlike ``process_tree``, which leaves some out when others end while it looks."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks = sum(int(field) for field in fields[11:15])
        found[int(path.parent.name)] = (int(fields[1]), ticks / _TICKS_PER_S)
    return found


def cpu_of_trees(table: Mapping[int, tuple[int, float]], roots: Iterable[int]) -> float:
    """Of these processes and all their descendants in a ``process_table``."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    total, queue = 0.0, [pid for pid in roots if pid in table]
    while queue:
        pid = queue.pop()
        total += table[pid][1]
        queue += children.get(pid, ())
    return total


def scheduled_seconds(pid: int) -> float:
    """CPU time of the threads that a process has now, to the nanosecond, where ``cpu_seconds``
    counts in ticks of 10 ms; 0.0 where the kernel does not say. Threads that ended are not in it.
    """
    total_ns = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total_ns / 1e9


class CpuClock:
    """CPU time of process trees since it was made."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._start = {pid: cpu_seconds(pid) for pid in process_tree(pids)}
        self._scheduled_s = {pid: scheduled_seconds(pid) for pid in self._start}

    def user_s(self) -> float:
        return sum(cpu_seconds(pid)[0] - start[0] for pid, start in self._start.items())

    def system_s(self) -> float:
        return sum(cpu_seconds(pid)[1] - start[1] for pid, start in self._start.items())

    def total_s(self) -> float:
        """Exact, but for threads that ended meanwhile: with those in ticks."""
        in_ticks = self.user_s() + self.system_s()
        exact = sum(scheduled_seconds(pid) - start for pid, start in self._scheduled_s.items())
        return max(exact, in_ticks - 1 / _TICKS_PER_S * len(self._start))


def process_tree(pids: Iterable[int]) -> list[int]:
    """The processes and all their descendants."""
    found: list[int] = []
    queue = list(pids)
    while queue:
        pid = queue.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                queue += [int(child) for child in task.read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
    return sorted(set(found))


def resident_mib(pid: int) -> float:
    """The resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def machine() -> dict[str, str]:
    """What the figures were measured on, and which commit."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": f"{os.getloadavg()[0]:.2f}",
        "cpu_pressure_percent": cpu_pressure(),
        "commit": commit(),
    }


def cpu_pressure() -> str:
    """How much of the last minute somebody waited for a core, in percent; "" if unknown."""
    path = Path("/proc/pressure/cpu")
    if not path.exists():
        return ""
    return path.read_text().split("avg60=")[1].split()[0]


def commit() -> str:
    """The commit that is measured, ``+`` if the sources differ from it."""
    root = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        run = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
        return run.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--short", "src") else "")
