"""Spark's Python processes: what is set in one when it is first asked for something of ours.

Spark plans, reads, writes and commits in processes that its daemon keeps and uses again
(``pyspark.daemon``), four or five of them for every micro-batch.

* After each task the daemon collects garbage, of all generations. With PySpark, Arrow and this
  package loaded that is a look at 70 000 objects, 35 to 50 ms of CPU, while the next task waits.
  What is loaded lives as long as the process, so it is *frozen*: taken out of the collector's
  sight. Some modules are loaded by the first task, so the second freezes once more; then no more,
  as a user's functions may run here too, whose garbage is to be found.
* Entries, blocks of them and columns are larger than what the C library keeps by default
  (``env.allocator``).
* Unless Spark is told to use Unix sockets, it talks to its processes by TCP, and they answer in two
  small pieces: the result, and that they have ended. By TCP's defaults the second waits until the
  first is acknowledged, which the other side delays by 40 ms: twice in every micro-batch that is
  written. So their sockets send at once.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import threading
from collections.abc import Callable
from typing import Final

from magnetar.env.allocator import tune_allocator

FREEZES: Final = 2


def send_at_once() -> None:
    """TCP connections that the process has send what they are given, however little. Where open
    files cannot be listed they stay as they are."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return
    for name in names:
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _send_at_once(int(name))
        except OSError:
            continue  # the listing's own, or closed meanwhile


def _send_at_once(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as same:
        tcp = same.family in (socket.AF_INET, socket.AF_INET6) and same.type == socket.SOCK_STREAM
        if tcp:
            same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class WorkerProcess:
    """One Python process of Spark's."""

    def __init__(
        self,
        freeze: Callable[[], None] = gc.freeze,
        tune: Callable[[], object] = tune_allocator,
        hurry: Callable[[], None] | None = None,
    ) -> None:
        self._freeze = freeze
        self._tune = tune
        self._hurry = hurry or send_at_once
        self._freezes_left = FREEZES
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """To be called whenever Spark asks for something; soon it does nothing."""
        if not self._freezes_left:
            return
        with self._lock:
            if self._freezes_left == FREEZES:
                self._tune()
                self._hurry()
            if self._freezes_left:
                self._freezes_left -= 1
                self._freeze()


PROCESS: Final = WorkerProcess()
"""This one."""
