"""Every file or folder that a document names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.source_tree import SOURCE

ROOT = SOURCE.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PLACES = (ROOT, SOURCE, SOURCE / "magnetar", ROOT / "docs")

NAMED = re.compile(r"`([a-z_*][\w*]*(?:/[\w*.-]+)*/?)`")
ELSEWHERE = ("current/", "index/", "out/")
"""Folders of a running system or of others."""


def named(text: str) -> list[str]:
    """The paths in back quotes that look like ours: they end in ``/``, ``.py`` or ``.md``."""
    found = [name for name in NAMED.findall(text) if name.endswith((".py", ".md", "/"))]
    return [name for name in found if not name.startswith(ELSEWHERE)]


def is_there(name: str, document: Path) -> bool:
    pattern = name.rstrip("/")
    places = (*PLACES, document.parent, *(SOURCE / "magnetar").iterdir())
    return any(any(place.glob(pattern)) for place in places if place.is_dir()) or (
        "/" not in pattern and any(SOURCE.rglob(pattern))
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_files_are_there(document: Path) -> None:
    names = named(document.read_text(encoding="utf-8"))
    assert not [name for name in names if not is_there(name, document)]


def test_a_file_that_is_gone_would_be_found() -> None:
    assert named("see `broker/gone.py` and `env/`") == ["broker/gone.py", "env/"]
    assert not is_there("broker/gone.py", ROOT / "README.md")
    assert is_there("env/network/framed.py", ROOT / "README.md")
