"""Connections do not take the file descriptors of storage: a process under a small limit."""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar.app.fate import Fate
from magnetar.app.outside import real
from magnetar.app.process import Process
from magnetar.app.roles import open_bookie
from magnetar.config import BookieConfig, Config, JournalConfig
from magnetar.env.network.free_ports import free_port
from tests.certificates import Authority
from tests.roles import Role

LIMIT = 80
PATIENCE_S = 60.0


class Limited(Role):
    """A standalone that may open ``LIMIT`` files. ``flood``: where connections come to, of which
    nothing is heard: by TLS they are handshakes that do not end."""

    def __init__(self, folder: Path, tls: bool) -> None:
        ports: tuple[str, ...] = (
            "--broker-port",
            "0",
            "--http-port",
            "0",
            "--set",
            "bookie.port=0",
        )
        tls_port = free_port()
        if tls:
            pem = Authority(folder).issue("server")
            for each in (
                f"broker.tls_port={tls_port}",
                f"tls.certificate_file={pem.certificate}",
                f"tls.key_file={pem.key}",
                "tls.handshake_timeout_ms=600000",
            ):
                ports += ("--set", each)
        patient = ("--set", "broker.handshake_timeout_ms=600000")  # idle connections stay
        # The limit is set in a shell of the child's, so that it is that of its first instruction.
        arguments = (sys.executable, "-m", "magnetar", "standalone", "--data-dir")
        self.log_path = folder / "log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "bash",
                    "-c",
                    f'ulimit -n {LIMIT}; exec "$@"',
                    "-",
                    *arguments,
                    str(folder / "data"),
                    *ports,
                    *patient,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.wait_ready()
        words = self.ready_line.split()
        self.service_url = next(word for word in words if word.startswith("pulsar://"))
        self.http_url = next(word for word in words if word.startswith("http://"))
        host, port = self.service_url.removeprefix("pulsar://").rsplit(":", 1)
        self.flood = host, tls_port if tls else int(port)

    def health(self) -> dict[str, dict[str, object]]:
        answer = httpx.get(f"{self.http_url}/health", trust_env=False, timeout=PATIENCE_S)
        return {part["part"]: part for part in answer.json()["parts"]}

    def metrics(self) -> dict[str, float]:
        """Ours, without labels."""
        answer = httpx.get(f"{self.http_url}/metrics", trust_env=False, timeout=PATIENCE_S)
        found = re.findall(r"^magnetar_(\w+) (\S+)$", answer.text, re.M)
        return {name: float(value) for name, value in found}


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def limited(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Limited]:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > LIMIT
    role = Limited(tmp_path, request.param)
    try:
        yield role
    finally:
        role.end()


def test_connections_are_refused_and_storage_goes_on(limited: Limited) -> None:
    client = pulsar.Client(limited.service_url)
    producer = client.create_producer("descriptors", batching_enabled=False)
    producer.send(b"before")
    with ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(limited.flood, PATIENCE_S))
            for _ in range(2 * LIMIT)
        ]
        closed = 0
        deadline = time.monotonic() + PATIENCE_S
        while closed < LIMIT and time.monotonic() < deadline:
            closed = sum(is_closed(each) for each in idle)
            time.sleep(0.1)
        assert closed >= LIMIT, "what does not fit is closed"
        for number in range(200):  # more than the writes of one flush
            producer.send(b"%d" % number)
        part = limited.health()["descriptors"]
        assert part["ok"] is False
        assert "refused" in str(part["problem"])
        counted = limited.metrics()
        assert counted["connections"] == counted["connections_max"] > 0
        assert counted["connections_refused"] >= LIMIT
        assert counted["descriptors_max"] == LIMIT
        assert 0 < counted["descriptors_reserved"] < LIMIT
    client.close()
    assert "ledger directory failed" not in limited.log
    assert "cannot write" not in limited.log
    assert limited.log.count("connections refused") < 10, "one line for many"
    assert "file descriptors are short" in limited.log, "it says so at start"
    again = pulsar.Client(limited.service_url)  # and takes connections when there is room
    reader = again.create_reader("descriptors", pulsar.MessageId.earliest)
    got = [reader.read_next(int(PATIENCE_S * 1000)).data() for _ in range(201)]
    assert got == [b"before", *(b"%d" % number for number in range(200))]
    again.close()


def test_a_bookie_keeps_its_share_too(tmp_path: Path) -> None:
    port = free_port()
    config = Config(
        data_dir=tmp_path,
        bookie=BookieConfig(
            bookie_id="b-1",
            port=port,
            ledger_directories=(tmp_path / "ledgers",),
            journal=JournalConfig(directories=(tmp_path / "journal",)),
        ),
    )

    async def main() -> None:
        async with AsyncExitStack() as stack:
            outside = replace(real(), descriptors_max=60)
            process = Process(config, outside, stack, Fate(asyncio.Event()))
            await open_bookie(process, False)
            most = process.descriptors.connections_max
            assert most == 19
            made = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * most)]
            async with asyncio.timeout(PATIENCE_S):
                while process.connections.refused < most:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert process.connections.count == most
            for each in made:
                each.close()

    asyncio.run(main())


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
