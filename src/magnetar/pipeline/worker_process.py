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
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Final

from magnetar.env.allocator import tune_allocator

FREEZES: Final = 2


class WorkerProcess:
    """One Python process of Spark's."""

    def __init__(
        self,
        freeze: Callable[[], None] = gc.freeze,
        tune: Callable[[], object] = tune_allocator,
    ) -> None:
        self._freeze = freeze
        self._tune = tune
        self._freezes_left = FREEZES
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """To be called whenever Spark asks for something; soon it does nothing."""
        if not self._freezes_left:
            return
        with self._lock:
            if self._freezes_left == FREEZES:
                self._tune()
            if self._freezes_left:
                self._freezes_left -= 1
                self._freeze()


PROCESS: Final = WorkerProcess()
"""This one."""
