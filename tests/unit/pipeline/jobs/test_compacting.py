"""The job ``compact``: of random topics it leaves what a broker's own compaction leaves, wherever
the topic is cut into pieces; what is planned of what a broker tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.log.managed.compacted_entries import original, prefix_of, whole_payload
from magnetar.log.seam import Survivor
from magnetar.log.surviving import survivor
from magnetar.log.survivors import Survivors
from magnetar.model.entry import Entry
from magnetar.model.errors import JobError
from magnetar.model.ids import EARLIEST, Position
from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.jobs import compact_reading
from magnetar.pipeline.jobs.compact_planning import (
    CompactPiece,
    PieceOf,
    horizon_of,
    parts_of,
    pieces_of,
)
from magnetar.pipeline.jobs.compact_running import _chunks
from magnetar.pipeline.losses import LedgerFacts, LogExtent
from magnetar.pipeline.places import START
from magnetar.pipeline.reading.passing_ledgers import LostEntries
from magnetar.protocols.pulsar.compact_format import PulsarCompactFormat
from magnetar.wire.pulsar.broker_metadata import Stamper
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.pulsar_pb2 import CompactedLedger, EncryptionKeys
from tests.unit.pipeline.entry_building import Layout, Message, batch, chunks, single

KEYS = st.sampled_from([None, "a", "b", "c", "d", "k" * 40])
MESSAGES = st.builds(
    Message,
    value=st.sampled_from([b"", b"v", b"some more"]),
    key=KEYS,
    null=st.booleans(),
    compacted_out=st.sampled_from([False, False, False, True]),
)
LAYOUTS = st.builds(
    Layout, compression=st.sampled_from([Compression.NONE, Compression.ZLIB]), header=st.booleans()
)
SEALED = Layout(fields={"encryption_keys": [EncryptionKeys(key="k", value=b"v")]})


@st.composite
def topics(draw: st.DrawFn) -> list[bytes]:
    """Payloads of entries: plain messages, batches, sealed ones, erased ones, messages in chunks
    that overlap others, are not finished, or come twice under the same name."""
    found: list[bytes] = []
    pending: list[list[bytes]] = []
    for kind in draw(st.lists(st.sampled_from("mmbbbsccce"), max_size=12)):
        if kind == "m":
            found.append(single(draw(MESSAGES), draw(LAYOUTS)))
        elif kind == "b":
            some = draw(st.lists(MESSAGES, min_size=1, max_size=5))
            found.append(batch(some, draw(LAYOUTS)))
        elif kind == "e":  # of which nothing is left in the topic's table
            found.append(draw(st.sampled_from([b"", Stamper(5, 9).header(11, 1, 12)])))
        elif kind == "s":
            found.append(batch([Message(key="a")] * 2, SEALED))
        elif pending and draw(st.booleans()):
            found.append(pending[0].pop(0))
            pending = [rest for rest in pending if rest]
        else:
            message = Message(b"large", draw(KEYS))
            parts = chunks(message, 3, draw(st.sampled_from(["u1", "u2"])), draw(LAYOUTS))
            found.append(parts.pop(0))
            pending.append(parts)
    return found


def entries(payloads: Sequence[bytes], ledger_id: int) -> list[Entry]:
    """As they are read at a bookie: behind its header of 36 bytes."""
    return [
        Entry(ledger_id, number, bytes(36) + payload, 36) for number, payload in enumerate(payloads)
    ]


def by_broker(view: Sequence[Entry], base: Position = EARLIEST) -> list[tuple[Position, bytes]]:
    """As ``topics.compacting`` does."""
    form, last, found = PulsarCompactFormat(), Survivors(base), list[Survivor]()
    for entry in view:
        last.note(Position(entry.ledger_id, entry.entry_id), form.keyed(entry.payload))
    for entry in view:
        keyed = form.keyed(entry.payload)
        kept = last.kept(Position(entry.ledger_id, entry.entry_id), keyed)
        if kept is None or kept:
            payload = whole_payload(entry)
            found.append(survivor(entry, payload, kept, keyed.size, form.without_others))
    return [(each.position, prefix_of(each.position, each.kept) + each.payload) for each in found]


def by_job(
    view: Sequence[Entry], cuts: Sequence[int], base: Position = EARLIEST
) -> list[tuple[Position, bytes]]:
    """Both passes of the tasks, with what Spark does in between done here."""
    bounds = [0, *sorted(cut % (len(view) + 1) for cut in cuts), len(view)]
    pieces = [
        CompactPiece(number, "t", PieceOf.LEDGER, 0, first, stop, 0, 0, b"", {}, "")
        for number, (first, stop) in enumerate(pairwise(bounds))
    ]

    @contextmanager
    def entries_of(piece: CompactPiece, lost: list[LostEntries]) -> Iterator[Iterator[Entry]]:
        yield iter(view[piece.first : piece.stop])

    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(pieces)))})
    with patch.object(compact_reading, "entries_of", entries_of):
        noted = [
            row
            for found in compact_reading.notes(pieces, iter([numbers]))
            for row in found.to_pylist()
        ]
        chosen = _chosen(noted, base)
        come = pa.RecordBatch.from_pylist(chosen, pa.schema(CHOSEN)) if chosen else None
        batches = compact_reading.survivors(pieces, iter([] if come is None else [come]))
        rows = [row for found in batches for row in found.to_pylist()]
    left = [(Position(row["ledger_id"], row["entry_id"]), row["stored"]) for row in rows]
    return sorted(left)


CHOSEN = [("piece", pa.int32()), ("ledger_id", pa.int64()), ("entry_id", pa.int64()),
          ("batch_index", pa.int32())]  # fmt: skip


def _chosen(noted: list[dict[str, object]], base: Position) -> list[dict[str, object]]:
    latest: dict[object, dict[str, object]] = {}
    order = ("ledger_id", "entry_id", "batch_index")
    for row in noted:
        if row["kind"] == compact_reading.KEY:
            former = latest.get(row["key"])
            if former is None or _of(row, *order) > _of(former, *order):
                latest[row["key"]] = row
    left = [row for row in latest.values() if not row["gone"]]
    parts = [row for row in noted if row["kind"] == compact_reading.PART]
    found = [row for row in left if row["uuid"] is None]
    found += [row for row in noted if row["kind"] == compact_reading.SEALED]
    names = [name for name, _ in CHOSEN]
    rows = [dict(zip(names, _of(row, *names), strict=True)) for row in found]
    whole = _chunks(parts, [row for row in left if row["uuid"] is not None], base)
    rows += [dict(zip(names, row, strict=True)) for row in whole]
    return sorted(rows, key=lambda row: int(str(row["piece"])))


def _of(row: dict[str, object], *names: str) -> tuple[int, ...]:
    return tuple(int(str(row[name])) for name in names)


@given(topics(), topics(), st.lists(st.integers(0, 20), max_size=3))
def test_job_and_broker_leave_the_same(
    first: list[bytes], later: list[bytes], cuts: list[int]
) -> None:
    view = entries(first, 1)
    left = by_broker(view)
    assert by_job(view, cuts) == left
    stored = [Entry(9, number, bytes(36) + text, 36) for number, (_, text) in enumerate(left)]
    again = [original(each) for each in stored] + entries(later, 2)
    base = Position(1, len(first) - 1) if first else EARLIEST
    came = by_broker(again, base)
    assert by_job(again, cuts, base) == came, "what was left is read with what came since"


def test_a_message_in_chunks_that_comes_while_its_topic_is_compacted_is_kept() -> None:
    """Its first chunks are read, its last one lies behind the horizon."""
    parts = chunks(Message(b"new", "k"), 3, "u1")
    lost = chunks(Message(b"never whole", "k"), 2, "u2")
    view = entries([single(Message(b"old", "k")), lost[0], *parts[:2]], 1)
    left = by_broker(view)
    assert by_job(view, [2]) == left
    assert [tuple(place) for place, _ in left] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    stored = [Entry(9, number, bytes(36) + text, 36) for number, (_, text) in enumerate(left)]
    again = [original(each) for each in stored] + entries(parts[2:], 2)
    found = by_broker(again, Position(1, 3))
    assert by_job(again, [3], Position(1, 3)) == found
    assert [tuple(place) for place, _ in found] == [(1, 2), (1, 3), (2, 0)]


def test_what_a_broker_refuses_the_job_refuses() -> None:
    with pytest.raises(JobError, match="no message of Pulsar's"):
        by_job(entries([b"nonsense"], 1), [])


def answer(ledgers: Sequence[LedgerFacts], compacted: CompactedLedger | None = None) -> LogAnswer:
    stored = {each.ledger_id: b"told" for each in ledgers} | {77: b"told"}
    extent = LogExtent(START, START, START, 0, 0, 0)
    where = {"bookie:1": ("127.0.0.1", 1)}
    return LogAnswer(
        extent, tuple(ledgers), stored_ledgers=stored, bookies=where, compacted=compacted
    )


def test_what_is_read_is_the_view_up_to_what_may_be_read() -> None:
    ledgers = [
        LedgerFacts(1, 10, 1000, True),
        LedgerFacts(2, 10, 1000, True),
        LedgerFacts(3, 10, 1000, True, stored=2),
        LedgerFacts(4, 5, 500, False),
        LedgerFacts(5, 0, 0, False),
    ]
    assert horizon_of(answer([])) == EARLIEST
    assert horizon_of(answer(ledgers)) == (4, 4)
    assert [part.ledger_id for part in parts_of(answer(ledgers))] == [1, 2, 3, 4]
    base = CompactedLedger(
        ledger_id=77, horizon_ledger_id=2, horizon_entry_id=3, entries=2, stored_bytes=50
    )
    told = answer(ledgers, base)
    parts = parts_of(told)
    assert [(each.of, each.ledger_id, each.first, each.entries) for each in parts] == [
        (PieceOf.COMPACTED, 77, 0, 2),
        (PieceOf.LEDGER, 2, 4, 10),
        (PieceOf.TABLE, 3, 0, 10),
        (PieceOf.LEDGER, 4, 0, 5),
    ]
    pieces = pieces_of("t", parts, told, 2)
    assert [(each.number, each.first, each.stop) for each in pieces] == [
        (0, 0, 2), (1, 4, 10), (2, 0, 10), (3, 0, 5),
    ]  # fmt: skip
    done = CompactedLedger(ledger_id=-1, horizon_ledger_id=4, horizon_entry_id=4, entries=0)
    assert parts_of(answer(ledgers, done)) == [], "nothing came since"


def test_large_ledgers_are_cut_and_every_entry_is_in_one_piece() -> None:
    told = answer([LedgerFacts(1, 1001, 100 << 20, True)])
    pieces = pieces_of("t", parts_of(told), told, 4)
    assert len(pieces) > 8
    covered = [number for each in pieces for number in range(each.first, each.stop)]
    assert covered == list(range(1001))


def test_a_ledger_that_the_broker_does_not_tell_of_ends_the_job() -> None:
    told = answer([LedgerFacts(1, 10, 1000, True)])._replace(stored_ledgers={})
    with pytest.raises(JobError, match="does not tell where ledger 1 lies"):
        pieces_of("t", parts_of(told), told, 1)
