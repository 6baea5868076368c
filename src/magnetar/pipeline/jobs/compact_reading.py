"""What tasks of a compaction read, twice: first which places of the view hold the last message of a
key, then the entries of those that stay.

Which messages stay ``log.survivors`` says, and what is written of an entry ``log.surviving``: the
same that a broker's own compaction uses, so that both leave the same. A task works on one piece
(``compact_planning``); what it knows of the others comes by Spark's shuffle:

1. ``notes``: of each key of the piece the last place, tombstones included; chunks; sealed entries;
   and entries that are lost, if they are passed over.
2. Between the passes, on Spark: of each key the last place of all pieces, without tombstones.
3. ``survivors``: of the piece's places that are left, the entries as they are to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa

from magnetar.cluster.topic_name import parse_topic
from magnetar.env.loop_thread import LoopThread
from magnetar.ledger.told_ledgers import ToldLedgers
from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.managed.compacted_entries import original, prefix_of, whole_payload
from magnetar.log.managed.stamping import behind_header
from magnetar.log.surviving import survivor
from magnetar.log.survivors import PieceNotes, whole_or_some
from magnetar.model.entry import Entry
from magnetar.model.errors import JobError, ProtocolError
from magnetar.model.ids import Position
from magnetar.model.keyed import KeyedEntry
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.jobs.compact_planning import CompactPiece, PieceOf
from magnetar.pipeline.reading.passing_ledgers import LostEntries, PassingLedger, ReadEntries
from magnetar.pipeline.worker_process import PROCESS
from magnetar.wire.kafka.batches import is_batch
from magnetar.wire.pulsar.compacting import keyed_entry, without_others
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

ENTRY_BYTES_MAX: Final = 64 << 20
READ_ENTRIES, READ_BYTES = 10_000, 4 << 20
BATCH_BYTES: Final = 1 << 20
"""Of entries in one batch to Spark."""
WHOLE: Final = -2
"""In the place of an index: the entry stays as it is."""

KEY, PART, SEALED, LOST = 0, 1, 2, 3
NOTES_SCHEMA: Final = (
    "kind int, key binary, ledger_id bigint, entry_id bigint, batch_index int, gone boolean, "
    "uuid string, last boolean, piece int"
)
CHOSEN_SCHEMA: Final = "piece int, ledger_id bigint, entry_id bigint, batch_index int"
SURVIVORS_SCHEMA: Final = "ledger_id bigint, entry_id bigint, stored binary"
_NOTES: Final = pa.schema(
    [
        ("kind", pa.int32()),
        ("key", pa.binary()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
        ("gone", pa.bool_()),
        ("uuid", pa.string()),
        ("last", pa.bool_()),
        ("piece", pa.int32()),
    ]
)
_SURVIVORS: Final = pa.schema(
    [("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("stored", pa.binary())]
)


# -- pass 1 -----------------------------------------------------------------------------------


def notes(pieces: Sequence[CompactPiece], batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """In a task: numbers of pieces come in, what they say of keys goes out."""
    PROCESS.prepare()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield _noted(pieces[number])


def _noted(piece: CompactPiece) -> pa.RecordBatch:
    found = PieceNotes()
    lost: list[LostEntries] = []
    with entries_of(piece, lost) as entries:
        for entry in entries:
            found.note(entry.position, keyed(piece.topic, entry))
    rows: list[tuple[Any, ...]] = [
        (KEY, key, *place, gone, uuid, False, piece.number)
        for key, (place, gone, uuid) in found.last.items()
    ]
    rows += [
        (PART, None, *place, WHOLE, False, uuid, last, piece.number)
        for uuid, place, last in found.parts
    ]
    rows += [
        (SEALED, None, *place, WHOLE, False, None, False, piece.number) for place in found.sealed
    ]
    rows += [
        (LOST, None, one.ledger_id, one.first, one.last - one.first + 1, False, one.why, False,
         piece.number)
        for one in lost
    ]  # fmt: skip
    columns = zip(*rows, strict=True) if rows else [[]] * len(_NOTES)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _NOTES.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_NOTES)


# -- pass 2 -----------------------------------------------------------------------------------


def survivors(pieces: Sequence[CompactPiece], batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """In a task: places that stay come in, those of a piece together; entries go out."""
    PROCESS.prepare()
    for number, chosen in _by_piece(batches):
        yield from _batches(_surviving(pieces[number], chosen))


def _by_piece(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[int, dict[Position, list[int]]]]:
    piece, chosen = -1, dict[Position, list[int]]()
    for batch in batches:
        for number, *place, index in zip(*(one.to_pylist() for one in batch.columns), strict=True):
            if number != piece:
                if chosen:
                    yield piece, chosen
                piece, chosen = number, {}
            chosen.setdefault(Position(*place), []).append(index)
    if chosen:
        yield piece, chosen


def _surviving(
    piece: CompactPiece, chosen: dict[Position, list[int]]
) -> Iterator[tuple[int, int, bytes]]:
    lost: list[LostEntries] = []
    with entries_of(piece, lost) as entries:
        for entry in entries:
            indexes = chosen.get(entry.position)
            if indexes is None:
                continue
            payload, size = whole_payload(entry), 1
            if indexes[0] >= 0:
                size = entry_metadata(entry.payload).num_messages
            kept = None if indexes[0] == WHOLE else whole_or_some(sorted(indexes), size)
            left = survivor(entry, payload, kept, size, without_others)
            yield *left.position, prefix_of(left.position, left.kept) + left.payload
    for one in lost:
        if any((one.ledger_id, one.first) <= at <= (one.ledger_id, one.last) for at in chosen):
            raise JobError(
                f"{piece.topic}: entry {one.ledger_id}:{one.first} could be read a moment ago, and "
                f"is lost now ({one.why}); nothing is changed: run the job again"
            )


def _batches(rows: Iterable[tuple[int, int, bytes]]) -> Iterator[pa.RecordBatch]:
    found: list[tuple[int, int, bytes]] = []
    size = 0
    for row in rows:
        found.append(row)
        size += len(row[2])
        if size >= BATCH_BYTES:
            yield _batch(found)
            found, size = [], 0
    if found:
        yield _batch(found)


def _batch(rows: Sequence[tuple[int, int, bytes]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(one, kind) for one, kind in zip(columns, _SURVIVORS.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SURVIVORS)


# -- entries ----------------------------------------------------------------------------------


def keyed(topic: str, entry: Entry) -> KeyedEntry:
    """Raises ``JobError`` for what a broker does not compact either."""
    try:
        if is_batch(entry.payload):
            raise ProtocolError("it is a record batch of a client of Kafka's")
        return keyed_entry(entry.payload)
    except ProtocolError as error:
        raise JobError(
            f"{topic} cannot be compacted: its entry {entry.position} is no message of Pulsar's "
            f"clients ({error})"
        ) from error


@contextmanager
def entries_of(piece: CompactPiece, lost: list[LostEntries]) -> Iterator[Iterator[Entry]]:
    """The piece's entries as the log has them, behind their headers; all of them, but for those
    that are passed over, which are ``lost`` then."""
    if piece.of is PieceOf.TABLE:
        yield _checked(piece, _of_table(piece), lost)
        return
    with ToldLedgers(piece.bookies, frame_bytes_max=ENTRY_BYTES_MAX) as ledgers:
        yield _checked(piece, _of_bookies(piece, ledgers, lost), lost)


def _of_bookies(
    piece: CompactPiece, ledgers: ToldLedgers, lost: list[LostEntries]
) -> Iterator[Entry]:
    if piece.asks is None:
        return ledgers.entries(piece.ledger_id, piece.told, piece.first, piece.stop)

    def read(told: bytes) -> ReadEntries:
        return lambda first, stop: ledgers.entries(piece.ledger_id, told, first, stop)

    again = partial(_told_again, piece)
    passing = PassingLedger(piece.ledger_id, read(piece.told), lambda: read(again()), lost)
    return passing.entries(piece.first, piece.stop)


def _told_again(piece: CompactPiece) -> bytes:
    """The metadata of the piece's ledger, as it is by now. Raises ``JobError``, ``BrokerError``."""
    assert piece.asks is not None
    question = LogQuestion(stored_ledgers=[piece.ledger_id])
    question.compaction.holder = ""  # so that it tells of the compacted ledger, too
    with closing(BrokerClient(*piece.asks)) as client, client.open(piece.topic) as reader:
        told = reader.ask(question).stored_ledgers
    if piece.ledger_id not in told:
        raise JobError(
            f"{piece.topic}: ledger {piece.ledger_id} was deleted while it was read; nothing is "
            "changed"
        )
    return told[piece.ledger_id]


def _checked(
    piece: CompactPiece, stored: Iterator[Entry], lost: Sequence[LostEntries]
) -> Iterator[Entry]:
    def passed(first: int, stop: int) -> bool:
        return any(one.first <= first and stop <= one.last + 1 for one in lost)

    expected = piece.first
    for each in stored:
        if each.entry_id != expected and not passed(expected, each.entry_id):
            break
        expected = each.entry_id + 1
        if piece.of is PieceOf.COMPACTED:
            yield original(each)
        else:
            behind_header([each])
            yield each
    if expected != piece.stop and not passed(expected, piece.stop):
        raise JobError(
            f"{piece.topic}: entry {expected} of ledger {piece.ledger_id} could not be read; "
            "nothing is changed"
        )


def _of_table(piece: CompactPiece) -> Iterator[Entry]:
    from magnetar.tables.history import TableHistory

    loop = LoopThread("magnetar-compact", "the reader of the topic's table")
    history = TableHistory()
    info = LedgerInfo(piece.ledger_id, piece.entries, piece.stored_bytes)
    with closing(_Ending(loop, history)):
        log = parse_topic(piece.topic).log_name
        reader = loop.run(history.open(log, piece.where, info))
        at = piece.first
        while at < piece.stop:
            left = piece.stop - at
            found = loop.run(reader.read(at, min(READ_ENTRIES, left), READ_BYTES))
            if not found:
                return
            yield from found
            at = found[-1].entry_id + 1


class _Ending:
    def __init__(self, loop: LoopThread, history: Any) -> None:
        self._loop = loop
        self._history = history

    def close(self) -> None:
        self._loop.end(self._history.close())
