"""A broker that served staged writes a moment ago is not asked again."""

from __future__ import annotations

import pytest

from magnetar.model.errors import BrokerError
from magnetar.pipeline.brokers.served import KNOWN_S, Served


def test_what_was_seen_holds_for_a_moment() -> None:
    asked: list[str] = []
    now_s = [0.0]
    served = Served(lambda url, _timeout_s: asked.append(url), lambda: now_s[0])
    for now_s[0] in (0.0, KNOWN_S - 1, KNOWN_S, KNOWN_S + 1):
        served.check("a", 1.0)
    served.check("b", 1.0)
    assert asked == ["a", "a", "b"]


def test_who_does_not_answer_is_asked_again() -> None:
    def nobody(url: str, _timeout_s: float) -> None:
        raise BrokerError(f"nobody at {url}")

    served = Served(nobody)
    for _ in range(2):
        with pytest.raises(BrokerError, match="nobody at a"):
            served.check("a", 1.0)
