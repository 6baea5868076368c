"""Limits of rates on the command line: ``1000`` (messages a second), ``10MiB`` (bytes a second),
``1000,10MiB``, ``1000,relative``, or ``unlimited``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import click

from magnetar.cli.limits import NO_LIMIT
from magnetar.cli.options import with_options
from magnetar.cluster.policies.rate_values import SUBSCRIBE_PERIOD_S
from magnetar.config_loading import BYTE_UNITS, whole_number
from magnetar.model.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

TO_EACH: Final = "subscriptionDispatchRate"
RATE_PARTS: Final = ("publishRate", "dispatchRate", TO_EACH, "subscribeRate")
"""Of paths."""
UNLIMITED: Final = "unlimited"
RELATIVE: Final = "relative"


class _Rate(NamedTuple):
    messages: int = NO_LIMIT
    byte_count: int = NO_LIMIT
    relative: bool = False


def rate_options(command: F) -> F:
    """Of ``set``, at both levels."""
    return with_options(
        command,
        (
            click.option(
                "--publish-rate",
                metavar="RATE",
                help="How fast a topic takes messages of its producers, who wait for the rest: "
                "1000 (messages a second), 10MiB (bytes a second), 1000,10MiB, unlimited.",
            ),
            click.option(
                "--dispatch-rate",
                metavar="RATE",
                help="How fast a topic gives messages to its consumers, as above; with ,relative "
                "beside those that are published meanwhile.",
            ),
            click.option(
                "--subscription-dispatch-rate",
                metavar="RATE",
                help="How fast each subscription gets messages, as above.",
            ),
            click.option(
                "--subscribe-rate",
                metavar="TIMES",
                help="How often a consumer may subscribe to a topic in 30 s; unlimited.",
            ),
        ),
    )


def rate_bodies(said: Mapping[str, Any]) -> dict[str, Any]:
    """By the last part of their paths. Raises ``ConfigError``."""
    found: dict[str, Any] = {}
    if said["publish_rate"] is not None:
        rate = _rate("--publish-rate", said["publish_rate"])
        if rate.relative:
            raise ConfigError("--publish-rate: relative is for rates of dispatch")
        found["publishRate"] = {
            "publishThrottlingRateInMsg": rate.messages,
            "publishThrottlingRateInByte": rate.byte_count,
        }
    for name, part in (
        ("dispatch_rate", "dispatchRate"),
        ("subscription_dispatch_rate", TO_EACH),
    ):
        if said[name] is not None:
            rate = _rate("--" + name.replace("_", "-"), said[name])
            found[part] = {
                "dispatchThrottlingRateInMsg": rate.messages,
                "dispatchThrottlingRateInByte": rate.byte_count,
                "ratePeriodInSecond": 1,
                "relativeToPublishRate": rate.relative,
            }
    if said["subscribe_rate"] is not None:
        text = said["subscribe_rate"]
        rate = _rate("--subscribe-rate", text)
        if rate.relative or rate.byte_count != NO_LIMIT:
            raise ConfigError(f"--subscribe-rate {text!r} is no number of times")
        found["subscribeRate"] = {
            "subscribeThrottlingRatePerConsumer": rate.messages,
            "ratePeriodInSecond": SUBSCRIBE_PERIOD_S,
        }
    return found


def _rate(option: str, text: str) -> _Rate:
    found = _Rate()
    if text == UNLIMITED:
        return found
    for word in text.split(","):
        value = None if word == RELATIVE else whole_number(word, BYTE_UNITS)
        if word == RELATIVE:
            found = found._replace(relative=True)
        elif value is None or value <= 0:
            raise ConfigError(
                f"{option} {text!r} cannot be used; accepted: a number of messages, bytes with a "
                "unit (KiB, MiB, GiB), both with a comma between, or unlimited"
            )
        elif word.isdigit():
            found = found._replace(messages=value)
        else:
            found = found._replace(byte_count=value)
    return found
