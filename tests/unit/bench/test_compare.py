"""What the rounds of a comparison say, and who goes first in them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench import compare
from bench.compare_figures import figure
from bench.compare_rows import ROWS, Costs, Sizes


def test_equal_rounds_have_no_noise() -> None:
    found = figure([10.0, 20.0, 40.0], [5.0, 10.0, 20.0])
    assert (found.before, found.after) == (20.0, 10.0)
    assert found.ratio == pytest.approx(0.5)
    assert found.noise == pytest.approx(0.0, abs=1e-9)
    assert found.verdict == "better"


def test_the_noise_is_that_of_the_rounds() -> None:
    """ln ratios -0.1, 0, 0.1: mean 0, deviation 0.1, t 4.30 for three of them."""
    found = figure([1.0] * 3, [math.exp(x) for x in (-0.1, 0.0, 0.1)])
    assert found.ratio == pytest.approx(1.0)
    assert found.noise == pytest.approx(math.exp(4.30 * 0.1 / math.sqrt(3)) - 1)
    assert (found.lowest, found.highest) == (
        pytest.approx(math.exp(-0.1)),
        pytest.approx(math.exp(0.1)),
    )
    assert found.verdict == "same"


@pytest.mark.parametrize(("part", "verdict"), [(1.3, "worse"), (1.0, "same"), (0.7, "better")])
def test_a_difference_is_one_beyond_the_noise(part: float, verdict: str) -> None:
    before = [10.0, 10.4, 9.8, 10.1, 9.9]
    after = [part * cost for cost in (9.9, 10.2, 10.1, 9.8, 10.3)]
    assert figure(before, after).verdict == verdict


def test_one_round_says_nothing_of_the_noise() -> None:
    found = figure([2.0], [4.0])
    assert math.isnan(found.noise)
    assert (found.ratio, found.verdict) == (pytest.approx(2.0), "one round")


def test_rounds_alternate_and_become_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tree goes first changes from round to round; rows that were left out stay out."""
    order: list[str] = []

    def measured(source: Path, spark: object, sizes: Sizes) -> Costs:
        assert spark is None
        order.append(source.name)
        return dict.fromkeys(ROWS[:3], 2.0 if source.name == "b" else 4.0)

    monkeypatch.setattr(compare, "measure", measured)
    costs = compare.run_rounds(Path("a"), Path("b"), 3, Sizes(quick=True), {})
    assert order == ["a", "b", "b", "a", "a", "b"]
    found = compare.figures(*costs)
    assert list(found) == list(ROWS[:3])
    text = compare.text_of(found)
    assert text.count("0.500") == 3
    assert "± 0.0 %" in text


def test_a_directory_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no checkout"):
        compare.source_of(tmp_path)
