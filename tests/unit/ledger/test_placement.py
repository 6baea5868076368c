"""Who makes an ensemble, who replaces a failed bookie, and what the metadata then says."""

from __future__ import annotations

import random

import pytest

from magnetar.ledger.placing.placement import (
    check_space,
    choose_ensemble,
    choose_replacements,
    no_replacement,
    replaced_fragments,
    without_empty_tail,
)
from magnetar.ledger.placing.quarantine import QUARANTINE_S, Quarantine
from magnetar.model.errors import NoSpaceError, NotEnoughBookiesError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import Fragment

B = [BookieId(f"b{i}") for i in range(1, 7)]


def test_an_ensemble_names_each_bookie_once_and_nobody_excluded() -> None:
    chosen = set()
    for seed in range(50):
        ensemble = choose_ensemble(B, 3, {B[0]: "failed"}, random.Random(seed))
        assert len(set(ensemble)) == 3
        assert B[0] not in ensemble
        chosen |= set(ensemble)
    assert chosen == set(B[1:])


def test_bookies_that_lack_space_only_are_told_apart() -> None:
    full = {B[1]: "the disk of /d is full", B[2]: "the disk of /e is full"}
    with pytest.raises(NoSpaceError, match="b2: the disk of /d is full; b3: the disk of /e"):
        check_space(B[:1], 3, full)
    check_space(B[:3], 3, full)  # there are enough
    check_space(B[:1], 4, full)  # and here there would not be, with all the space in the world


def test_the_same_randomness_gives_the_same_ensemble() -> None:
    one, two = (choose_ensemble(B, 4, {}, random.Random(7)) for _ in range(2))
    assert one == two


def test_too_few_names_the_usable_and_the_excluded_with_reasons() -> None:
    with pytest.raises(NotEnoughBookiesError) as told:
        choose_ensemble(B[:3], 3, {B[1]: "disk full"}, random.Random(1))
    assert "needs 3 bookies and 2 can be used (b1: usable; b3: usable; b2: disk full)" in str(
        told.value
    )
    with pytest.raises(NotEnoughBookiesError, match="none is registered"):
        choose_ensemble([], 1, {}, random.Random(1))


def test_replacements_are_new_and_as_many_as_there_are() -> None:
    for seed in range(20):
        found = choose_replacements(B[:3], [0, 2], B, {B[5]: "failed"}, random.Random(seed))
        assert set(found) == {0, 2}
        assert sorted(found.values()) == [B[3], B[4]]
    assert choose_replacements(B[:3], [0, 1, 2], B[:4], {}, random.Random(1)) == {0: B[3]}
    assert choose_replacements(B[:3], [1], B[:3], {}, random.Random(1)) == {}


def test_no_replacement_says_who_failed_and_who_was_passed_over() -> None:
    error = no_replacement(7, B[:2], [1], B[:4], {B[1]: "refused", B[2]: "slow", B[3]: "slow"})
    assert "ledger 7: b2 (refused) failed" in str(error)
    assert "b3: slow; b4: slow" in str(error)


def test_a_change_begins_a_fragment_or_replaces_an_empty_last_one() -> None:
    first = (Fragment(0, tuple(B[:3])),)
    second = replaced_fragments(first, 5, {1: B[3]})
    assert second == (Fragment(0, (B[0], B[1], B[2])), Fragment(5, (B[0], B[3], B[2])))
    again = replaced_fragments(second, 5, {0: B[4]})
    assert again == (Fragment(0, (B[0], B[1], B[2])), Fragment(5, (B[4], B[3], B[2])))
    with pytest.raises(AssertionError):
        replaced_fragments(second, 4, {0: B[5]})


def test_fragments_after_the_end_are_left_out_of_a_closed_ledger() -> None:
    fragments = (Fragment(0, (B[0],)), Fragment(5, (B[1],)), Fragment(9, (B[2],)))
    assert without_empty_tail(fragments, 9) == fragments
    assert without_empty_tail(fragments, 8) == fragments[:2]
    assert without_empty_tail(fragments, 4) == fragments[:1]
    assert without_empty_tail(fragments, -1) == fragments[:1]


def test_quarantine_ends() -> None:
    quarantine = Quarantine()
    quarantine.failed(B[0], "disk", 10.0)
    quarantine.failed(B[1], "gone", 20.0)
    assert quarantine.reasons(20.0) == {B[0]: "disk", B[1]: "gone"}
    assert quarantine.reasons(10.0 + QUARANTINE_S) == {B[1]: "gone"}
    assert quarantine.reasons(100.0) == {}
