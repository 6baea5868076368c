"""A thousand producers of one topic come back at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.reconnecting_producers import measure


@pytest.mark.slow
def test_a_thousand_producers_come_back_and_store_nothing_twice(tmp_path: Path) -> None:
    """After their connections broke, and after ``kill -9``; ``measure`` asserts the places.

    The bound is a generous multiple of what it takes (half a second), and a small part of what
    reading the end of the log once per producer took.
    """
    figures = measure(tmp_path)
    assert figures["entries"] == 20_000
    for case in ("connections broke", "killed"):
        assert figures[case]["answered_s"] < 30  # type: ignore[index]
