"""What a recovery concludes from answers."""

from __future__ import annotations

from itertools import permutations

import pytest

from magnetar.ledger.recovering.recovery_plan import (
    Decision,
    EntryVote,
    LacCoverage,
    RecoveryScan,
    VotingWindow,
    runs_of,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata


@pytest.mark.parametrize(
    ("quorums", "answered", "covered"),
    [
        ((3, 3, 2), [0], False),
        ((3, 3, 2), [0, 2], True),
        ((3, 3, 3), [1], True),
        ((3, 3, 1), [0, 1], False),
        ((3, 3, 1), [0, 1, 2], True),
        ((1, 1, 1), [0], True),
        ((3, 2, 2), [0], False),  # the write set of slots 1 and 2 has not answered
        ((3, 2, 2), [0, 1], True),
        ((4, 2, 2), [0, 2], True),
        ((4, 2, 2), [0, 1], False),
        ((5, 3, 2), [0, 1, 3], False),
        ((5, 3, 2), [0, 1, 3, 4], True),
        ((5, 3, 2), [0, 2, 4], False),
    ],
)
def test_coverage_is_per_write_set(
    quorums: tuple[int, int, int], answered: list[int], covered: bool
) -> None:
    coverage = LacCoverage(*quorums)
    for slot in answered:
        coverage.answered(slot, slot)
    assert coverage.covered is covered
    assert coverage.possible
    assert coverage.last_add_confirmed == max(answered)


def test_coverage_that_cannot_be_reached_any_more() -> None:
    coverage = LacCoverage(3, 3, 2)
    coverage.unknown(0)
    assert coverage.possible
    coverage.unknown(1)
    assert not coverage.possible
    coverage.answered(2, 9)
    assert not coverage.covered


def test_the_start_is_never_before_the_last_fragment() -> None:
    coverage = LacCoverage(3, 3, 2)
    coverage.answered(0)
    coverage.answered(1)
    assert coverage.start_after(0) == -1
    assert coverage.start_after(12) == 11
    coverage.answered(2, 30)
    assert coverage.start_after(12) == 30


def cast(vote: EntryVote[str], answers: str) -> Decision:
    for answer in answers:
        if answer == "+":
            vote.found("copy")
        elif answer == "-":
            vote.negative()
        else:
            vote.unknown()
    return vote.decision


@pytest.mark.parametrize(
    ("quorums", "answers", "decision"),
    [
        ((3, 2), "+", Decision.FOUND),
        ((3, 2), "-+", Decision.FOUND),
        ((3, 2), "-", Decision.PENDING),
        ((3, 2), "--", Decision.ABSENT),
        ((3, 2), "--+", Decision.ABSENT),  # decided before; it cannot be acknowledged any more
        ((3, 2), "-?", Decision.PENDING),
        ((3, 2), "-??", Decision.UNKNOWN),
        ((3, 2), "???", Decision.UNKNOWN),
        ((3, 2), "??+", Decision.FOUND),
        ((3, 3), "-", Decision.ABSENT),
        ((3, 1), "--?", Decision.UNKNOWN),
        ((3, 1), "---", Decision.ABSENT),
        ((1, 1), "?", Decision.UNKNOWN),
        ((1, 1), "-", Decision.ABSENT),
    ],
)
def test_votes(quorums: tuple[int, int], answers: str, decision: Decision) -> None:
    assert cast(EntryVote(*quorums), answers) is decision


def test_an_acknowledged_entry_is_never_voted_absent() -> None:
    """Whoever holds it and whoever is unreachable: copies on Qa bookies outvote the rest."""
    for write_quorum, ack_quorum in ((1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (5, 3)):
        for unreachable in range(ack_quorum + 1):
            answers = "+" * (ack_quorum - unreachable) + "?" * unreachable
            answers += "-" * (write_quorum - ack_quorum)
            for order in set(permutations(answers)):
                vote: EntryVote[str] = EntryVote(write_quorum, ack_quorum)
                assert cast(vote, "".join(order)) is not Decision.ABSENT


def voted(decision: Decision, copy: str = "") -> EntryVote[str]:
    vote: EntryVote[str] = EntryVote(1, 1)
    if decision is Decision.FOUND:
        vote.found(copy)
    elif decision is Decision.ABSENT:
        vote.negative()
    else:
        vote.unknown()
    return vote


def test_a_scan_takes_turns_in_order_and_ends_at_the_first_absent_entry() -> None:
    scan: RecoveryScan[str] = RecoveryScan(9)
    assert scan.next_entry_id == 10
    pending, beyond = EntryVote[str](1, 1), voted(Decision.FOUND, "beyond the hole")
    first, second = voted(Decision.FOUND, "a"), voted(Decision.FOUND, "b")
    assert scan.decided([pending, second]) == []
    assert scan.decided([pending, second, pending, beyond]) == []
    assert scan.decided([first, second, pending, beyond]) == ["a", "b"]
    assert not scan.finished
    assert scan.decided([voted(Decision.ABSENT), beyond]) == []
    assert scan.end == 11
    assert scan.finished
    assert scan.decided([voted(Decision.UNKNOWN)]) == []
    assert scan.blocked_at is None


def test_a_scan_stops_at_an_entry_of_unknown_fate() -> None:
    scan: RecoveryScan[str] = RecoveryScan(-1)
    unknown = voted(Decision.UNKNOWN)
    assert scan.decided([EntryVote(1, 1), unknown]) == []
    assert not scan.finished  # an absent entry before it would still end the ledger
    assert scan.decided([voted(Decision.FOUND, "a"), unknown]) == ["a"]
    assert scan.blocked_at == 1
    assert scan.end is None


def test_a_window_hands_over_what_is_decided_in_a_row() -> None:
    scan: RecoveryScan[str] = RecoveryScan(3)
    window = VotingWindow(scan, 4, 3, 2)
    assert window.entry_ids == range(4, 8)
    window.vote(5).found("b")
    assert window.take_turns() == []
    assert window.first_pending(range(5, 8)) == 6
    window.vote(4).found("a")
    assert window.take_turns() == ["a", "b"]
    assert window.take_turns() == []
    window.vote(6).found("c")
    window.vote(7).found("d")
    assert window.first_pending(range(4, 8)) == 8
    assert not window.finished
    assert window.take_turns() == ["c", "d"]
    assert window.finished
    assert scan.next_entry_id == 8
    assert scan.end is None


@pytest.mark.parametrize(("answers", "end", "blocked_at"), [("--", 4, None), ("???", None, 5)])
def test_a_window_ends_with_the_scan(answers: str, end: int | None, blocked_at: int | None) -> None:
    scan: RecoveryScan[str] = RecoveryScan(3)
    window = VotingWindow(scan, 9, 3, 2)
    for entry_id in (4, 6):
        window.vote(entry_id).found("copy")
    cast(window.vote(5), answers)
    assert window.take_turns() == ["copy"]
    assert window.finished
    assert (scan.end, scan.blocked_at) == (end, blocked_at)
    assert window.take_turns() == []


def metadata_of(size: int, write_quorum: int) -> LedgerMetadata:
    bookies = tuple(BookieId(f"b{i}") for i in range(size))
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        digest_type=DigestType.CRC32C,
        password=b"",
        fragments=(Fragment(0, bookies),),
    )


def test_a_bookie_is_asked_for_runs_of_what_it_was_to_get() -> None:
    assert runs_of(metadata_of(3, 3), range(5, 9)) == {
        BookieId(f"b{i}"): [range(5, 9)] for i in range(3)
    }
    striped = runs_of(metadata_of(3, 2), range(5, 10))  # of 5 the bookies are b2 and b0
    assert striped == {
        BookieId("b2"): [range(5, 6), range(7, 9)],
        BookieId("b0"): [range(5, 7), range(8, 10)],
        BookieId("b1"): [range(6, 8), range(9, 10)],
    }
