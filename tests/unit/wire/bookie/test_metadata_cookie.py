"""Cookies and registrations, in BookKeeper's bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import MetadataFormatError
from magnetar.wire.bookie.metadata_cookie import Cookie, decode_cookie, encode_cookie
from magnetar.wire.bookie.metadata_service import (
    BookieServiceInfo,
    Endpoint,
    decode_service_info,
    encode_service_info,
)

COOKIE = b"""5
bookieHost: "192.0.2.1:3181"
journalDir: "/mnt/journal0,/mnt/journal1"
ledgerDirs: "2\\t/mnt/ledgers0\\t/mnt/ledgers1"
instanceId: "3b29d4a6-9c6e-4a2a-8a3e-0b1f6a2b7c11"
"""


def test_cookie_as_bookkeeper_writes_it() -> None:
    cookie = Cookie.of(
        "192.0.2.1:3181",
        ["/mnt/journal0", "/mnt/journal1"],
        ["/mnt/ledgers0", "/mnt/ledgers1"],
        "3b29d4a6-9c6e-4a2a-8a3e-0b1f6a2b7c11",
    )
    assert encode_cookie(cookie) == COOKIE
    assert decode_cookie(COOKIE, "here") == cookie
    assert decode_cookie(b"4" + COOKIE[1:], "here") == cookie


def test_older_cookies() -> None:
    found = decode_cookie(b"3\n192.0.2.1:3181\n/j\n1\t/l\n", "here")
    assert found == Cookie("192.0.2.1:3181", "/j", "1\t/l")
    with_index = COOKIE + b'indexDirs: "1\\t/mnt/index"\n'
    assert decode_cookie(with_index, "here").index_dirs == "1\t/mnt/index"
    assert encode_cookie(decode_cookie(with_index, "here")) == with_index


text = st.text(st.characters(codec="utf-8"), max_size=20)


@given(text, text, text, text, text)
def test_cookies_round_trip(host: str, journal: str, ledgers: str, instance: str, idx: str) -> None:
    cookie = Cookie(host, journal, ledgers, instance, idx)
    assert decode_cookie(encode_cookie(cookie), "here") == cookie


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"2\nbookieHost",
        b"6\n" + COOKIE[2:],
        b"3\nhost\n",
        b'5\nbookieHost: "a"\n',
        b"5\n\xff\n",
        COOKIE + b'colour: "blue"\n',
        COOKIE[:-20],
    ],
)
def test_broken_cookies_name_their_place(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match=r"^/data/current/VERSION "):
        decode_cookie(data, "/data/current/VERSION")


# -- registrations --------------------------------------------------------------------------------

INFO = bytes.fromhex(
    "3222"  # endpoints, 34 bytes
    "0a06626f6f6b6965"  # id "bookie"
    "10ed18"  # port 3181
    "1a093132372e302e302e31"  # host "127.0.0.1"
    "220a626f6f6b69652d727063"  # protocol "bookie-rpc"
)


def test_service_info_as_bookkeeper_writes_it() -> None:
    info = BookieServiceInfo.of_address("127.0.0.1", 3181)
    assert encode_service_info(info) == INFO
    assert decode_service_info("b", encode_service_info(info)) == info
    assert info.address == ("127.0.0.1", 3181)


def test_a_bookie_with_other_services_too() -> None:
    info = BookieServiceInfo(
        (
            Endpoint("httpserver", "192.0.2.1", 8000, "http"),
            Endpoint("bookie", "192.0.2.1", 3181, "bookie-rpc", ("none",), ("tls",)),
        ),
        (("rack", "/r1"), ("zone", "z")),
    )
    assert decode_service_info("b", encode_service_info(info)) == info
    assert info.address == ("192.0.2.1", 3181)
    assert BookieServiceInfo(info.endpoints[:1]).address is None


def test_an_empty_registration_is_an_old_bookies() -> None:
    assert decode_service_info("host.example:3181", b"").address == ("host.example", 3181)
    with pytest.raises(MetadataFormatError, match="bookie-one"):
        decode_service_info("bookie-one", b"")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"garbage",
        INFO[:-1],
        b"\x32\x00",  # an endpoint without anything
        bytes.fromhex("320d 0a0161 10808004 1a0168 220170"),  # port 65536
        bytes.fromhex("320c 0a0161 10ed18 1a01ff 220170"),  # a host that is no text
    ],
)
def test_broken_registrations_name_the_bookie(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="bookie b-1 "):
        decode_service_info("b-1", data)
