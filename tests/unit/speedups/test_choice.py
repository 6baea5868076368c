"""Which twin is in use, who says so, and what happens where it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar import speedups


def _module(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    def import_module(name: str) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(speedups, "import_module", import_module)


@pytest.mark.parametrize("wanted", ["", "1", "require"])
def test_what_is_built_is_used(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    _module(monkeypatch, SimpleNamespace(INTERFACE=speedups.INTERFACE))
    assert speedups._choose(wanted) == (True, "native (magnetar._speedups)")


def test_python_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _module(monkeypatch, SimpleNamespace(INTERFACE=speedups.INTERFACE))
    assert speedups._choose("0") == (False, "pure Python (MAGNETAR_SPEEDUPS=0)")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (ImportError("no module of that name"), "no module of that name"),
        (SimpleNamespace(INTERFACE=speedups.INTERFACE - 1), "it was built from other sources"),
    ],
)
def test_what_cannot_be_used(monkeypatch: pytest.MonkeyPatch, found: Any, problem: str) -> None:
    """Python takes its place, unless it is required."""
    _module(monkeypatch, found)
    native, told = speedups._choose("")
    assert not native
    assert problem in told
    with pytest.raises(ImportError, match=problem):
        speedups._choose("require")


@pytest.mark.parametrize("wanted", ["0", ""])
def test_the_configuration_says_which(wanted: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "magnetar", "config"],
        env={**os.environ, "MAGNETAR_SPEEDUPS": wanted},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    expected = "pure Python" if wanted == "0" else speedups._choose("")[1]
    assert f"inner loops: {expected}" in run.stderr
