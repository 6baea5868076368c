"""Limits of rates as policies say them, in Pulsar's fields. Pure.

A number of 0 or -1 sets no limit. What a body leaves out is -1, and a period is the one that
Pulsar's clients take if nobody names another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from magnetar.cluster.policies.policy_values import (
    BYTES_MAX,
    NUMBER_MAX,
    as_flag,
    as_number,
    as_object,
    as_text,
    no_more,
)
from magnetar.model.errors import InvalidPolicyError

NO_LIMIT: Final = -1
PERIOD: Final = "ratePeriodInSecond"
SUBSCRIBE_PERIOD_S: Final = 30
NAMED_MAX: Final = 256
"""Subscriptions of one topic that have a rate of their own: they share a node with other topics."""
NAME_CHARACTERS_MAX: Final = 512
OF_SUBSCRIPTION: Final = "dispatchRate"
"""What is said of a subscription, by Pulsar's name."""


def _amount(said: dict[str, object], name: str, most: int = NUMBER_MAX) -> int:
    value = said.pop(name, None)
    return NO_LIMIT if value is None else as_number(name, value, NO_LIMIT, most)


def _period_s(said: dict[str, object], default: int) -> int:
    value = said.pop(PERIOD, None)
    return default if value is None else as_number(PERIOD, value, 1)


@dataclass(frozen=True, slots=True)
class PublishRate:
    """Of a topic, a second."""

    messages: int = NO_LIMIT
    byte_count: int = NO_LIMIT

    @classmethod
    def decode(cls, value: object) -> PublishRate:
        said = as_object("publish rate", value)
        made = cls(
            _amount(said, "publishThrottlingRateInMsg"),
            _amount(said, "publishThrottlingRateInByte", BYTES_MAX),
        )
        no_more("publish rate", said)
        return made

    def encode(self) -> dict[str, object]:
        return {
            "publishThrottlingRateInMsg": self.messages,
            "publishThrottlingRateInByte": self.byte_count,
        }


@dataclass(frozen=True, slots=True)
class DispatchRate:
    """In ``period_s``, of a topic or of a subscription. ``relative``: beside what is published."""

    messages: int = NO_LIMIT
    byte_count: int = NO_LIMIT
    period_s: int = 1
    relative: bool = False

    @classmethod
    def decode(cls, value: object) -> DispatchRate:
        said = as_object("dispatch rate", value)
        made = cls(
            _amount(said, "dispatchThrottlingRateInMsg"),
            _amount(said, "dispatchThrottlingRateInByte", BYTES_MAX),
            _period_s(said, 1),
            as_flag("relativeToPublishRate", said.pop("relativeToPublishRate", None) or False),
        )
        no_more("dispatch rate", said)
        return made

    def encode(self) -> dict[str, object]:
        return {
            "dispatchThrottlingRateInMsg": self.messages,
            "dispatchThrottlingRateInByte": self.byte_count,
            PERIOD: self.period_s,
            "relativeToPublishRate": self.relative,
        }


@dataclass(frozen=True, slots=True)
class SubscribeRate:
    """How often one consumer may subscribe in ``period_s``."""

    times: int = NO_LIMIT
    period_s: int = SUBSCRIBE_PERIOD_S

    @classmethod
    def decode(cls, value: object) -> SubscribeRate:
        said = as_object("subscribe rate", value)
        made = cls(
            _amount(said, "subscribeThrottlingRatePerConsumer"),
            _period_s(said, SUBSCRIBE_PERIOD_S),
        )
        no_more("subscribe rate", said)
        return made

    def encode(self) -> dict[str, object]:
        return {"subscribeThrottlingRatePerConsumer": self.times, PERIOD: self.period_s}


@dataclass(frozen=True, slots=True)
class SubscriptionRates:
    """Of single subscriptions of a topic, which count before what is said of each. ``rates``: name
    of the subscription -> its rate."""

    rates: tuple[tuple[str, DispatchRate], ...] = ()

    @classmethod
    def decode(cls, value: object) -> SubscriptionRates:
        """Of Pulsar's object: ``{subscription: {"dispatchRate": {...}}}``."""
        said = as_object("rates of subscriptions", value)
        if len(said) > NAMED_MAX:
            raise InvalidPolicyError(
                f"{len(said)} subscriptions of one topic are to have rates of their own; "
                f"{NAMED_MAX} may; say subscriptionDispatchRate of all that have the same"
            )
        return cls(tuple(_of_subscription(name, said[name]) for name in sorted(said)))

    def encode(self) -> dict[str, object]:
        return {name: {OF_SUBSCRIPTION: rate.encode()} for name, rate in self.rates}

    def of(self, name: str) -> DispatchRate | None:
        """None: nothing is said of it."""
        return dict(self.rates).get(name)

    def with_rate(self, name: str, rate: DispatchRate | None) -> SubscriptionRates | None:
        """With that one for the subscription; None: nothing is left."""
        rates = {each: theirs for each, theirs in self.rates if each != name}
        if rate is not None:
            rates[name] = rate
        return SubscriptionRates(tuple(sorted(rates.items()))) if rates else None


def _of_subscription(name: str, value: Any) -> tuple[str, DispatchRate]:
    as_text("subscription", name, NAME_CHARACTERS_MAX)
    said = as_object(f"subscription {name[:80]}", value)
    rate = DispatchRate.decode(said.pop(OF_SUBSCRIPTION, None))
    no_more(f"subscription {name[:80]}", said)
    return name, rate
