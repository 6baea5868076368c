"""Compacting all of a process's replicas, one after the other.

Owns the timer, one lane beside the logs' own, what failed and when it is tried again, and the
counts. Each replica is compacted by itself, whether it leads or follows.

Rules:

* One log is compacted at a time, the dirtiest first. So the memory for keys is there once, and
  so is the work.
* A pass is done in steps on a lane of its own. After each step it pauses for as long as that took:
  it has half a thread at most, and the loop and the logs' lanes go on.
* A log that fails is tried again after a pause that doubles, up to ``PAUSE_S_MAX``; the others do
  not wait for it. What failed is told and counted. A disk that fails while segments are replaced
  ends the replica, as a failed append does: opening it again finds one of the two.
* A replica that ends meanwhile (closed, failed, deleted) ends its pass, and that is no failure.

Why: docs/adr/0173-partitions-are-compacted.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

import structlog

from magnetar.env.files.disk import Lane
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.compacting import (
    CompactionPass,
    CompactionResult,
    LogCompactor,
    Replacement,
)
from magnetar.log.partition.compaction import Dirt
from magnetar.log.partition.group_append import FULL
from magnetar.log.partition.hosting import HostedReplica, PartitionHost, Rewritten
from magnetar.log.partition.limits import Kept
from magnetar.model.errors import MagnetarError

log = structlog.get_logger(__name__)

T = TypeVar("T")

PAUSE_S_MIN, PAUSE_S_MAX = 15.0, 3600.0
STEP_PAUSE_S_MAX: Final = 1.0
LOOKS_PER_TURN: Final = 100
_OVER: Final = object()


class DueLog(NamedTuple):
    """A log that is to be compacted, and how."""

    replica: HostedReplica
    compactor: LogCompactor
    kept: Kept
    dirt: Dirt


@dataclass(slots=True)
class CompactionTrouble:
    """Of one log whose last try failed."""

    why: str
    times: int
    next_s: float


@dataclass(slots=True)
class CompactionCounts:
    """Since the process began, but for ``compacted_logs`` and ``dirty_ratio``: of the last
    round."""

    passes: int = 0
    failures: int = 0
    freed_bytes: int = 0
    read_bytes: int = 0
    seconds: float = 0.0
    compacted_logs: int = 0
    dirty_ratio: float = 0.0


class CompactionRounds:
    """``kept_of``: what holds for a partition; None: that is not known now, or it is not to be
    compacted. It raises ``MagnetarError`` where it cannot be asked."""

    def __init__(
        self,
        host: PartitionHost,
        kept_of: Callable[[Partition], Awaitable[Kept | None]],
        now_ms: Callable[[], int],
        interval_ms: int,
        key_bytes_max: int,
    ) -> None:
        self.counts = CompactionCounts()
        self.trouble: dict[Partition, CompactionTrouble] = {}
        self._host = host
        self._kept_of = kept_of
        self._now_ms = now_ms
        self._interval_s = interval_ms / 1000
        self._key_bytes_max = key_bytes_max
        self._lane: Lane | None = None

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self.round()
        finally:
            await self.close()

    async def close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            await lane.close()

    async def round(self) -> None:
        """Look at every replica, and compact those that are due."""
        due: list[DueLog] = []
        logs, dirtiest = 0, 0.0
        for number, replica in enumerate(list(self._host.replicas.values())):
            if number % LOOKS_PER_TURN == LOOKS_PER_TURN - 1:
                await asyncio.sleep(0)  # others need the turn; most logs are not compacted
            found = await self._look(replica)
            if found is not None:
                logs, dirtiest = logs + 1, max(dirtiest, found.dirt.ratio)
                if found.dirt.due:
                    due.append(found)
        for partition in [each for each in self.trouble if each not in self._host.replicas]:
            del self.trouble[partition]
        self.counts.compacted_logs, self.counts.dirty_ratio = logs, dirtiest
        for each in sorted(due, key=lambda each: -each.dirt.ratio):
            await self._compact(each)

    async def _look(self, replica: HostedReplica) -> DueLog | None:
        partition, loop = replica.partition, asyncio.get_running_loop()
        trouble = self.trouble.get(partition)
        if replica.failure is not None or (trouble is not None and loop.time() < trouble.next_s):
            return None
        try:
            kept = await self._kept_of(partition)
        except MagnetarError as error:
            log.info("it is not known how a log is compacted", log=replica.name, error=str(error))
            return None
        if kept is None or not kept.cleanup.compacts:
            self.trouble.pop(partition, None)
            return None
        compactor = LogCompactor(replica.source, self._key_bytes_max)
        look = partial(
            compactor.look, kept, committed_end=replica.high_watermark, now_ms=self._now_ms()
        )
        try:
            dirt = await replica.run(_unless_over(replica, look))
        except _OverError:
            return None
        except OSError as error:  # it was sealed
            if error.errno not in FULL:
                replica.fail(error)
            self._failed(replica, error)
            return None
        return DueLog(replica, compactor, kept, dirt)

    async def _compact(self, due: DueLog) -> None:
        replica, began_s = due.replica, asyncio.get_running_loop().time()
        result = CompactionResult()
        compaction: CompactionPass | None = None
        try:
            begin = partial(due.compactor.begin, due.kept, due.dirt.end_offset, self._now_ms())
            compaction = await replica.run(_unless_over(replica, begin))
            result = compaction.result
            await self._steps(replica, compaction)
        except _OverError:
            return
        except Exception as error:  # noqa: BLE001 (told and counted: others do not wait for it)
            if replica.failure is None and not await _overtaken(replica, compaction):
                self._failed(replica, error)
            return
        finally:
            self.counts.seconds += asyncio.get_running_loop().time() - began_s
            self.counts.freed_bytes += result.freed_bytes
            self.counts.read_bytes += result.read_bytes
        self.counts.passes += 1
        self.trouble.pop(replica.partition, None)
        log.info(
            "a log is compacted",
            log=replica.name,
            up_to=replica.source.compacted_end,
            keys=result.keys,
            read_bytes=result.read_bytes,
            freed_bytes=result.freed_bytes,
        )

    async def _steps(self, replica: HostedReplica, compaction: CompactionPass) -> None:
        """Raises ``_OverError``, and what ``CompactionPass`` does."""
        if self._lane is None:
            self._lane = self._host.disk.lane("compaction")
        lane, loop, steps = self._lane, asyncio.get_running_loop(), compaction.steps()
        try:
            while True:
                began_s = loop.time()
                found = await lane.run(partial(_step, steps))
                if replica.failure is not None:
                    raise _OverError
                if found is _OVER:
                    break
                if isinstance(found, Replacement):
                    await self._put(replica, compaction, found)
                await asyncio.sleep(min(loop.time() - began_s, STEP_PAUSE_S_MAX))
        finally:
            lane.submit(steps.close)  # what it was writing goes, if it was
        await replica.run(_unless_over(replica, compaction.end))

    async def _put(
        self, replica: HostedReplica, compaction: CompactionPass, ready: Replacement
    ) -> None:
        try:
            done = await replica.run(_unless_over(replica, partial(compaction.put, ready)))
        except OSError as error:
            replica.fail(error)
            raise
        if not done:
            raise _OverError  # it was cut or trimmed: the next round looks again
        replica.rewritten(Rewritten(ready.old[0].base_offset, ready.end_offset, ready.starts))

    def _failed(self, replica: HostedReplica, error: Exception) -> None:
        self.counts.failures += 1
        before = self.trouble.get(replica.partition)
        times = 1 if before is None else before.times + 1
        pause_s = min(PAUSE_S_MIN * 2.0 ** min(times - 1, 20), PAUSE_S_MAX)
        why = str(error) or repr(error)
        next_s = asyncio.get_running_loop().time() + pause_s
        self.trouble[replica.partition] = CompactionTrouble(why, times, next_s)
        log.error(
            "a log is not compacted: it grows until it is. Mend what is said, or set its "
            "cleanup.policy to delete",
            log=replica.name,
            error=why,
            times=times,
            again_in_s=round(pause_s),
            exc_info=None if isinstance(error, (OSError, MagnetarError)) else error,
        )


class _OverError(Exception):
    """The replica ended, or its log is another one by now."""


def _unless_over(replica: HostedReplica, job: Callable[[], T]) -> Callable[[], T]:
    """On the replica's lane: a log that is closed is not touched any more."""

    def checked() -> T:
        if replica.failure is not None:
            raise _OverError
        return job()

    return checked


async def _overtaken(replica: HostedReplica, compaction: CompactionPass | None) -> bool:
    """Whether a pass failed since retention or a cut took from the log what it was reading."""
    if compaction is None:
        return False
    try:
        return await replica.run(_unless_over(replica, compaction.overtaken))
    except _OverError:
        return True


def _step(steps: Iterator[Replacement | None]) -> object:
    return next(steps, _OVER)
