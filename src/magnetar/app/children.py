"""Servers of this machine as child processes: started, started again when they end, ended in order.

Rules:

* The first start of each counts: if one does not become ready then, all of it fails, with what it
  has said on standard error before.
* Later one that ends is started again (``restarts``), under the same ports.
* One that does not answer any more (paused, or stuck) is killed: then its clients see that it is
  gone. By themselves they find out after a minute or so, when its topics have long been served
  elsewhere. So is one that has ended by itself, but for its process, which listens no more.
* All are asked to end at the same time, and killed when they do not. They end with this process,
  however that ends (``env.child_process``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, Final, NamedTuple

import structlog

from magnetar.app.restarts import Restarts
from magnetar.env.child_process import ends_with
from magnetar.env.tasks import TaskScope
from magnetar.model.errors import StartError

log = structlog.get_logger(__name__)

READY_S: Final = 60.0
LOOKS: Final = 4
END_S: Final = 45.0
"""More than a broker takes to hand over what it has (``app.serving``)."""


class Probe(NamedTuple):
    """``answers`` returns when the server has answered, or cannot be asked: false, it does not
    listen. ``silent_s``: it has done neither for so long, all the time that this process was
    running: it is stuck."""

    answers: Callable[[], Awaitable[bool]]
    silent_s: float


class ChildLooks:
    """What the looks at one process come to. Pure. One that begins does not listen yet, for as long
    as it takes; one that has listened, and does not any more, is ending, which has a bound."""

    def __init__(self, ending_looks: int) -> None:
        self._ending_looks = ending_looks
        self.begin()

    def begin(self) -> None:
        """It is another process from now on."""
        self._listened = False
        self._silent = self._refused = 0

    def after(self, listens: bool | None) -> str:
        """One look more (None: nothing came). Returns why the process is to be killed, if it is."""
        self._silent = self._silent + 1 if listens is None else 0
        self._refused = self._refused + 1 if listens is False and self._listened else 0
        self._listened = self._listened or listens is True
        if self._silent >= LOOKS:
            return "it does not answer"
        if self._refused >= self._ending_looks:
            return "it has stopped to listen, and does not end"
        return ""


class Child:
    """One server: ``command`` prints a line when it is ready, and ends in order on SIGTERM."""

    def __init__(self, name: str, command: Sequence[str], probe: Probe | None = None) -> None:
        """``probe``: how one finds out whether it answers."""
        self.name = name
        self._probe = probe
        self.started = 0
        """How often."""
        self._command = command
        self._process: Process | None = None
        self._restarts = Restarts()
        self._ending = asyncio.Event()
        self._kept: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """While it runs."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def start(self) -> None:
        """Returns when it is ready. Raises ``StartError``."""
        process = await self._launch()
        assert process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                line = await process.stdout.readline()
        except TimeoutError:
            raise StartError(
                f"{self.name} is not ready within {READY_S:g} s; its log is above"
            ) from None
        if not line:
            code = await process.wait()
            raise StartError(
                f"{self.name} has ended with {code} before it was ready; it says why above"
            )

    async def _launch(self) -> Process:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdout=PIPE,
            start_new_session=True,  # Ctrl-C stops us, and we stop it
            preexec_fn=ends_with(os.getpid(), SIGTERM),
        )
        self.started += 1
        if self._ending.is_set():  # told while it was made, of which the former heard nothing
            self._tell(SIGTERM)
        return self._process

    def keep(self, scope: TaskScope) -> None:
        """Start it again whenever it ends, until ``end``."""
        self._kept = scope.spawn(self._keep(), f"keep {self.name}")
        if self._probe is not None:
            scope.spawn(self._watch(self._probe), f"watch {self.name}")

    async def _watch(self, probe: Probe) -> None:
        """A pause of this process is no silence of the other's: it is counted in looks."""
        pause_s = probe.silent_s / LOOKS
        silences = ChildLooks(ceil(END_S / pause_s))
        while not self._ending.is_set():
            process = self._process
            try:
                async with asyncio.timeout(pause_s):
                    listens: bool | None = await probe.answers()
            except TimeoutError:
                listens = None
            else:
                await asyncio.sleep(pause_s)
            if process is not self._process:
                silences.begin()
            elif (why := silences.after(listens)) and process is not None:
                log.warning("a server does not go on and is killed", server=self.name, why=why)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                silences.begin()

    async def _keep(self) -> None:
        clock_s = asyncio.get_running_loop().time
        begun_s = clock_s()
        while True:
            assert self._process is not None, "it was started"
            code = await _ended(self._process)
            if self._ending.is_set():
                return
            pause_s = self._restarts.pause_s(clock_s() - begun_s)
            log.warning(
                "a server has ended and is started again",
                server=self.name,
                code=code,
                pause_s=pause_s,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ending.wait()
            if self._ending.is_set():
                return
            begun_s = clock_s()
            try:
                await self._launch()
            except OSError as error:  # no room for a process, say: as one that ends at once
                log.warning("a server cannot be started", server=self.name, why=error.strerror)

    def ask_to_end(self) -> None:
        self._ending.set()
        self._tell(SIGTERM)

    def _tell(self, signal: Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal)

    async def end(self) -> None:
        """After ``ask_to_end``: until it has ended. It is killed if it does not."""
        process = self._process
        if process is None:
            return
        ended: asyncio.Future[Any] = self._kept or asyncio.ensure_future(_ended(process))
        _, late = await asyncio.wait([ended], timeout=END_S)
        if late:
            log.warning("a server does not end and is killed", server=self.name)
            self._tell(SIGKILL)  # it may be another process by now
            await asyncio.wait([ended])


async def _ended(process: Process) -> int:
    """Its exit code, once it has ended; what it prints is read, or it would wait for us."""
    assert process.stdout is not None
    while await process.stdout.read(4096):
        pass
    return await process.wait()


class Children:
    """Several, together."""

    def __init__(self, children: Sequence[Child], scope: TaskScope) -> None:
        self.children = children
        self._scope = scope

    async def start(self) -> None:
        """All at once. Raises ``StartError``."""
        outcomes = await asyncio.gather(
            *(child.start() for child in self.children), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        for child in self.children:
            child.keep(self._scope)

    async def end(self) -> None:
        """In order. Idempotent."""
        for child in self.children:
            child.ask_to_end()
        await asyncio.gather(*(child.end() for child in self.children))
        await self._scope.close()
