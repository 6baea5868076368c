"""The structure that ARCHITECTURE.md states, held by reading the code.

Each check has a counterpart in ``test_tidy_checks.py`` that shows it fail on a planted fault.
"""

from __future__ import annotations

import pytest

from tests.tidy import rules
from tests.tidy.source_tree import modules

MODULES = modules()


def test_the_tree_was_read() -> None:
    assert len(MODULES) > 40


@pytest.mark.parametrize("rule", rules.ALL, ids=lambda rule: rule.__name__)
def test_rule(rule: rules.Rule) -> None:
    faults = rule(MODULES)
    assert not faults, "\n".join(faults)


def test_every_deciding_module_exists() -> None:
    names = {module.name for module in MODULES}
    assert not set(rules.DECIDING) - names


def test_every_part_of_a_layer_exists() -> None:
    names = [module.name.split(".") for module in MODULES if module.room == "broker"]
    parts = {name[2] for name in names if len(name) > 2}
    assert not {part for layer in rules.BROKER_LAYERS for part in layer} - parts
