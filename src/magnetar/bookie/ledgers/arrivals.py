"""Adds of ledgers that are not in memory: they wait for the ledger's lookup, in order, bounded in
bytes and in time.

Whatever is added to a ledger while it is looked up goes behind what waits. When the lookup is
through, all of it is carried out in one turn of the loop, by the ordinary way; if it fails, all of
it is told so. See ``docs/adr/0176-ledgers-are-looked-up-in-a-thread.md``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from magnetar.bookie.ledgers.ledger_table import LOOKUP_MS_MAX, Told, slow_lookup
from magnetar.bookie.ledgers.parking import Add, Waiting
from magnetar.model.errors import BookieError, MagnetarError, TooManyRequestsError


class Arrivals:
    """Of one ledger directory. ``look_up`` is ``LedgerTable.look_up``; ``carry_out`` an add, or
    raise what its ``done`` is to be told."""

    def __init__(
        self,
        bytes_max: int,
        look_up: Callable[[int, Told], None],
        carry_out: Callable[[Add], None],
    ) -> None:
        self._bytes_max = bytes_max
        self._look_up = look_up
        self._carry_out = carry_out
        self._loop = asyncio.get_running_loop()
        self._queues: dict[int, deque[Waiting]] = {}
        """By ledger, as long as its lookup is under way; empty if all were told off."""
        self._byte_count = 0
        self._timed = False  # ``_expire`` is to be called

    def has(self, ledger_id: int) -> bool:
        """Whether adds of the ledger wait."""
        return bool(self._queues.get(ledger_id))

    def wait(self, add: Add, byte_count: int) -> None:
        """Raises ``TooManyRequestsError`` when too much waits already, ``BookieIOError`` if nothing
        can be looked up any more."""
        if self._byte_count + byte_count > self._bytes_max:
            raise TooManyRequestsError(
                f"add to ledger {add.ledger_id}: {self._byte_count} bytes wait until their ledgers "
                "are found in the location index; try again later"
            )
        queue = self._queues.get(add.ledger_id)
        if queue is None:
            self._look_up(add.ledger_id, partial(self._arrived, add.ledger_id))
            queue = self._queues[add.ledger_id] = deque()
        deadline_s = self._loop.time() + LOOKUP_MS_MAX / 1000
        queue.append(Waiting(add, byte_count, deadline_s))
        self._byte_count += byte_count
        if not self._timed:
            self._timed = True
            self._loop.call_at(deadline_s, self._expire)

    def _arrived(self, ledger_id: int, error: MagnetarError | None) -> None:
        queue = self._queues.pop(ledger_id)
        while queue:
            add = self._take(queue)
            if error is not None:
                self._refuse(add, error)
                continue
            try:
                self._carry_out(add)
            except MagnetarError as refused:
                self._refuse(add, refused)

    def refuse_all(self, error: BookieError) -> None:
        for queue in self._queues.values():
            while queue:
                self._refuse(self._take(queue), error)

    def _take(self, queue: deque[Waiting]) -> Add:
        waiting = queue.popleft()
        self._byte_count -= waiting.byte_count
        return waiting.add

    def _refuse(self, add: Add, error: MagnetarError) -> None:
        self._loop.call_soon(add.done, error, add.entry_ids)

    def _expire(self) -> None:
        now = self._loop.time()
        next_s = None
        for ledger_id, queue in self._queues.items():
            while queue and queue[0].deadline_s <= now:
                self._refuse(self._take(queue), slow_lookup(ledger_id))
            if queue and (next_s is None or queue[0].deadline_s < next_s):
                next_s = queue[0].deadline_s
        self._timed = next_s is not None
        if next_s is not None:
            self._loop.call_at(max(next_s, now + 0.01), self._expire)
