"""SCRAM: the exchange of RFC 7677, wrong passwords, users who are not there, and broken bytes."""

from __future__ import annotations

import base64
import random

import pytest

from magnetar.model.errors import ProtocolError
from magnetar.wire.sasl.scram import (
    HASHES,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramServer,
    unprovable,
)
from tests.unit.wire.sasl.scram_client import ScramClient, keys_of

MECHANISMS = sorted(HASHES)


def test_the_exchange_of_rfc_7677() -> None:
    """Section 3: user ``user``, password ``pencil``."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    server = ScramServer(SCRAM_SHA_256, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert server.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == "user"
    assert server.challenge(keys_of(SCRAM_SHA_256, "pencil", salt, 4096)) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    last = server.final(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_both_sides_prove_themselves(mechanism: str) -> None:
    client = ScramClient(mechanism, "a=2Cb", "pässword", "abc")
    server = ScramServer(mechanism, "xyz")
    assert server.first(client.first()) == "a,b"
    challenge = server.challenge(keys_of(mechanism, "pässword", b"salt" * 4, 4096))
    last = server.final(client.final(challenge))
    assert last is not None
    assert client.trusts(last)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_a_user_that_is_not_there_are_answered_alike(mechanism: str) -> None:
    known = keys_of(mechanism, "right", b"s" * 16, 4096)
    unknown = unprovable(mechanism, "user", b"the server's own", 16, 4096)
    shapes = []
    for keys in (known, unknown):
        client, server = ScramClient(mechanism, "user", "wrong", "abc"), ScramServer(mechanism, "x")
        server.first(client.first())
        challenge = server.challenge(keys)
        said = dict(part.split("=", 1) for part in challenge.decode().split(","))
        shapes.append((len(challenge), said["i"], len(base64.b64decode(said["s"]))))
        assert server.final(client.final(challenge)) is None
    assert shapes[0] == shapes[1]


def test_the_salt_of_a_user_that_is_not_there_stays_the_same() -> None:
    first, again, other = (
        unprovable(SCRAM_SHA_512, name, b"secret", 24, 4096) for name in ("a", "a", "b")
    )
    assert first == again
    assert first.salt != other.salt
    assert first.salt != unprovable(SCRAM_SHA_256, "a", b"secret", 24, 4096).salt


def test_keys_are_in_no_repr() -> None:
    shown = repr(unprovable(SCRAM_SHA_256, "user", b"s" * 16, 24, 4096))
    assert shown == "UnprovableKeys(iterations=4096)"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=user",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=user,r=a\x07c",
        b"n,,n=user,r=" + b"x" * 300,
        b"p=tls-unique,,n=user,r=abc",
        b"q,,n=user,r=abc",
        b"n,user,n=user,r=abc",
        b"n,,n=u\xff,r=abc",
        b"n,,n=user,r=abc," + b"x" * 5000,
    ],
    ids=range(15),
)
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        ScramServer(SCRAM_SHA_256, "xyz").first(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: b"",
        lambda said: said.replace(b"biws", b"eSws"),
        lambda said: said.replace(b"r=abcxyz", b"r=abcxyy"),
        lambda said: said.replace(b"r=abcxyz", b"r=abc"),
        lambda said: said.replace(b",p=", b",p=AAAA"),
        lambda said: said.replace(b",p=", b",p=*"),
        lambda said: said.rpartition(b",p=")[0],
        lambda said: said[:-8],
        lambda said: said + b"\xff",
    ],
    ids=range(9),
)
def test_a_last_message_that_is_none_is_refused(change: object) -> None:
    client, server = ScramClient(SCRAM_SHA_256, "u", "p", "abc"), ScramServer(SCRAM_SHA_256, "xyz")
    server.first(client.first())
    said = client.final(server.challenge(keys_of(SCRAM_SHA_256, "p", b"s" * 16, 4096)))
    with pytest.raises(ProtocolError):
        server.final(change(said))  # type: ignore[operator]


def test_broken_bytes_prove_nothing() -> None:
    source = random.Random(3)
    keys = keys_of(SCRAM_SHA_256, "p", b"s" * 16, 16)
    for _ in range(2_000):
        client = ScramClient(SCRAM_SHA_256, "u", "p", "abc")
        server = ScramServer(SCRAM_SHA_256, "xyz")
        try:
            first = _broken(client.first(), source)
            server.first(first)
            said = client.final(server.challenge(keys))
            broken = _broken(said, source)
            assert server.final(broken) is None or (first, broken) == (client.first(), said)
        except ProtocolError:
            continue


def _broken(message: bytes, source: random.Random) -> bytes:
    if source.random() < 0.5:
        return message
    data = bytearray(message)
    at = source.randrange(len(data))
    if source.random() < 0.5:
        data[at] ^= 1 << source.randrange(8)
    else:
        del data[at : at + source.randint(1, 4)]
    return bytes(data)
