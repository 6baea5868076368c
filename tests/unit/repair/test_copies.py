"""Which copies are missing, by what bookies hold."""

from __future__ import annotations

import random

import pytest

from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.repair.copies import (
    Cause,
    Findings,
    Need,
    Part,
    Standing,
    all_own,
    is_own,
    joined,
    needs_by_standing,
    open_lacks,
    own_runs,
    parts_of,
    without,
)
from magnetar.wire.bookie.availability import condense, held_runs

B = tuple(BookieId(f"b{i}") for i in range(1, 7))


def ledger(*firsts: int, last: int | None = None, quorums: tuple[int, int, int] = (3, 3, 2)):  # type: ignore[no-untyped-def]
    size, write_quorum, ack_quorum = quorums
    metadata = LedgerMetadata(
        LedgerId(1), size, write_quorum, ack_quorum, DigestType.CRC32C, b"",
        tuple(Fragment(first, B[i : i + size]) for i, first in enumerate(firsts)),
    )  # fmt: skip
    return metadata if last is None else metadata.with_close(last, 0)


def test_the_last_fragment_of_an_open_ledger_is_not_final() -> None:
    assert [part.entry_ids for part in parts_of(ledger(0, 10))] == [range(10)]
    assert parts_of(ledger(0)) == []
    assert [part.entry_ids for part in parts_of(ledger(0, 10, last=14))] == [
        range(10),
        range(10, 15),
    ]


def test_a_closed_ledger_without_entries_has_a_part_without_entries() -> None:
    """Its bookies are named, so one that is lost must be replaced."""
    (part,) = parts_of(ledger(0, last=-1))
    assert not part.entry_ids
    standings = dict.fromkeys(B, Standing.SERVING) | {B[1]: Standing.LOST}
    assert needs_by_standing(part, 3, standings) == [Need(1, B[1], Cause.LOST, ())]


@pytest.mark.parametrize("quorums", [(3, 3), (3, 2), (5, 3), (4, 1), (2, 2), (1, 1)], ids=str)
def test_own_runs_are_the_write_sets(quorums: tuple[int, int]) -> None:
    size, write_quorum = quorums
    metadata = LedgerMetadata(
        LedgerId(1), size, write_quorum, 1, DigestType.CRC32C, b"",
        (Fragment(0, B[:size]), Fragment(7, B[:size])), LedgerState.CLOSED, 40,
    )  # fmt: skip
    for part in parts_of(metadata):
        for window in (part.entry_ids, range(9, 23), range(3), range(38, 90)):
            for slot in range(size):
                runs = list(own_runs(part, slot, write_quorum, window))
                found = [entry for run in runs for entry in run]
                within = [e for e in part.entry_ids if e in window]
                expected = [e for e in within if B[slot] in metadata.write_set(e)]
                assert found == expected, (part, slot, window)
                assert expected == [e for e in within if is_own(part, slot, write_quorum, e)]
        for slot in range(size):
            covered = all_own(part, slot, write_quorum)
            needed = [e for e in part.entry_ids if B[slot] in metadata.write_set(e)]
            assert all(any(entry in one for one in covered) for entry in needed)


def test_without_and_held_runs_agree_with_sets() -> None:
    rng = random.Random(5)
    for _ in range(300):
        held = sorted(rng.sample(range(60), rng.randrange(40)))
        groups = condense(held)
        start = rng.randrange(50)
        window = range(start, start + rng.randrange(30))
        runs = held_runs(groups, window)
        assert [e for run in runs for e in run] == [e for e in held if e in window]
        size = rng.choice((2, 3, 5))
        part = Part(Fragment(0, B[:size]), range(60))
        own = list(own_runs(part, 1, rng.randint(1, size), window))
        missing = without(own, runs)
        assert [e for run in missing for e in run] == [
            e for run in own for e in run if e not in held
        ]


def test_striped_holes_are_joined_over_what_is_others() -> None:
    assert joined([range(2), range(5, 7), range(10, 12)], gap=3) == (range(12),)
    assert joined([range(2), range(6, 7)], gap=3) == (range(2), range(6, 7))


def test_an_open_fragment_lacks_who_is_lost_or_leaving_but_not_who_is_away() -> None:
    standings = dict.fromkeys(B, Standing.SERVING)
    assert open_lacks(ledger(0), standings) == ()
    standings |= {B[0]: Standing.LOST, B[1]: Standing.LEAVING, B[2]: Standing.AWAY}
    assert open_lacks(ledger(0), standings) == (B[0], B[1])
    assert open_lacks(ledger(0, last=3), standings) == ()


def test_whole_is_nothing_missing_nothing_unknown_and_nothing_open() -> None:
    assert Findings().whole
    need = Need(0, B[0], Cause.LACKING, (range(1),))
    assert not Findings(needs={0: [need]}).whole
    assert not Findings(unknown={B[0]: "silent"}).whole
    assert not Findings(open_lacks=[B[0]]).whole
    assert Findings(needs={0: [need]}, open_lacks=[B[1]]).bookies == (B[0], B[1])
