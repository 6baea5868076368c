"""``pipeline.delivery``: which way rows are written, and with what."""

from __future__ import annotations

import pytest

from magnetar.model.errors import ConfigError
from magnetar.model.ledger import Quorums
from magnetar.pipeline.delivery import DELIVERY_OPTIONS, DeliveryOptions
from magnetar.pipeline.delivery import parse_delivery as parse_values
from magnetar.pipeline.option_values import OptionValues

ZK = "zk://127.0.0.1:2181/x"


def parse_delivery(raw: dict[str, str]) -> DeliveryOptions:
    return parse_values(OptionValues({"path": "t"} | raw, DELIVERY_OPTIONS))


def test_exactly_once_when_metadata_are_known() -> None:
    assert parse_delivery({"metadata.url": ZK}).metadata_url == ZK
    assert parse_delivery({}).metadata_url is None
    raw = {"metadata.url": ZK, "deliveryguarantee": "at-least-once"}
    assert parse_delivery(raw).metadata_url is None


@pytest.mark.parametrize("url", [None, "sqlite:/x", ""])
def test_exactly_once_without_reach_is_refused(url: str | None) -> None:
    raw = {"deliveryguarantee": "exactly-once"} | ({} if url is None else {"metadata.url": url})
    with pytest.raises(ConfigError, match="needs the option 'metadata"):
        parse_delivery(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"deliveryguarantee": "twice"}, "takes at-least-once or exactly-once, not"),
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
