"""Tokens: JSON Web Tokens (RFC 7519) as Pulsar uses them, signed by a shared secret or a private
key.

The claim ``sub`` (or the one that is set) is the role; ``exp`` and ``nbf`` bound its time; ``aud``
must name this platform where that is set. A key's kind says which algorithms are taken, never the
token: one signed with a public key as if that were a secret is refused.

Keys in files are as Pulsar's ``tokens`` tool writes them: a secret's bytes as they are; key pairs
as DER (PKCS 8, and X.509's SubjectPublicKeyInfo), or PEM. PyJWT and cryptography are imported when
the first key is read.

Why: docs/adr/0154-roles-and-what-proves-them.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.cluster.security.principals import Principal, principal, refusal
from magnetar.model.errors import ConfigError

SECRET_BYTES_LEAST: Final = 32
"""RFC 7518, 3.2: a key for HS256 has 256 bits or more."""
TOKEN_CHARACTERS_MAX: Final = 16 << 10
SECONDS_MAX: Final = 2**53
"""Since 1970: of a time that a token may name."""
SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES: Final[Mapping[str, str]] = {
    "secp256r1": "ES256",
    "secp384r1": "ES384",
    "secp521r1": "ES512",
}


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key, and the algorithms that it is for; the first is the one that it signs with."""

    key: Any
    algorithms: tuple[str, ...]

    def __repr__(self) -> str:
        """Without the key: it must not come into a log."""
        return f"TokenKey(algorithms={self.algorithms})"


@dataclass(frozen=True, slots=True)
class TokenRules:
    """How tokens are held against ``keys``. ``audience``: what ``aud`` must name; empty: whatever
    it says."""

    keys: tuple[TokenKey, ...]
    role_claim: str = "sub"
    audience: str = ""

    def check(self, token: str, now_s: float) -> Principal:
        """Who the token is of. Raises ``AuthenticationError``."""
        claims = self._signed(token)
        expires_s = _seconds(claims, "exp")
        if expires_s is not None and now_s >= expires_s:
            raise refusal(f"the token expired at {expires_s:.0f} (seconds since 1970)")
        begins_s = _seconds(claims, "nbf")
        if begins_s is not None and now_s < begins_s:
            raise refusal(f"the token begins at {begins_s:.0f} (seconds since 1970)")
        if self.audience and not _names(claims.get("aud"), self.audience):
            raise refusal("the token is for another audience")
        role = claims.get(self.role_claim)
        if isinstance(role, list) and role:  # as Pulsar: the first is the role
            role = role[0]
        return principal(role, expires_s)

    def _signed(self, token: str) -> dict[str, Any]:
        import jwt

        if len(token) > TOKEN_CHARACTERS_MAX:
            raise refusal("the token is too long")
        why = "no key for tokens is set"
        for key in self.keys:
            try:
                return jwt.decode(token, key.key, key.algorithms, options=UNCHECKED)
            except jwt.PyJWTError as error:
                why = f"the token is not signed by a key of ours ({type(error).__name__})"
            except (ValueError, RecursionError) as error:
                why = f"the token cannot be read ({type(error).__name__})"
        raise refusal(why)


UNCHECKED: Final[Any] = {
    "verify_signature": True, "verify_exp": False, "verify_nbf": False, "verify_iat": False,
    "verify_aud": False, "verify_iss": False, "verify_sub": False, "verify_jti": False,
}  # fmt: skip
"""Times are checked by our clock, and all faults told as one."""


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(f"the token's {name} is no number")
    if not abs(value) <= SECONDS_MAX:  # nor is one that is compared with nothing (NaN)
        raise refusal(f"the token's {name} is no time")
    return float(value)


def _names(audience: object, wanted: str) -> bool:
    return audience == wanted or (isinstance(audience, list) and wanted in audience)


# -- keys -------------------------------------------------------------------------------------


def secret_key(data: bytes, name: str) -> TokenKey:
    """``name``: of the file, for ``ConfigError``, which a key that is too short raises."""
    if len(data) < SECRET_BYTES_LEAST:
        raise ConfigError(
            f"{name}: a secret key of {len(data)} bytes is too short; accepted: at least "
            f"{SECRET_BYTES_LEAST} bytes, as `magnetar tokens create-secret-key` makes them"
        )
    return TokenKey(data, SECRET_ALGORITHMS)


def public_key(data: bytes, name: str) -> TokenKey:
    """RSA or elliptic curve; DER or PEM. Raises ``ConfigError``."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_der_public_key as of_der
    from cryptography.hazmat.primitives.serialization import load_pem_public_key as of_pem

    try:
        key = of_pem(data) if data.lstrip().startswith(b"-----") else of_der(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{name} holds no public key; accepted: an RSA or elliptic curve key in DER or PEM"
        ) from None
    return TokenKey(key, _algorithms(key, name))


def private_key(data: bytes, name: str) -> TokenKey:
    """As ``public_key``, to sign with."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_der_private_key as of_der
    from cryptography.hazmat.primitives.serialization import load_pem_private_key as of_pem

    try:
        pem = data.lstrip().startswith(b"-----")
        key = of_pem(data, None) if pem else of_der(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{name} holds no private key without a password; accepted: an RSA or elliptic curve "
            "key in DER (PKCS 8) or PEM"
        ) from None
    return TokenKey(key, _algorithms(key, name))


def _algorithms(key: object, name: str) -> tuple[str, ...]:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        return RSA_ALGORITHMS
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        algorithm = CURVES.get(key.curve.name)
        if algorithm is not None:
            return (algorithm,)
    raise ConfigError(f"{name}: the key's kind is not served; accepted: RSA, P-256, P-384, P-521")


def create_token(key: TokenKey, claims: Mapping[str, object], algorithm: str = "") -> str:
    """A signed token with these claims; ``algorithm`` empty: the key's first. Raises
    ``ConfigError`` for one that is not the key's."""
    import jwt

    algorithm = algorithm or key.algorithms[0]
    if algorithm not in key.algorithms:
        raise ConfigError(
            f"algorithm {algorithm!r} is not one of this key's; accepted: "
            f"{', '.join(key.algorithms)}"
        )
    return jwt.encode(dict(claims), key.key, algorithm)
