"""What a partition has no part in: tables, compaction by key, termination. Refused, and said
so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager

from magnetar.log.seam import (
    Buffer,
    CompactedElsewhere,
    CompactedStats,
    ReadableLog,
    Survivor,
    TableLag,
    TableMark,
    TakenLedger,
)
from magnetar.model.entry import Entry
from magnetar.model.errors import NotAllowedError
from magnetar.model.ids import Position


class NoTable:
    """Implements ``log.seam.TabledLedgers``."""

    def __init__(self, log_name: str) -> None:
        self._log_name = log_name

    @property
    def mark(self) -> TableMark | None:
        return None

    @property
    def lag(self) -> TableLag | None:
        return None

    def note_problem(self, where: str, problem: str) -> None:
        raise self._refused()

    def _refused(self) -> NotAllowedError:
        return NotAllowedError(
            f"log {self._log_name} is a partition, and tables take closed ledgers only; use a "
            "topic on ledgers"
        )

    async def attach(self, mark: TableMark) -> None:
        raise self._refused()

    async def take(self, where: str, taken: Sequence[TakenLedger]) -> None:
        raise self._refused()

    def rewritten(self, where: str) -> None:
        raise self._refused()

    async def forget(self, where: str, ledger_id: int, *, lost: bool = False) -> None:
        raise self._refused()

    async def detach(self, where: str) -> None:
        raise self._refused()


class NoCompaction:
    """Implements ``log.seam.KeyCompaction``: the log was never compacted, and is not."""

    def __init__(self, source: ReadableLog) -> None:
        self.view = source

    @property
    def stats(self) -> CompactedStats | None:
        return None

    def payload(self, entry: Entry) -> Buffer:
        return entry.payload

    def _refused(self) -> NotAllowedError:
        return NotAllowedError(
            f"log {self.view.name} is a partition: it has no compacted view beside it. Set the "
            "topic's cleanup.policy to compact (Kafka's configuration), or use a topic on ledgers"
        )

    def reading(self) -> AbstractContextManager[None]:
        raise self._refused()

    async def replace(
        self, horizon: Position, survivors: AsyncIterator[Sequence[Survivor]]
    ) -> None:
        raise self._refused()

    async def begin_elsewhere(self, holder: str) -> int:
        raise self._refused()

    async def take(
        self, holder: str, base: CompactedStats | None, found: CompactedElsewhere
    ) -> None:
        raise self._refused()

    def give_up(self, holder: str) -> None:
        """Nothing was begun."""


class NoTermination:
    """Implements ``log.seam.Termination``: more may always come."""

    terminated = False

    def __init__(self, log_name: str) -> None:
        self._log_name = log_name

    async def terminate(self, check: Callable[[], Awaitable[None]]) -> None:
        raise NotAllowedError(
            f"log {self._log_name} is a partition, and only logs on ledgers can be terminated"
        )
