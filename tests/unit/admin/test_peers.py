"""Requests about topics of several owners: what is asked of whom, and what its answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from magnetar.admin.lent_stats import _ask
from magnetar.admin.peers import (
    NoPeers,
    PeerAnswer,
    PeerError,
    PeerRequest,
    Peers,
    about_topic,
    read_answer,
    subscription_path,
)
from magnetar.admin.stats_views import TopicStatsView
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import (
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)


class Scripted:
    """Answers as it is told; ``asked`` is what it was asked."""

    def __init__(self, answer: PeerAnswer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, Mapping[str, str], object]] = []

    async def ask(
        self, method: str, url: str, query: Mapping[str, str], body: object
    ) -> PeerAnswer:
        self.asked.append((method, url, query, body))
        return self.answer


def test_a_topic_is_asked_about_at_its_owner() -> None:
    transport = Scripted(PeerAnswer(200, {"x": 1}))
    request = about_topic(
        "DELETE", parse_topic("a/b/c d"), subscription_path("s/1"), {"force": "true"}, [1]
    )
    assert asyncio.run(Peers(transport).ask("http://o:1", request)) == {"x": 1}
    assert transport.asked == [
        (
            "DELETE",
            "http://o:1/admin/v2/persistent/a/b/c%20d/subscription/s%252F1",
            {"authoritative": "true", "force": "true"},
            [1],
        )
    ]


@pytest.mark.parametrize(
    ("status", "path", "error"),
    [
        (404, "/topic", TopicNotFoundError),
        (404, "/topic/subscription/s", SubscriptionNotFoundError),
        (409, "/topic", NotAllowedError),
        (503, "/topic", ServiceNotReadyError),
        (500, "/topic", PeerError),
        (307, "/topic", PeerError),
    ],
)
def test_what_a_refusal_stands_for(status: int, path: str, error: type[MagnetarError]) -> None:
    for body, said in (({"reason": "because"}, "because"), (None, f"answered with {status}")):
        peers = Peers(Scripted(PeerAnswer(status, body)))
        with pytest.raises(error, match=said):
            asyncio.run(peers.ask("http://o:1", PeerRequest("GET", path)))


def test_one_broker_asks_nobody() -> None:
    with pytest.raises(PeerError, match="no other broker"):
        asyncio.run(Peers(NoPeers()).ask("http://o:1", PeerRequest("GET", "/x")))


@pytest.mark.parametrize("body", [None, [], {"msgRateIn": "fast"}])
def test_stats_of_another_release_are_an_error_of_that_broker(body: object) -> None:
    """Whoever asked was told of an internal error; partitions that grew got no subscriptions."""
    with pytest.raises(PeerError, match="http://o:1 answers what cannot be read here"):
        read_answer(TopicStatsView, body, "http://o:1")


@pytest.mark.parametrize("body", [None, [], {"s": None}, {"s": {"consumers": 3}}])
def test_read_only_brokers_of_another_release_do_not_hide_a_topic_s_stats(body: object) -> None:
    peers = Peers(Scripted(PeerAnswer(200, body)))
    report = BrokerReport("r1", 1, "pulsar://r", "http://r:1", read_only=True)
    assert asyncio.run(_ask(parse_topic("t"), peers, report)) == {}
