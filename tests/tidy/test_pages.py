"""Pages made from the code say what the code says; ``make pages`` mends them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.tidy import pages
from tests.tidy.source_tree import Module

STALE = "is not what the code says: python -m tests.tidy.pages"


def test_architecture_is_true(source: Sequence[Module]) -> None:
    text = pages.ARCHITECTURE.read_text(encoding="utf-8")
    assert text == pages.architecture(source, text), f"ARCHITECTURE.md {STALE}"


def test_architecture_is_read_in_one_sitting() -> None:
    assert len(pages.ARCHITECTURE.read_text(encoding="utf-8").splitlines()) <= 300


def test_the_page_of_layers_is_true(source: Sequence[Module]) -> None:
    text = pages.LAYERS.read_text(encoding="utf-8")
    assert text == pages.layers(source), f"layers.md {STALE}"


def test_the_page_of_machines_is_true() -> None:
    assert pages.MACHINES.read_text(encoding="utf-8") == pages.machines(), f"machines.md {STALE}"


def test_the_index_of_decisions_is_true() -> None:
    text = pages.DECISION_INDEX.read_text(encoding="utf-8")
    assert text == pages.decision_index(), f"docs/adr/README.md {STALE}"


@pytest.mark.parametrize("path", sorted(pages.DECISIONS.glob("[0-9]*.md")), ids=lambda p: p.name)
def test_every_decision_is_named_by_the_code_that_it_shaped(path: pages.Path) -> None:
    number = pages.head_of_decision(path)[0]
    assert pages.users(number), f"no code names ADR {number}: link it, or fold it into its module"


def test_decisions_have_numbers_of_their_own() -> None:
    numbers = [path.name[:4] for path in pages.DECISIONS.glob("[0-9]*.md")]
    assert len(numbers) == len(set(numbers)) > 40


def test_every_module_says_what_it_is(source: Sequence[Module]) -> None:
    assert not [module.name for module in source if len(pages.first_sentence(module)) <= 10]
