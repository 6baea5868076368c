"""What disk and kernel allow a storage server that writes every byte twice.

From one process, with nothing of the platform in it: groups of entries go to a journal that is
overwritten in place (written through, one group after the other) while another thread appends the
same bytes to entry logs and syncs those every 4 MiB. What comes out is the ceiling for the
platform's rate of large entries on this machine; compare it over as many bytes, since file systems
and virtual machines become slower once fresh blocks and fresh memory are touched::

    python -m bench.disk --directory out --mb 6000
    python -m bench.disk --directory out --mb 6000 --keep-pages

One line per second, then one JSON object: MB/s of payload, CPU seconds per GB, commit p50/p99.
Pages of the entry logs are given back behind a window of 256 MiB, as the platform does;
``--keep-pages`` leaves them to the kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

MB = 1_000_000
ENTRY_BYTES = 128 << 10
JOURNAL_BYTES = 64 << 20
JOURNALS = 3
LOG_BYTES = 1 << 30
SYNC_BYTES = 4 << 20
WINDOW_BYTES = 256 << 20
BEHIND_BYTES_MAX = 32 << 20


class Behind:
    """The groups that the entry logs have yet to write; the journal waits at the bound."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._groups: deque[list[bytes]] = deque()
        self._bytes = 0
        self._ended = False

    def put(self, group: list[bytes]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < BEHIND_BYTES_MAX)
            self._groups.append(group)
            self._bytes += sum(map(len, group))
            self._changed.notify_all()

    def take(self) -> list[bytes]:
        """The next group; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._groups) or self._ended)
            if not self._groups:
                return []
            group = self._groups.popleft()
            self._bytes -= sum(map(len, group))
            self._changed.notify_all()
            return group

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Journals:
    """A few whole files, overwritten in turn."""

    def __init__(self, directory: Path) -> None:
        self._files = [
            os.open(directory / f"{number}.journal", os.O_RDWR | os.O_CREAT)
            for number in range(JOURNALS)
        ]
        for file in self._files:
            for offset in range(0, JOURNAL_BYTES, 1 << 20):
                os.pwrite(file, bytes(1 << 20), offset)
            os.fsync(file)
        self._offset = 0

    def write(self, group: list[bytes]) -> None:
        size = sum(map(len, group))
        if self._offset + size > JOURNAL_BYTES:
            self._files.append(self._files.pop(0))
            self._offset = 0
        if os.pwritev(self._files[0], group, self._offset, os.RWF_DSYNC) != size:
            raise OSError("short write to the journal")
        self._offset += size

    def close(self) -> None:
        for file in self._files:
            os.close(file)


class Logs:
    """Entry logs, one after the other; an old one stays open until its pages are given back."""

    def __init__(self, directory: Path, window_bytes: int) -> None:
        self._directory = directory
        self._window_bytes = window_bytes
        self._runs: deque[tuple[int, int, int]] = deque()
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        path = self._directory / f"{self._number}.log"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        self._number += 1
        self._offset = self._synced = 0

    def append(self, group: list[bytes]) -> None:
        written = os.pwritev(self._file, group, self._offset)
        if written != sum(map(len, group)):
            raise OSError("short write to an entry log")
        self._offset += written
        if self._offset - self._synced >= SYNC_BYTES:
            self.sync()
        if self._offset >= LOG_BYTES:
            self.sync()
            self._begin()

    def sync(self) -> None:
        os.fdatasync(self._file)
        self._runs.append((self._file, self._synced, self._offset))
        self._synced = self._offset
        while len(self._runs) * SYNC_BYTES > self._window_bytes:
            file, start, end = self._runs.popleft()
            os.posix_fadvise(file, start, end - start, os.POSIX_FADV_DONTNEED)
            if self._runs and self._runs[0][0] != file:
                os.close(file)


def _append_all(logs: Logs, behind: Behind) -> None:
    """The other thread."""
    while group := behind.take():
        logs.append(group)
    logs.sync()


def measure(
    directory: Path, byte_count: int, group_bytes: int, window_bytes: int
) -> dict[str, float]:
    """Write ``byte_count`` bytes twice, in groups of ``group_bytes``."""
    entry = os.urandom(ENTRY_BYTES)
    group = [entry] * (group_bytes // ENTRY_BYTES)
    journals, behind = Journals(directory), Behind()
    thread = threading.Thread(target=_append_all, args=(Logs(directory, window_bytes), behind))
    thread.start()
    commits: list[float] = []
    start = told = time.perf_counter()
    cpu, told_bytes, written = time.process_time(), 0, 0
    while written < byte_count:
        begun = time.perf_counter()
        journals.write(group)
        now = time.perf_counter()
        commits.append(now - begun)
        written += group_bytes
        behind.put(group)
        if now - told >= 1:
            print(f"{(written - told_bytes) / (now - told) / MB:.0f} MB/s", file=sys.stderr)
            told, told_bytes = now, written
    behind.end()
    thread.join()
    journals.close()
    commits.sort()
    return {
        "mb_per_s": round(written / (time.perf_counter() - start) / MB, 1),
        "cpu_s_per_gb": round((time.process_time() - cpu) / written * 1e9, 3),
        "commit_p50_ms": round(commits[len(commits) // 2] * 1000, 2),
        "commit_p99_ms": round(commits[len(commits) * 99 // 100] * 1000, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--directory", type=Path, default=Path("out"), help="on the disk to measure"
    )
    parser.add_argument("--mb", type=int, default=6000, help="payload, megabytes")
    parser.add_argument("--group-kib", type=int, default=2048, help="one journal commit")
    parser.add_argument("--keep-pages", action="store_true")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="disk-", dir=arguments.directory))
    window_bytes = sys.maxsize if arguments.keep_pages else WINDOW_BYTES
    try:
        result = measure(directory, arguments.mb * MB, arguments.group_kib << 10, window_bytes)
    finally:
        shutil.rmtree(directory)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
