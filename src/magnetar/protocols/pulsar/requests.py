"""Requests of one connection that wait for something: each runs in a task.

A request's *subject* is the producer or consumer that it is about, and requests of one subject run
one after the other, in the order in which they came. Requests about nothing in particular run side
by side. Past ``REQUESTS_MAX`` waiting or running, or ``REQUEST_BYTES_MAX`` of them together, the
connection is told so (``requests_crowded``) and is not read until half of them are answered.

When the client has gone, large answers, which change nothing, are not worked on any more; other
requests end as they would, but that they make no subscription (``Session.check_open``).

A request that ends with an error that is none of ours ends the connection: its client must not
wait for an answer that will not come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

from magnetar.env.tasks import TaskScope, fails
from magnetar.wire.pulsar.commands import COMMAND_NAMES
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

REQUESTS_MAX: Final = 256
REQUEST_BYTES_MAX: Final = 8 << 20
"""Of commands as they came: one may be as large as a message."""

Subject: TypeAlias = tuple[str, int]
"""What requests are about, and which one of it."""

SIDE_BY_SIDE: Final[Subject] = ("", -1)
LARGE: Final[Subject] = ("large answer", -1)
"""Of requests whose answers may be megabytes: one at a time, or all that are begun before the first
is written would be in memory together."""


class Requester(Protocol):
    """What requests know of the connection that they came from."""

    peer: str
    closed: bool

    def answer(self, command: BaseCommand) -> Coroutine[None, None, None]: ...

    def requests_crowded(self, crowded: bool) -> None: ...

    def close(self) -> None: ...


class Requests:
    """See the module's text. The tasks belong to ``scope``.

    The connection has its requests, and is named with each call: a way back to it would be a cycle
    of every connection that ends, which only the collector finds.
    """

    def __init__(self, scope: TaskScope) -> None:
        self._scope = scope
        self._subjects: dict[Subject, deque[tuple[BaseCommand, int]]] = {}
        """What waits, and its bytes."""
        self._count = 0
        self._bytes = 0
        self._crowded = False
        self._large: asyncio.Task[None] | None = None

    def begin(self, client: Requester, subject: Subject, command: BaseCommand, size: int) -> None:
        """Answer ``command`` of ``client``, which came in ``size`` bytes, once its subject is
        free."""
        if subject == SIDE_BY_SIDE:
            name = COMMAND_NAMES[int(command.type)]
            self._spawn(client, client.answer(command), name, size)
            return
        waiting = self._subjects.get(subject)
        if waiting is not None:
            waiting.append((command, size))
            self._counted(client, 1, size)
            return
        self._subjects[subject] = waiting = deque()
        name = f"{subject[0]} {subject[1]}"
        task = self._spawn(client, self._run_subject(client, subject, command, waiting), name, size)
        if subject == LARGE:
            self._large = task
            task.add_done_callback(self._large_ended)

    def _large_ended(self, _task: asyncio.Task[None]) -> None:
        self._large = None

    def hang_up(self) -> None:
        """The client has gone."""
        if self._large is not None:
            self._large.cancel()

    def _spawn(
        self, client: Requester, request: Coroutine[None, None, None], name: str, size: int
    ) -> asyncio.Task[None]:
        """``size``: of the command that it begins with."""
        self._counted(client, 1, size)

        def failed(_task: str, _error: BaseException) -> None:
            client.close()  # it must not wait for an answer that will not come

        task = self._scope.spawn(request, f"{client.peer} {name}", fails(failed))
        task.add_done_callback(lambda _: self._counted(client, -1, -size))
        return task

    async def _run_subject(
        self,
        client: Requester,
        subject: Subject,
        command: BaseCommand,
        waiting: deque[tuple[BaseCommand, int]],
    ) -> None:
        later = 0  # bytes of the command at hand, if the task did not begin with it
        try:
            while True:
                await client.answer(command)
                if not waiting or client.closed:
                    return
                command, size = waiting.popleft()
                self._counted(client, -1, -later)
                later = size
        finally:
            self._counted(client, -len(waiting), -later - sum(size for _, size in waiting))
            del self._subjects[subject]

    @contextmanager
    def parked(self, client: Requester) -> Iterator[None]:
        """A request that waits for seconds, for what is no work of this broker's: not counted
        meanwhile, or some hundreds of them would keep everything else of the connection. Whoever
        parks has a bound of his own."""
        self._counted(client, -1)
        try:
            yield
        finally:
            self._counted(client, 1)

    def _counted(self, client: Requester, change: int, byte_change: int = 0) -> None:
        self._count += change
        self._bytes += byte_change
        many = self._count > REQUESTS_MAX or self._bytes > REQUEST_BYTES_MAX
        if many and not self._crowded:
            self._crowded = True
            client.requests_crowded(True)
        elif (
            self._crowded
            and self._count <= REQUESTS_MAX // 2
            and self._bytes <= REQUEST_BYTES_MAX // 2
        ):
            self._crowded = False
            client.requests_crowded(False)
