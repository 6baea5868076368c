"""The C library's memory allocator, set from inside the process.

By default freed blocks of 128 KiB and more go back to the kernel and are faulted in again when the
next one is wanted. With thresholds above the largest frame they stay.

Why: docs/adr/0070-allocator-by-mallopt.md.
"""

from __future__ import annotations

import ctypes

GLIBC_SETTINGS = (
    (-3, 16 << 20),  # M_MMAP_THRESHOLD: larger blocks are mapped by themselves
    (-1, 64 << 20),  # M_TRIM_THRESHOLD: free memory kept at the top of the heap
    (-2, 1 << 20),  # M_TOP_PAD: the heap grows by this much more than asked
    (-8, 4),  # M_ARENA_MAX: threads share arenas; each keeps its own free memory
)
"""``mallopt`` parameters of glibc and their values, bytes (the last: a number)."""


def tune_allocator() -> bool:
    """Apply ``GLIBC_SETTINGS``; False where the C library is another (nothing is lost then)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in GLIBC_SETTINGS)
