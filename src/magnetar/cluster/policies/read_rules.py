"""Which subscriptions read-only brokers serve, and which of them: the policy's rules, and what they
say of one consumer. Pure.

A rule names what it is about, and where that goes:

| field | what |
|---|---|
| ``subscription`` | a pattern of its name: ``*`` any characters, ``?`` one; the whole name |
| ``type`` | ``Exclusive``, ``Shared``, ``Failover``, ``Key_Shared`` |
| ``properties`` | of the consumer, each with its value |
| ``to`` | ``any``; ``zone:NAME``; ``brokers:ID,ID``; ``owner`` |

What a rule leaves open fits everything. The first rule that fits counts; where none does the owner
of the topic serves the subscription, as without any. ``owner`` is an exception from later rules.

Why: docs/adr/0093-consumers-are-sent-to-read-only-brokers.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any, Final, NamedTuple

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.policies.policy_values import as_list, as_object, as_text, no_more
from magnetar.model.errors import InvalidPolicyError

RULES_MAX: Final = 100
PATTERN_CHARACTERS_MAX: Final = 512
STARS_MAX: Final = 16
"""A match takes as many steps as there are characters in pattern and name multiplied, at most."""
PROPERTIES_MAX: Final = 16
NAME_CHARACTERS_MAX: Final = 256
BROKERS_MAX: Final = 100
TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
ANY: Final = "any"
OWNER: Final = "owner"
ZONE: Final = "zone:"
BROKERS: Final = "brokers:"


class Asked(NamedTuple):
    """A consumer as rules see it. ``type``: one of ``TYPES``."""

    subscription: str
    type: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a rule sends to: any read-only broker, unless a zone or brokers (by their ids) are
    named, or ``owner`` is set."""

    zone: str = ""
    brokers: tuple[str, ...] = ()
    owner: bool = False

    @classmethod
    def decode(cls, value: object) -> Target:
        text = as_text("to", value, BROKERS_MAX * NAME_CHARACTERS_MAX)
        if text == ANY:
            return cls()
        if text == OWNER:
            return cls(owner=True)
        if text.startswith(ZONE):
            return cls(zone=as_text("to: the zone", text[len(ZONE) :], NAME_CHARACTERS_MAX))
        if text.startswith(BROKERS):
            names = as_list("to: brokers", text[len(BROKERS) :].split(","), BROKERS_MAX)
            return cls(
                brokers=tuple(as_text("to: a broker", name, NAME_CHARACTERS_MAX) for name in names)
            )
        raise InvalidPolicyError(
            f"to: {text[:80]!r} cannot be used; accepted: {ANY}, {ZONE}NAME, {BROKERS}ID,ID "
            f"(ids as `magnetar brokers list` shows them), {OWNER}"
        )

    def encode(self) -> str:
        if self.owner:
            return OWNER
        if self.zone:
            return ZONE + self.zone
        return BROKERS + ",".join(self.brokers) if self.brokers else ANY

    def takes(self, report: BrokerReport) -> bool:
        """Whether that read-only broker is meant."""
        if self.brokers:
            return report.broker_id in self.brokers
        return not self.zone or report.zone == self.zone


@dataclass(frozen=True, slots=True)
class ReadRule:
    """One rule. Empty: fits all."""

    target: Target
    subscription: str = ""
    type: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Brackets mean nothing here. The translation is anchored, and backs up over no star.
        pattern = re.compile(translate((self.subscription or "*").replace("[", "[[]")))
        object.__setattr__(self, "_pattern", pattern)

    @classmethod
    def decode(cls, value: object) -> ReadRule:
        said = as_object("a rule", value)
        target = Target.decode(said.pop("to", None))
        subscription = said.pop("subscription", None)
        if subscription is not None:
            _check_pattern(subscription)
        kind = said.pop("type", None)
        if kind is not None and kind not in TYPES:
            raise InvalidPolicyError(
                f"type: {str(kind)[:80]!r} cannot be used; accepted: {', '.join(TYPES)}"
            )
        properties = _properties(said.pop("properties", None))
        no_more("a rule", said)
        return cls(target, subscription or "", kind or "", properties)

    def encode(self) -> dict[str, object]:
        said: dict[str, object] = {}
        if self.subscription:
            said["subscription"] = self.subscription
        if self.type:
            said["type"] = self.type
        if self.properties:
            said["properties"] = dict(self.properties)
        return {**said, "to": self.target.encode()}

    def fits(self, asked: Asked) -> bool:
        return (
            (not self.type or self.type == asked.type)
            and all(asked.properties.get(name) == value for name, value in self.properties)
            and self._pattern.match(asked.subscription) is not None
        )


@dataclass(frozen=True, slots=True)
class ReadRules:
    """The policy: rules in the order in which they are looked at. None of them: the owner serves
    everything, whatever a wider policy says."""

    rules: tuple[ReadRule, ...] = ()

    @classmethod
    def decode(cls, value: object) -> ReadRules:
        said = as_object("read-only brokers", value)
        rules = as_list("rules", said.pop("rules", None), RULES_MAX)
        no_more("read-only brokers", said)
        made = []
        for number, rule in enumerate(rules, 1):
            try:
                made.append(ReadRule.decode(rule))
            except InvalidPolicyError as error:
                raise InvalidPolicyError(f"rule {number}: {error}") from None
        return cls(tuple(made))

    def encode(self) -> dict[str, object]:
        return {"rules": [rule.encode() for rule in self.rules]}

    def target(self, asked: Asked) -> Target:
        """What the first rule that fits says; the owner if none does."""
        found = next((rule.target for rule in self.rules if rule.fits(asked)), None)
        return Target(owner=True) if found is None else found


NO_RULES: Final = ReadRules()


def _check_pattern(value: object) -> None:
    pattern = as_text("subscription", value, PATTERN_CHARACTERS_MAX)
    if pattern.count("*") > STARS_MAX:
        raise InvalidPolicyError(
            f"subscription: {pattern[:80]!r} has more than {STARS_MAX} stars, the most accepted"
        )


def _properties(value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    said: dict[str, Any] = as_object("properties", value)
    if len(said) > PROPERTIES_MAX:
        raise InvalidPolicyError(
            f"properties: {len(said)} of them; a rule may name {PROPERTIES_MAX} at most"
        )
    return tuple(
        (
            as_text("properties: a name", name, NAME_CHARACTERS_MAX),
            as_text(f"properties: {name[:80]}", said[name], NAME_CHARACTERS_MAX),
        )
        for name in sorted(said)
    )
