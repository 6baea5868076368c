"""Limits on the command line: how many producers, consumers, ... there may be; 0: any number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class _Limit(NamedTuple):
    """``part``: the last of a namespace's path; ``topic_part``: of a topic's, if it is another;
    empty: none."""

    option: str
    part: str
    what: str
    topic_part: str


_LIMITS: Final = (
    _Limit("--max-producers", "maxProducersPerTopic", "Producers of a topic.", "maxProducers"),
    _Limit("--max-consumers", "maxConsumersPerTopic", "Consumers of a topic.", "maxConsumers"),
    _Limit(
        "--max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "Consumers of a subscription.",
        "maxConsumersPerSubscription",
    ),
    _Limit(
        "--max-subscriptions",
        "maxSubscriptionsPerTopic",
        "Subscriptions of a topic.",
        "maxSubscriptionsPerTopic",
    ),
    _Limit(
        "--max-unacked-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "Messages that a consumer of a shared subscription has and has not acknowledged.",
        "maxUnackedMessagesOnConsumer",
    ),
    _Limit(
        "--max-unacked-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "... that all its consumers have.",
        "maxUnackedMessagesOnSubscription",
    ),
)
MAX_TOPICS: Final = "maxTopicsPerNamespace"
MAX_MESSAGE: Final = "maxMessageSize"
LIMIT_PARTS: Final = tuple(each.part for each in _LIMITS)
"""Of paths, at both levels."""
OTHER_AT_TOPICS: Final = {
    each.part: each.topic_part for each in _LIMITS if each.part != each.topic_part
}


def limit_options(command: F) -> F:
    """Of ``set``, at both levels."""
    for each in reversed(_LIMITS):
        command = click.option(
            each.option, each.part, type=click.IntRange(min=0), help=f"{each.what} 0: any number."
        )(command)
    return command


def limit_bodies(said: Mapping[str, Any]) -> dict[str, int]:
    """By the last part of a namespace's paths."""
    return {part: said[part] for part in LIMIT_PARTS if said[part] is not None}
