"""Rows -> topics, exactly once: tasks write staged ledgers, the driver commits them.

A task's rows become entries (``row_encoding``) in a ledger of its own, straight to the bookies, or,
when they are few, in its message to the driver. The driver's commit names the ledgers in the
record of the query, under compare-and-set: that decides. Brokers take the entries into the topics.

* A stream is known by the engine's id of the query, which its checkpoint keeps; a run of it by the
  engine's id of the run. A batch write is a query of its own, with one batch, and its record goes
  when it is over; or, when its user says which (``txnAppId``, ``txnVersion``), a batch of that one.
* A task that is retried, or that has a twin, is committed once: the engine gives one message per
  task, and the record takes one set of messages per batch.
* A batch that the engine runs again after a restart is answered "already" and its rows are dropped,
  whatever their order or content: those of the first time are in the topics.
* A driver that lives on after another has begun is refused (``StaleRunError``).

Consumers see rows when the batch is committed and taken in, moments later. In a topic partition the
rows of one task keep their order, and batches theirs; rows of several partitions do not appear at
one moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from magnetar.env.metadata import Versioned
from magnetar.model.errors import (
    ConfigError,
    LedgerError,
    StagedBacklogError,
    StagedWriteError,
)
from magnetar.pipeline.brokers.client import CLIENTS
from magnetar.pipeline.brokers.log_watch import LogWatch
from magnetar.pipeline.brokers.served import SERVED
from magnetar.pipeline.loss_reports import warn
from magnetar.pipeline.options.delivery import query_of
from magnetar.pipeline.options.source_options import WriteOptions
from magnetar.pipeline.typed.writing import TypedWrite, ValueWriter
from magnetar.pipeline.writing.row_encoding import Encoded, RowEncoder, without_schema
from magnetar.pipeline.writing.sink import encoder_of, refuse_given
from magnetar.pipeline.writing.staged_session import SESSIONS, StagedSession
from magnetar.staging.commit_rules import CommitVerdict, Offer
from magnetar.staging.committer import Committer, QueryRun
from magnetar.staging.marks import sender
from magnetar.staging.queries import RunBegun
from magnetar.staging.records import Origin, QueryRecord, decode_query
from magnetar.staging.writer import StagedWriter

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""A stream's jobs are one group, under the id of its run."""

UNFINISHED_MS: Final = 7 * 86_400_000
"""A batch write that took longer cannot be committed any more, and is told so."""
FINISHED_MS: Final = 3_600_000
"""Longer than a driver asks again whether its commit was written."""


@dataclass
class Staged(WriterCommitMessage):
    """What an attempt of a task has written, for the driver to commit."""

    run: QueryRun
    batch: int
    offer: Offer
    seen: Versioned
    """The query's record when the attempt began."""
    rows: int


@dataclass(frozen=True)
class QueryBatch:
    """A batch of a query. ``lasts``: the query has others, in writes of their own."""

    run: QueryRun
    batch: int
    lasts: bool


@dataclass(frozen=True)
class StagedSink:
    """Writes record batches and commits; picklable. ``once``: of a batch write, what it is known
    by; None for a stream, whose tasks are told. ``values``: how they are written, None for
    bytes."""

    options: WriteOptions
    once: QueryBatch | None
    values: TypedWrite | None = None

    @classmethod
    def of_batch(cls, options: WriteOptions, values: TypedWrite | None = None) -> StagedSink:
        """Raises as ``_check_served``, as ``of_stream`` does."""
        _check_served(options)
        run, transaction = str(uuid4()), options.delivery.transaction
        if transaction is None:
            once = QueryBatch(QueryRun(f"batch-{uuid4()}", run), 0, lasts=False)
        else:
            query = query_of(transaction, options.topic)
            once = QueryBatch(QueryRun(query, run), transaction.version, lasts=True)
        return cls(options, once, values)

    @classmethod
    def of_stream(cls, options: WriteOptions, values: TypedWrite | None = None) -> StagedSink:
        if options.delivery.transaction is not None:
            raise ConfigError(
                "options 'txnAppId' and 'txnVersion' are for batch writes, as in foreachBatch; a "
                "stream's batches are known by its checkpoint"
            )
        _check_served(options)
        return cls(options, None, values)

    # -- in tasks -----------------------------------------------------------------------------

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Everything is confirmed, in a closed ledger or in the message, when it returns."""
        task = TaskContext.get()
        if task is None:
            raise StagedWriteError("rows can be written in a task of Spark only")
        run, batch = self._run_of(task)
        session = self._session()
        origin = Origin(*run, batch, task.partitionId(), str(task.taskAttemptId()))
        ledgers = session.ledgers(self.options.delivery.quorums, self.options.topic)
        writer = StagedWriter(ledgers, origin)
        begins = session.queries.begin(*run, self._expires_ms(UNFINISHED_MS))
        try:
            return self._written(session, writer, session.begin(begins), batches)
        except LedgerError as error:
            session.run(writer.abandon())
            raise StagedWriteError(
                f"task {origin.part} of batch {batch} cannot write its rows to bookies: {error}. "
                "Tasks must reach them; through brokers alone rows are written with "
                "'deliveryGuarantee' = 'at-least-once'"
            ) from error
        except BaseException:
            session.run(writer.abandon())
            raise

    def _written(
        self,
        session: StagedSession,
        writer: StagedWriter,
        begins: Future[RunBegun],
        batches: Iterator[pa.RecordBatch],
    ) -> Staged:
        """A small batch has to wait for the first rows, for the topic's partitions and for the
        query's record: it does for all three at once."""
        try:
            values = None if self.values is None else self.values.opened()
            encoder = self._encoder(self._logs(), values)
            first = list(islice(batches, 1))
            if first:
                encoder.look_up()
        except BaseException:
            begins.cancel()
            raise
        begun, origin = session.result_of(begins), writer.origin
        name = sender(begun.record.key(origin.query), origin.batch, origin.part)
        entries = self._entries(encoder, values, chain(first, batches), name, writer)
        rows = self._add(session, writer, entries)
        offer = writer.offer_nowait() or session.run(writer.finish())
        return Staged(QueryRun(origin.query, origin.run), origin.batch, offer, begun.seen, rows)

    def _entries(
        self,
        encoder: RowEncoder,
        values: ValueWriter | None,
        batches: Iterable[pa.RecordBatch],
        name: str,
        writer: StagedWriter,
    ) -> Iterator[Encoded]:
        for batch in batches:
            refuse_given(batch, self.options)
            as_bytes = batch if values is None else values.batch(batch)
            yield from encoder.encode(as_bytes, name, writer.entries_of)

    @staticmethod
    def _add(session: StagedSession, writer: StagedWriter, entries: Iterable[Encoded]) -> int:
        """How many rows. One add is under way while the next rows are encoded."""
        under_way: Future[None] | None = None
        rows = 0
        for encoded in entries:
            if under_way is not None:
                session.result_of(under_way)
                under_way = None
            rows += encoded.messages
            given = encoded.topic, encoded.entries, encoded.messages
            if not writer.keep_nowait(*given):
                under_way = session.begin(writer.add(*given))
        if under_way is not None:
            session.result_of(under_way)
        return rows

    def _logs(self) -> LogWatch:
        """Who knows the partitions of topics; the address has been good before. Nothing is opened
        but the client's connection, which stays for the next task."""
        timeout_s = self.options.send_timeout_ms / 1000
        logs = LogWatch(CLIENTS.get(self.options.service_url, timeout_s), timeout_s)
        logs.be_patient()
        return logs

    def _run_of(self, task: TaskContext) -> tuple[QueryRun, int]:
        if self.once is not None:
            return self.once.run, self.once.batch
        query = task.getLocalProperty(QUERY_PROPERTY)
        run = task.getLocalProperty(RUN_PROPERTY)
        batch = task.getLocalProperty(BATCH_PROPERTY)
        if not query or not run or batch is None:
            raise StagedWriteError(
                f"Spark does not say which query and batch this task is of ({QUERY_PROPERTY}, "
                f"{RUN_PROPERTY}, {BATCH_PROPERTY}); write with the option "
                "'deliveryGuarantee' = 'at-least-once'"
            )
        return QueryRun(query, run), int(batch)

    def _encoder(self, logs: LogWatch, values: ValueWriter | None) -> RowEncoder:
        version = without_schema if values is None else values.version
        return encoder_of(self.options, logs.partitions_to_write, version)

    def _expires_ms(self, after_ms: int) -> int:
        """When the record of a query may go that has one batch; others stay."""
        return 0 if self.once is None or self.once.lasts else _now_ms() + after_ms

    def _session(self) -> StagedSession:
        options = self.options
        url = options.delivery.metadata_url or options.service_url
        return SESSIONS.get(url, options.send_timeout_ms)

    # -- on the driver ------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Returns when the batch is decided; see ``committer``."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if not any(message.rows for message in staged):
            return
        run, batch = staged[0].run, staged[0].batch
        if any((message.run, message.batch) != (run, batch) for message in staged):
            raise StagedWriteError(f"tasks of batch {batch} of {run} gave messages of another")
        offers = [message.offer for message in staged]
        session, delivery = self._session(), self.options.delivery
        committer = self._committer(session)
        backlog_s = delivery.backlog_timeout_ms / 1000
        expires_ms = self._expires_ms(FINISHED_MS)
        seen = max((message.seen for message in staged), key=lambda each: each.version)
        verdict = session.run(committer.commit(run, batch, offers, backlog_s, expires_ms, seen))
        if verdict is CommitVerdict.ALREADY and self.once is not None and self.once.lasts:
            warn(f"batch {batch} ({run.query}) was committed before; these rows are passed over")
        if verdict is CommitVerdict.ALREADY and self.once is None:
            _check_newest(run, batch, decode_query(run.query, seen.value))
        wait = delivery.wait_taken_in
        if wait is False or (wait is None and self.once is None):
            return
        limit_s = delivery.commit_timeout_ms / 1000
        try:
            session.run(committer.wait_taken_in(run.query, batch, limit_s))
        except StagedBacklogError as error:
            if wait:
                raise
            warn(str(error))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A commit that failed may have been decided all the same: only what certainly nobody will
        read is deleted. The rest goes when the query has decided."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        session = self._session()
        offers = [message.offer for message in staged]
        session.run(self._committer(session).give_up(staged[0].run, staged[0].batch, offers))

    def _committer(self, session: StagedSession) -> Committer:
        ledgers = session.ledgers(self.options.delivery.quorums, self.options.topic)
        return Committer(session.queries, ledgers)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _check_newest(run: QueryRun, batch: int, record: QueryRecord) -> None:
    """A stream that restarts runs its last batch again, and none before. Raises
    ``StagedWriteError``: an older copy of a checkpoint would read on, and what it reads would go
    nowhere until its numbers are new again."""
    if batch < record.last_batch:
        raise StagedWriteError(
            f"batch {batch} of query {run.query} was committed before, and others up to "
            f"{record.last_batch} since: its checkpoint is an older copy, and nothing that is read "
            "by it would be written. Take the newest copy, or a new checkpointLocation and "
            "startingOffsets behind what was written"
        )


def _check_served(options: WriteOptions) -> None:
    """A query that begins says at once that nobody answers, or that the broker serves no staged
    writes. Raises ``BrokerError``."""
    if options.delivery.metadata_url is None:
        SERVED.check(options.service_url, options.send_timeout_ms / 1000)
