"""Relays that know who asks, and links that are cut by names."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from magnetar.proving.network import CLIENT, RelayNetwork, inode_of, tcp_table


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


def test_an_end_that_had_other_connections_is_found() -> None:
    """A connection that was over, from the same port to another, was taken for the one that was
    asked about, and who had it was looked for in vain, for five seconds."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.socket() as first,
        socket.socket() as second,
    ):
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind(("127.0.0.1", 0))
        local = first.getsockname()
        second.bind(local)
        first.connect(one.getsockname())
        second.connect(other.getsockname())
        table = tcp_table()
        for each in (first, second):
            inode = inode_of(table, local, each.getpeername())
            assert inode == str(os.fstat(each.fileno()).st_ino)
        over = table.replace(f" {os.fstat(first.fileno()).st_ino} ", " 0 ")
        assert inode_of(over, local, one.getsockname()) is None
        assert inode_of(over, local, other.getsockname()) is not None
