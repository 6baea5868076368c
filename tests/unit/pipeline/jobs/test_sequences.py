"""What producers' sequence ids say of a log."""

from __future__ import annotations

from magnetar.pipeline.jobs.sequences import RUNS_MAX, EntryAt, EntryHead, IdRun, IdRuns, judge


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
