"""One topic partition compacted on Spark: what the driver does.

1. The log is held against trimming (``Holding``), and what is to be read is planned
   (``compact_planning``).
2. Tasks note of each key of their piece the last place; Spark puts these together by key.
3. Tasks read the entries of the places that are left; one task writes them, in order, into a ledger
   that the topic's broker makes (``compact_writing``).
4. The broker is told. It takes the ledger over if what was read is still what it has, and deletes
   it otherwise.

Nothing changes for readers before 4, and the job may end anywhere: the ledger goes with the hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions

from magnetar.model.errors import BrokerError, JobError
from magnetar.model.ids import EARLIEST, Position
from magnetar.pipeline.brokers.log_watch import job_watch
from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.jobs.compact_planning import (
    Asks,
    CompactPiece,
    PieceOf,
    TopicCompacted,
    base_horizon,
    horizon_of,
    parts_of,
    pieces_of,
)
from magnetar.pipeline.jobs.compact_reading import (
    CHOSEN_SCHEMA,
    KEY,
    LOST,
    NOTES_SCHEMA,
    PART,
    SEALED,
    SURVIVORS_SCHEMA,
    WHOLE,
    notes,
    survivors,
)
from magnetar.pipeline.jobs.compact_writing import WRITTEN_SCHEMA, WriteTask, write
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.passing_over import PassedOver
from magnetar.pipeline.planning.pins import hold, new_holder
from magnetar.wire.pulsar.pulsar_pb2 import CompactedLedger, LogCompaction, LogQuestion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


ASK_LEDGERS: Final = 500
"""In one question."""
SESSION_SETTINGS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
}
"""While a topic is compacted: rows are entries, some of them of megabytes."""


class Holding:
    """Holds a log from a ledger on, and renews that in a thread of its own."""

    def __init__(self, service_url: str, timeout_s: float, topic: str, for_ms: int) -> None:
        self.holder = new_holder()
        self._topic = topic
        self._for_ms = for_ms
        self._watch = job_watch(service_url, timeout_s)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="magnetar-hold", daemon=True)
        self._ledger_id = -1

    def begin(self, ledger_id: int) -> None:
        """Raises ``BrokerError``."""
        self._ledger_id = ledger_id
        self._ask(self._for_ms)
        self._thread.start()

    def _ask(self, for_ms: int) -> None:
        told = hold(self.holder, self._ledger_id, for_ms)
        self._watch.ask(self._topic, LogQuestion(hold=told))

    def _renew(self) -> None:
        while not self._over.wait(self._for_ms / 3000):
            try:
                self._ask(self._for_ms)
            except BrokerError:
                continue  # the read, or the broker when it is told, says what came of it

    def close(self) -> None:
        """Nothing is needed any more. Idempotent."""
        if self._over.is_set():
            return
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
            with suppress(BrokerError):  # it ends by itself
                self._ask(0)
        self._watch.close()


class TopicCompaction:
    """Of one partition. ``done`` is filled as it goes."""

    def __init__(
        self,
        service_url: str,
        timeout_s: float,
        topic: str,
        hold_ms: int,
        done: TopicCompacted,
        passes: Callable[[PassedOver], None] | None = None,
    ) -> None:
        """``passes``: hears of entries that are lost and passed over; None: they end it."""
        self._passes = passes
        self._service_url = service_url
        self._timeout_s = timeout_s
        self._topic = topic
        self._hold_ms = hold_ms
        self._done = done
        self._watch = job_watch(service_url, timeout_s)

    def run(self, context: JobContext) -> None:
        """Raises ``BrokerError``, ``JobError`` and what reading and writing raise."""
        with (
            closing(self._watch),
            closing(
                Holding(self._service_url, self._timeout_s, self._topic, self._hold_ms)
            ) as held,
        ):
            question = LogQuestion(ledgers=True, compaction=LogCompaction(holder=held.holder))
            answer = self._watch.ask(self._topic, question)
            if not context.dry_run and answer.ledgers:
                before = base_horizon(answer.compacted)
                held.begin(max(before.ledger_id, answer.ledgers[0].ledger_id))
                # Once more: what was trimmed before the hold is not to be read.
                answer = self._watch.ask(self._topic, question)
            pieces = self._planned(answer, context)
            if context.dry_run or not pieces:
                return
            try:
                found = self._compacted(context, pieces, held.holder, horizon_of(answer))
                self._tell(held.holder, answer.compacted, found)
            except BaseException:
                self._give_up(held.holder)
                raise

    def _planned(self, answer: LogAnswer, context: JobContext) -> list[CompactPiece]:
        parts, done = parts_of(answer), self._done
        done.horizon = horizon_of(answer)
        done.compacted_before = base_horizon(answer.compacted)
        done.ledgers = len(parts)
        done.entries_read = sum(part.entries - part.first for part in parts)
        done.bytes_read = sum(part.bytes_to_read for part in parts)
        done.from_table = sum(part.of is PieceOf.TABLE for part in parts)
        if context.dry_run or not parts:
            return []
        ids = [part.ledger_id for part in parts if part.of is not PieceOf.TABLE]
        stored: dict[int, bytes] = {}
        bookies: Mapping[str, tuple[str, int]] = {}
        for at in range(0, len(ids), ASK_LEDGERS):
            question = LogQuestion(stored_ledgers=ids[at : at + ASK_LEDGERS])
            question.compaction.holder = ""  # so that it tells of the compacted ledger, too
            told = self._watch.ask(self._topic, question)
            stored |= told.stored_ledgers
            bookies = told.bookies
        where = answer._replace(stored_ledgers=stored, bookies=bookies)
        asks = None if self._passes is None else Asks(self._service_url, self._timeout_s)
        pieces = pieces_of(self._topic, parts, where, context.parallelism, asks)
        done.pieces = len(pieces)
        return pieces

    # -- on Spark -----------------------------------------------------------------------------

    def _compacted(
        self, context: JobContext, pieces: Sequence[CompactPiece], holder: str, horizon: Position
    ) -> CompactedLedger:
        with settings(context, SESSION_SETTINGS):
            frame = context.spark.range(0, len(pieces), 1, len(pieces))
            noted = frame.mapInArrow(_task(notes, pieces), NOTES_SCHEMA)
            noted.persist(StorageLevel.MEMORY_AND_DISK)
            try:
                chosen = self._chosen(context, noted, len(pieces))
                row = self._written(context, chosen, pieces, holder)
            finally:
                noted.unpersist()
        told = CompactedLedger(ledger_id=-1, entries=0)
        told.horizon_ledger_id, told.horizon_entry_id = horizon
        last = EARLIEST
        if row is not None:
            told.ledger_id, told.entries = row["ledger_id"], row["entries"]
            last = Position(row["last_ledger_id"], row["last_entry_id"])
        told.last_ledger_id, told.last_entry_id = last
        return told

    def _chosen(self, context: JobContext, noted: DataFrame, pieces: int) -> DataFrame:
        """The places that stay, those of a piece together."""
        place = [functions.col(name) for name in ("ledger_id", "entry_id", "batch_index")]
        latest = functions.max(functions.struct(*place, "gone", "uuid", "piece")).alias("at")
        keys = noted.where(functions.col("kind") == KEY).groupBy("key").agg(latest).select("at.*")
        left = keys.where(~functions.col("gone"))
        with context.collecting(f"{self._topic}: keys", pieces):
            parts = noted.where(functions.col("kind") == PART).collect()
            self._tell_lost(noted)
            ends = [] if not parts else left.where(functions.col("uuid").isNotNull()).collect()
        whole = noted.where(functions.col("kind") == SEALED).select(*_CHOSEN)
        found = left.where(functions.col("uuid").isNull()).select(*_CHOSEN).unionByName(whole)
        chunks = _chunks(parts, ends, self._done.compacted_before)
        if chunks:
            found = found.unionByName(context.spark.createDataFrame(chunks, CHOSEN_SCHEMA))
        return found.repartition(pieces, "piece").sortWithinPartitions("piece")

    def _tell_lost(self, noted: DataFrame) -> None:
        """Entries that the first pass has passed over."""
        if self._passes is None:
            return
        for row in noted.where(functions.col("kind") == LOST).collect():
            first, count = row["entry_id"], row["batch_index"]
            place = row["ledger_id"], first, first + count - 1
            self._passes(PassedOver(self._topic, *place, count, 0, row["uuid"]))

    def _written(
        self,
        context: JobContext,
        chosen: DataFrame,
        pieces: Sequence[CompactPiece],
        holder: str,
    ) -> Any:
        entries = chosen.mapInArrow(_task(survivors, pieces), SURVIVORS_SCHEMA)
        in_order = entries.repartition(1).sortWithinPartitions("ledger_id", "entry_id")
        task = WriteTask(self._service_url, self._timeout_s, self._topic, holder)
        with context.collecting(f"{self._topic}: entries", 2 * len(pieces) + 1):
            rows = in_order.mapInArrow(_task(write, task), WRITTEN_SCHEMA).collect()
        if len(rows) > 1:
            raise JobError(f"{self._topic}: {len(rows)} tasks wrote what one is to write")
        return rows[0] if rows else None

    # -- the broker ---------------------------------------------------------------------------

    def _tell(self, holder: str, base: CompactedLedger | None, found: CompactedLedger) -> None:
        told = LogCompaction(holder=holder, take=found)
        if base is not None:
            told.base.CopyFrom(base)
        answer = self._watch.ask(self._topic, LogQuestion(compaction=told))
        there, done = answer.compacted, self._done
        if there is None or there.ledger_id != found.ledger_id:
            raise JobError(
                f"{self._topic}: its broker does not say that it has taken over ledger "
                f"{found.ledger_id}; it is of an older release: compact the topic by REST"
            )
        done.ledger_id, done.entries = there.ledger_id, there.entries
        done.stored_bytes = there.stored_bytes

    def _give_up(self, holder: str) -> None:
        with suppress(BrokerError):  # what was begun goes with the hold
            told = LogCompaction(holder=holder, give_up=True)
            self._watch.ask(self._topic, LogQuestion(compaction=told))


_CHOSEN: Final = ("piece", "ledger_id", "entry_id", "batch_index")


def _task(
    work: Callable[..., Iterator[Any]], about: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What Spark runs: pickled by value, with two globals that are pickled by their names."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return work(about, batches)

    return run


def _chunks(
    parts: Sequence[Any], ends: Sequence[Any], base: Position
) -> list[tuple[int, int, int, int]]:
    """Of messages in chunks whose last chunk stays, or has not come and began after ``base``, up to
    where the log was compacted: the places of their chunks."""
    last: dict[str, tuple[int, int]] = {}
    for part in parts:
        if part["last"]:
            place = part["ledger_id"], part["entry_id"]
            last[part["uuid"]] = max(place, last.get(part["uuid"], place))
    stay = {
        each["uuid"] for each in ends if last[each["uuid"]] == (each["ledger_id"], each["entry_id"])
    }
    return [
        (part["piece"], part["ledger_id"], part["entry_id"], WHOLE)
        for part in parts
        if part["uuid"] in stay
        or (part["uuid"] not in last and base < (part["ledger_id"], part["entry_id"]))
    ]


@contextmanager
def settings(context: JobContext, wanted: Mapping[str, str]) -> Iterator[None]:
    """The session is set so while the ``with`` lasts."""
    conf = context.spark.conf
    before = {name: conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                conf.unset(name)
            else:
                conf.set(name, former)
