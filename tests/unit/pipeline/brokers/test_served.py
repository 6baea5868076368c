"""A broker that served staged writes a moment ago is not asked again."""

from __future__ import annotations

import pytest

from magnetar.model.errors import BrokerError, NotAllowedError
from magnetar.pipeline.brokers.served import FIRST_S, KNOWN_S, Served


def test_what_was_seen_holds_for_a_moment() -> None:
    asked: list[str] = []
    now_s = [0.0]
    served = Served(lambda url, _timeout_s: asked.append(url), lambda: now_s[0])
    for now_s[0] in (0.0, KNOWN_S - 1, KNOWN_S, KNOWN_S + 1):
        served.check("a", 1.0)
    served.check("b", 1.0)
    assert asked == ["a", "a", "b"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s


class Cluster:
    """``until_s``: till then nobody answers."""

    def __init__(self, error: BrokerError) -> None:
        self.clock = Clock()
        self.error = error
        self.until_s = 1e9
        self.served = Served(self.ask, lambda: self.clock.now_s, self.clock.sleep)

    def ask(self, url: str, _timeout_s: float) -> None:
        if self.clock.now_s < self.until_s:
            raise self.error


def test_who_was_never_seen_and_does_not_answer_is_told_soon() -> None:
    cluster = Cluster(BrokerError("nobody at a"))
    for timeout_s in (1.0, 100.0):
        begun_s = cluster.clock.now_s
        with pytest.raises(BrokerError, match="nobody at a"):
            cluster.served.check("a", timeout_s)
        assert cluster.clock.now_s - begun_s <= min(timeout_s, FIRST_S)


def test_a_broker_that_restarts_is_waited_for() -> None:
    """A micro-batch that was planned just then ended the query."""
    cluster = Cluster(BrokerError("nobody at a"))
    cluster.until_s = FIRST_S / 2
    cluster.served.check("a", 100.0)
    cluster.clock.now_s = 1000.0
    cluster.until_s = 1050.0
    cluster.served.check("a", 100.0)
    assert 1050.0 <= cluster.clock.now_s < 1051.0


def test_who_refuses_is_not_asked_again() -> None:
    cluster = Cluster(NotAllowedError("it does not serve staged writes"))
    with pytest.raises(NotAllowedError):
        cluster.served.check("a", 100.0)
    assert cluster.clock.now_s == 0.0
