"""A task reads its range to the end or says what is missing, never waiting for what cannot come."""

from __future__ import annotations

import time
from itertools import islice
from typing import cast

import pytest

from magnetar.model.errors import BrokerError, DataLossError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.losses import LedgerFacts, gap_before
from magnetar.pipeline.places import START, Place
from magnetar.pipeline.planning.splits import PlannedRange, Split
from magnetar.pipeline.reading import range_reading
from magnetar.pipeline.reading.range_reading import entries_from, entries_of, numbered
from magnetar.pipeline.reading.split_readers import ReadTask, read_split
from tests.unit.pipeline.driving import options, read_values
from tests.unit.pipeline.fake_cluster import FakeCluster, FakeLog

T = "persistent://public/default/t"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reading, "PAUSE_S", 0.0)


class Case:
    """Ledgers of four messages; a range over all of them."""

    def __init__(self, ledgers: int = 3) -> None:
        self.cluster = FakeCluster()
        self.cluster.make(T)
        for _ in range(ledgers):
            self.cluster.publish(T, 4)
            self.log.roll()
        extent = self.log.extent()
        self.part = PlannedRange(T, START, extent.end, extent.created_ms, 0, extent.end_offset)
        self.reports = LossReports(fatal=False)

    @property
    def log(self) -> FakeLog:
        return self.cluster.logs[T]

    def read(self, *, fatal: bool = False) -> list[int]:
        if fatal:
            self.reports = LossReports(fatal=True)
        return read_values(cast(BrokerClient, self.cluster), self.part, self.reports)

    def after(self, entries: int, happen: object) -> None:
        """Let something happen before the entry after so many is handed out."""
        left = [entries]

        def count() -> None:
            left[0] -= 1
            if left[0] == -1:
                happen()  # type: ignore[operator]

        self.cluster.before_entry = count


def test_the_whole_range() -> None:
    case = Case()
    assert case.read(fatal=True) == list(range(12))


def test_what_was_deleted_before_the_task_began() -> None:
    case = Case()
    case.log.trim(2)
    assert case.read() == [8, 9, 10, 11]
    assert case.reports.messages == 8
    with pytest.raises(
        DataLossError, match=r"retention or DeleteRecords has deleted .* \(8 messages\)"
    ):
        case.read(fatal=True)


def test_what_is_deleted_while_the_task_reads() -> None:
    case = Case()
    case.after(2, lambda: case.log.trim(2))
    assert case.read() == [0, 1, 8, 9, 10, 11]
    assert case.reports.messages == 6


def test_all_that_is_left_is_deleted_while_the_task_waits() -> None:
    case = Case()
    case.after(2, lambda: case.log.trim(3))
    assert case.read() == [0, 1]
    assert case.reports.messages == 10


def test_a_topic_that_is_deleted_while_the_task_reads() -> None:
    case = Case()
    case.after(5, lambda: case.cluster.delete(T))
    assert case.read() == list(range(5))
    assert case.reports.messages == 7
    case = Case()
    case.cluster.delete(T)
    with pytest.raises(DataLossError, match="the topic is not there any more"):
        case.read(fatal=True)


def test_a_topic_that_is_made_anew_while_the_task_reads() -> None:
    case = Case()

    def again() -> None:
        case.cluster.delete(T)
        case.cluster.make(T)
        case.cluster.publish(T, 50)

    case.after(5, again)
    assert case.read() == list(range(5))
    assert case.reports.messages == 7


def test_a_connection_that_breaks_is_replaced_where_it_was() -> None:
    case = Case()

    def broke() -> None:
        case.cluster.failures = 3

    case.after(6, broke)
    assert case.read(fatal=True) == list(range(12))
    assert case.cluster.opened[-1] == (T, Place(2, 2, 0))


def test_a_connection_that_breaks_ends_no_question_about_a_range() -> None:
    """They were asked once: of a piece of a range (``minPartitions``) with the column ``offset``,
    and for the chunks before a range."""
    case = Case()
    client = cast(BrokerClient, case.cluster)
    piece = case.part.piece(Place(2, 1, 0), Place(2, 3, 0))
    case.cluster.failures = 3
    task = ReadTask(options(topics="t"), ("value", "offset"), case.reports, client)
    (batch,) = read_split(Split(piece), task)
    assert batch["offset"].to_pylist() == [5, 6]
    case.cluster.failures = 10**6
    with pytest.raises(BrokerError, match="broke"):
        numbered(client, piece)
    assert case.cluster.failures > 0

    def broke() -> None:
        case.cluster.failures = 2

    case.cluster.failures = 1
    case.after(5, broke)
    found = entries_from(client, T, Place(1, 2, 0))
    assert [entry[:2] for entry in islice(found, 9)] == [
        (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0), (3, 1), (3, 2),
    ]  # fmt: skip


def test_a_topic_that_went_before_a_range_was_numbered_is_a_loss() -> None:
    case = Case()
    piece = case.part.piece(Place(2, 1, 0), case.part.end)
    case.cluster.delete(T)
    client = cast(BrokerClient, case.cluster)
    task = ReadTask(options(topics="t"), ("value", "offset"), case.reports, client)
    assert not list(read_split(Split(piece), task))
    assert case.reports.losses == 1
    assert not list(entries_from(client, T, Place(1, 2, 0)))


def test_a_slow_reader_does_not_use_up_the_patience() -> None:
    case = Case()
    client = cast(BrokerClient, case.cluster)
    entries = entries_of(client, case.part, LossReports(fatal=True))
    next(entries)
    time.sleep(1.1 * FakeCluster.timeout_s)
    case.cluster.failures = 1  # the broker has closed the connection meanwhile
    assert len(list(entries)) == 11


def test_an_end_that_does_not_come_is_an_error_in_time() -> None:
    case = Case()
    case.part = PlannedRange(T, START, Place(3, 9, 0))  # its log says that it reaches there
    case.log.ledgers[-1].entries.clear()
    extent = case.log.extent()._replace(end=Place(3, 9, 0))
    case.log.extent = lambda: extent  # type: ignore[method-assign]
    with pytest.raises(BrokerError, match=r"nothing after 3:4:0 came in 0.5 s, and the range ends"):
        case.read(fatal=True)


@pytest.mark.parametrize("skipped", [0, 3, 4, 5, 7])
def test_an_entry_that_a_broker_leaves_out_is_missed(skipped: int) -> None:
    """Wherever it is: within a ledger, the last of one, the first of the next."""
    case = Case()
    stored = list(case.log.stored())
    case.log.stored = lambda: iter(stored[:skipped] + stored[skipped + 1 :])  # type: ignore[method-assign]
    extent = case.log.extent()
    case.part = PlannedRange(T, START, extent.end, extent.created_ms, 0, 12)
    assert case.read() == [number for number in range(12) if number != skipped]
    assert case.reports.losses == 1
    with pytest.raises(DataLossError, match="1 entries are missing before"):
        case.read(fatal=True)


def test_entries_have_numbers() -> None:
    case = Case()
    case.log.trim(1)
    part = PlannedRange(T, Place(2, 1, 0), case.part.end, case.part.created_ms)
    client = cast(BrokerClient, case.cluster)
    found = list(entries_of(client, part, LossReports(fatal=True)))
    assert [offset for _, offset in found] == list(range(5, 12))


def test_ledgers_that_were_passed_tell_what_is_missing() -> None:
    facts = {number: LedgerFacts(number, 4, 40, True) for number in (1, 2, 3)}
    assert gap_before(T, Place(1, 4, 0), 2, 0, facts) is None
    assert gap_before(T, Place(1, 4, 0), 3, 0, {1: facts[1], 3: facts[3]}) is None  # 2 never was
    for expected, ledger_id, entry_id, entries in (
        (Place(1, 3, 0), 2, 0, 1),
        (Place(1, 4, 0), 3, 0, 4),
        (Place(1, 2, 0), 3, 1, 7),
        (START, 2, 0, 4),
    ):
        loss = gap_before(T, expected, ledger_id, entry_id, facts)
        assert loss is not None
        assert loss.entries == entries


@pytest.mark.parametrize("lost", [[(1, 0)], [(1, 2), (1, 3), (2, 0)], [(3, 3)], [(2, 1), (3, 0)]])
def test_an_entry_that_is_lost_is_a_loss_and_not_waited_for(lost: list[tuple[int, int]]) -> None:
    """A task waited for ``pollTimeoutMs`` and failed, whatever ``failOnDataLoss`` said."""
    case = Case()
    case.log.lost = set(lost)
    ledger_id, entry_id = lost[0]
    with pytest.raises(DataLossError, match=f"{T}: entry {ledger_id}:{entry_id} is lost: no repli"):
        case.read(fatal=True)
    case.reports = LossReports(fatal=False)
    missing = [4 * (ledger_id - 1) + entry_id for ledger_id, entry_id in lost]
    assert case.read() == [number for number in range(12) if number not in missing]
    assert case.reports.losses == case.reports.messages == len(lost)


def test_an_entry_that_may_come_back_is_waited_for() -> None:
    case = Case()
    case.log.lost, case.log.lost_for_good = {(2, 1)}, False
    with pytest.raises(BrokerError, match=r"nothing after 2:1:0 came .*no replica has it sound"):
        case.read()
    entries = entries_of(cast(BrokerClient, case.cluster), case.part, LossReports(fatal=True))
    for _ in range(5):
        next(entries)
    case.log.lost.clear()
    assert len(list(entries)) == 7


@pytest.mark.parametrize("hidden", [[(1, 0)], [(1, 1), (1, 2)], [(1, 3), (2, 0)], [(3, 2), (3, 3)]])
def test_what_nobody_gets_is_not_missing(hidden: list[tuple[int, int]]) -> None:
    """What transactions aborted was told as a loss."""
    case = Case()
    case.log.hidden = set(hidden)
    gone = [4 * (ledger_id - 1) + entry_id for ledger_id, entry_id in hidden]
    assert case.read(fatal=True) == [number for number in range(12) if number not in gone]
    client = cast(BrokerClient, case.cluster)
    numbered = list(entries_of(client, case.part, LossReports(fatal=True)))
    assert [offset for _, offset in numbered] == [n for n in range(12) if n not in gone]


def test_what_a_transaction_may_still_commit_is_waited_for() -> None:
    case = Case()
    case.log.hidden, case.log.undecided = {(3, 2), (3, 3)}, True
    with pytest.raises(BrokerError, match="nothing after 3:2:0 came"):
        case.read()


def test_what_is_trimmed_behind_what_nobody_gets_is_a_loss() -> None:
    case = Case()
    case.log.hidden = {(1, 2), (1, 3)}
    case.after(2, lambda: case.log.trim(2))
    assert case.read() == [0, 1, 8, 9, 10, 11]
    assert case.reports.messages == 6
