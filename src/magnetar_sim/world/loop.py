"""An event loop of virtual time, and the processes that run on it.

Whole roles run here unmodified. Rules:

* The clock jumps to the next timer when nothing is ready: a ten-second deadline costs nothing.
  There is no real I/O and no thread; connections go to the loop's network.
* The same seed gives the same run. Handles run in the order they were made ready, timers of the
  same instant in the order they were made. Tasks and futures hash by a serial number, so that
  sets of them (``asyncio.wait``, ``TaskGroup``) iterate the same way in every run, whatever
  ``PYTHONHASHSEED`` and the addresses of objects.
* asyncio promises that callbacks run in order within a process; between processes nobody does: of
  the handles that are ready at once, those of different processes are shuffled by the seed.
* Each handle belongs to the process in whose context it was made. A dead process's handles are
  dropped, a paused one's are kept until it goes on; time passes for it all the same.
* An exception out of a callback, or out of a task of a process, and a loop where everything waits
  for ever are failures of the run.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import ContextVar
from types import AsyncGeneratorType
from typing import Any, Protocol, TypeVar

from magnetar.model.errors import MagnetarError
from magnetar_sim.world.scheduler import SimulationError

T = TypeVar("T")

STEPS_MAX = 2_000_000
"""Handles of one run: more means that something goes round in circles."""

TASKS_KEPT_MIN = 1000


class Network(Protocol):
    """Where connections go; ``sim.network``."""

    async def connect(
        self, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[asyncio.Transport, Any]: ...

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Any: ...


class SimTask(asyncio.Task[T]):
    """A task that hashes by the order of its making."""

    def __init__(self, serial: int, coro: Any, **options: Any) -> None:
        self._serial = serial
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


class SimFuture(asyncio.Future[T]):
    """A future that hashes by the order of its making."""

    def __init__(self, serial: int, loop: asyncio.AbstractEventLoop) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


class SimProcess:
    """One run of one process, from its start to its end. ``name`` is that of its machine."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.running = True
        self.resumed_s = 0.0
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = TASKS_KEPT_MIN
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run ``coro`` as this process. That it ends in an exception is a failure of the run."""
        task = self._loop.create_task(coro, name=f"{self.name}/{name}", context=self.context)
        self._loop.spawned.append(task)
        return task

    def call(self, callback: Callable[..., object], *args: object) -> None:
        """Call ``callback`` as this process, soon."""
        self._loop.call_soon(callback, *args, context=self.context)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold on to a task: were it collected when the process dies, its ``finally`` would run."""
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) > self._prune_at:
            self._tasks = [each for each in tasks if not each.done()]
            self._prune_at = max(TASKS_KEPT_MIN, 2 * len(self._tasks))

    async def end_tasks(self, within_s: float) -> list[str]:
        """As a loop does at its end: what is left is cancelled, and waited for. The names of those
        tasks that do not end."""
        left = [each for each in self._tasks if each is not asyncio.current_task()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=within_s)
        return [each.get_name() for each in left if not each.done()]

    def hold(self, handle: asyncio.Handle) -> None:
        if self.alive:
            self._held.append(handle)

    def pause(self) -> None:
        """As SIGSTOP: nothing of it runs until ``resume``."""
        self.paused, self.running = True, False

    def resume(self) -> None:
        if self.alive and self.paused:
            self.paused, self.running = False, True
            self.resumed_s = self._loop.time()
            held, self._held = self._held, []
            self._loop.make_ready(held)

    def kill(self) -> None:
        """As SIGKILL: nothing of it runs ever again."""
        self.alive = self.running = False
        self._held.clear()


PROCESS: ContextVar[SimProcess] = ContextVar("process")


async def until(condition: Callable[[], object], every_s: float) -> None:
    """Wait until ``condition`` holds, looking now and then: on virtual time it costs little, and
    works for conditions that no event tells of."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(every_s)


def call_from_outside(
    loop: SimLoop, when_s: float, act: Callable[[], None], over: Callable[[], bool]
) -> None:
    """``act`` at ``when_s``, or now if that has passed, unless it is ``over`` by then. In nobody's
    context: faults come from outside of every process."""

    def unless_over() -> None:
        if not over():
            act()

    loop.call_at(max(when_s, loop.time()), unless_over, context=contextvars.Context())


async def run_in(process: SimProcess, coro: Coroutine[Any, Any, T], name: str) -> T | None:
    """Run ``coro`` as ``process`` and wait for its result; None when the process dies or ends
    first."""
    task = process.spawn(coro, name)
    await until(lambda: task.done() or not process.alive, 0.02)
    return task.result() if task.done() and not task.cancelled() else None


def current_process() -> SimProcess | None:
    """Whose code is running; None: the director's."""
    return PROCESS.get(None)


class SimLoop(asyncio.BaseEventLoop):
    """See the module's text. ``time()`` is virtual, in seconds from 0."""

    _ready: deque[asyncio.Handle]

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.random = rng
        self.network: Network | None = None
        self.steps = 0
        self.failure: str | None = None
        self.spawned: list[asyncio.Task[Any]] = []
        """By processes, and not known to have ended cleanly; see ``check_spawned``."""
        self.steps_max = STEPS_MAX
        self.kept: list[SimProcess] = []
        self._now_s = 0.0
        self._serial = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.set_exception_handler(_note_failure)
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._now_s

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def new_process(self, name: str) -> SimProcess:
        process = SimProcess(self, name)
        self.kept.append(process)
        return process

    def check_spawned(self) -> None:
        """Raise ``SimulationError`` for a task that ended in an exception: perhaps nobody waits
        for it, and what it was to find out would be taken for true."""
        under_way = []
        for task in self.spawned:
            if not task.done():
                under_way.append(task)
            elif not task.cancelled() and (error := task.exception()) is not None:
                what = f"{task.get_name()} ended with {type(error).__name__}: {error}"
                raise SimulationError(what) from error
        self.spawned = under_way

    # -- asyncio's side -----------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(self.next_serial(), self)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, timer))
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is thrown away when its time comes."""

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, *, ssl: object = None
    ) -> tuple[asyncio.Transport, Any]:
        assert self.network is not None
        assert ssl is None, "no run has TLS"
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_options: Any
    ) -> Any:
        assert self.network is not None
        return self.network.listen(protocol_factory, host, port)

    # -- running ------------------------------------------------------------------------------

    def make_ready(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            self._advance()
        batch = list(ready)
        ready.clear()
        if len(batch) > 1:
            batch = self._shuffled(batch)
        for handle in batch:
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None and not process.running:
                process.hold(handle)
                continue
            self.steps += 1
            handle._run()
        if self.steps > self.steps_max:
            raise SimulationError(f"no end after {self.steps} steps: no progress is made")
        if self.failure is not None and not self._stopping:  # type: ignore[attr-defined]
            raise SimulationError(self.failure)

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise SimulationError("everything waits and nothing will ever happen")
        now_s = self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= now_s:
            handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)

    def _shuffled(self, batch: list[asyncio.Handle]) -> list[asyncio.Handle]:
        """Handles by process, the processes in an order of the seed."""
        by_process: dict[SimProcess | None, list[asyncio.Handle]] = {}
        for handle in batch:
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            by_process.setdefault(process, []).append(handle)
        if len(by_process) == 1:
            return batch
        groups = list(by_process.values())
        self.random.shuffle(groups)
        return [handle for group in groups for handle in group]

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is no thread to wake."""

    def finish(self) -> None:
        """Throw away what still waits, without running any of it."""
        for process in self.kept:
            process.kill()
        self._ready.clear()
        self._timers.clear()
        for task in sorted(asyncio.all_tasks(self), key=hash):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        self.close()

    def _asyncgen_finalizer_hook(self, agen: AsyncGeneratorType[Any, Any]) -> None:
        if self.is_running():
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]
        else:
            # Until Python 3.13 ``close`` of who waits for it did not reach what it waits for.
            _close(agen.ag_await)


def _close(waiting: object) -> None:
    """End a coroutine that never goes on; what its ``finally`` clauses fail with (they may want to
    wait, on a loop that has ended) no longer counts."""
    with suppress(RuntimeError, AssertionError, OSError, MagnetarError):
        if isinstance(waiting, Coroutine | Generator):
            waiting.close()


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> SimTask[Any]:
    assert isinstance(loop, SimLoop)
    task: SimTask[Any] = SimTask(loop.next_serial(), coro, loop=loop, **options)
    context = options.get("context")
    process = PROCESS.get(None) if context is None else context.get(PROCESS)
    if process is not None:
        process.keep(task)
    return task


def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    error = context.get("exception")
    if loop.failure is None and isinstance(error, BaseException):
        loop.failure = f"{context.get('message')}: {type(error).__name__}: {error}"
