"""How kazoo waits for its sockets here, and in which order what has arrived is handed over."""

from __future__ import annotations

import fcntl
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from kazoo.protocol.states import Callback

from magnetar.env.metadata_stores.zookeeper_handler import DirectHandler

HIGH_DESCRIPTOR = 1100
"""Beyond what ``select`` can."""

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=[False, True], ids=["low", "high"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    if request.param:
        try:
            high = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, HIGH_DESCRIPTOR)
        except OSError:
            pytest.skip("so many descriptors are not allowed here")
        ours.close()
        ours = socket.socket(fileno=high)
    with ours, theirs:
        yield ours, theirs


def test_who_can_be_read_and_who_can_be_written(pair: Pair) -> None:
    ours, theirs = pair
    handler = DirectHandler()
    assert handler.select([ours], [], [], 0) == ([], [], [])
    assert handler.select([ours], [theirs], [], 0) == ([], [theirs], [])
    theirs.sendall(b"x")
    assert handler.select([ours, theirs], [], [], None) == ([ours], [], [])
    theirs.close()
    assert ours.recv(1) == b"x"
    assert handler.select([ours], [], [], 5) == ([ours], [], []), "its end is to be read"


def test_a_wait_ends_in_its_time_and_not_before(pair: Pair) -> None:
    begun_s = time.monotonic()
    assert DirectHandler().select([pair[0]], [], [], 0.0105) == ([], [], [])
    assert time.monotonic() - begun_s >= 0.0105


def test_a_socket_that_is_closed_is_an_error_and_no_endless_wait() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        with pytest.raises(ValueError, match="negative"):
            DirectHandler().select([ours], [], [], 5)


def test_answers_and_events_are_handed_over_in_their_order_by_who_has_read_them() -> None:
    handler = DirectHandler()
    handler.start()
    told: list[tuple[str, int]] = []

    def note(what: str) -> None:
        told.append((what, threading.get_ident()))

    try:
        answer = handler.async_result()
        answer.rawlink(lambda result: note(result.value))
        handler.dispatch_callback(Callback("watch", note, ("event",)))
        answer.set("answer")
        handler.dispatch_callback(Callback("watch", note, ("later event",)))
        here = threading.get_ident()
        assert told == [("event", here), ("answer", here), ("later event", here)]
    finally:
        handler.stop()
