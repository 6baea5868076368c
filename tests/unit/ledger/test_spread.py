"""Racks, zones, weights and space: properties of the choice, against a search of everything."""

from __future__ import annotations

import random
from collections import Counter
from itertools import permutations

import pytest

from magnetar.ledger.placing.placement import (
    NOWHERE,
    BookieTraits,
    Placement,
    choose_ensemble,
    choose_replacements,
)
from magnetar.ledger.placing.spread import spread_of
from magnetar.model.errors import NotEnoughBookiesError
from magnetar.model.ids import BookieId


def bookies(count: int) -> list[BookieId]:
    return [BookieId(f"b{i}") for i in range(count)]


def in_racks(racks: list[str], **rules: object) -> Placement:
    traits = {name: BookieTraits(rack) for name, rack in zip(bookies(99), racks, strict=False)}
    return Placement("rack", traits=traits, **rules)  # type: ignore[arg-type]


def widest(names: list[BookieId], placement: Placement, size: int, quorum: int) -> int:
    """The best spread of all arrangements."""
    domains = [placement.domain_of(name) for name in names]
    arrangements = set(permutations(domains, size))
    return max(spread_of(each, quorum) for each in arrangements)


def test_the_spread_is_the_widest_there_is() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        count = rng.randint(1, 6)
        names = bookies(count)
        placement = in_racks([f"r{rng.randint(1, 3)}" for _ in names])
        size = rng.randint(1, min(count, 5))
        quorum = rng.randint(1, size)
        ensemble = choose_ensemble(names, size, {}, rng, placement, quorum)
        assert len(set(ensemble)) == size
        spread = spread_of([placement.domain_of(b) for b in ensemble], quorum)
        assert spread == widest(names, placement, size, quorum), (seed, size, quorum)


def test_enforced_is_refused_exactly_when_it_cannot_be_had() -> None:
    refused = 0
    for seed in range(400):
        rng = random.Random(seed)
        names = bookies(rng.randint(2, 6))
        racks = [f"r{rng.randint(1, 3)}" for _ in names]
        placement = in_racks(racks, enforced=True, domains_least=rng.randint(1, 3))
        size = rng.randint(1, min(len(names), 4))
        quorum = rng.randint(1, size)
        possible = widest(names, placement, size, quorum) >= placement.needed(quorum)
        try:
            ensemble = choose_ensemble(names, size, {}, rng, placement, quorum)
        except NotEnoughBookiesError:
            refused += 1
            assert not possible
        else:
            assert possible
            domains = [placement.domain_of(b) for b in ensemble]
            assert spread_of(domains, quorum) >= placement.needed(quorum)
    assert refused > 20


def test_the_error_of_a_narrow_cluster_names_everybody() -> None:
    names = bookies(4)
    placement = in_racks(["r1", "r1", "r1", "r2"], enforced=True)
    with pytest.raises(NotEnoughBookiesError) as told:
        choose_ensemble(names, 3, {names[3]: "connection lost"}, random.Random(1), placement, 2)
    text = str(told.value)
    assert "no ensemble of 3 has 2 racks in every write set of 2" in text
    assert "r1: b0, b1, b2; b3: connection lost" in text


def test_racks_of_different_zones_are_different_and_the_unknown_are_one() -> None:
    a, b, c, d = bookies(4)
    traits = {a: BookieTraits("r1", "z1"), b: BookieTraits("r1", "z2"), c: BookieTraits("", "z2")}
    by_rack, by_zone = Placement("rack", traits=traits), Placement("zone", traits=traits)
    assert by_rack.domain_of(a) != by_rack.domain_of(b)
    assert by_zone.domain_of(b) == by_zone.domain_of(c)
    assert by_rack.domain_of(c) == by_rack.domain_of(d) == by_zone.domain_of(d) == NOWHERE


def test_a_replacement_keeps_the_spread_if_it_can() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        names = bookies(9)
        placement = in_racks([f"r{i % 3}" for i in range(9)])
        size = rng.choice((3, 4, 5))
        quorum = rng.randint(2, 3)
        ensemble = list(choose_ensemble(names, size, {}, rng, placement, quorum))
        before = spread_of([placement.domain_of(b) for b in ensemble], quorum)
        slot = rng.randrange(size)
        spare = [b for b in names if b not in ensemble]
        found = choose_replacements(ensemble, [slot], names, {}, rng, placement, quorum)
        same = [b for b in spare if placement.domain_of(b) == placement.domain_of(ensemble[slot])]
        assert set(found) == {slot}
        ensemble[slot] = found[slot]
        after = spread_of([placement.domain_of(b) for b in ensemble], quorum)
        if same:
            assert after >= before


def test_an_enforced_replacement_is_rather_waited_for() -> None:
    names = bookies(4)
    placement = in_racks(["r1", "r2", "r1", "r1"], enforced=True)
    ensemble = [names[0], names[1]]
    assert choose_replacements(ensemble, [1], names, {}, random.Random(1), placement, 2) == {}
    lenient = in_racks(["r1", "r2", "r1", "r1"])
    assert set(choose_replacements(ensemble, [1], names, {}, random.Random(1), lenient, 2)) == {1}


def test_more_free_space_is_chosen_more_often() -> None:
    names = bookies(3)
    traits = {
        name: BookieTraits(free_bytes=free)
        for name, free in zip(names, (100, 200, 700), strict=True)
    }
    placement = Placement(weighted=True, traits=traits)
    rng = random.Random(1)
    counts = Counter(choose_ensemble(names, 1, {}, rng, placement)[0] for _ in range(10_000))
    for name, share in zip(names, (0.1, 0.2, 0.7), strict=True):
        assert abs(counts[name] / 10_000 - share) < 0.03


def test_a_bookie_of_unknown_space_is_an_average_one() -> None:
    a, b, c = bookies(3)
    traits = {a: BookieTraits(free_bytes=100), b: BookieTraits(free_bytes=300)}
    placement = Placement(weighted=True, traits=traits)
    rng = random.Random(1)
    counts = Counter(choose_ensemble([a, b, c], 1, {}, rng, placement)[0] for _ in range(6000))
    assert abs(counts[c] / 6000 - 1 / 3) < 0.03


def test_nearly_full_bookies_are_passed_over_and_named() -> None:
    a, b, c = bookies(3)
    traits = {a: BookieTraits(free_bytes=10), b: BookieTraits(free_bytes=1000)}
    placement = Placement(free_bytes_least=500, traits=traits)
    for seed in range(20):
        assert a not in choose_ensemble([a, b, c], 2, {}, random.Random(seed), placement)
        assert choose_replacements([b], [0], [a, b, c], {}, random.Random(seed), placement) == {
            0: c
        }
    with pytest.raises(NotEnoughBookiesError, match="b0: 10 bytes free, fewer than"):
        choose_ensemble([a, b, c], 3, {}, random.Random(1), placement)


def test_a_large_cluster_is_arranged_at_once() -> None:
    names = bookies(600)
    placement = in_racks(["r0"] * 40 + [f"r{i % 40}" for i in range(40, 99)])
    ensemble = choose_ensemble(names, 9, {}, random.Random(1), placement, 5)
    assert spread_of([placement.domain_of(b) for b in ensemble], 5) == 5
