"""One replica: a standby that follows, until it gets the lock and takes over; then active, until it
loses its ledger or the lock; then a standby again. An observer follows for ever.

What the active replica is asked waits in one queue. One task takes what is there, appends it as one
batch, and answers when the batch is confirmed: so requests are applied in the order of the log, and
many of them share one round of the bookies.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from magnetar.ledger import BadVersionError, MagnetarError
from replicated_kv.leader import LeaderLock
from replicated_kv.log import Log
from replicated_kv.state import NOTHING, Command, Position

WAITING_MAX = 1000
BATCH_MAX = 200
RETRY_S = 0.5


class NotActiveError(Exception):
    """Another replica is to be asked."""


class UnconfirmedError(Exception):
    """The request may or may not be in the log: ask again, under the same number."""


class BusyError(Exception):
    """Too much waits: ask again."""


class _Request(NamedTuple):
    command: Command
    answer: asyncio.Future[Position]


class Replica:
    """``lock`` None: an observer."""

    def __init__(self, log: Log, lock: LeaderLock | None) -> None:
        self.log = log
        self.lock = lock
        self.role = "observer" if lock is None else "standby"
        self._queue: asyncio.Queue[_Request] = asyncio.Queue(WAITING_MAX)

    async def submit(self, command: Command) -> Position:
        """Returns when it is confirmed and applied here. Raises ``NotActiveError``,
        ``UnconfirmedError``, ``BusyError``."""
        if self.role != "active":
            raise NotActiveError(f"this replica is {self.role}")
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(_Request(command, answer))
        except asyncio.QueueFull:
            raise BusyError(f"{WAITING_MAX} requests wait") from None
        return await answer

    async def read(self, key: str) -> tuple[str | None, Position]:
        """What was written last, by anybody: a command that changes nothing is confirmed first, so
        that no other replica can be active. Raises as ``submit``."""
        await self.submit(NOTHING)
        return self.log.store.values.get(key), self.log.store.position

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                if self.lock is None:
                    await self.log.follow()
                else:
                    await self._stand_by(self.lock)
                    await self._be_active(self.lock)
            except MagnetarError as error:
                print(f"again in {RETRY_S:g} s: {error}", flush=True)
                await asyncio.sleep(RETRY_S)

    async def _stand_by(self, lock: LeaderLock) -> None:
        """Follow until the lock is ours."""
        following = asyncio.create_task(self._follow())
        try:
            await lock.acquire()
        finally:
            following.cancel()
            await asyncio.wait([following])

    async def _follow(self) -> None:
        while True:
            try:
                await self.log.follow()
            except MagnetarError:
                await asyncio.sleep(RETRY_S)

    async def _be_active(self, lock: LeaderLock) -> None:
        serving: asyncio.Task[None] | None = None
        try:
            with suppress(BadVersionError):  # an old owner that is alive: it is fenced by now
                await self.log.take_over()
                self.role = "active"
                print(f"active at {self.log.store.position}", flush=True)
                serving = asyncio.create_task(self._serve())
                losing = asyncio.create_task(lock.wait_lost())
                done, _ = await asyncio.wait([serving, losing], return_when=asyncio.FIRST_COMPLETED)
                losing.cancel()
                if serving in done:
                    serving.result()
        finally:
            if self.role == "active":
                print("not active any more", flush=True)
            self.role = "standby"
            if serving is not None:
                serving.cancel()
                await asyncio.wait([serving])
            self._refuse_waiting()
            await self.log.give_up()
            await lock.release()

    async def _serve(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < BATCH_MAX and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                position = await self.log.append([request.command for request in batch])
            except BaseException as error:
                _refuse(batch, UnconfirmedError(f"{type(error).__name__}: {error}"))
                raise
            for request in batch:
                if not request.answer.done():
                    request.answer.set_result(position)

    def _refuse_waiting(self) -> None:
        waiting = []
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        _refuse(waiting, NotActiveError("this replica is active no more"))


def _refuse(requests: list[_Request], error: Exception) -> None:
    for request in requests:
        if not request.answer.done():
            request.answer.set_exception(error)
