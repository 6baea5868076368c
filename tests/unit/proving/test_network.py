"""Relays that know who asks, and links that are cut by names."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from magnetar.proving.network import CLIENT, RelayNetwork


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that answers with what it is sent."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1000):
                connection.sendall(data)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def said(connection: socket.socket, text: bytes, within_s: float = 30.0) -> bytes:
    connection.sendall(text)
    connection.settimeout(within_s)
    try:
        return connection.recv(1000)
    except TimeoutError:
        return b"silence"


def wait_for_broken(network: RelayNetwork, count: int) -> None:
    """The relay is a thread of its own: what it has not read when a link is healed is not lost."""
    deadline = time.monotonic() + 60
    while network.broken() < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", [CLIENT, "me"])
def test_a_cut_link_swallows_and_a_healed_one_breaks_what_has_lost(
    echo: tuple[str, int], name: str
) -> None:
    with RelayNetwork() as network:
        if name != CLIENT:
            network.name(os.getpid(), name)
        at = network.relay("server", echo, ("127.0.0.1", 0))
        with socket.create_connection(at) as one, socket.create_connection(at) as other:
            assert said(one, b"a") == said(other, b"a") == b"a"
            network.cut(("somebody", "server"))
            assert said(one, b"b") == b"b", "not of this one"
            network.cut((name, "server"))
            assert said(one, b"c", 0.3) == b"silence"
            wait_for_broken(network, 1)
            with socket.create_connection(at) as new:  # it is taken, and hears nothing
                assert said(new, b"d", 0.3) == b"silence"
                wait_for_broken(network, 2)
                network.heal()
                for broken in (one, new):
                    broken.settimeout(30)
                    with_end = broken.recv(1000)
                    assert with_end == b"", "what was swallowed is never delivered"
            assert said(other, b"e") == b"e", "it has lost nothing"
