"""What clients show: what is taken, what is refused, and that nobody learns why."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.security.principals import REFUSED, Principal
from magnetar.cluster.security.tokens import TokenKey, create_token, private_key, public_key
from magnetar.cluster.security.users import HASHES, decode_users, encode_users, make_credentials
from magnetar.config import SecurityConfig
from magnetar.model.errors import AuthenticationError, ConfigError
from tests.unit.cluster.security.files import SECRET, token, write_secret, write_users

NOW_S = 1_000_000.0


def by_secret(directory: Path, **settings: str) -> Authenticator:
    config = SecurityConfig(token_secret_key_file=str(write_secret(directory)), **settings)  # type: ignore[arg-type]
    return Authenticator(config, lambda: NOW_S)


def why_refused(shown: Authenticator, text: str) -> str:
    with pytest.raises(AuthenticationError) as caught:
        shown.by_token(text)
    assert str(caught.value) == REFUSED
    return caught.value.why


def test_a_token_is_of_its_subject(tmp_path: Path) -> None:
    assert by_secret(tmp_path).by_token(token("alice")) == Principal("alice")
    assert by_secret(tmp_path).by_token(token("a", exp=NOW_S + 1)) == Principal("a", NOW_S + 1)
    assert by_secret(tmp_path).by_token(token("a", nbf=NOW_S)).role == "a"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not signed"),
        ("a.b.c", "not signed"),
        (token("a", bytes(32)), "not signed"),
        (token("a", exp=NOW_S), "expired"),
        (token("a", exp="soon"), "exp"),
        (token("a", exp=True), "exp"),
        (token("a", exp=float("nan")), "no time"),
        (token("a", exp=10**400), "no time"),
        (token("a", nbf=float("-inf")), "no time"),
        (token("a", nbf=NOW_S + 1), "begins"),
        (token(other="a"), "role"),
        (token(sub=["", "a"]), "role"),
        (token("a\nb"), "role"),
        ("x" * 20_000, "too long"),
        ("é.é.é", "not signed"),
        (jwt.encode({"sub": "a"}, "", "none"), "not signed"),
    ],
)
def test_a_token_that_is_not_sound_is_refused(tmp_path: Path, text: str, why: str) -> None:
    assert why in why_refused(by_secret(tmp_path), text)


def test_the_role_may_be_another_claim(tmp_path: Path) -> None:
    shown = by_secret(tmp_path, token_role_claim="roles")
    assert shown.by_token(token(roles=["a", "b"])).role == "a"
    assert "role" in why_refused(shown, token("a"))


def test_an_audience_that_is_set_must_be_named(tmp_path: Path) -> None:
    shown = by_secret(tmp_path, token_audience="here")
    assert shown.by_token(token("a", aud="here")).role == "a"
    assert shown.by_token(token("a", aud=["there", "here"])).role == "a"
    for said in ({}, {"aud": "there"}, {"aud": ["there"]}):
        assert "audience" in why_refused(shown, token("a", **said))


def pairs() -> list[tuple[str, TokenKey, bytes]]:
    from cryptography.hazmat.primitives.serialization import NoEncryption, PrivateFormat

    made = []
    for name, key in (
        ("rsa", rsa.generate_private_key(65537, 2048)),
        ("ec", ec.generate_private_key(ec.SECP256R1())),
    ):
        private = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        made.append((name, private_key(private, name), public))
    return made


def test_key_pairs_sign_and_are_held_against(tmp_path: Path) -> None:
    for name, signing, public in pairs():
        path = tmp_path / f"{name}.pem"
        path.write_bytes(public)
        shown = Authenticator(SecurityConfig(token_public_key_file=str(path)), lambda: NOW_S)
        assert shown.by_token(create_token(signing, {"sub": name})).role == name
        # The public key is known to all: signed with as a secret it must prove nothing.
        forged = _signed_by_hand({"sub": name}, public)
        assert "not signed" in why_refused(shown, forged)
        assert "not signed" in why_refused(shown, token(name))


def _signed_by_hand(claims: dict[str, str], secret: bytes) -> str:
    """HS256 by RFC 7515, which libraries refuse to do with a public key."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    head = part(b'{"alg":"HS256"}') + b"." + part(json.dumps(claims).encode())
    return (head + b"." + part(hmac.digest(secret, head, "sha256"))).decode()


def test_keys_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for field in ("token_secret_key_file", "token_public_key_file", "users_file"):
        config = SecurityConfig(**{field: str(path)})  # type: ignore[arg-type]
        path.unlink(missing_ok=True)
        with pytest.raises(ConfigError, match=field):
            Authenticator(config, lambda: NOW_S)
        path.write_bytes(b"[short]")
        with pytest.raises(ConfigError, match=field):
            Authenticator(config, lambda: NOW_S)
    with pytest.raises(ConfigError, match="nobody"):
        Authenticator(SecurityConfig(), lambda: NOW_S)
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    other = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(ConfigError, match="kind is not served"):
        public_key(other, "key")


def test_a_key_is_not_shown() -> None:
    assert "x" * 8 not in repr(TokenKey(b"x" * 32, ("HS256",)))
    assert "salt" not in repr(make_credentials("SCRAM-SHA-256", "p", b"salt", 4096))


# -- users ------------------------------------------------------------------------------------


def test_a_password_is_held_against_what_is_kept_of_it(tmp_path: Path) -> None:
    config = SecurityConfig(users_file=str(write_users(tmp_path, alice="gränd", bob="b")))
    shown = Authenticator(config, lambda: NOW_S)
    assert shown.by_password("alice", "gränd") == Principal("alice")
    assert shown.by_basic("alice:gränd").role == "alice"
    header = "Basic " + base64.b64encode(b"bob:b").decode()
    assert shown.by_authorization(header).role == "bob"
    for name, password in (
        ("alice", "b"),
        ("alice", ""),
        ("carol", "gränd"),
        ("alice", "x" * 2000),
    ):
        with pytest.raises(AuthenticationError, match=REFUSED):
            shown.by_password(name, password)
    for text in ("Basic x", "Basic " + base64.b64encode(b"alice").decode(), "Digest x", "Bearer x"):
        with pytest.raises(AuthenticationError, match=REFUSED):
            shown.by_authorization(text)


def test_credentials_are_those_of_rfc_7677() -> None:
    """The example of RFC 7677, section 3: the proof that it shows is proved by our stored key."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    made = make_credentials("SCRAM-SHA-256", "pencil", salt, 4096)
    said = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(made.stored_key, said, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == made.stored_key
    server = base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert hmac.digest(made.server_key, said, "sha256") == server


def test_the_file_of_users_is_read_back() -> None:
    users = {"a": {kind: make_credentials(kind, "p", b"salt", 4096) for kind in HASHES}}
    data = encode_users(users)
    assert decode_users(data, "f") == users
    assert b'"p"' not in data
    for bad in (
        b"[]",
        b'{"users": []}',
        b'{"users": {"a": 1}}',
        b"\xff",
        data.replace(b"4096", b"1"),
    ):
        with pytest.raises(ConfigError):
            decode_users(bad, "f")


def test_scram_credentials_are_found_by_mechanism(tmp_path: Path) -> None:
    config = SecurityConfig(users_file=str(write_users(tmp_path, alice="a")))
    shown = Authenticator(config, lambda: NOW_S)
    assert shown.scram_credentials("alice", "SCRAM-SHA-512").proves("a")
    for name, mechanism in (("bob", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-1")):
        with pytest.raises(AuthenticationError, match=REFUSED):
            shown.scram_credentials(name, mechanism)


def test_users_that_are_added_count_at_once_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    path = write_users(tmp_path, alice="a")
    shown = Authenticator(SecurityConfig(users_file=str(path)), lambda: NOW_S)
    write_users(tmp_path, alice="a", bob="b")
    os.utime(path, (1, 1))  # whatever the file system's clock says
    assert shown.by_password("bob", "b").role == "bob"
    for bad in (b"{", None):
        path.unlink() if bad is None else path.write_bytes(bad)
        assert shown.by_password("bob", "b").role == "bob"


def test_who_shows_nothing_is_anonymous_where_that_is_set(tmp_path: Path) -> None:
    assert by_secret(tmp_path, anonymous_role="nobody").anonymous() == Principal("nobody")
    with pytest.raises(AuthenticationError):
        by_secret(tmp_path).by_authorization("")


def test_mechanisms_are_those_that_something_is_there_for(tmp_path: Path) -> None:
    assert by_secret(tmp_path).mechanisms == ("OAUTHBEARER",)
    both = SecurityConfig(
        token_secret_key_file=str(write_secret(tmp_path)), users_file=str(write_users(tmp_path))
    )
    assert Authenticator(both, lambda: NOW_S).mechanisms == ("PLAIN", *HASHES, "OAUTHBEARER")
    assert SECRET
