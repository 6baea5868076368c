"""What may be committed, and what becomes of a query's record: pure decisions.

Each takes the record as it was read and answers with the record to write in its place, under
compare-and-set; whoever loses that reads again and asks again.

| asked | record | answer |
|---|---|---|
| a run begins | none | it may commit |
| | its own | as it is |
| | of another run | the other is retired, this one may commit |
| | it was retired | ``StaleRunError`` |
| a batch is committed | of another run | ``StaleRunError`` |
| | at or before ``last_batch`` | ``ALREADY``: some attempt's rows are in, the others are dropped |
| | too much is not taken in | ``FULL``: wait |
| | else | ``COMMITTED`` |
| a topic has taken its share in | names the share | without; with the last goes the commit |
| may a ledger be deleted | names it in a commit | no |
| | its batch is at or before ``last_batch`` | yes: another attempt was chosen |
| | its run was retired, or the query is gone | yes |
| | else | no: it may be committed yet |

The ledgers of a commit that goes become garbage. So a batch is committed at most once, whoever asks
how often, and a ledger is deleted only when no write that could still succeed may name it: no clock
is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from magnetar.model.errors import StagedWriteError, StaleRunError
from magnetar.staging.records import (
    INLINE,
    RETIRED_MAX,
    Commit,
    Origin,
    QueryRecord,
    Source,
    check_run,
)

COMMITS_MAX: Final = 16
"""Committed batches of a query that are not taken in; further ones wait."""

INLINE_BYTES_MAX: Final = 256 << 10
"""Entries in one record. With base64 a third more, and far below what a node may hold."""


class CommitVerdict(Enum):
    """What becomes of an offer."""

    COMMITTED = "committed"
    ALREADY = "already"
    FULL = "full"


class Offer(NamedTuple):
    """What one attempt of task ``part`` has written: for each topic one ``Source``."""

    part: int
    shares: Mapping[str, Source]

    @property
    def ledger_ids(self) -> list[int]:
        return [s.ledger_id for s in self.shares.values() if s.ledger_id != INLINE]


def begin_run(record: QueryRecord | None, query: str, run: str, expires_ms: int = 0) -> QueryRecord:
    """``expires_ms``: of a record that is new. Raises ``StaleRunError`` for a run after which
    another has begun."""
    if record is None:
        return QueryRecord(check_run(run), run, expires_ms=expires_ms)
    if run in record.retired:
        raise StaleRunError(
            f"run {run} of query {query} may write no more: run {record.run or '(none)'} has begun "
            "since. Two of them share a checkpoint; stop one"
        )
    if run == record.run:
        return record
    return replace(
        record,
        run=check_run(run),
        epoch=record.epoch + 1,
        retired=_retired(record.retired, record.run),
    )


def _retired(retired: Sequence[str], run: str) -> tuple[str, ...]:
    return (*retired, run)[-RETIRED_MAX:] if run else tuple(retired)


def retire(record: QueryRecord) -> QueryRecord:
    """Nobody may commit until a run begins; the run of now never."""
    return replace(
        record, run="", epoch=record.epoch + 1, retired=_retired(record.retired, record.run)
    )


def decide(
    record: QueryRecord, query: str, run: str, batch: int, offers: Sequence[Offer]
) -> tuple[CommitVerdict, QueryRecord]:
    """What to do with ``offers``, one per task of the batch. Raises ``StaleRunError``;
    ``StagedWriteError`` if a task is offered twice."""
    if run != record.run:
        raise StaleRunError(
            f"run {run} of query {query} may not commit batch {batch}: run "
            f"{record.run or '(none)'} has begun since, and batch {record.last_batch} is committed"
        )
    parts = [offer.part for offer in offers]
    if len(set(parts)) != len(parts):
        raise StagedWriteError(
            f"batch {batch} of query {query} has two attempts of one task: {sorted(parts)}"
        )
    if batch <= record.last_batch:
        return CommitVerdict.ALREADY, record
    commit = _commit_of(batch, record.epoch, offers)
    after = replace(record, last_batch=batch)
    if commit.shares:
        after = replace(after, commits=(*record.commits, commit))
    if len(after.commits) > COMMITS_MAX or after.inline_bytes > INLINE_BYTES_MAX:
        return CommitVerdict.FULL, record
    return CommitVerdict.COMMITTED, after


def _commit_of(batch: int, epoch: int, offers: Sequence[Offer]) -> Commit:
    """The parts in the order of their numbers: each topic takes them in so."""
    shares: dict[str, tuple[Source, ...]] = {}
    ledgers: dict[int, None] = {}
    for offer in sorted(offers):
        for topic, source in offer.shares.items():
            if source.entries:
                shares[topic] = (*shares.get(topic, ()), source)
        ledgers.update(dict.fromkeys(offer.ledger_ids))
    return Commit(batch, epoch, shares, tuple(ledgers))


def dropped(record: QueryRecord, offers: Iterable[Offer]) -> list[int]:
    """Ledgers of an offer that was refused or came again, that no topic is to read."""
    offered = dict.fromkeys(i for offer in offers for i in offer.ledger_ids)
    return [ledger_id for ledger_id in offered if not record.needs(ledger_id)]


def taken_in(record: QueryRecord, batch: int, topic: str) -> QueryRecord:
    """``topic`` holds its share of ``batch``, confirmed."""
    commits = []
    garbage = list(record.garbage)
    for commit in record.commits:
        if commit.batch == batch and topic in commit.shares:
            left = {name: share for name, share in commit.shares.items() if name != topic}
            if not left:
                garbage += commit.ledgers
                continue
            commit = commit._replace(shares=left)
        commits.append(commit)
    return replace(record, commits=tuple(commits), garbage=tuple(garbage))


def collected(record: QueryRecord, ledger_ids: Iterable[int]) -> QueryRecord:
    """Those ledgers are deleted."""
    gone = set(ledger_ids)
    return replace(record, garbage=tuple(i for i in record.garbage if i not in gone))


def may_delete(record: QueryRecord | None, ledger_id: int, origin: Origin) -> bool:
    """Whether nothing will ever read the ledger. ``record``: as it was after the ledger was made;
    None if the query is gone by then (it was there before the ledger, and only a run that begins
    makes it anew). Holds for an old record too: what it allows, a newer one does."""
    if record is None:
        return True
    if record.needs(ledger_id):
        return False
    return origin.batch <= record.last_batch or origin.run in record.retired


def is_over(record: QueryRecord, now_ms: int) -> bool:
    """Whether the record may be deleted. A commit that comes later all the same is refused, for
    only a run that begins makes a record: the clock decides who is refused, and not what is
    true."""
    return 0 < record.expires_ms <= now_ms and not record.commits and not record.garbage
