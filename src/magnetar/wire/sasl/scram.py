"""SCRAM (RFC 5802; RFC 7677 with SHA-256): a client proves that it knows a password without sending
it, and the server that it knows the user's keys.

=======================  =================================================================
from the client          ``n,,n=NAME,r=NONCE``
from the server          ``r=NONCE + ours,s=SALT,i=ITERATIONS``
from the client          ``c=GS2 HEADER,r=NONCE + ours,p=PROOF``
from the server          ``v=SIGNATURE``
=======================  =================================================================

Salt, header, proof and signature are base64. Of a password the server keeps::

    salted     = PBKDF2(password, salt, iterations)
    stored key = H(HMAC(salted, "Client Key"))
    server key = HMAC(salted, "Server Key")

Names and passwords are compared as they are (UTF-8): Kafka's clients do not prepare them (RFC 4013)
either. Kafka's extension for delegation tokens (``tokenauth``) is refused, since there are none.

A user that is not known is to be answered as one that is: give ``challenge`` keys that nobody can
prove (``unprovable``), the same for one name each time. Nothing then tells the two apart.

Pure: the server's nonce is given.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from magnetar.model.errors import ProtocolError
from magnetar.wire.sasl.gs2 import read_gs2, sasl_name, utf8

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
HASHES: Final = MappingProxyType({SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"})
"""The hash of each mechanism, by its name."""
MESSAGE_BYTES_MAX: Final = 2048
NONCE_BYTES_MAX: Final = 256


class ScramKeys(Protocol):
    """What is kept of one password for one mechanism."""

    @property
    def salt(self) -> bytes: ...

    @property
    def iterations(self) -> int: ...

    @property
    def stored_key(self) -> bytes: ...

    @property
    def server_key(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class UnprovableKeys:
    """Of nobody's password."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def unprovable(
    mechanism: str, name: str, secret: bytes, salt_bytes: int, iterations: int
) -> UnprovableKeys:
    """Keys for a user that does not exist: always the same salt for a name, and a stored key
    that is no hash of anything known. ``secret``: the server's own. ``salt_bytes``, up to 32, and
    ``iterations``: as of users that exist."""
    hash_name = HASHES[mechanism]

    def derived(what: str) -> bytes:
        said = f"{what}\0{mechanism}\0{name}".encode()
        return hmac.digest(secret, said, hash_name)

    salt = derived("salt")[:salt_bytes]
    assert len(salt) == salt_bytes
    return UnprovableKeys(salt, iterations, derived("stored key"), derived("server key"))


class ScramServer:
    """One exchange. ``nonce``: ours, printable and without commas, never used before."""

    __slots__ = ("_bare", "_gs2", "_hash", "_keys", "_nonce", "_server_first", "acts_for", "name")

    def __init__(self, mechanism: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._nonce = nonce
        self._gs2 = b""
        self._bare = b""
        self._server_first = b""
        self._keys: ScramKeys | None = None
        self.name = ""
        self.acts_for = ""

    def first(self, message: bytes) -> str:
        """The name that the client gives. Raises ``ProtocolError``."""
        assert not self.name, "each exchange has one first message"
        _bound(message)
        self._gs2, self.acts_for, self._bare = read_gs2(message)
        name, _, rest = self._bare.partition(b",")
        nonce, _, extensions = rest.partition(b",")
        if name.startswith(b"m="):
            raise ProtocolError("a SCRAM message with an extension that must be understood")
        if not name.startswith(b"n=") or not nonce.startswith(b"r="):
            raise ProtocolError("a first SCRAM message without a name or a nonce")
        if any(each.startswith(b"tokenauth=") for each in extensions.split(b",")):
            raise ProtocolError("a SCRAM message for a delegation token; there are none here")
        self._nonce = _nonce(nonce[2:]) + self._nonce
        self.name = sasl_name(name[2:])
        return self.name

    def challenge(self, keys: ScramKeys) -> bytes:
        """The server's first message, with the keys of that user."""
        assert self.name
        assert self._keys is None
        self._keys = keys
        salt = base64.b64encode(keys.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={keys.iterations}".encode()
        return self._server_first

    def final(self, message: bytes) -> bytes | None:
        """The server's last message, if the client knows the password; else None. Raises
        ``ProtocolError``."""
        keys = self._keys
        assert keys is not None
        _bound(message)
        unproven, comma, proof = message.rpartition(b",p=")
        parts = unproven.split(b",")
        if not comma or len(parts) < 2:
            raise ProtocolError("a last SCRAM message without a proof")
        if parts[0] != b"c=" + base64.b64encode(self._gs2):
            raise ProtocolError("a last SCRAM message with another header than the first one")
        if not hmac.compare_digest(parts[1], b"r=" + self._nonce.encode()):
            raise ProtocolError("a last SCRAM message with another nonce")
        said = b",".join((self._bare, self._server_first, unproven))
        signature = hmac.digest(keys.stored_key, said, self._hash)
        given = _base64(proof)
        if len(given) != len(signature):
            raise ProtocolError("a last SCRAM message with a proof of another length")
        client_key = bytes(a ^ b for a, b in zip(given, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), keys.stored_key):
            return None
        return b"v=" + base64.b64encode(hmac.digest(keys.server_key, said, self._hash))


def _bound(message: bytes) -> None:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a SCRAM message of {len(message)} bytes")


def _nonce(data: bytes) -> str:
    """Printable ASCII without commas."""
    if not 0 < len(data) <= NONCE_BYTES_MAX or not all(0x21 <= each <= 0x7E for each in data):
        raise ProtocolError("a SCRAM message with a nonce that is none")
    return utf8(data, "a nonce")


def _base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise ProtocolError("a SCRAM message with a proof that is not base64") from None
