"""Kafka's names of topics."""

from __future__ import annotations

import pytest

from magnetar.model.errors import InvalidTopicNameError
from magnetar.protocols.kafka.names import check_new, kafka_name, topic_of


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("t", "persistent://public/default/t"),
        ("a.b_c-1", "persistent://public/default/a.b_c-1"),
        ("x/y/t", "persistent://x/y/t"),
    ],
)
def test_names_both_ways(name: str, topic: str) -> None:
    assert str(topic_of(name)) == topic
    assert kafka_name(topic_of(name)) == name
    assert kafka_name(topic_of(name).of_partition(3)) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b/c", "a b", "ä", "x" * 250, "t-partition-0"])
def test_what_kafka_may_not_make(name: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        check_new(name)
