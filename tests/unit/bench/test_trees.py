"""What runs on another tree's sources asks of them only what every tree has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bench.trees import ROOT

RUN_ON_OTHER_TREES = ("bench.compare_spark", "bench.ledger_clients", "bench.ledger_writing")
EVERY_TREE_HAS = {"magnetar.ledger", "magnetar.cli.process"}


def imports(module: str) -> set[str]:
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def all_imports(module: str) -> set[str]:
    """With those of modules of ``bench`` on the way."""
    seen: set[str] = set()
    left = [module]
    while left:
        for name in imports(left.pop()) - seen:
            seen.add(name)
            if name.startswith("bench."):
                left.append(name)
    return seen


@pytest.mark.parametrize("module", RUN_ON_OTHER_TREES)
def test_only_what_every_tree_has(module: str) -> None:
    own = {name for name in all_imports(module) if name.partition(".")[0] == "magnetar"}
    assert own <= EVERY_TREE_HAS
    assert "bench.trees" in all_imports(module), "the walk found nothing"
