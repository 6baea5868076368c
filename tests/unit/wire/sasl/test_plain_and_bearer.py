"""PLAIN and OAUTHBEARER: the RFCs' examples, what is refused, and broken bytes."""

from __future__ import annotations

import json
import random

import pytest

from magnetar.model.errors import ProtocolError
from magnetar.wire.sasl.gs2 import read_gs2, sasl_name
from magnetar.wire.sasl.oauthbearer import read_bearer, refusal
from magnetar.wire.sasl.plain import PASSWORD_BYTES_MAX, read_plain


def test_plain_as_in_rfc_4616() -> None:
    """Section 4."""
    first = read_plain(b"\0tim\0tanstaaftanstaaf")
    assert (first.acts_for, first.name, first.password) == ("", "tim", "tanstaaftanstaaf")
    second = read_plain(b"Ursel\0Kurt\0xipj3plmq")
    assert (second.acts_for, second.name, second.password) == ("Ursel", "Kurt", "xipj3plmq")


def test_a_password_is_shown_nowhere() -> None:
    assert "tanstaaf" not in repr(read_plain(b"\0tim\0tanstaaf"))
    assert "sesame" not in repr(read_bearer(b"n,,\1auth=Bearer sesame\1\1"))
    for message in (b"\0tim\0sesame\0", b"\0tim\0sesame\xff"):
        with pytest.raises(ProtocolError) as refused:
            read_plain(message)
        assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0\0",
        b"tim\0tanstaaf",
        b"\0tim\0",
        b"\0\0tanstaaf",
        b"\0tim\0a\0b",
        b"\0\xff\0tanstaaf",
        b"\0" + b"n" * 256 + b"\0p",
        b"\0n\0" + b"p" * (PASSWORD_BYTES_MAX + 1),
        b"\0" * (1 << 20),
    ],
    ids=range(10),
)
def test_what_is_no_plain_message_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_plain(message)


def test_oauthbearer_as_in_rfc_7628() -> None:
    """Section 4.1."""
    said = (
        b"n,a=user@example.com,\1host=server.example.com\1port=143\1"
        b"auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\1\1"
    )
    found = read_bearer(said)
    assert found.acts_for == "user@example.com"
    assert found.token == "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="


def test_a_token_that_does_not_count_is_answered_as_the_rfc_says() -> None:
    """Section 3.2.2: a JSON object with a status."""
    assert json.loads(refusal()) == {"status": "invalid_token"}


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\1\1",
        b"n,,\1auth=Bearer a.b.c",
        b"n,,\1auth=Bearer a.b.c\1",
        b"n,,\1auth=Basic a.b.c\1\1",
        b"n,,\1auth=Bearer \1\1",
        b"n,,\1auth=Bearer a b\1\1",
        b"n,,\1auth=Bearer a\1auth=Bearer b\1\1",
        b"n,,\1a1=x\1auth=Bearer a\1\1",
        b"n,,\1auth\1\1",
        b"n,,auth=Bearer a\1\1",
        b"p=tls-unique,,\1auth=Bearer a.b.c\1\1",
        b"n,,\1auth=Bearer " + b"a" * (64 << 10) + b"\1\1",
    ],
    ids=range(14),
)
def test_what_is_no_oauthbearer_message_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_bearer(message)


def test_kafkas_extensions_are_passed_over() -> None:
    found = read_bearer(b"n,,\1auth=bearer a.b-c_d\1tenant=one\1\1")
    assert (found.acts_for, found.token) == ("", "a.b-c_d")


def test_names_with_commas_and_equals_signs() -> None:
    assert sasl_name(b"a=2Cb=3Dc") == "a,b=c"
    assert read_gs2(b"y,a=x=2C,rest,=").acts_for == "x,"
    for bad in (b"", b"a=", b"a=2c", b"a=00", b"a\0b", b"\xff"):
        with pytest.raises(ProtocolError):
            sasl_name(bad)


@pytest.mark.parametrize("read", [read_plain, read_bearer])
def test_broken_bytes_are_refused_and_nothing_else(read: object) -> None:
    source = random.Random(7)
    good = [b"a\0b\0c", b"n,a=b,\1auth=Bearer a.b\1k=v\1\1"]
    for _ in range(3_000):
        data = bytearray(source.choice(good))
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(data) + 1)
            kind = source.randrange(3)
            if kind == 0:
                data[at:at] = bytes([source.choice(b"\0\1,=na\xff")])
            elif kind == 1:
                del data[at : at + source.randint(1, 3)]
            elif at < len(data):
                data[at] = source.randrange(256)
        try:
            read(bytes(data))  # type: ignore[operator]
        except ProtocolError:
            continue
