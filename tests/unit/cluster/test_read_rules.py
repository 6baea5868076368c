"""Which subscriptions read-only brokers serve, as the policy says it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.policies.policies import Policies, decode_policies, encode_value
from magnetar.cluster.policies.read_rules import (
    BROKERS_MAX,
    PROPERTIES_MAX,
    RULES_MAX,
    STARS_MAX,
    Asked,
    ReadRule,
    ReadRules,
    Target,
)
from magnetar.model.errors import InvalidPolicyError

TO_ANY = {"to": "any"}


def asked(subscription: str = "s", kind: str = "Shared", **properties: str) -> Asked:
    return Asked(subscription, kind, properties)


def rules(*said: dict[str, Any]) -> ReadRules:
    return ReadRules.decode({"rules": list(said)})


def fits(rule: dict[str, Any], whom: Asked) -> bool:
    return not rules({**rule, **TO_ANY}).target(whom).owner


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("report-*", "report-1", True),
        ("report-*", "report-", True),
        ("report-*", "my-report-1", False),  # the whole name
        ("report", "report-1", False),
        ("*-eu-*", "a-eu-b", True),
        ("v?", "v1", True),
        ("v?", "v12", False),
        ("[ab]", "a", False),  # brackets stand for themselves
        ("[ab]", "[ab]", True),
        ("a.c", "abc", False),
        ("Report", "report", False),
        ("*", "line\nand line", True),
        ("**", "", True),
    ],
)
def test_a_pattern_is_of_the_whole_name(pattern: str, name: str, expected: bool) -> None:
    assert fits({"subscription": pattern}, asked(name)) is expected


def test_everything_that_a_rule_names_must_fit() -> None:
    rule = {"subscription": "r*", "type": "Shared", "properties": {"team": "red", "tier": "1"}}
    assert fits(rule, asked("r", "Shared", team="red", tier="1", more="x"))
    assert not fits(rule, asked("s", "Shared", team="red", tier="1"))
    assert not fits(rule, asked("r", "Failover", team="red", tier="1"))
    assert not fits(rule, asked("r", "Shared", team="red", tier="2"))
    assert not fits(rule, asked("r", "Shared", team="red"))
    assert fits({}, asked())


def test_the_first_rule_that_fits_counts() -> None:
    made = rules(
        {"subscription": "billing", "to": "owner"},
        {"type": "Exclusive", "to": "zone:eu"},
        {"to": "brokers:a:1,b:2"},
    )
    assert made.target(asked("billing", "Exclusive")) == Target(owner=True)
    assert made.target(asked("x", "Exclusive")) == Target(zone="eu")
    assert made.target(asked("x")) == Target(brokers=("a:1", "b:2"))
    assert rules().target(asked()) == Target(owner=True)
    assert rules({"type": "Failover", "to": "any"}).target(asked()) == Target(owner=True)


def test_what_a_target_takes() -> None:
    report = BrokerReport("a:1", 1, "pulsar://a", "http://a:1", zone="eu", read_only=True)
    for text, expected in (
        ("any", True),
        ("zone:eu", True),
        ("zone:us", False),
        ("brokers:b:1", False),
        ("brokers:b:1,a:1", True),
    ):
        assert Target.decode(text).takes(report) is expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "a JSON object is expected"),
        ({}, "rules: 'None' cannot be used"),
        ({"rules": {}}, "a JSON list of 100 at most"),
        ({"rules": [{"to": "any"}] * (RULES_MAX + 1)}, "a JSON list of 100 at most"),
        ({"rules": [], "x": 1}, "x not served"),
        ({"rules": [TO_ANY, "any"]}, "rule 2: a rule: a JSON object is expected"),
        ({"rules": [{}]}, "rule 1: to: 'None'"),
        ({"rules": [{"to": "anywhere"}]}, "accepted: any, zone:NAME, brokers:ID,ID"),
        ({"rules": [{"to": "zone:"}]}, "to: the zone: ''"),
        ({"rules": [{"to": "brokers:a,,b"}]}, "to: a broker: ''"),
        ({"rules": [{"to": "brokers:" + "a," * BROKERS_MAX + "a"}]}, "list of 100"),
        ({"rules": [{"to": ["a"]}]}, "to: "),
        ({"rules": [{**TO_ANY, "subscription": ""}]}, "subscription: ''"),
        ({"rules": [{**TO_ANY, "subscription": 7}]}, "subscription: '7'"),
        ({"rules": [{**TO_ANY, "subscription": "x" * 600}]}, "1 to 512 characters"),
        ({"rules": [{**TO_ANY, "subscription": "a*" * (STARS_MAX + 1)}]}, "more than 16 stars"),
        ({"rules": [{**TO_ANY, "type": "shared"}]}, "Exclusive, Shared, Failover, Key_Shared"),
        ({"rules": [{**TO_ANY, "properties": ["a"]}]}, "properties: a JSON object"),
        ({"rules": [{**TO_ANY, "properties": {"a": 1}}]}, "properties: a: '1'"),
        ({"rules": [{**TO_ANY, "properties": {"a": "b\n"}}]}, "control character"),
        (
            {"rules": [{**TO_ANY, "properties": {str(n): "v" for n in range(PROPERTIES_MAX + 1)}}]},
            "16 at most",
        ),
        ({"rules": [{**TO_ANY, "subscriptions": "r*"}]}, "subscriptions not served"),
    ],
)
def test_what_cannot_be_meant_is_refused(body: object, words: str) -> None:
    with pytest.raises(InvalidPolicyError) as caught:
        ReadRules.decode(body)
    assert words in str(caught.value)


def test_as_a_policy_among_others() -> None:
    body = {"rules": [{"subscription": "r*", "to": "zone:eu"}]}
    found = decode_policies({"read_only_brokers": body, "other": 1})
    assert found.read_only_brokers == rules(*body["rules"])
    assert encode_value(found.read_only_brokers) == body
    # An empty list is a word: the namespace's rules do not hold for this topic.
    assert Policies(read_only_brokers=rules()).over(found).read_only_brokers == rules()


words = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=20)
targets = st.one_of(
    st.sampled_from(["any", "owner"]),
    words.map("zone:{}".format),
    st.lists(words.filter(lambda word: "," not in word), min_size=1, max_size=3).map(
        lambda names: "brokers:" + ",".join(names)
    ),
)
one_rule = st.fixed_dictionaries(
    {"to": targets},
    optional={
        "subscription": words.filter(lambda word: word.count("*") <= STARS_MAX),
        "type": st.sampled_from(["Exclusive", "Shared", "Failover"]),
        "properties": st.dictionaries(words, words, min_size=1, max_size=3),
    },
)


@given(st.lists(one_rule, max_size=4))
def test_rules_are_read_as_they_were_written(said: list[dict[str, Any]]) -> None:
    made = rules(*said)
    assert made.encode() == {"rules": said}
    assert ReadRules.decode(made.encode()) == made


@given(one_rule, words, st.sampled_from(["Exclusive", "Shared", "Failover"]))
def test_a_rule_fits_what_it_names(said: dict[str, Any], name: str, kind: str) -> None:
    rule = ReadRule.decode(said)
    subscription = said.get("subscription", name)
    whom = Asked(subscription, said.get("type", kind), said.get("properties", {}))
    assert rule.fits(whom), "a pattern fits itself"


def test_a_match_takes_no_long_time() -> None:
    rule = ReadRule(Target(), subscription="*a" * STARS_MAX)
    assert not rule.fits(asked("a" * 511 + "b"))
    assert rule.fits(asked("b" * 400 + "a" * STARS_MAX))
