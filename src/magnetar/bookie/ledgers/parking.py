"""Adds that wait for room in a full write cache: in order, bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnetar.bookie.journal.journal import Done
from magnetar.model.errors import BookieError, MagnetarError, TooManyRequestsError

WAIT_MS_MAX = 5_000


class Add(NamedTuple):
    """The arguments of one ``add_entries``."""

    ledger_id: int
    master_key: bytes
    entry_ids: Sequence[int]
    entries: Sequence[bytes]
    flags: int
    done: Done


class Waiting(NamedTuple):
    """An add that waits; ``deadline_s`` by the loop's clock."""

    add: Add
    byte_count: int
    deadline_s: float


class Parking:
    """Of one ledger directory. ``retry`` carries an add out, or raises what its ``done`` is to
    be told. While one add waits all that follow must, so that a writer's adds keep their order.
    Their ledgers are held meanwhile (``LedgerTable.hold``): else one could be forgotten, and would
    have to be looked up while others overtake.
    """

    def __init__(
        self,
        bytes_max: int,
        retry: Callable[[Add], None],
        hold: Callable[[int], None],
        release: Callable[[int], None],
    ) -> None:
        self._bytes_max = bytes_max
        self._retry = retry
        self._hold = hold
        self._release = release
        self._loop = asyncio.get_running_loop()
        self.waiting: deque[Waiting] = deque()
        """To be asked whether it is empty; every add does."""
        self._byte_count = 0
        self._timed = False  # ``_expire`` is to be called

    def park(self, add: Add, byte_count: int) -> None:
        """Raises ``TooManyRequestsError`` when too much waits already."""
        if self._byte_count + byte_count > self._bytes_max:
            raise TooManyRequestsError(
                f"add to ledger {add.ledger_id}: the write cache is full and {self._byte_count} "
                "bytes wait for its flush; try again later"
            )
        if not self._timed:
            self._timed = True
            self._loop.call_later(WAIT_MS_MAX / 1000, self._expire)
        self.waiting.append(Waiting(add, byte_count, self._loop.time() + WAIT_MS_MAX / 1000))
        self._byte_count += byte_count
        self._hold(add.ledger_id)

    def drain(self, full: Callable[[], bool]) -> None:
        """Carry out what waits, in order, until the cache is ``full`` again."""
        while self.waiting and not full():
            add = self._take().add
            try:
                self._retry(add)
            except MagnetarError as error:
                self._loop.call_soon(add.done, error, add.entry_ids)
            finally:
                self._release(add.ledger_id)

    def refuse_all(self, error: BookieError) -> None:
        while self.waiting:
            self._refuse(self._take().add, error)

    def _refuse(self, add: Add, error: BookieError) -> None:
        self._release(add.ledger_id)
        self._loop.call_soon(add.done, error, add.entry_ids)

    def _take(self) -> Waiting:
        waiting = self.waiting.popleft()
        self._byte_count -= waiting.byte_count
        return waiting

    def _expire(self) -> None:
        now = self._loop.time()
        while self.waiting and self.waiting[0].deadline_s <= now:
            add = self._take().add
            error = TooManyRequestsError(
                f"add to ledger {add.ledger_id}: the write cache has been full for {WAIT_MS_MAX} "
                "ms, its flush is behind; try again later"
            )
            self._refuse(add, error)
        self._timed = bool(self.waiting)
        if self._timed:
            self._loop.call_at(max(self.waiting[0].deadline_s, now + 0.001), self._expire)
