"""An authority of the tests' own, and certificates by it."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Pem(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    """``trusted``: its own certificate. ``bare``: certificates without key identifiers and key
    usage, as many that were made by hand."""

    def __init__(self, directory: Path, name: str = "tests", bare: bool = False) -> None:
        self._directory = directory
        self._name = name
        self._bare = bare
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _named(name)
        made = self._builder(self._subject, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        if not bare:
            made = made.add_extension(SIGNS, critical=True)
        self.trusted = directory / f"{name}-ca.pem"
        self.trusted.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str, file: str = "") -> Pem:
        """For a server at 127.0.0.1 and localhost, or a client of that (common) name."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = self._builder(_named(name), key).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        signed = made.sign(self._key, hashes.SHA256())
        stem = self._directory / (file or name)
        pem = Pem(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        pem.certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        pem.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pem

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 30 * DAY)
        )
        if self._bare:
            return made
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return made.add_extension(own, critical=False).add_extension(signer, critical=False)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
