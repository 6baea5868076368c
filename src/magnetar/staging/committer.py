"""The driver's side: a batch is committed, or what was offered is given up.

``commit`` returns when the record names the batch: then it is decided, and every topic will take
its share in. It may be called again, by the same run or the next, with the same offers or others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import structlog

from magnetar.env.metadata import Versioned
from magnetar.model.errors import MagnetarError, StagedBacklogError, StaleRunError
from magnetar.staging.commit_rules import CommitVerdict, Offer, decide, dropped, may_delete
from magnetar.staging.queries import QueryRecords
from magnetar.staging.records import Origin, QueryRecord
from magnetar.staging.seams import StagedLedgers
from magnetar.staging.writer import spill

T = TypeVar("T")
log = structlog.get_logger(__name__)

INLINE_BATCH_BYTES_MAX: Final = 64 << 10
"""Entries of one batch that may stand in the record; more go into a ledger."""

LOOK_AGAIN_S: Final = 1.0
"""While it waits for topics; a change is told of by the store before that."""

DRIVER_PART: Final = -1


class QueryRun(NamedTuple):
    """One run of a query: a query that is restarted has another."""

    query: str
    run: str


class Committer:
    """Commits the batches of runs."""

    def __init__(
        self,
        queries: QueryRecords,
        ledgers: StagedLedgers,
        inline_bytes_max: int = INLINE_BATCH_BYTES_MAX,
    ) -> None:
        self._queries = queries
        self._ledgers = ledgers
        self._inline_bytes_max = inline_bytes_max

    async def commit(
        self,
        run: QueryRun,
        batch: int,
        offers: Sequence[Offer],
        backlog_timeout_s: float,
        expires_ms: int = 0,
        seen: Versioned | None = None,
    ) -> CommitVerdict:
        """``expires_ms``: when the record may go if this was the last batch. ``seen``: the record
        as a task of the batch saw it, to be tried first (``queries``). ``COMMITTED`` or
        ``ALREADY``. Raises ``StaleRunError`` (another run has begun), ``StagedBacklogError``
        (topics do not keep up), ``LedgerError``, ``MetadataError``: then nobody knows, and the same
        batch may be committed again."""
        offers = await self._in_bounds(run, batch, offers)
        try:
            verdict = await self._decided(run, batch, offers, backlog_timeout_s, expires_ms, seen)
        except StaleRunError:
            await self._drop(run, offers)
            raise
        if verdict is CommitVerdict.ALREADY:
            await self._drop(run, offers)
        return verdict

    async def _in_bounds(
        self, run: QueryRun, batch: int, offers: Sequence[Offer]
    ) -> Sequence[Offer]:
        sources = (source for offer in offers for source in offer.shares.values())
        kept = sum(len(data) for source in sources for data in source.data)
        if kept <= self._inline_bytes_max:
            return offers
        return await spill(self._ledgers, Origin(*run, batch, DRIVER_PART, ""), offers)

    async def _decided(
        self,
        run: QueryRun,
        batch: int,
        offers: Sequence[Offer],
        backlog_timeout_s: float,
        expires_ms: int,
        seen: Versioned | None,
    ) -> CommitVerdict:
        def choose(record: QueryRecord) -> tuple[CommitVerdict, QueryRecord]:
            verdict, after = decide(record, *run, batch, offers)
            if verdict is CommitVerdict.COMMITTED:
                after = replace(after, expires_ms=expires_ms)
            return verdict, after

        async def chosen() -> CommitVerdict | None:
            nonlocal seen
            first, seen = seen, None
            verdict = await self._queries.change(run.query, choose, first)
            return None if verdict is CommitVerdict.FULL else verdict

        verdict = await self._until(run.query, chosen, backlog_timeout_s)
        if verdict is None:
            raise StagedBacklogError(
                f"batch {batch} of query {run.query} is not committed: the batches before it were "
                f"not taken in within {backlog_timeout_s:.0f} s ({await self._behind(run.query)}). "
                "Is a broker up that serves these topics?"
            )
        return verdict

    async def wait_taken_in(self, query: str, batch: int, timeout_s: float) -> None:
        """Wait until every topic holds its share of ``batch``, and of those before it. Raises
        ``StagedBacklogError``."""

        async def taken() -> bool | None:
            record = await self._queries.read(query)
            waits = record is not None and any(each.batch <= batch for each in record.commits)
            return None if waits else True

        if await self._until(query, taken, timeout_s) is None:
            raise StagedBacklogError(
                f"batch {batch} of query {query} is committed, and was not taken in within "
                f"{timeout_s:.0f} s ({await self._behind(query)}). It will be; do not write it "
                "again"
            )

    async def _until(
        self, query: str, look: Callable[[], Awaitable[T | None]], timeout_s: float
    ) -> T | None:
        """What ``look`` gives, asked again whenever the record changes; None after the time."""
        with self._queries.changes(query) as changes:
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    while (found := await look()) is None:
                        await changes.wait(LOOK_AGAIN_S)
                    return found
            except TimeoutError:
                if not limit.expired():
                    raise
                return None

    async def _behind(self, query: str) -> str:
        record = await self._queries.read(query)
        topics = {topic for commit in record.commits for topic in commit.shares} if record else ()
        return "waiting for " + (", ".join(sorted(topics)[:5]) or "nothing now")

    async def give_up(self, run: QueryRun, batch: int, offers: Sequence[Offer]) -> None:
        """``batch`` was aborted: delete what certainly nobody will read. A commit that failed may
        have been written all the same, so the rest stays until the record has decided."""
        await self._queries.sync()
        record = await self._queries.read(run.query)
        ids = dict.fromkeys(i for offer in offers for i in offer.ledger_ids)
        for ledger_id in ids:
            if may_delete(record, ledger_id, Origin(*run, batch, DRIVER_PART, "")):
                await self._delete(ledger_id)

    async def _drop(self, run: QueryRun, offers: Sequence[Offer]) -> None:
        record = await self._queries.read(run.query)
        if record is not None:
            for ledger_id in dropped(record, offers):
                await self._delete(ledger_id)

    async def _delete(self, ledger_id: int) -> None:
        try:
            await self._ledgers.delete(ledger_id, missing_ok=True)
        except MagnetarError as error:
            log.warning("staged ledger left over", ledger=ledger_id, error=str(error))
