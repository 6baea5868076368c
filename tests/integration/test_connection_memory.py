"""What connections cost a real process, whatever they say."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.standalone import Standalone

MIB = 1 << 20
PATIENCE_S = 120.0
PATIENT = ("--set", "broker.handshake_timeout_ms=600000", "--set", "broker.keep_alive_ms=600000")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data", *PATIENT) as standalone:
        yield standalone


def hello() -> bytes:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "test"
    command.connect.protocol_version = 20
    return encode_command(command)


def until_connected(server: Standalone, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        text = httpx.get(f"{server.http_url}/metrics", trust_env=False, timeout=PATIENCE_S).text
        if f"magnetar_broker_connections {float(count)}" in text:
            return
        time.sleep(0.1)
    raise TimeoutError(f"never {count} connections")


@contextmanager
def connections(server: Standalone, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        address = ("127.0.0.1", server.broker_port)
        held = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
        for each in held:
            each.sendall(said)
        until_connected(server, count)
        time.sleep(0.5)
        yield held
    until_connected(server, 0)


def test_a_thousand_that_announce_large_frames_cost_little(server: Standalone) -> None:
    """Four bytes that announce the largest frame; then a piece of it, too little to be whole."""
    before = server.resident_bytes()
    with connections(server, 1000, struct.pack(">I", 5 * MIB)) as held:
        announced = server.resident_bytes() - before
        for each in held:
            each.sendall(bytes(40_000))
        deadline = time.monotonic() + 2
        most = 0
        while time.monotonic() < deadline:
            most = max(most, server.resident_bytes() - before)
            time.sleep(0.05)
    after = server.resident_bytes() - before
    assert announced < 100 * MIB
    assert most < 400 * MIB, "the budget, and what a process costs beside it"
    assert after < 100 * MIB


@pytest.mark.slow
def test_ten_thousand_idle_connections(server: Standalone) -> None:
    before = server.resident_bytes()
    with connections(server, 9_900, hello()):
        held = server.resident_bytes() - before
    after = server.resident_bytes() - before
    assert held < 400 * MIB
    assert after < 200 * MIB
