"""Who has the other end of a connection: the kernel is asked, and its table says the same."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from magnetar.proving import socket_owners
from magnetar.proving.socket_owners import GONE, inode_in, inode_of, owns, tcp_table


def refused(_end: object, _peer: object) -> str:
    raise OSError("no such family of questions")


@pytest.mark.parametrize("asked", [socket_owners._asked, refused])
def test_the_socket_at_the_other_end(
    asked: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_owners, "_asked", asked)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        end, inode = far.getsockname(), str(os.fstat(far.fileno()).st_ino)
        here, _ = listener.accept()
        with here:
            assert inode_of(end, here.getsockname()) == inode
            assert owns(os.getpid(), inode)
            assert not owns(os.getpid(), "1")
            far.close()
            assert inode_of(end, here.getsockname()) == GONE
    assert not owns(1 << 22, inode), "there is no such process"


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
            inode = inode_in(table, local, each.getpeername())
            assert inode == str(os.fstat(each.fileno()).st_ino)
            assert inode_of(local, each.getpeername()) == inode
        over = table.replace(f" {os.fstat(first.fileno()).st_ino} ", " 0 ")
        assert inode_in(over, local, one.getsockname()) == GONE
        assert inode_in(over, local, other.getsockname()) not in (None, GONE)
        assert inode_in(over, local, ("127.0.0.1", 1)) is None
