"""What retention keeps, in words."""

from __future__ import annotations

import pytest

from magnetar.admin.retention import kept


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "words"),
    [
        (-1, -1, "everything, for ever"),
        (7 * 86_400_000, -1, "what is acknowledged for 7 days"),
        (-1, 10 << 30, "what is acknowledged up to 10 GiB of a topic"),
        (90_000, 1 << 20, "what is acknowledged for 90 s and up to 1 MiB of a topic"),
        (0, 0, "nothing that every subscription has acknowledged"),
        (0, -1, "nothing that every subscription has acknowledged"),
    ],
)
def test_in_words(retention_ms: int, retention_bytes: int, words: str) -> None:
    assert kept(retention_ms, retention_bytes) == words
