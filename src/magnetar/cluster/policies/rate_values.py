"""Limits of rates as policies say them, in Pulsar's fields. Pure.

A number of 0 or -1 sets no limit. What a body leaves out is -1, and a period is the one that
Pulsar's clients take if nobody names another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.cluster.policies.policy_values import (
    BYTES_MAX,
    NUMBER_MAX,
    as_flag,
    as_number,
    as_object,
    no_more,
)

NO_LIMIT: Final = -1
PERIOD: Final = "ratePeriodInSecond"
SUBSCRIBE_PERIOD_S: Final = 30


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
