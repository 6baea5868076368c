"""Planted bugs stay plantable: each finds in the product what it replaces, and gives it back.

That each is found takes many runs: ``make sim-mutants``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from magnetar.cluster.sharing.bundle_nodes import BundleNodes
from tests.sim.mutants.__main__ import BEGIN, END, MUTANTS, PAGE
from tests.sim.mutants.mutant import BrokenPlantError, Mutant, replaced, search


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: f"{each.ring}: {each.name}")
def test_it_can_be_planted(mutant: Mutant) -> None:
    for _ in range(2):  # the second time: the first gave everything back
        with mutant.plant():
            pass


def test_a_plant_that_does_not_fit_finds_nothing() -> None:
    """Its own failure ended the runs of three bugs, which counted as found."""

    async def make(self: Any, bundle: object) -> bool:
        made: bool = self.name_that_the_code_had_once
        return made

    mutant = Mutant("misfit", 2, "", lambda: replaced((BundleNodes, "make", make)), 0, brokers=True)
    with pytest.raises(BrokenPlantError, match="name_that_the_code_had_once"):
        search(mutant)


def test_names_are_unique_in_a_ring() -> None:
    counts = Counter((mutant.ring, mutant.name) for mutant in MUTANTS)
    assert max(counts.values()) == 1


def test_the_page_has_a_row_for_each_and_none_that_was_not_found() -> None:
    page = PAGE.read_text()
    table = page[page.index(BEGIN) : page.index(END)]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[3:]]
    expected = [[each.name, each.known or "-", str(each.ring)] for each in MUTANTS]
    assert [row[:3] for row in rows] == expected
    assert [row for row in rows if not row[3].isdigit()] == []
