"""Addresses of ZooKeeper ensembles."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.env.metadata_stores.zookeeper_url import (
    ZooKeeperAddress,
    parse_zookeeper_url,
    unresolved,
)
from magnetar.model.errors import ConfigError, MetadataUnavailableError


@pytest.mark.parametrize(
    ("url", "hosts", "root"),
    [
        ("zk://127.0.0.1:2181/magnetar", "127.0.0.1:2181", "/magnetar"),
        ("zk://a:1,b:2,c/x/y/", "a:1,b:2,c:2181", "/x/y"),
        ("zk://host:2181", "host:2181", ""),
        ("zk://host:2181/", "host:2181", ""),
        ("zk://[::1]:2181,[::2]/r", "[::1]:2181,[::2]:2181", "/r"),
    ],
)
def test_addresses(url: str, hosts: str, root: str) -> None:
    address = parse_zookeeper_url(url)
    assert address == ZooKeeperAddress(hosts, root)
    assert parse_zookeeper_url(address.url) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "zk:",
        "zk://",
        "zk:///root",
        "http://host:2181/root",
        "zk://host:port/root",
        "zk://host:0/root",
        "zk://host:65536/root",
        "zk://a:1,,b:2/root",
        "zk://::1:2181/root",
        "zk://host:2181/a//b",
        "zk://host:2181/../b",
        "zk://a..b:2181/root",
        "zk://a b:2181/root",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match=r"expected zk://HOST:PORT\[,HOST:PORT\.\.\.\]/ROOT"):
        parse_zookeeper_url(url)


def test_names_without_an_address_are_told() -> None:
    """A misspelt one looked like a server that does not answer."""
    assert unresolved("127.0.0.1:2181,[::1]:2181,localhost:2181") == []
    assert unresolved("no-such-host.invalid:2181,127.0.0.1:2181") == ["no-such-host.invalid"]


def test_a_store_whose_name_has_no_address_says_so() -> None:
    url = "zk://no-such-host.invalid:2181"
    opening = ZooKeeperMetadataStore.open(url, operation_timeout_ms=200)
    with pytest.raises(MetadataUnavailableError, match=r"no address of no-such-host\.invalid"):
        asyncio.run(opening)
