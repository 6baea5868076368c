"""A child process that ends with its parent, however that ends."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from signal import Signals
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # <sys/prctl.h>


def ends_with(parent: int, signal: Signals) -> Callable[[], None]:
    """What a child does before it becomes another program (``preexec_fn``), so that the kernel
    sends it ``signal`` when the thread of ``parent`` ends that has started it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # found before the fork, not after it

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0)
        if os.getppid() != parent:  # it has ended already, before it was asked for
            os._exit(1)

    return ask
