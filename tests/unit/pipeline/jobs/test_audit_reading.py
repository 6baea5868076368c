"""What an audit reads out of entries, as their producers write them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from magnetar.model.errors import BrokerError, TopicNotFoundError
from magnetar.pipeline.brokers.log_watch import LogWatch
from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.jobs.audit import AuditOptions, AuditReport, _judge, _Plan
from magnetar.pipeline.jobs.audit_reading import (
    AuditPiece,
    LedgerFound,
    PieceFound,
    _audit,
    _Heard,
    head_of,
)
from magnetar.pipeline.jobs.sequences import EntryAt, IdRuns, IdSteps, judge
from magnetar.pipeline.losses import LedgerFacts, LogExtent
from magnetar.pipeline.places import START, Place
from magnetar.repair.insight.verifying import Verified
from magnetar.wire.kafka.batches import build_batch
from magnetar.wire.kafka.records import KafkaRecord, batch_of, read_batch
from magnetar.wire.pulsar.broker_metadata import Stamper
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head
from tests.unit.pipeline.entry_building import Layout, Message, batch, chunks, single


def oddities(payloads: list[bytes]) -> list[tuple[str, int, int]]:
    runs = IdRuns()
    for number, payload in enumerate(payloads):
        runs.add(head_of(memoryview(payload)), EntryAt(7, number))
    return [(each.fault, each.first, each.last) for each in judge(runs.all()).oddities]


def spark_entry(number: int, rows: int, name: str = "staged:q@r:0:1") -> bytes:
    """As tasks write them: entries are numbered, and not messages."""
    builder = EntryBuilder(Compression.NONE, find_compressor(Compression.NONE))
    return builder.entry(Head(name, number, 5), Columns([b"v"] * rows))


def client_batch(first: int, count: int, highest: int | None = None) -> bytes:
    fields = {} if highest is None else {"highest_sequence_id": highest}
    payload = batch([Message()] * count, Layout(fields=fields))
    return payload.replace(b"\x10\x07", bytes([0x10, first]), 1)  # sequence_id is 7 there


def test_what_spark_has_written_is_there_once() -> None:
    """Each of its entries but the first was told as duplicates of messages of the one before."""
    for name in ("staged:q@r:0:1", "spark-0123"):
        entries = [spark_entry(n, 1000, name) for n in range(3)]
        assert oddities(entries) == []
        assert oddities([*entries[:2], entries[1], entries[2]]) == [("duplicate", 1, 1)]
        assert oddities([entries[0], entries[1], spark_entry(5, 9, name)]) == [("gap", 2, 4)]


@pytest.mark.parametrize("highest", [True, False])
def test_batches_of_clients_are_numbered_by_message(highest: bool) -> None:
    def of(first: int) -> bytes:
        return client_batch(first, 5, first + 4 if highest else None)

    assert oddities([of(0), of(5), of(10)]) == []
    assert oddities([of(0), of(5), of(5), of(10)]) == [("duplicate", 5, 9)]
    assert oddities([of(0), of(5), of(20)]) == [("gap", 10, 19)]


# -- entries that are no messages -------------------------------------------------------------

PIECE = AuditPiece("pulsar://h:1", "t", (), 9, 0, 0, 1.0)


def test_entries_that_nobody_can_read_are_found() -> None:
    heard = _Heard(PIECE)
    heard.begin(7)
    for number, payload in enumerate((single(Message()), b"\0\0\0\xffno message", b"", b"x")):
        heard.take(7, number, heard.look(memoryview(payload)))
    assert (heard.messages, heard.unreadable, heard.first_unreadable) == (1, 3, 1)
    report = judged(PieceFound("t", [LedgerFound(Verified(7, 4), 1, [], heard.unreadable, 1)]))
    (found,) = report.findings
    assert (found.fault, found.ledger_id, found.first_entry_id) == ("unreadable", 7, 1)
    assert not report.ok
    assert "unreadable: t ledger 7 entry 1: 3 entries" in next(report.lines())


def judged(*pieces: PieceFound) -> AuditReport:
    report = AuditReport()
    plan = _Plan("t", LogAnswer(LogExtent(START, START, Place(9, 0, 0))), [0], {})
    _judge(AuditOptions(("t",)), plan, pieces, report)
    return report


def test_a_producer_whose_ids_go_back_too_often_to_tell_is_a_finding() -> None:
    untidy = {"p": IdSteps(0, 90, 1, 1, 40), "q": IdSteps(0, 90, 1, 1, 0)}
    report = judged(PieceFound("t", untidy=untidy))
    (found,) = report.findings
    assert (found.fault, found.producer) == ("order", "p")
    assert report.unjudged == ["q"]
    assert not report.ok
    shown = list(report.lines())
    assert shown[0].startswith("order: t, producer p: its sequence ids went back 40 times")
    assert any("producer q: its sequence ids follow no rule" in line for line in shown)


def test_the_chunks_of_a_message_in_two_pieces_are_no_duplicate() -> None:
    first, second, third = chunks(Message(b"0123456789"), 3, "p-7")
    pieces = []
    for number, payloads in enumerate(([first], [second, third])):
        runs = IdRuns()
        for entry, payload in enumerate(payloads):
            runs.add(head_of(memoryview(payload)), EntryAt(number, entry))
        pieces.append(PieceFound("t", runs=runs.all()))
    assert judged(*pieces).ok


# -- record batches ---------------------------------------------------------------------------


def record_batch(first: int, count: int, producer_id: int = 12, time_ms: int = 1) -> bytes:
    records = [KafkaRecord(n, 0, None, b"v", []) for n in range(count)]
    batch_ = batch_of(records, time_ms)
    header, _ = read_batch(memoryview(batch_))
    made = build_batch(
        batch_[61:],
        count=count,
        last_offset_delta=count - 1,
        attributes=header.attributes,
        base_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=first,
    )
    return Stamper(0, 0).header(11, count, time_ms) + made


def test_batches_of_kafkas_idempotent_producers() -> None:
    assert oddities([record_batch(0, 3), record_batch(3, 2), record_batch(5, 1)]) == []
    assert oddities([record_batch(0, 3), record_batch(3, 2), record_batch(3, 2)]) == [
        ("duplicate", 3, 4)
    ]
    assert oddities([record_batch(0, 3), record_batch(5, 2)]) == [("gap", 3, 4)]
    assert oddities([record_batch(-1, 3, -1)] * 2) == [], "it has no numbers"


def test_sequences_of_kafka_begin_with_0_again() -> None:
    last = 2**31 - 3
    for batches in (
        [(last - 3, 3), (last, 3), (0, 5), (5, 1)],
        [(last - 3, 3), (last, 10), (7, 5), (12, 1)],
    ):
        assert oddities([record_batch(*each) for each in batches]) == []
    again = [(last, 10), (7, 5), (7, 5)]
    assert [each[0] for each in oddities([record_batch(*each) for each in again])] == ["duplicate"]


# -- what brokers do not tell -----------------------------------------------------------------


class Logs:
    """Of a broker that tells nothing, or metadata that are none."""

    def __init__(self, error: BrokerError | None) -> None:
        self.error = error

    def ask(self, topic: str, question: LogQuestion) -> LogAnswer:
        if self.error is not None:
            raise self.error
        told = dict.fromkeys(question.stored_ledgers, b"no metadata")
        return LogAnswer(LogExtent(START, START, Place(9, 0, 0)), stored_ledgers=told)


def read_by(logs: Logs) -> PieceFound:
    facts = tuple(LedgerFacts(each, 10, 100, closed=True) for each in (1, 2))
    return asyncio.run(_audit(replace(PIECE, ledgers=facts), cast(LogWatch, logs)))


@pytest.mark.parametrize(
    "logs", [Logs(BrokerError("no answer")), Logs(None)], ids=["away", "damaged"]
)
def test_what_cannot_be_asked_for_is_unchecked(logs: Logs) -> None:
    """It ended the audit of all topics, and what was found in others was not told."""
    found = read_by(logs)
    assert [len(each.verified.unchecked) for each in found.ledgers] == [1, 1]
    report = judged(found)
    assert (len(report.unchecked), report.findings, report.ok) == (2, [], False)


def test_a_topic_that_is_deleted_while_it_is_audited_is_gone() -> None:
    found = read_by(Logs(TopicNotFoundError("it is not there")))
    assert [each.verified.gone for each in found.ledgers] == [True, True]
    report = judged(found)
    assert (report.deleted_meanwhile, report.ok) == (2, True)
    assert "2 ledgers were deleted while they were read" in list(report.lines())
