"""``pipeline.delivery``: which way rows are written, and with what."""

from __future__ import annotations

import pytest

from magnetar.model.errors import ConfigError
from magnetar.model.ledger import Quorums
from magnetar.pipeline.option_values import OptionValues
from magnetar.pipeline.options.delivery import (
    DELIVERY_OPTIONS,
    DeliveryOptions,
    Transaction,
    query_of,
)
from magnetar.pipeline.options.delivery import parse_delivery as parse_values

ZK = "zk://127.0.0.1:2181/x"


def parse_delivery(raw: dict[str, str]) -> DeliveryOptions:
    return parse_values(OptionValues({"path": "t"} | raw, DELIVERY_OPTIONS))


def test_exactly_once_is_the_default_and_needs_no_metadata_url() -> None:
    assert parse_delivery({}).exactly_once
    assert parse_delivery({}).metadata_url is None
    assert parse_delivery({"metadata.url": ZK}).metadata_url == ZK
    assert not parse_delivery({"deliveryguarantee": "at-least-once"}).exactly_once


@pytest.mark.parametrize("url", ["sqlite:/x", ""])
def test_a_metadata_url_that_tasks_cannot_use_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="takes the address of the cluster's ZooKeeper"):
        parse_delivery({"metadata.url": url})


def test_batch_writes_of_a_query_that_its_user_names() -> None:
    raw = {"txnappid": "daily", "txnversion": "7"}
    assert parse_delivery(raw).transaction == Transaction("daily", 7)
    assert parse_delivery({}).transaction is None


@pytest.mark.parametrize(
    "raw",
    [
        {"txnappid": "daily"},
        {"txnversion": "7"},
        {"txnappid": "daily", "txnversion": "7", "deliveryguarantee": "at-least-once"},
    ],
)
def test_half_a_name_of_a_batch_is_refused(raw: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="give both"):
        parse_delivery(raw)


def test_a_name_that_no_query_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"option 'txnAppId': .* cannot name a query"):
        parse_delivery({"txnappid": "a:b", "txnversion": "7"})


def test_each_topic_has_batches_of_its_own() -> None:
    daily = Transaction("daily", 7)
    names = {query_of(daily, topic) for topic in ("persistent://public/default/t", "u", None)}
    assert len(names) == 3
    assert all(name.startswith("txn-daily-") for name in names)


def test_commits_wait_as_they_are_told() -> None:
    assert parse_delivery({}).wait_taken_in is None
    assert parse_delivery({"commitwait": "decided"}).wait_taken_in is False
    assert parse_delivery({"commitwait": "taken-in"}).wait_taken_in is True


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"deliveryguarantee": "twice"}, "takes exactly-once or at-least-once, not"),
        ({"committimeoutms": "0"}, "'commitTimeoutMs' takes a whole number from 1"),
        ({"ensemblesize": "1", "writequorum": "2"}, "cannot be used together"),
        ({"batchingtype": "big"}, "takes default or key"),
        ({"commitwait": "x"}, "takes decided or taken-in"),
    ],
)
def test_refusals_name_the_option(raw: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_delivery(raw)


def test_what_is_given() -> None:
    raw = {"commitWait": "taken-in", "ensembleSize": "3", "batchingType": "key",
           "batchingMaxBytes": "1m"}  # fmt: skip
    found = parse_delivery(raw)
    assert (found.wait_taken_in, found.by_key, found.batching_bytes_max) == (True, True, 1 << 20)
    assert found.quorums == Quorums(3, 3, 2)
    assert parse_delivery({}).quorums is None
