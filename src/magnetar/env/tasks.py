"""Who owns a task: every task belongs to a scope that ends it.

Rules: a scope's tasks end when the scope is closed; a task that fails is logged with its name and
told to ``on_failure`` (or, without one, stays visible in ``failures``); ``CancelledError`` is
never swallowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class TaskScope:
    """A set of tasks that live no longer than their owner."""

    def __init__(
        self, name: str, on_failure: Callable[[str, BaseException], None] | None = None
    ) -> None:
        self.name = name
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a dict keeps the order of creation
        self._closed = False

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start ``coro`` as a task of this scope. The scope must be open."""
        assert not self._closed, f"scope {self.name} is closed"
        task = asyncio.get_running_loop().create_task(coro, name=f"{self.name}/{name}")
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        log.error("task failed", task=task.get_name(), error=repr(error), exc_info=error)
        if self._on_failure is not None:
            self._on_failure(task.get_name(), error)

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Cancel what still runs and wait until all of it has ended. Idempotent."""
        self._closed = True
        current = asyncio.current_task()
        pending = [task for task in self._tasks if task is not current]
        for task in pending:
            task.cancel()
        for task in pending:
            await asyncio.wait([task])
