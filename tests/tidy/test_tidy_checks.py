"""Each rule of the house finds a planted fault: a check that cannot fail is no check."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import rules, source_tree
from tests.tidy.source_tree import Module


def module(tmp: Path, name: str, text: str) -> Module:
    path = tmp.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return Module(path)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(source_tree, "SOURCE", tmp_path)
    return tmp_path


WIDE = "class Wide(Protocol):\n" + "".join(f"    def m{i}(self): ...\n" for i in range(11))
HEIR = (
    "class Base(Protocol):\n"
    + "".join(f"    def b{i}(self): ...\n" for i in range(6))
    + "class Heir(Base, Protocol):\n"
    + "".join(f"    async def h{i}(self): ...\n" for i in range(5))
)
LONG = "def f():\n" + "    x = 1\n" * 71

PLANTED = [
    (rules.import_table, "magnetar.model.a", "from magnetar.env import tasks\n"),
    (rules.import_table, "magnetar.bookie.a", "def f():\n    import magnetar.ledger.client\n"),
    (rules.import_table, "magnetar.newroom.a", "x = 1\n"),
    (rules.import_table, "magnetar.log.seam", "from magnetar.ledger import client\n"),
    (
        rules.topics_see_only_the_seam,
        "magnetar.topics.a",
        "from magnetar.log.managed import store\n",
    ),
    (rules.nothing_imports_the_simulator, "magnetar.model.a", "import magnetar_sim.world.loop\n"),
    (rules.no_cycle, "magnetar.model.a", "import magnetar.model.b\n"),
    (rules.no_cycle, "magnetar.model.a", "def f():\n    import magnetar.model.b\n"),
    (rules.no_cycle, "magnetar.model.a", "if TYPE_CHECKING:\n    import magnetar.model.b\n"),
    (
        rules.no_cycle_between_inner_packages,
        "magnetar.model.a.inner",
        "import magnetar.model.b.other\n",
    ),
    (rules.layers, "magnetar.topics.topic", "import magnetar.topics.registry\n"),
    (
        rules.layers,
        "magnetar.topics.consuming.consumer",
        "if TYPE_CHECKING:\n    from magnetar.topics.topic import Topic\n",
    ),
    (rules.layers, "magnetar.topics.newpart", "x = 1\n"),
    (rules.layers, "magnetar_sim.world.disk", "import magnetar_sim.cluster.cluster\n"),
    (rules.deciding_modules_are_pure, "magnetar.ledger.placing.placement", "import random\n"),
    (
        rules.deciding_modules_are_pure,
        "magnetar.ledger.placing.placement",
        "import magnetar.model.c\n",
    ),
    (rules.deciding_modules_are_pure, "magnetar.ledger.placing.placement", "async def f(): ...\n"),
    (rules.functions_are_short, "magnetar.model.a", LONG),
    (rules.seams_are_narrow, "magnetar.log.seam", WIDE),
    (rules.seams_are_narrow, "magnetar.log.seam", HEIR),
    (rules.no_module_level_mutable_state, "magnetar.model.a", "cache = {}\n"),
    (rules.no_module_level_mutable_state, "magnetar.model.a", "x = dict()\n"),
    (rules.no_module_level_mutable_state, "magnetar.model.a", "X = {}\ndef f():\n    X[1] = 2\n"),
    (rules.no_module_level_mutable_state, "magnetar.model.a", "def f():\n    global y\n"),
    (rules.one_class_one_name, "magnetar.model.a", "class Twice: ...\n"),
    (rules.no_swallowed_errors, "magnetar.model.a", "try:\n    f()\nexcept:\n    pass\n"),
]


@pytest.mark.parametrize(("rule", "name", "text"), PLANTED)
def test_a_planted_fault_is_found(tree: Path, rule: rules.Rule, name: str, text: str) -> None:
    back = module(tree, "magnetar.model.b", "import magnetar.model.a\n\nclass Twice: ...\n")
    impure = module(tree, "magnetar.model.c", "import time\n")
    assert rule([module(tree, name, text), back, impure])


@pytest.mark.parametrize("rule", rules.ALL, ids=lambda rule: rule.__name__)
def test_a_clean_module_passes(tree: Path, rule: rules.Rule) -> None:
    text = "LIMITS = (1, 2)\n\n\ndef f(x: int) -> int:\n    return x + LIMITS[0]\n"
    assert not rule([module(tree, "magnetar.model.a", text)])
