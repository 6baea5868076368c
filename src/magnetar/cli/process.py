"""What a server process needs before its first part is built: memory allocator, threads, loop,
signals, logs.

The settings come from measurement. The allocator keeps what is freed (``env.allocator``). A journal
thread that comes back from an fsync wants the interpreter at once, not after the default 5 ms of
whoever runs. And what is made while starting (modules, above all) lives as long as the process: the
garbage collector looks at none of it, neither meanwhile nor ever after. What is under way later
(entries, answers) is looked at only when there is much more of it than the default 700 objects:
with a thousand open ledgers that was a quarter of a writer's time.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import click
import structlog

from magnetar import logs
from magnetar.config import Config
from magnetar.config_loading import unsafe_settings
from magnetar.env.allocator import tune_allocator as tune_allocator  # benchmarks name it here

log = structlog.get_logger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SWITCH_INTERVAL_S = 0.0001
COLLECT_AT = (50_000, 20, 20)
"""Objects that begin a collection of the youngest, and how many of one generation begin one of the
next.

Counted are those made less those gone, so that what is under way for a moment begins none; the
youngest are as many when a broker takes hundreds of topics at once, and their collection stops its
loop for 17 to 47 ms. At 10 000 it is a quarter of that, but everyday work pays: publishing in small
pieces, as Java's client does, cost 21 % more CPU and dispatch to a hundred consumers 12 % (medians
of eight rounds in turns beside other load; 7 and 5 of the 8 pairs; single publishers in bursts and
cursors were the same)."""

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

    uvloop.run(_until_stopped(role))


async def _until_stopped(role: Role) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_failure)

    def stop() -> None:
        """The first signal asks; the second finds the default: the end, at once."""
        stopped.set()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    await role(_ready, stopped)


def _log_failure(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback or a task has failed, by a defect: asyncio's own text goes past our log."""
    error = context.get("exception")
    log.error("defect", what=context.get("message"), error=repr(error), exc_info=error)


def _ready(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()
    tune_collector()
    gc.enable()


def tune_collector() -> None:
    """Leave alone what was made so far, and what is under way for a moment only."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AT)
