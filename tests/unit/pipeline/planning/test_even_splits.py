"""``minPartitions``: how ranges are cut, and that every message is still read once."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.places import START, Place
from magnetar.pipeline.planning.even_splits import EvenSplits
from magnetar.pipeline.planning.splits import PlannedRange, check_cover
from tests.unit.pipeline.driving import read_values
from tests.unit.pipeline.fake_cluster import FakeCluster

T = "persistent://public/default/t"


@given(
    groups=st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.booleans()), min_size=1),
    pieces=st.integers(2, 9),
    skipped=st.integers(0, 3),
)
def test_pieces_are_read_to_the_same_messages(
    groups: list[tuple[int, bool, bool]], pieces: int, skipped: int
) -> None:
    cluster = FakeCluster()
    cluster.make(T)
    for count, batched, rolled in groups:
        cluster.publish(T, count, batched)
        if rolled:
            cluster.logs[T].roll()
    log = cluster.logs[T]
    skipped = min(skipped, log.end_offset - 1)
    start = log._place_of(skipped)
    extent = log.extent()
    part = PlannedRange(T, start, extent.end, extent.created_ms, skipped, extent.end_offset)

    def ledgers(name: str, first: Place, last: Place) -> list[LedgerFacts]:
        return [
            LedgerFacts(one.ledger_id, len(one.entries), 0, True)
            for one in log.ledgers
            if first.ledger_id <= one.ledger_id <= last.ledger_id
        ]

    splits = EvenSplits([part], pieces, ledgers).split(part)
    check_cover(part, splits)
    entries = sum(len(ledger.entries) for ledger in log.ledgers)
    assert len(splits) <= pieces
    assert len(splits) >= min(pieces, entries - skipped) // 2
    client, reports = cast(BrokerClient, cluster), LossReports(fatal=True)
    found = [read_values(client, split.part, reports) for split in splits]
    assert [value for values in found for value in values] == log.values()[skipped:]


def test_pieces_are_shared_by_messages() -> None:
    facts = [LedgerFacts(1, 90, 900, True)]
    large = PlannedRange(T, START, Place(1, 90, 0), 7, 0, 90)
    small = PlannedRange(f"{T}2", START, Place(1, 10, 0), 7, 0, 10)
    splitter = EvenSplits([large, small], 10, lambda *_: facts)
    assert [len(splitter.split(part)) for part in (large, small)] == [9, 1]
    assert splitter.split(large)[1].part == PlannedRange(T, Place(1, 10, 0), Place(1, 20, 0), 7)
    assert len(EvenSplits([large, small], 2, lambda *_: facts).split(large)) == 1


def test_more_tasks_than_there_are_entries_are_not_counted_up_to() -> None:
    facts = [LedgerFacts(1, 90, 900, True)]
    part = PlannedRange(T, START, Place(1, 90, 0), 0, 0, 90)
    for pieces in (10**9, 2**63 - 1):
        splits = EvenSplits([part], pieces, lambda *_: facts).split(part)
        check_cover(part, splits)
        assert len(splits) == 90
