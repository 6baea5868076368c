"""Service URLs: which addresses they are, and what is none."""

from __future__ import annotations

import pytest

from magnetar.model.errors import ConfigError
from magnetar.pipeline.brokers.access import TlsAddress
from magnetar.pipeline.brokers.connection import parse_service_urls


def test_several_hosts_with_and_without_ports() -> None:
    assert parse_service_urls("pulsar://a:1,b") == [("a", 1), ("b", 6650)]
    (found,) = parse_service_urls("pulsar+ssl://[::1]/")
    assert (tuple(found), type(found)) == (("::1", 6651), TlsAddress)


@pytest.mark.parametrize(
    "url",
    ["", "a:1", "http://a:1", "pulsar://", "pulsar://a:1,", "pulsar://a:99999", "pulsar://a:x"],
)
def test_what_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form pulsar://host:port"):
        parse_service_urls(url)
