"""The replication worker: takes marked ledgers one by one, makes them whole, takes the mark away.

For each: the lock first, then the mark is read (its version stands for all that was found before
the look), then the ledger is repaired (``ledger_repair``), then the mark goes, if nobody has marked
the ledger again and the lock is held still, and the lock last. Whatever ends in between leaves the
mark: another worker begins where this one has ended.

Ledgers are taken in random order, so that workers rarely meet. A ledger that cannot be made whole
now waits for its next turn (``turns``). While repair is disabled no ledger is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

import structlog

from magnetar.model.errors import MagnetarError, MetadataError
from magnetar.repair.ledger_repair import LedgerRepair, Outcome
from magnetar.repair.marks import HeldLocks, Lock, ShortageMarks
from magnetar.repair.turns import Turns

log = structlog.get_logger(__name__)

LISTED_MAX = 5000
"""Marked ledgers that one look takes into memory."""


class Shuffle(Protocol):
    def shuffle(self, x: list[int], /) -> None: ...


class Progress(Protocol):
    """Who counts what has been done."""

    def repaired(self, ledger_id: int) -> None: ...

    def left(self, ledger_id: int, why: str) -> None: ...


class WorkerOptions(NamedTuple):
    """``holder`` names this worker in locks, unlike any other. ``look_interval_s``: between looks
    for marked ledgers, while there are none. ``enabled`` says whether anything may be repaired."""

    holder: str
    look_interval_s: float
    enabled: Callable[[], bool]


class Worker:
    """See the module's text. ``run`` never returns."""

    def __init__(
        self,
        marks: ShortageMarks,
        repair: LedgerRepair,
        turns: Turns,
        wanted: WorkerOptions,
        random: Shuffle,
        progress: Progress,
    ) -> None:
        self._marks = marks
        self._repair = repair
        self._turns = turns
        self._wanted = wanted
        self._random = random
        self._progress = progress
        self._woken = asyncio.Event()
        self._locks = HeldLocks(marks, wanted.holder)

    async def run(self) -> None:
        while True:
            try:
                if self._wanted.enabled():
                    await self.look()
            except MetadataError as error:
                log.warning("cannot look for ledgers that lack copies", error=str(error))
            await self._wait()

    def wake(self) -> None:
        """There may be something to do."""
        self._woken.set()

    async def _wait(self) -> None:
        now_s = _now_s()
        next_s = self._turns.next_s(now_s)
        wait_s = self._wanted.look_interval_s
        if next_s is not None:
            wait_s = min(wait_s, max(next_s - now_s, 0.0) + 0.01)
        try:
            async with asyncio.timeout(wait_s):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def look(self) -> int:
        """Every marked ledger whose turn it is, once; returns how many were made whole. Raises
        ``MetadataError``."""
        locked = await self._marks.locked()
        marked = {ledger_id: None async for ledger_id in self._marks.ledgers()}
        await self._locks.let_go(but=marked)
        ready = [
            ledger_id
            for ledger_id in marked
            if (ledger_id not in locked or ledger_id in self._locks.perhaps)
            and self._turns.ready(ledger_id, _now_s())
        ][:LISTED_MAX]
        self._random.shuffle(ready)
        whole = 0
        for ledger_id in ready:
            if not self._wanted.enabled():
                break
            whole += await self.take(ledger_id) is Outcome.WHOLE
        return whole

    async def take(self, ledger_id: int) -> Outcome | None:
        """Repair one ledger; None: somebody else does, or it is not marked."""
        try:
            async with self._locks.held(ledger_id) as lock:
                return None if lock is None else await self._take(lock)
        except MagnetarError as error:
            self._left(ledger_id, str(error))
            return Outcome.LEFT

    async def _take(self, lock: Lock) -> Outcome | None:
        ledger_id = lock.ledger_id
        mark = await self._marks.read(ledger_id)
        if mark is None:
            return None
        repaired = await self._repair.run(ledger_id, mark.bookies)
        if repaired.outcome is Outcome.LEFT:
            self._left(ledger_id, repaired.why)
            return Outcome.LEFT
        # Only on the version that was there before the look: what was found since was not looked
        # for, and must not go unrepaired.
        if not await self._marks.unmark(lock, mark.version):
            self._turns.over(ledger_id)
            return Outcome.LEFT
        self._turns.over(ledger_id)
        self._progress.repaired(ledger_id)
        log.info("ledger has all of its copies", ledger=ledger_id, outcome=repaired.outcome.value)
        return repaired.outcome

    def _left(self, ledger_id: int, why: str) -> None:
        self._turns.failed(ledger_id, _now_s())
        self._progress.left(ledger_id, why)
        log.info("ledger lacks copies still", ledger=ledger_id, why=why)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
