"""One closed ledger -> files of its topic's table: what a task does, in any process.

Nothing is committed here: files that no commit names are nobody's. So a task may be repeated, and
killed.

Rules:

* Every entry of the ledger is read, from 0 to the last one that the broker told of: one that is
  missing ends the task. One that is lost does too, unless the task is told to pass over it: the
  side table then has a row that says so, without a frame, and the entry is in no table.
* Values that do not fit the schema go to the side table, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from magnetar.ledger.told_ledgers import ToldLedgers
from magnetar.log.seam import TakenLedger
from magnetar.model.entry import Entry
from magnetar.model.errors import TableError
from magnetar.model.schema import TopicSchema
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.places import Place
from magnetar.pipeline.reading.earlier_chunks import EarlierEntries
from magnetar.pipeline.reading.passing_ledgers import LostEntries, PassingLedger, ReadEntries
from magnetar.pipeline.schema import CORRUPT
from magnetar.pipeline.tables.entry_rows import EntryRows, Rows
from magnetar.pipeline.tables.files import FileWriter
from magnetar.pipeline.tables.former_fields import FormerFields
from magnetar.pipeline.tables.topic_table import TopicTable, WrittenLedger, why_lost
from magnetar.pipeline.topic_names import partition_number, topic_of
from magnetar.pipeline.typed.inference import ReaderSchema
from magnetar.pipeline.typed.reading import VERSIONS, TypedRead, TypedValues
from magnetar.tables.columns import side_schema
from magnetar.tables.layout import VALUE, WHY, TablePlace
from magnetar.tables.warehouse import table_errors
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

ENTRY_BYTES_MAX = 64 << 20
BLOCK_BYTES, BLOCK_ENTRIES = 2 << 20, 10_000


@dataclass(frozen=True)
class LedgerTask:
    """What is read, and where it goes. ``told``: the ledger's metadata. Picklable."""

    service_url: str
    timeout_s: float
    topic: str
    """Of the partition."""
    created_ms: int
    ledger_id: int
    entries: int
    stored_bytes: int
    told: bytes
    bookies: Mapping[str, tuple[str, int]]
    place: TablePlace
    reader_text: str | None
    messages: int = 0
    """That it holds by its log; 0: the broker does not say."""
    passes_lost: bool = False


def write_ledger(task: LedgerTask) -> WrittenLedger:
    """Raises ``TableError``, ``LedgerError``, ``BrokerError``."""
    with closing(BrokerClient(task.service_url, task.timeout_s)) as client:
        return LedgerWriting(task, client).run()


class LedgerWriting:
    """Writes the files of one ledger."""

    def __init__(self, task: LedgerTask, client: BrokerClient) -> None:
        self._task = task
        self._client = client
        self._table = TopicTable(task.place, topic_of(task.topic))
        if not self._table.look():
            raise TableError(f"table {task.place.table} is gone; was it dropped? Run the job again")
        self._main = FileWriter(self._table.main)
        self._side: FileWriter | None = None
        self._beside = 0
        self._lost: list[LostEntries] = []
        self._reader_version = -1
        self._former: FormerFields | None = None
        self._values = self._typed_values()

    def _typed_values(self) -> TypedValues | None:
        task, kind = self._task, self._main.type_of(VALUE)
        if task.reader_text is None or kind is None:
            return None
        reader = ReaderSchema.from_text(task.reader_text)
        self._reader_version = reader.version
        read = TypedRead(reader, True, task.service_url, task.timeout_s)
        topic = topic_of(task.topic)

        def version(number: int) -> TopicSchema:
            return VERSIONS.get(task.service_url, topic, task.created_ms, number, task.timeout_s)

        self._former = FormerFields(kind, read, topic, version)
        return TypedValues(read, topic, version)

    def run(self) -> WrittenLedger:
        task, messages, expected = self._task, 0, 0
        rows = EntryRows(task.topic, self._earlier().chunks)
        with table_errors(f"table {task.place.table}, ledger {task.ledger_id}"):
            with ToldLedgers(task.bookies, frame_bytes_max=ENTRY_BYTES_MAX) as ledgers:
                for block in _blocks(self._entries(ledgers)):
                    if block[0].entry_id != expected:
                        assert self._passed(expected, block[0].entry_id), "none is left out"
                        rows.begin_anew()
                    expected = block[-1].entry_id + 1
                    messages += self._write(rows.rows(block))
            if expected != task.entries and not self._passed(expected, task.entries):
                raise TableError(
                    f"{task.topic}: ledger {task.ledger_id} ends with entry {expected - 1}, and "
                    f"has {task.entries} entries by its log; nothing of it is taken"
                )
            self._write_lost()
            main = self._main.close()
            side = [] if self._side is None else self._side.close()
        unfit = 0 if self._side is None else self._side.rows - self._beside
        lost_messages = max(0, task.messages - messages) if self._lost else 0
        taken = TakenLedger(task.ledger_id, task.entries, messages + lost_messages)
        return WrittenLedger(
            taken,
            main,
            side,
            task.stored_bytes,
            self._main.rows,
            unfit,
            tuple(self._lost),
            lost_messages,
        )

    def _entries(self, ledgers: ToldLedgers) -> Iterator[Entry]:
        task = self._task
        if not task.passes_lost:
            return ledgers.entries(task.ledger_id, task.told, 0, task.entries)

        def read(told: bytes) -> ReadEntries:
            return lambda first, stop: ledgers.entries(task.ledger_id, told, first, stop)

        passing = PassingLedger(task.ledger_id, read(task.told), lambda: read(self._told_again()))
        self._lost = passing.lost
        return passing.entries(0, task.entries)

    def _told_again(self) -> bytes:
        """The ledger's metadata, as it is by now. Raises ``TableError``, ``BrokerError``."""
        task = self._task
        with self._client.open(task.topic) as reader:
            told = reader.ask(LogQuestion(stored_ledgers=[task.ledger_id])).stored_ledgers
        if task.ledger_id not in told:
            raise TableError(
                f"{task.topic}: ledger {task.ledger_id} was deleted while it was read; nothing of "
                "it is taken"
            )
        return told[task.ledger_id]

    def _passed(self, first: int, stop: int) -> bool:
        """Whether all of these entries were passed over."""
        return any(each.first <= first and stop <= each.last + 1 for each in self._lost)

    def _write_lost(self) -> None:
        """They have no message, so they have a place, and why, and nothing else."""
        if not self._lost:
            return
        partition = partition_number(self._task.topic)
        rows = [
            {
                "partition": partition,
                "ledger_id": each.ledger_id,
                "entry_id": each.first,
                WHY: why_lost(each),
            }
            for each in self._lost
        ]
        self._write(
            Rows([], [pa.RecordBatch.from_pylist(rows, schema=side_schema())], 0, len(rows))
        )

    def _write(self, rows: Rows) -> int:
        side = [pa.Table.from_batches(rows.side)] if rows.side else []
        for batch in rows.main:
            fitting, unfit = self._fitting(batch)
            self._main.write(fitting)
            side += [unfit] if unfit is not None else []
        for each in side:
            if self._side is None:
                self._side = FileWriter(self._table.make_side())
            self._side.write(each)
        self._beside += rows.beside
        return rows.messages

    def _fitting(self, batch: pa.RecordBatch) -> tuple[pa.Table, pa.Table | None]:
        """The rows whose values fit the schema, and the others."""
        table = pa.Table.from_batches([batch])
        if self._values is None or self._former is None:
            return table, None
        told = {
            VALUE: batch.column("payload"),
            "message_id": pa.StructArray.from_arrays(
                [batch.column(name) for name in ("ledger_id", "entry_id", "batch_index")],
                ["ledger_id", "entry_id", "batch_index"],
            ),
            "schema_version": batch.column("schema_version"),
        }
        needed = pa.RecordBatch.from_pydict(told)
        values = self._values.batch(needed)
        typed = self._former.filled(needed, values.column(VALUE))
        table = table.append_column(VALUE, typed)
        bad = values.column(CORRUPT).is_valid().to_numpy(zero_copy_only=False)
        if not bad.any():
            return table, None
        unfit = table.filter(pa.array(bad)).drop_columns([VALUE])
        why = [
            f"the value does not fit the schema (written with version {version}, read with "
            f"{self._reader_version})"
            for version in unfit["schema_version"].to_pylist()
        ]
        unfit = unfit.append_column(WHY, pa.array(why, pa.string())).select(side_schema().names)
        return table.filter(pa.array(np.logical_not(bad))), unfit

    def _earlier(self) -> EarlierEntries:
        """Of messages that began in the ledger before: asked through the broker."""
        client, topic = self._client, self._task.topic

        def read_from(place: Place) -> Iterator[StoredEntry]:
            with client.open(topic, place) as reader:
                while (entry := reader.entry_within(client.timeout_s)) is not None:
                    yield entry

        def ledgers() -> Sequence[int]:
            with client.open(topic) as reader:
                return [each.ledger_id for each in reader.ask(LogQuestion(ledgers=True)).ledgers]

        return EarlierEntries(topic, read_from, ledgers, LossReports(fatal=False))


def _blocks(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    block: list[Entry] = []
    size = 0
    for entry in entries:
        if block and entry.entry_id != block[-1].entry_id + 1:
            yield block  # some were passed over
            block, size = [], 0
        block.append(entry)
        size += len(entry.data)
        if size >= BLOCK_BYTES or len(block) >= BLOCK_ENTRIES:
            yield block
            block, size = [], 0
    if block:
        yield block
