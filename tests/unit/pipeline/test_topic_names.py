"""Spark's side takes for a partition what brokers do, and nothing else."""

from __future__ import annotations

import re

import pytest

from magnetar.cluster import topic_name
from magnetar.pipeline.topic_names import PARTITION_END, partition_number, partition_of, topic_of

FULL = "persistent://public/default/"


@pytest.mark.parametrize(
    "local",
    [
        "t", "t-partition-0", "t-partition-17", "t-partition-999999", "t-partition-007",
        "t-partition-", "t-partition-1x", "t-partition--1", "t-partition-\u00b2",
        "t-partition-\u0663", "t-partition-1000000", "-partition-3", "a-partition-1-partition-2",
    ],
)  # fmt: skip
def test_partitions_are_what_brokers_take_for_them(local: str) -> None:
    number = topic_name.partition_of(local)
    assert partition_number(FULL + local) == number
    topic = topic_of(FULL + local)
    assert (partition_of(topic, number) if number >= 0 else topic) == FULL + local
    assert re.sub(PARTITION_END, "", FULL + local) == topic, "as jobs have Spark do it"
