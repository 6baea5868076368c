"""Which Pythons are served is said in several places, and is the same in all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLASSIFIER = "Programming Language :: Python :: "


def test_the_same_pythons_are_served_everywhere() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = [
        each.removeprefix(CLASSIFIER)
        for each in about["project"]["classifiers"]
        if each.startswith(CLASSIFIER)
    ]
    assert versions[0] == about["project"]["requires-python"].removeprefix(">=")
    built = about["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{each.replace('.', '')}-manylinux_*" for each in versions]
    tried = re.search(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert tried is not None
    assert tried[1].split() == versions[1:], "make test has the first"
    found = re.search(
        r"for name in \$\{PYTHON:-python3 (.*)\}", (ROOT / "scripts/setup.sh").read_text()
    )
    assert found is not None
    assert found[1].split() == [f"python{each}" for each in reversed(versions)]
    assert f"Python {versions[0]} to {versions[-1]} " in (ROOT / "README.md").read_text()
