"""Huge pages for the memory that a large process keeps, so that addresses are translated faster.

What a message touches of a server lies on dozens of pages, and what ten thousand topics have on
fifty thousand: more than a core remembers the addresses of, and on a virtual machine each that it
does not costs two walks through tables. On pages of 2 MiB it remembers most of them: a tenth of the
CPU of messages to ten thousand topics, more beside other work (docs/performance/growth.md).

Rules:

* The kernel is asked to make a huge page of what is there (``MADV_COLLAPSE``, Linux 6.1), by a
  thread of ours, one by one. Nothing is said of memory to come: a fault would have to find 2 MiB in
  one piece, and whoever meets it would wait.
* Whoever maps memory, or meets a fault there, waits while one is made: some 7 ms on a virtual
  machine. So a process that is busy has one every ``REST_BUSY_S``.
* A process with less than ``RESIDENT_LEAST`` is left alone: it gains nothing.
* Only of memory that is the process's own, and in use for ``FILLED`` of its mapping: what is not
  would be taken from the machine for nothing.
* Looked for when memory has grown or shrunk, and now and then.
* Whoever has set the machine's huge pages to ``never`` gets none.

Why: docs/adr/0214-huge-pages-for-what-is-kept.md.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog

log = structlog.get_logger(__name__)

HUGE_BYTES: Final = 2 << 20
"""Of x86-64, and of arm64 with pages of 4 KiB."""
FILLED: Final = 0.9
CHANGED_BYTES: Final = 16 << 20
LOOK_INTERVAL_S: Final = 5.0
UNCHANGED_LOOKS: Final = 12
"""So many looks are left out while memory is what it was."""
RESIDENT_LEAST: Final = 192 << 20
REST_S: Final = 0.01
REST_BUSY_S: Final = 1.0
BUSY: Final = 0.05
"""Of a core: a process that has less to do is taken for idle."""
MADV_COLLAPSE: Final = 25
SWITCH: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MAPPINGS: Final = Path("/proc/self/smaps")
SIZES: Final = Path("/proc/self/statm")


class Mapping(NamedTuple):
    """A line of ``/proc/self/smaps`` and what stands below it: addresses, bytes."""

    start: int
    end: int
    own: bool
    """Private, writable, and of no file."""
    resident_bytes: int = 0
    huge_bytes: int = 0


def mappings(lines: Iterable[str]) -> Iterator[Mapping]:
    """Those of ``/proc/self/smaps``."""
    found: Mapping | None = None
    for line in lines:
        first, *rest = line.split()
        if not first.endswith(":"):
            if found is not None:
                yield found
            start, end = (int(each, 16) for each in first.split("-"))
            own = rest[0] == "rw-p" and rest[4:] in ([], ["[heap]"])
            found = Mapping(start, end, own)
        elif found is None:
            continue
        elif first == "Rss:":
            found = found._replace(resident_bytes=int(rest[0]) << 10)
        elif first == "AnonHugePages:":
            found = found._replace(huge_bytes=int(rest[0]) << 10)
    if found is not None:
        yield found


def whole(found: Mapping) -> range:
    """Where a huge page fits into a mapping: addresses."""
    start = -(-found.start // HUGE_BYTES) * HUGE_BYTES
    return range(start, found.end // HUGE_BYTES * HUGE_BYTES, HUGE_BYTES)


def places(found: Mapping) -> range:
    """Where one is to be made."""
    here = whole(found)
    filled = found.resident_bytes >= FILLED * (found.end - found.start)
    if not found.own or not filled or found.huge_bytes >= len(here) * HUGE_BYTES:
        return range(0)
    return here


def left(found: Mapping, made: Container[int]) -> list[int]:
    """Of its places those that are still to be made. ``made``: where some were, which the kernel
    may have taken apart again: memory was given back, and new memory came to the same addresses."""
    here = places(found)
    return [place for place in here if place not in made] or list(here)


class HugePages:
    """The thread. ``begin`` starts it, ``close`` ends it and waits until it has."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._made: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="huge pages", daemon=True)
        self._resident_bytes = 0
        self._unchanged = 0
        self._asked = (time.monotonic(), 0.0)

    def begin(self) -> None:
        """Does nothing where there are none."""
        if allowed():
            self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        if not known():
            log.debug("memory stays on small pages: the kernel is older than Linux 6.1")
            return
        while not self._ended.wait(LOOK_INTERVAL_S):
            if self._is_due():
                self.look()

    def _is_due(self) -> bool:
        now_bytes = resident_bytes()
        self._unchanged += 1
        if now_bytes < RESIDENT_LEAST:
            return False
        if (
            abs(now_bytes - self._resident_bytes) < CHANGED_BYTES
            and self._unchanged < UNCHANGED_LOOKS
        ):
            return False
        self._resident_bytes, self._unchanged = now_bytes, 0
        return True

    def look(self) -> int:
        """Make huge pages of what is there; how many were made. (What was given back meanwhile, or
        cannot be moved just now, stays as it is.)"""
        count, begun_s = 0, time.monotonic()
        with MAPPINGS.open(encoding="utf-8", errors="replace") as file:
            found = [each for each in mappings(file) if each.own]
        self._made.intersection_update(place for each in found for place in whole(each))
        for place in [place for each in found for place in left(each, self._made)]:
            if make(place) == 0:
                self._made.add(place)
                count += 1
            if self._ended.wait(REST_BUSY_S if self._is_busy() else REST_S):
                break
        if count:
            took_ms = round((time.monotonic() - begun_s) * 1000)
            log.debug("memory is on huge pages", made=count, took_ms=took_ms)
        return count

    def _is_busy(self) -> bool:
        """Whether the other threads were, since it was last asked."""
        since_s, before_s = self._asked
        self._asked = now_s, used_s = time.monotonic(), time.process_time() - time.thread_time()
        return used_s - before_s > BUSY * (now_s - since_s)


def make(place: int) -> int:
    """Have the memory from ``place`` on, ``HUGE_BYTES`` of it, on one page; 0, or an ``errno``."""
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return ctypes.get_errno() if call(place, HUGE_BYTES, MADV_COLLAPSE) else 0


def known() -> bool:
    """Whether the kernel makes huge pages of what is there: tried with memory of our own."""
    with mmap.mmap(-1, 2 * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as tried:
        tried.write(bytes(2 * HUGE_BYTES))
        first = ctypes.c_char.from_buffer(tried)
        place = -(-ctypes.addressof(first) // HUGE_BYTES) * HUGE_BYTES
        del first
        return make(place) != errno.EINVAL


def allowed() -> bool:
    """Whether the machine has huge pages, and its operator lets processes have them."""
    try:
        return "[never]" not in SWITCH.read_text(encoding="utf-8")
    except OSError:
        return False


def resident_bytes() -> int:
    """Of this process; 0 where that is not known."""
    try:
        pages = int(SIZES.read_text(encoding="utf-8").split()[1])
    except OSError:  # Linux has it
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
