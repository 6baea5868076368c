"""Who owns a task: every task belongs to a scope that ends it, and that says what its failure is.

Rules: a scope's tasks end when the scope is closed. A task that fails is told to the loop's
exception handler, which logs it, and to the scope's failure policy, which its maker must give: a
watch that died behind one line of the log is a defect. ``CancelledError`` is never swallowed.

A failure is a defect of this program: what can go wrong in the world is handled inside the task.
The policies, one of

* ``ends_role``: what the task did must go on, and nobody can start it again. The role ends;
* ``fails``: its owner can do without it, or begin anew: a log is closed and opened again, a
  connection ends;
* ``awaited``: somebody awaits the task's result, and so has its error;
* ``ignored``: nothing is lost by it, for a reason that is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import structlog

from magnetar.model.errors import DefectError, MagnetarError, ServiceNotReadyError

log = structlog.get_logger(__name__)

T = TypeVar("T")

FailurePolicy: TypeAlias = Callable[[str, BaseException], None]
"""Called with the name of a task and what it failed with, on the loop, once. Raises nothing."""


def ends_role(fail: Callable[[MagnetarError], None]) -> FailurePolicy:
    """The role ends; ``fail`` is its ``Fate``'s."""

    def policy(task: str, error: BaseException) -> None:
        fail(defect(task, error))

    return policy


def fails(owner: FailurePolicy) -> FailurePolicy:
    """The owner of the task fails, as ``owner`` does it."""
    return owner


def awaited(by: str) -> FailurePolicy:
    """``by`` awaits the task's result. An error that is never asked for is one of asyncio's log."""
    assert by, "say who awaits the task"
    return _told_by_result


def _told_by_result(task: str, error: BaseException) -> None:
    """Whoever awaits the task is told by its result."""


def _gone(task: str, error: BaseException) -> None:
    """Its owner has ended before it."""


async def shared_result(task: asyncio.Task[T]) -> T:
    """What a task comes to that several wait for, each of whom may be cancelled without it. Raises
    ``ServiceNotReadyError`` if it was ended with its scope: who waits goes on, and is told."""
    waiting = asyncio.current_task()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.cancelled() or (waiting is not None and waiting.cancelling()):
            raise
        # ``CancelledError`` was the task's own.
        raise ServiceNotReadyError(
            f"{task.get_name()}: this broker is ending; ask another"
        ) from None
    finally:
        # The task has its error, the error this frame: without them it is no cycle.
        del task, waiting


def ignored(because: str, count: Callable[[], None]) -> FailurePolicy:
    """Nothing is lost when the task fails, ``because``; ``count`` makes it seen in a metric."""
    assert because, "say why nothing is lost"

    def policy(task: str, error: BaseException) -> None:
        count()
        log.warning("the failure is passed over", task=task, because=because)

    return policy


def nothing() -> None:
    """What is called in place of a callback that has ended, and so leads back to nobody."""


def defect(task: str, error: BaseException) -> DefectError:
    """The error of a task that failed, for people."""
    return DefectError(
        f"{task} has failed, by a defect ({error!r}); start it again, and report this with its log"
    )


@dataclass(slots=True)
class _Tasks:
    running: dict[asyncio.Task[Any], None] = field(default_factory=dict)  # in order of creation
    closed: bool = False


class TaskScope:
    """A set of tasks that live no longer than their owner."""

    def __init__(self, name: str, policy: FailurePolicy) -> None:
        self.name = name
        self._policy = policy
        self._tasks = _Tasks()
        self._outer: _Tasks | None = None

    def part(self, name: str, policy: FailurePolicy) -> TaskScope:
        """A scope whose tasks are also of this one, which ends them, with a policy of its own.
        Only this one may be closed."""
        part = TaskScope(name, policy)
        part._tasks = self._tasks
        return part

    def inner(self, name: str, policy: FailurePolicy) -> TaskScope:
        """A scope with a policy of its own, which may be closed before this one and ends with it
        at the latest."""
        inner = TaskScope(name, policy)
        inner._outer = self._tasks
        return inner

    @property
    def closed(self) -> bool:
        """Whether nothing can be started in it any more."""
        return self._tasks.closed or (self._outer is not None and self._outer.closed)

    def guarded(self, call: Callable[[], None], name: str) -> Callable[[], None]:
        """``call`` as a callback for the loop, as by ``guard``."""
        return partial(self.guard, call, name)

    def guard(self, call: Callable[[], None], name: str) -> None:
        """Call it: a failure of it is that of a task of this scope, and nothing is called once the
        scope is closed, or the one around it."""
        if self.closed:
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001 (told as the failure of a task is)
            self._failed(f"{self.name}/{name}", error, self._policy)

    def spawn(
        self, coro: Coroutine[Any, Any, Any], name: str, policy: FailurePolicy | None = None
    ) -> asyncio.Task[Any]:
        """Start ``coro`` as a task of this scope, which must be open; ``policy`` in place of the
        scope's."""
        outer = self._outer
        assert not self._tasks.closed, f"scope {self.name} is closed"
        assert outer is None or not outer.closed, f"the scope around {self.name} is closed"
        try:
            task = asyncio.get_running_loop().create_task(coro, name=f"{self.name}/{name}")
        except RuntimeError:  # the loop has ended, and its owner's last clauses run
            coro.close()  # or it is told of as never awaited, wherever it is collected
            raise
        self._tasks.running[task] = None
        if outer is not None:
            outer.running[task] = None
        task.add_done_callback(self._done if policy is None else self._done_by(policy))
        return task

    def _done_by(self, policy: FailurePolicy) -> Callable[[asyncio.Task[Any]], None]:
        return lambda task: self._ended(task, policy)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._ended(task, self._policy)

    def _ended(self, task: asyncio.Task[Any], policy: FailurePolicy) -> None:
        self._tasks.running.pop(task, None)
        if self._outer is not None:
            self._outer.running.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        self._failed(task.get_name(), error, policy)

    def _failed(self, name: str, error: BaseException, policy: FailurePolicy) -> None:
        if policy is not _told_by_result:
            # Told as the loop tells of a callback that raised: a process logs it with its trace,
            # the simulator gives up the run, whatever the policy makes good.
            context = {"message": f"{name} has failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        policy(name, error)

    def __len__(self) -> int:
        return len(self._tasks.running)

    def cancel(self) -> None:
        """As ``close``, for who cannot wait: nothing begins any more; what runs is cancelled."""
        self._tasks.closed = True
        current = asyncio.current_task()
        for task in list(self._tasks.running):
            if task is not current:
                task.cancel()

    async def close(self) -> None:
        """Cancel what still runs and wait until all of it has ended. Idempotent."""
        self.cancel()
        current = asyncio.current_task()
        pending = [task for task in self._tasks.running if task is not current]
        for task in pending:
            await asyncio.wait([task])
        if not self._tasks.running:
            self.release()

    def release(self) -> None:
        """The owner has ended, and starts nothing more here: it is told of nothing, and not kept. A
        scope and its owner are a cycle until then, which only the garbage collector would find."""
        self._policy = _gone
