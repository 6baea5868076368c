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
* Unless Spark is told to use Unix sockets, it talks to its processes by TCP, both in small pieces:
  the command, then the rows; the result, then that it has ended. By TCP's defaults the second of
  two waits until the first is acknowledged, which the other side delays by 40 ms: up to three times
  in every micro-batch that is written, once in every task that reads. So their sockets send at
  once, which is said once, and acknowledge at once what Spark has sent, which the kernel forgets
  with every answer: it is said when Spark asks for something, and again behind a task's last
  answer, as the next task's command and what follows it come before anything of ours is called.
  There nothing of ours runs but what the collector calls.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from magnetar.env.allocator import tune_allocator

FREEZES: Final = 2
ALL_GENERATIONS: Final = len(gc.get_count()) - 1

ACKNOWLEDGE_AT_ONCE: Final = getattr(socket, "TCP_QUICKACK", None)
"""Linux has it."""


def send_at_once() -> None:
    """TCP connections that the process has send what they are given, however little."""
    _set_on_connections(socket.TCP_NODELAY)


def acknowledge_at_once() -> None:
    """They acknowledge what has come, and what comes until they send something."""
    if ACKNOWLEDGE_AT_ONCE is not None:
        _set_on_connections(ACKNOWLEDGE_AT_ONCE)


def _set_on_connections(option: int) -> None:
    """Of the process, by TCP. Where open files cannot be listed they stay as they are."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return
    for name in names:
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _set_on_connection(int(name), option)
        except OSError:
            continue  # the listing's own, or closed meanwhile


def _set_on_connection(descriptor: int, option: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as same:
        tcp = same.family in (socket.AF_INET, socket.AF_INET6) and same.type == socket.SOCK_STREAM
        if tcp:
            same.setsockopt(socket.IPPROTO_TCP, option, 1)


def after_each_task(step: Callable[[], None]) -> None:
    """``step()`` whenever garbage of all generations has been collected."""

    def collected(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == ALL_GENERATIONS:
            step()

    gc.callbacks.append(collected)


STREAM_PLANNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that Spark runs as the process which plans a stream."""

ENDING_S: Final = 15.0
"""The process is gone after that, whatever it waits for."""


def when_ended(stop: Callable[[], None]) -> None:
    """``stop()`` when Spark ends the process that plans a stream: it does so by SIGTERM, with which
    nothing of ours would run any more. Elsewhere signals are whoever's the process is."""
    told = getattr(sys.modules.get("__main__"), "__spec__", None)
    if told is None or told.name != STREAM_PLANNER:
        return
    if threading.current_thread() is not threading.main_thread():
        return

    def ended(number: int, frame: object) -> None:
        # Spark may say it twice: by its default the second one would end what the first began.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, ENDING_S)
        try:
            stop()
        finally:
            os._exit(128 + number)  # what Spark's own code would write, nobody reads any more

    signal.signal(signal.SIGTERM, ended)


class WorkerProcess:
    """One Python process of Spark's."""

    def __init__(
        self,
        freeze: Callable[[], None] = gc.freeze,
        tune: Callable[[], object] = tune_allocator,
        hurry: Callable[[], None] = send_at_once,
        acknowledge: Callable[[], None] = acknowledge_at_once,
        after_tasks: Callable[[Callable[[], None]], None] = after_each_task,
    ) -> None:
        self._freeze = freeze
        self._tune = tune
        self._hurry = hurry
        self._acknowledge = acknowledge
        self._after_tasks = after_tasks
        self._freezes_left = FREEZES
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """To be called whenever Spark asks for something, before what it sends is read."""
        self._acknowledge()
        if not self._freezes_left:
            return
        with self._lock:
            if self._freezes_left == FREEZES:
                self._tune()
                self._hurry()
                self._after_tasks(self._acknowledge)
            if self._freezes_left:
                self._freezes_left -= 1
                self._freeze()


PROCESS: Final = WorkerProcess()
"""This one."""
