"""An event loop in a thread of its own, for callers that have none: asynchronous parts, waiting.

``waiting`` makes the blocking twin of a coroutine method, with the same arguments, so that a face
without ``async`` is a list of names:

    class SyncReader(Waits[LedgerReader]):
        read_last = waiting(LedgerReader.read_last)

Rules: once the loop ends no call begins any more, and those that other threads wait for fail; a
call that is interrupted (Ctrl-C) is cancelled; objects may be used from any thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from magnetar.model.errors import LedgerError

if sys.platform == "win32":
    from asyncio import new_event_loop
else:  # 6 % less CPU of a Spark task that reads
    from uvloop import new_event_loop

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")


class _Call(Protocol):
    """The part of a ``Future`` that ends it, whatever it gives."""

    def cancel(self) -> bool: ...


class LoopThread:
    """See the module's text. ``what`` runs on it, for its errors: "the ledger client"."""

    def __init__(self, name: str, what: str) -> None:
        self.what = what
        self._loop = new_event_loop()
        self._beginning = threading.Lock()
        self._ended = False
        self._under_way: set[_Call] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, call: Coroutine[object, object, T]) -> Future[T]:
        """Start ``call``, for ``result_of``. Raises ``LedgerError`` after the end."""
        with self._beginning:
            if self._ended:
                call.close()
                raise LedgerError(f"{self.what} is closed; connect again")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
            self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def run(self, call: Coroutine[object, object, T]) -> T:
        """The call's result."""
        return self.result_of(self.begin(call))

    def result_of(self, call: Future[T]) -> T:
        """Wait for it; when that is interrupted it is cancelled."""
        try:
            return call.result()
        except CancelledError:
            raise LedgerError(
                f"{self.what} was closed while the call was under way, which may or may not have "
                "taken effect; connect again and look"
            ) from None
        finally:
            call.cancel()

    def end(self, last: Coroutine[object, object, None]) -> None:
        """Run ``last`` when no other call is under way, then end. Idempotent."""
        with self._beginning:
            ended, self._ended = self._ended, True
        if ended:
            last.close()
            return
        for call in list(self._under_way):
            call.cancel()
        try:
            self.result_of(asyncio.run_coroutine_threadsafe(last, self._loop))
        finally:
            self.result_of(asyncio.run_coroutine_threadsafe(_end_all(), self._loop))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _end_all() -> None:
    """End what still runs on this loop, which is ours alone."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


class Waits(Generic[Part]):
    """A face without ``async`` of ``part``, whose loop is ``loop``."""

    def __init__(self, loop: LoopThread, part: Part) -> None:
        self._loop = loop
        self._part = part


def waiting(
    method: Callable[Concatenate[Part, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Waits[Part], P], T]:
    """``method`` of the part, called on its loop and waited for; its text is the method's."""

    def wait(self: Waits[Part], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._part, *args, **kwargs))

    return update_wrapper(wait, method)
