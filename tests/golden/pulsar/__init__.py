"""Frames that the official client sent, as ``capture.py`` wrote them down."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Every captured frame, as ``CLIENT-VERSION/NAME``."""
    return sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.hex"))


def frame(name: str) -> bytes:
    """A whole frame, total size included; ``name`` is one of ``names()``."""
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text())
