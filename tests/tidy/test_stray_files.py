"""No file without a byte lies at the root: it is what a slip of the shell or of a test left."""

from __future__ import annotations

from pathlib import Path

from tests.tidy.source_tree import SOURCE


def stray(root: Path) -> list[str]:
    files = [each for each in root.iterdir() if each.is_file()]
    return sorted(each.name for each in files if each.stat().st_size == 0)


def test_no_empty_file_lies_at_the_root() -> None:
    assert stray(SOURCE.parent) == []


def test_one_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    (tmp_path / "README.md").write_text("what it is", encoding="utf-8")
    assert stray(tmp_path) == ["x"]
