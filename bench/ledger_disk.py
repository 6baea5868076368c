"""What the disk itself does of what a ledger store asks of it: small durable writes, one after the
other, and reading files that no cache holds.

    python -m bench.ledger_disk FILE SECONDS      commits, as JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from bench.ledger_clients import Report, percentile_ms
from bench.trees import ROOT

COMMIT_BYTES = 1536  # what the journal writes for one entry of 1 KiB
FILE_BYTES = 16 << 20


def commits(path: Path, seconds: float) -> Report:
    """Latency of durable writes over prepared blocks: written through (the way of the
    bookie's journal), and by ``fdatasync``, half of the time each."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for offset in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(file, bytes(1 << 20), offset)
        os.fsync(file)
        through, synced = _commit(file, seconds / 2, True), _commit(file, seconds / 2, False)
    finally:
        os.close(file)
        path.unlink()
    return {
        "p50_ms": percentile_ms(through, 50),
        "p99_ms": percentile_ms(through, 99),
        "fdatasync_p50_ms": percentile_ms(synced, 50),
        "fdatasync_p99_ms": percentile_ms(synced, 99),
    }


def _commit(file: int, seconds: float, through: bool) -> array[float]:
    block = [os.urandom(COMMIT_BYTES)]
    latencies_s: array[float] = array("d")
    offset, end = 0, time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        if through:
            os.pwritev(file, block, offset, os.RWF_DSYNC)
        else:
            os.pwritev(file, block, offset)
            os.fdatasync(file)
        latencies_s.append(time.perf_counter() - began)
        offset = (offset + COMMIT_BYTES) % FILE_BYTES
    return latencies_s


def commits_at_once(directory: Path, writers: int, seconds: float) -> Report:
    """The same from ``writers`` processes on files of their own; the mean of what they found."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.ledger_disk", str(directory / f"raw-{i}"), str(seconds)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(writers)
    ]
    found: list[Report] = [json.loads(child.communicate()[0]) for child in children]
    return {name: round(sum(one[name] for one in found) / writers, 3) for name in found[0]}


def make_cold(files: Sequence[Path]) -> None:
    """Take the files out of the page cache (``POSIX_FADV_DONTNEED``, after a sync: pages that are
    not on the disk yet would stay). A cache of the host beneath a virtual machine is not reached.
    """
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def cat_mb_per_s(files: Sequence[Path]) -> float:
    """``cat FILES > /dev/null``, cold."""
    make_cold(files)
    size = sum(path.stat().st_size for path in files)
    began = time.perf_counter()
    subprocess.run(["cat", *map(str, files)], stdout=subprocess.DEVNULL, check=True)
    return round(size / 1e6 / (time.perf_counter() - began), 1)


if __name__ == "__main__":
    print(json.dumps(commits(Path(sys.argv[1]), float(sys.argv[2]))))
