"""The client's side of SCRAM, for tests."""

from __future__ import annotations

import base64
import hashlib
import hmac

from magnetar.wire.sasl.scram import HASHES, UnprovableKeys


def keys_of(mechanism: str, password: str, salt: bytes, iterations: int) -> UnprovableKeys:
    """What a server keeps."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return UnprovableKeys(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", name))


class ScramClient:
    """``name`` as it is written in messages."""

    def __init__(self, mechanism: str, name: str, password: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._password = password
        self._bare = f"n={name},r={nonce}"
        self.server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        said = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salt = base64.b64decode(said["s"])
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, int(said["i"]))
        unproven = f"c=biws,r={said['r']}"
        message = f"{self._bare},{server_first.decode()},{unproven}".encode()
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = hmac.digest(stored_key, message, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self.server_signature = hmac.digest(server_key, message, self._hash)
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()

    def trusts(self, server_final: bytes) -> bool:
        return server_final == b"v=" + base64.b64encode(self.server_signature)
