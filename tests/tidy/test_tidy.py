"""The structure that ARCHITECTURE.md states, held by reading the code.

Each check has a counterpart in ``test_tidy_checks.py`` that shows it fail on a planted fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.tidy import rules
from tests.tidy.source_tree import Module


def test_the_tree_was_read(source: Sequence[Module]) -> None:
    assert len(source) > 40


@pytest.mark.parametrize("rule", rules.ALL, ids=lambda rule: rule.__name__)
def test_rule(rule: rules.Rule, source: Sequence[Module]) -> None:
    faults = rule(source)
    assert not faults, "\n".join(faults)


def test_every_deciding_module_exists(source: Sequence[Module]) -> None:
    names = {module.name for module in source}
    assert not set(rules.DECIDING) - names


@pytest.mark.parametrize("package", rules.LAYERS)
def test_every_part_of_a_layer_exists(package: str, source: Sequence[Module]) -> None:
    names = [module.name for module in source if module.name.startswith(f"{package}.")]
    parts = {rules.part_of(package, name) for name in names}
    assert not {part for layer in rules.LAYERS[package] for part in layer} - parts
