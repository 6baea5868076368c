"""What producers' sequence ids say of a log."""

from __future__ import annotations

from magnetar.pipeline.jobs.sequences import (
    RUNS_MAX,
    EntryAt,
    EntryHead,
    IdRun,
    IdRuns,
    judge,
    steps_of,
)


def runs_of(
    *entries: tuple[str, int, int, int], later: frozenset[int] = frozenset()
) -> list[IdRun]:
    """``entries``: producer, first and last sequence id, publish time; one entry each."""
    found = IdRuns()
    for number, (producer, first, last, time_ms) in enumerate(entries):
        head = EntryHead(producer, first, last, last - first + 1, number in later, time_ms, -1)
        found.add(head, EntryAt(7, number))
    assert not found.untidy
    return found.all()


def told(*entries: tuple[str, int, int, int]) -> list[tuple[str, str, int, int, str]]:
    judged = judge(runs_of(*entries))
    return [(each.fault, each.producer, each.first, each.last, str(each.at)) for each in
            judged.oddities]  # fmt: skip


def test_neighbours_of_several_producers_are_one_run_each() -> None:
    found = runs_of(("a", 0, 9, 1), ("b", 5, 5, 1), ("a", 10, 10, 2), ("b", 6, 8, 2))
    assert [(run.producer, run.first, run.last, run.last_at.entry_id) for run in found] == [
        ("a", 0, 10, 2),
        ("b", 5, 8, 3),
    ]
    judged = judge(found)
    assert (judged.oddities, judged.producers, judged.begun_anew) == ([], 2, 0)


def test_a_gap_is_told_with_the_ids_that_are_not_there() -> None:
    assert told(("a", 0, 4, 1), ("a", 7, 9, 2), ("b", 0, 0, 1)) == [("gap", "a", 5, 6, "7:1")]


def test_a_message_that_is_in_the_log_twice() -> None:
    assert told(("a", 0, 4, 1), ("a", 5, 9, 2), ("a", 5, 9, 2), ("a", 10, 11, 3)) == [
        ("duplicate", "a", 5, 9, "7:2")
    ]
    # A part of a batch as well, and what follows it is none.
    assert told(("a", 0, 4, 1), ("a", 3, 6, 2)) == [("duplicate", "a", 3, 4, "7:1")]


def test_what_comes_late_into_a_gap_is_out_of_order_and_no_duplicate() -> None:
    found = told(("a", 0, 0, 1), ("a", 5, 5, 2), ("a", 2, 3, 3), ("a", 3, 3, 4), ("a", 6, 6, 5))
    assert found == [
        ("gap", "a", 1, 4, "7:1"),
        ("order", "a", 2, 3, "7:2"),
        ("duplicate", "a", 3, 3, "7:3"),
    ]


def test_a_producer_that_begins_anew_is_no_duplicate() -> None:
    judged = judge(runs_of(("a", 0, 4, 10), ("a", 0, 2, 11), ("a", 3, 3, 12)))
    assert (judged.oddities, judged.begun_anew) == ([], 1)
    # A client sends again what it sent before: with the publish time of the first time.
    judged = judge(runs_of(("a", 0, 4, 10), ("a", 0, 4, 10)))
    assert [each.fault for each in judged.oddities] == ["duplicate"]


def test_the_chunks_of_a_large_message_have_one_id() -> None:
    found = runs_of(("a", 3, 3, 1), ("a", 3, 3, 1), ("a", 4, 4, 2), later=frozenset({1}))
    assert len(found) == 1
    assert judge(found).oddities == []


def test_runs_of_one_log_that_were_found_apart() -> None:
    first, second = runs_of(("a", 0, 4, 1)), runs_of(("a", 5, 9, 2))
    assert judge([*first, *second]).oddities == []
    assert [each.fault for each in judge([*second, *first]).oddities] == ["order"]


def test_a_producer_without_a_rule_is_bounded_and_named() -> None:
    runs = IdRuns()
    for number in range(RUNS_MAX + 10):
        runs.add(EntryHead("random", number * 7, number * 7, 1, False, 1, -1), EntryAt(1, number))
    assert list(runs.untidy) == ["random"]
    assert runs.all() == []


# -- logs that are read in pieces -------------------------------------------------------------


def pieces_of(*pieces: list[tuple[int, int, bool]]) -> list[IdRun]:
    """``pieces``: sequence id, publish time, and whether it is a later chunk; of one producer."""
    found: list[IdRun] = []
    for number, piece in enumerate(pieces):
        runs = IdRuns()
        for entry, (first, time_ms, later) in enumerate(piece):
            runs.add(EntryHead("a", first, first, 1, later, time_ms, -1), EntryAt(number, entry))
        found += runs.all()
    return found


def test_a_large_message_that_lies_in_two_pieces_is_one() -> None:
    border = pieces_of([(4, 1, False), (5, 2, False)], [(5, 2, True), (5, 2, True), (6, 3, False)])
    assert judge(border).oddities == []
    first = pieces_of([(0, 1, False)], [(0, 2, True), (1, 2, False)])
    assert (judge(first).oddities, judge(first).begun_anew) == ([], 0)


def test_a_large_message_that_is_sent_again_is_a_duplicate() -> None:
    again = pieces_of([(5, 2, False), (5, 2, True)], [(5, 2, False), (5, 2, True), (6, 3, False)])
    assert [(each.fault, each.first, each.last) for each in judge(again).oddities] == [
        ("duplicate", 5, 5)
    ]


def test_ids_that_go_back_are_told_of_a_producer_with_too_many_runs() -> None:
    """All messages twice were so many runs that nothing was said of any."""
    runs, rising = IdRuns(), IdRuns()
    for number in range(RUNS_MAX + 10):
        for time in range(2):
            head = EntryHead("a", 2 * number, 2 * number, 1, False, number, -1)
            runs.add(head, EntryAt(1, 2 * number + time))
        rising.add(EntryHead("a", 2 * number, 2 * number, 1, False, 1, -1), EntryAt(1, number))
    assert runs.untidy["a"].back == RUNS_MAX + 10
    assert rising.untidy["a"].back == 0
    (last,) = pieces_of([(3, 1, False)])
    assert steps_of([rising.untidy["a"], last]).back == 1
    assert steps_of([last, rising.untidy["a"]]).back == 1


def test_one_that_begins_anew_often_does_not_go_back() -> None:
    runs = IdRuns()
    for number in range(RUNS_MAX + 10):
        runs.add(EntryHead("cron", 0, 0, 1, False, number, -1), EntryAt(1, number))
    assert runs.untidy["cron"].back == 0


# -- batches that say their first id only -----------------------------------------------------


def batches_of(*batches: tuple[int, int], pieces: int = 1) -> list[IdRun]:
    """``batches``: first id, and how many messages; of one producer, in so many pieces."""
    found: list[IdRun] = []
    size = -(-len(batches) // pieces)
    for begin in range(0, len(batches), size):
        runs = IdRuns()
        for entry, (first, count) in enumerate(batches[begin : begin + size]):
            may_last = first + count - 1 if count > 1 else -1
            head = EntryHead("a", first, first, count, False, 1, -1, may_last)
            runs.add(head, EntryAt(begin, entry))
        found += runs.all()
    return found


def test_batches_are_numbered_or_their_messages_are() -> None:
    """Of Go's clients and of jobs on Spark batches are: all but the first were duplicates."""
    for pieces in (1, 2, 4):
        for batches in (
            [(0, 1000), (1, 1000), (2, 1000), (3, 7)],
            [(0, 10), (10, 10), (20, 10), (30, 1)],
            [(0, 1), (1, 1), (2, 10), (12, 3)],
        ):
            assert judge(batches_of(*batches, pieces=pieces)).oddities == [], (pieces, batches)


def test_what_is_odd_about_batches_is_told() -> None:
    def oddities(*batches: tuple[int, int]) -> list[tuple[str, int, int]]:
        judged = judge(batches_of(*batches))
        return [(each.fault, each.first, each.last) for each in judged.oddities]

    assert oddities((0, 9), (1, 9), (3, 9)) == [("gap", 2, 2)]
    assert oddities((0, 9), (1, 9), (1, 9), (2, 9)) == [("duplicate", 1, 1)]
    assert oddities((0, 10), (10, 10), (30, 10)) == [("gap", 20, 29)]
    assert oddities((0, 10), (10, 10), (10, 10), (20, 10)) == [("duplicate", 10, 19)]
    assert oddities((0, 10), (0, 10)) == [("duplicate", 0, 0)]
