"""What a server process needs before its first part is built: memory allocator, threads, loop,
signals, logs.

The settings come from measurement. The allocator keeps what is freed (``env.allocator``), and what
is kept is put on huge pages (``env.huge_pages``). A journal thread that comes back from an fsync
wants the interpreter at once, not after the default 5 ms of whoever runs. And what is made while
starting (modules, above all) lives as long as the process: the garbage collector looks at none of
it, neither meanwhile nor ever after. What is under way later (entries, answers) is looked at only
when there is much more of it than the default 700 objects: with a thousand open ledgers that was a
quarter of a writer's time. ``env.collecting`` has the rules for everything else.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import click
import structlog

from magnetar import logs
from magnetar.cli.output import drop_output
from magnetar.config import Config
from magnetar.config_loading import unsafe_settings
from magnetar.env.allocator import tune_allocator as tune_allocator  # benchmarks name it here
from magnetar.env.collecting import (
    LOOK_INTERVAL_S,
    THRESHOLDS,
    YOUNG_INTERVAL_IDLE_S,
    Memory,
    OldGarbage,
    young_interval_s,
)
from magnetar.env.huge_pages import HugePages, resident_bytes

log = structlog.get_logger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SWITCH_INTERVAL_S = 0.0001
LEFT_S = 10.0
"""A process has so long to end once its role has."""
LEFT_SHOWN = 10

Stopped: TypeAlias = asyncio.Event
Role: TypeAlias = Callable[[Callable[[str], None], Stopped], Awaitable[None]]
"""``role(ready, stopped)``: start, call ``ready`` with the line to print, run until ``stopped``
is set, then end cleanly."""


def serve(config: Config, role: Role) -> None:
    """Run ``role`` until SIGTERM or SIGINT."""
    logs.configure(config.logging)
    for warning in unsafe_settings(config):
        log.warning("unsafe setting", what=warning)
    tune_allocator()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.disable()
    import uvloop

    forced, pages = ForcedEnd(), HugePages()
    if config.process.huge_pages:
        pages.begin()
    try:
        uvloop.run(_until_stopped(role, forced))
    finally:
        pages.close()
        forced.call_off()


class ForcedEnd:
    """The process ends soon after its role, whatever is left of that.

    The loop's own end cancels the tasks that are left and waits for them, and for threads, without
    a bound. One that does not end keeps the process, with its connections, so that clients wait
    for it; and who starts servers again when they have ended does not see it."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = threading.Timer(LEFT_S, self._now, (loop,))
        self._timer.daemon = True
        self._timer.start()

    def call_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _now(self, loop: asyncio.AbstractEventLoop) -> None:
        left = sorted(task.get_name() for task in asyncio.all_tasks(loop))
        log.error("does not end by itself, by a defect, and is ended", left=left[:LEFT_SHOWN])
        sys.stderr.flush()
        os._exit(1)


async def _until_stopped(role: Role, forced: ForcedEnd) -> None:
    stopped, started = asyncio.Event(), False
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_failure)

    def ready(line: str) -> None:
        nonlocal started
        started = True
        _ready(line)

    def stop() -> None:
        """The first signal asks; the second finds the default: the end, at once."""
        if not started and not stopped.is_set():  # it may take a while, and nothing is seen of it
            log.info("ends as soon as it has started; asked once more, at once")
        stopped.set()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        await role(ready, stopped)
    finally:
        forced.begin(loop)


def _log_failure(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback or a task has failed, by a defect: asyncio's own text goes past our log."""
    error = context.get("exception")
    log.error("defect", what=context.get("message"), error=repr(error), exc_info=error)


def _ready(line: str) -> None:
    try:
        click.echo(line)
        sys.stdout.flush()
    except OSError as error:  # its reader has ended, its disk is full: all is served
        log.warning("standard output takes nothing", left_out=line, why=error.strerror)
        drop_output()
    tune_collector()
    gc.enable()
    GarbageLooks(asyncio.get_running_loop()).begin()


def tune_collector() -> None:
    """Leave alone what was made so far, and what is under way for a moment only."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


class GarbageLooks:
    """Has memory looked at when ``env.collecting`` says so, on ``loop``, until it ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rules = OldGarbage(memory())
        self._load = _Load()
        self._young_load = _Load()

    def begin(self) -> None:
        self._loop.call_later(LOOK_INTERVAL_S, self._look)
        self._loop.call_later(YOUNG_INTERVAL_IDLE_S, self._look_at_young)

    def _look_at_young(self) -> None:
        gc.collect(0)
        self._loop.call_later(young_interval_s(self._young_load.busy()), self._look_at_young)

    def _look(self) -> None:
        if self._rules.wanted(memory(), self._load.busy()):
            begun_s = time.thread_time()
            found = gc.collect()
            self._rules.looked(memory())
            took_ms = round((time.thread_time() - begun_s) * 1000)
            log.info("looked for garbage in all of memory", found=found, stopped_ms=took_ms)
        self._loop.call_later(LOOK_INTERVAL_S, self._look)


class _Load:
    """How busy this thread is."""

    def __init__(self) -> None:
        self._asked = (time.monotonic(), time.thread_time())

    def busy(self) -> float:
        """The share of a core since it was last asked, 0 to 1."""
        since_s, before_s = self._asked
        self._asked = now_s, used_s = time.monotonic(), time.thread_time()
        return (used_s - before_s) / max(now_s - since_s, 1e-6)


def memory() -> Memory:
    """What this process has."""
    return Memory(sys.getallocatedblocks(), resident_bytes())
