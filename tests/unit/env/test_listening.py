"""How addresses are told to others."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from magnetar.env.network.listening import advertised_host, host_port


@pytest.mark.parametrize("host", ["::1", "fe80::1", "127.0.0.1", "one.example"])
def test_an_address_is_found_in_its_url(host: str) -> None:
    parts = urlsplit(f"pulsar://{host_port(host, 6650)}")
    assert (parts.hostname, parts.port) == (host, 6650)


@pytest.mark.parametrize("advertised", ["::1", "[::1]"])
def test_brackets_of_urls_are_no_part_of_a_host(advertised: str) -> None:
    assert advertised_host("::", advertised) == "::1"
    assert host_port(advertised_host("::", advertised), 1) == "[::1]:1"
