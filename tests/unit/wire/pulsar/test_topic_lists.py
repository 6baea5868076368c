"""``wire.pulsar.topic_lists``."""

from __future__ import annotations

import pytest

from magnetar.model.errors import InvalidTopicNameError
from magnetar.wire.pulsar.topic_lists import topics_hash, without_domain


@pytest.mark.parametrize(
    ("names", "said"),
    [
        # What Java's TopicList.calculateHash 4.0.8 says of them.
        ([], "00000000"),
        (["persistent://public/default/a"], "e4a876e3"),
        (
            ["persistent://public/default/a", "persistent://public/default/b-partition-0"],
            "abd2b52b",
        ),
        (["persistent://public/default/\u00e9"], "835dc00f"),
    ],
)
def test_hashes_are_those_of_javas_client(names: list[str], said: str) -> None:
    assert topics_hash(names) == said


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("public/default/a.*", "public/default/a.*"),
        ("persistent://public/default/a.*", "public/default/a.*"),
        ("non-persistent://public/default/a.*", "public/default/a.*"),
        ("(persistent://public/default/a|b)", "(public/default/a|b)"),
        ("(non-persistent://public/default/a|b)", "(public/default/a|b)"),
    ],
)
def test_expressions_are_for_names_without_a_domain(text: str, left: str) -> None:
    assert without_domain(text) == left


@pytest.mark.parametrize("text", ["kafka://a/b/c", "://a", "persistent://a/b/(persistent://c)"])
def test_other_domains_are_refused(text: str) -> None:
    with pytest.raises(InvalidTopicNameError, match="domain"):
        without_domain(text)
