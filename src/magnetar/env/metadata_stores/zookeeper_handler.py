"""How kazoo's connection waits, and hands over what has arrived: made for one that asks much.

kazoo has a thread that sends requests and reads answers, one at a time, beside the thread of the
event loop; each request costs it five waits for its socket and a hand-over to another thread, which
runs the callbacks. Beside a busy loop that was one request in a millisecond. Here:

* A wait is one ``poll``. kazoo's own makes and ends an epoll instance for each, since ``select``
  ends at 1 024 descriptors; ``poll`` does not.
* Callbacks run in the thread that has read the answer. **They must not block, and must not raise**:
  ours give it to the event loop and return. So answers and events also reach the loop in the order
  in which the server sent them, which two queues did not promise.
* It is known since when the server may not have heard us (``heard_s``): by this thread, whatever
  the loop does meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler

_READABLE = select.POLLIN | select.POLLPRI | select.POLLERR | select.POLLHUP | select.POLLNVAL
_WRITABLE = select.POLLOUT | select.POLLERR | select.POLLHUP | select.POLLNVAL


class _Socket(Protocol):
    def fileno(self) -> int: ...


class _Event(Protocol):
    """A watch that fired, as kazoo hands it over."""

    func: Callable[..., object]
    args: Sequence[object]


def _has_come(ready: Mapping[int, int], server: _Socket) -> bool:
    """Something, and not its end."""
    return ready.get(server.fileno(), 0) == select.POLLIN


class _DirectResult(AsyncResult):  # type: ignore[misc]  # kazoo is not typed
    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            partial(callback, self)()


class DirectHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is not typed
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self._server: _Socket | None = None
        self._asked_s = time.monotonic()
        self.heard_s = self._asked_s
        """When that was sent last after which something came, by the clock of event loops: what the
        server said was no answer to what was sent later. kazoo asks when nobody else does."""

        self._connection: socket.socket | None = None
        self.connect_s = math.inf
        """For how long at most a connection is waited for (``zookeeper_connecting``)."""

    def create_connection(self, *arguments: Any, timeout: float, **more: Any) -> Any:
        within_s = min(timeout, self.connect_s)
        made = super().create_connection(*arguments, timeout=within_s, **more)
        self._connection = made
        return made

    def end_connection(self) -> None:
        """From any thread: kazoo finds it at its end, and tries another server."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                self._connection.shutdown(socket.SHUT_RDWR)

    def async_result(self) -> Any:
        return _DirectResult(self)

    def dispatch_callback(self, callback: _Event) -> None:
        callback.func(*callback.args)

    def select(
        self,
        readers: Sequence[_Socket],
        writers: Sequence[_Socket],
        _failing: Sequence[_Socket],
        timeout: float | None = None,
    ) -> tuple[list[_Socket], list[_Socket], list[_Socket]]:
        """As ``select.select``; ``timeout`` in seconds. Raises ``ValueError`` for a socket that is
        closed, ``OSError``."""
        waiting = select.poll()
        for each in readers:
            waiting.register(each, select.POLLIN)
        for each in writers:
            waiting.register(each, select.POLLOUT)
        ready = dict(waiting.poll(None if timeout is None else math.ceil(timeout * 1000)))
        if writers:
            self._server, self._asked_s = writers[0], time.monotonic()
        elif any(each is self._server and _has_come(ready, each) for each in readers):
            self.heard_s = self._asked_s
        return (
            [each for each in readers if ready.get(each.fileno(), 0) & _READABLE],
            [each for each in writers if ready.get(each.fileno(), 0) & _WRITABLE],
            [],
        )
