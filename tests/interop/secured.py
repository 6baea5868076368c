"""A standalone that asks who its clients are, for clients in other languages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magnetar.env.network.free_ports import free_port
from tests.certificates import Authority
from tests.standalone import Standalone
from tests.unit.cluster.security.files import token, write_secret

LIVES_S = 3
"""Of the token that expires."""


class SecuredPeer:
    """``arguments``: what a peer is told."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        server, alice = authority.issue("server"), authority.issue("alice")
        self._expiring = directory / "expiring.token"
        tls_port, https_port = free_port(), free_port()
        settings = {
            "security.authentication": "true",
            "security.token_secret_key_file": write_secret(directory),
            "security.super_users": "root",
            "broker.tls_port": tls_port,
            "http.tls_port": https_port,
            "tls.certificate_file": server.certificate,
            "tls.key_file": server.key,
            "tls.trusted_file": authority.trusted,
            "tls.client_certificates": "optional",
        }
        given = [part for name in settings for part in ("--set", f"{name}={settings[name]}")]
        self.server = Standalone(directory / "data", *given, "--kafka-port", "-1")
        self.arguments = [
            self.server.service_url,
            f"pulsar+ssl://localhost:{tls_port}",
            f"https://localhost:{https_port}",
            str(authority.trusted),
            str(alice.certificate),
            str(alice.key),
            token("root"),
            token("alice"),
            token("nobody"),
            str(self._expiring),
        ]
        self._ended = threading.Event()

    def write_tokens(self) -> None:
        """Until the end: each counts for ``LIVES_S``."""
        while not self._ended.is_set():
            beside = self._expiring.with_suffix(".new")
            beside.write_text(token("alice", exp=time.time() + LIVES_S))
            beside.replace(self._expiring)
            self._ended.wait(0.5)

    @contextmanager
    def running(self) -> Iterator[None]:
        writer = threading.Thread(target=self.write_tokens)
        writer.start()
        try:
            with self.server:
                yield
        finally:
            self._ended.set()
            writer.join()
