from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cluster.topic_name import parse_namespace, parse_topic, partition_of, topic_of_log
from magnetar.env.metadata_stores.metadata_paths import check_path
from magnetar.log.managed.records import cursor_path
from magnetar.model.errors import InvalidTopicNameError, MagnetarError, NotAllowedError


@pytest.mark.parametrize("text", ["t", "public/default/t", "persistent://public/default/t"])
def test_short_and_long_names_are_the_same(text: str) -> None:
    name = parse_topic(text)
    assert str(name) == "persistent://public/default/t"
    assert name.namespace == "public/default"
    assert name.log_name == "public/default/persistent/t"
    assert name.partition == -1


def test_partitions() -> None:
    name = parse_topic("a/b/t-partition-12")
    assert name.partition == 12
    assert name.partitioned == parse_topic("a/b/t")
    assert parse_topic("a/b/t").of_partition(12) == name
    assert parse_topic("t").partitioned == parse_topic("t")


@pytest.mark.parametrize(
    ("local", "index"),
    [
        ("t-partition-0", 0),
        ("t-partition-01", -1),
        ("t-partition-", -1),
        ("t-partition-x", -1),
        ("-partition-3", -1),
        ("t-partition-3-x", -1),
        ("t-partition-1-partition-2", 2),
    ],
)
def test_what_is_a_partition(local: str, index: int) -> None:
    assert partition_of(local) == index


@pytest.mark.parametrize(
    "text",
    [
        "", "a/b", "persistent://a/b", "persistent://a/b/", "persistent://a//c", "a/b/c/d",
        "persistent://a/b/c/d", "x://a/b/c", "persistent://a b/c/d", "a/b/c\x00", "t" * 2000,
        ".", "..", "a/b/..", "./b/c", "a/../c", "t\x85", "a/b/line\nbreak", "é" * 513,
    ],
)  # fmt: skip
def test_bad_names(text: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        parse_topic(text)


def test_other_domains() -> None:
    with pytest.raises(NotAllowedError, match="non-persistent"):
        parse_topic("non-persistent://public/default/t")


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        name = parse_topic(text)
    except MagnetarError:
        return
    assert parse_topic(str(name)) == name
    assert topic_of_log(name.log_name) == name
    assert name.log_name.count("/") == 3


def test_the_longest_names_make_paths_that_the_metadata_store_takes() -> None:
    longest = parse_topic("é" * 512)
    check_path(cursor_path(longest.log_name, "\U0001f6eb" * 512))


def test_namespaces() -> None:
    assert parse_namespace("a/b") == "a/b"
    for bad in ("a", "a/b/c", "/b", "a/", "a/b c", "a/..", "./b", "a/" + "b" * 2000):
        with pytest.raises(InvalidTopicNameError):
            parse_namespace(bad)
