"""Requests of one connection that wait for something: each runs in a task.

A request's *subject* is the producer or consumer that it is about, and requests of one subject run
one after the other, in the order in which they came. Requests about nothing in particular run side
by side. Past ``REQUESTS_MAX`` waiting or running the connection is told so (``requests_crowded``)
and is not read until half of them are answered.

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

Subject: TypeAlias = tuple[str, int]
"""What requests are about, and which one of it."""

SIDE_BY_SIDE: Final[Subject] = ("", -1)


class Requester(Protocol):
    """What requests know of the connection that they came from."""

    peer: str
    closed: bool

    def answer(self, command: BaseCommand) -> Coroutine[None, None, None]: ...

    def requests_crowded(self, crowded: bool) -> None: ...

    def close(self) -> None: ...


class Requests:
    """See the module's text. The tasks belong to ``scope``."""

    def __init__(self, scope: TaskScope, client: Requester) -> None:
        self._scope = scope
        self._client = client
        self._subjects: dict[Subject, deque[BaseCommand]] = {}
        self._count = 0
        self._crowded = False

    def begin(self, subject: Subject, command: BaseCommand) -> None:
        """Answer ``command`` once its subject is free."""
        if subject == SIDE_BY_SIDE:
            self._spawn(self._client.answer(command), COMMAND_NAMES[int(command.type)])
            return
        waiting = self._subjects.get(subject)
        if waiting is not None:
            waiting.append(command)
            self._counted(1)
            return
        self._subjects[subject] = waiting = deque()
        self._spawn(self._run_subject(subject, command, waiting), f"{subject[0]} {subject[1]}")

    def _spawn(self, request: Coroutine[None, None, None], name: str) -> None:
        self._counted(1)
        task = self._scope.spawn(request, f"{self._client.peer} {name}", fails(self._task_failed))
        task.add_done_callback(self._ended)

    async def _run_subject(
        self, subject: Subject, command: BaseCommand, waiting: deque[BaseCommand]
    ) -> None:
        try:
            while True:
                await self._client.answer(command)
                if not waiting or self._client.closed:
                    return
                command = waiting.popleft()
                self._counted(-1)
        finally:
            self._counted(-len(waiting))
            del self._subjects[subject]

    @contextmanager
    def parked(self) -> Iterator[None]:
        """A request that waits for seconds, for what is no work of this broker's: not counted
        meanwhile, or some hundreds of them would keep everything else of the connection. Whoever
        parks has a bound of his own."""
        self._counted(-1)
        try:
            yield
        finally:
            self._counted(1)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._counted(-1)

    def _task_failed(self, task: str, error: BaseException) -> None:
        """The client must not wait for an answer that will not come."""
        self._client.close()

    def _counted(self, change: int) -> None:
        self._count += change
        if self._count > REQUESTS_MAX and not self._crowded:
            self._crowded = True
            self._client.requests_crowded(True)
        elif self._crowded and self._count <= REQUESTS_MAX // 2:
            self._crowded = False
            self._client.requests_crowded(False)
