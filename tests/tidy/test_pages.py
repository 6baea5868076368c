"""Pages made from the code say what the code says; ``make pages`` mends them."""

from __future__ import annotations

import pytest

from tests.tidy import pages
from tests.tidy.source_tree import modules

STALE = "is not what the code says: python -m tests.tidy.pages"


def test_architecture_is_true() -> None:
    text = pages.ARCHITECTURE.read_text(encoding="utf-8")
    assert text == pages.architecture(modules(), text), f"ARCHITECTURE.md {STALE}"


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


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_every_module_says_what_it_is(module: pages.Module) -> None:
    assert len(pages.first_sentence(module)) > 10
