"""Rules of the policy ``readOnlyBrokers`` as they are written at the command line: words of one
line, each ``FIELD=VALUE``. What they mean, and whether they can be meant, the server says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from magnetar.model.errors import ConfigError

FIELDS: Final = ("subscription", "type", "to")
PROPERTY: Final = "property"
EXAMPLE: Final = "subscription=report-* property=team=red to=zone:eu"


def rules_body(texts: Sequence[str]) -> dict[str, Any]:
    """The policy's body, of one rule a text. Raises ``ConfigError``."""
    return {"rules": [_rule(text) for text in texts]}


def _rule(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _no_rule(text, str(error)) from None
    for word in words:
        field, equals, value = word.partition("=")
        if not equals or not value:
            raise _no_rule(text, f"{word!r} is not FIELD=VALUE")
        if field == PROPERTY:
            name, equals, value = value.partition("=")
            if not equals:
                raise _no_rule(text, f"{word!r} is not {PROPERTY}=NAME=VALUE")
            found.setdefault("properties", {})[name] = value
        elif field in FIELDS and field not in found:
            found[field] = value
        else:
            raise _no_rule(text, f"{field!r} is no field of a rule, or there twice")
    if "to" not in found:
        raise _no_rule(text, "it does not say where to")
    return found


def _no_rule(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"--read-from {text!r} cannot be used: {why}; accepted: subscription=PATTERN type=TYPE "
        f"property=NAME=VALUE to=any|zone:NAME|brokers:ID,ID|owner, for example {EXAMPLE!r}"
    )


def rule_text(rule: Mapping[str, Any]) -> str:
    """As it is written, but for quotes."""
    words = [f"{name}={rule[name]}" for name in ("subscription", "type") if rule.get(name)]
    properties = rule.get("properties") or {}
    words += [f"{PROPERTY}={name}={value}" for name, value in properties.items()]
    return " ".join([*words, f"to={rule['to']}"])
