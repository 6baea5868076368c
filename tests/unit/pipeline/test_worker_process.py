"""Spark's Python processes are prepared when they are first asked for something."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from magnetar.pipeline.worker_process import (
    ACKNOWLEDGE_AT_ONCE,
    FREEZES,
    WorkerProcess,
    acknowledge_at_once,
    after_each_task,
    send_at_once,
)

SEEN_BY_THE_COLLECTOR = """
import gc
import pyspark.worker
from magnetar.pipeline.source import MagnetarDataSource

def seen():
    gc.collect()
    return len(gc.get_objects())

before = seen()
MagnetarDataSource({"service.url": "pulsar://127.0.0.1:1", "subscribe": "t"}).schema()
print(before, seen())
"""


def test_what_is_loaded_is_no_work_for_the_collector() -> None:
    """Spark's daemon collects all generations after each task."""
    run = subprocess.run(
        [sys.executable, "-c", SEEN_BY_THE_COLLECTOR], capture_output=True, text=True, check=True
    )
    before, after = map(int, run.stdout.split())
    assert before > 30_000
    assert after < before / 10


def test_what_later_calls_do() -> None:
    done: list[str] = []
    steps = (lambda name=name: done.append(name) for name in ("freeze", "tune", "send", "ack"))
    after_tasks: list[Callable[[], None]] = []
    process = WorkerProcess(*steps, after_tasks.append)
    process.prepare()
    assert done == ["ack", "tune", "send", "freeze"]
    for _ in range(5):
        process.prepare()
    assert done[4:] == ["ack", "freeze"] * (FREEZES - 1) + ["ack"] * (6 - FREEZES)
    done.clear()
    for step in after_tasks:
        step()
    assert done == ["ack"]


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """By TCP, beside one that is not."""
    unix = socket.socketpair()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
        server.accept()[0] as theirs,
        unix[0],
        unix[1],
    ):
        yield mine, theirs
        for one, other in ((mine, theirs), unix):
            one.sendall(b"still open")
            assert other.recv(10) == b"still open"


def test_connections_send_at_once() -> None:
    """Else the second of two small pieces waits until the first is acknowledged."""
    with connection() as (mine, _):
        assert not mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        send_at_once()
        assert mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(ACKNOWLEDGE_AT_ONCE is None, reason="Linux has it")
def test_connections_acknowledge_at_once() -> None:
    """Else the other side's second piece waits. Who answers what came puts off the next."""
    assert ACKNOWLEDGE_AT_ONCE is not None
    with connection() as (mine, theirs):
        answer_ten_times(mine, theirs)
        assert not mine.getsockopt(socket.IPPROTO_TCP, ACKNOWLEDGE_AT_ONCE)
        acknowledge_at_once()
        assert mine.getsockopt(socket.IPPROTO_TCP, ACKNOWLEDGE_AT_ONCE)


def answer_ten_times(mine: socket.socket, theirs: socket.socket) -> None:
    for _ in range(10):
        theirs.sendall(b"command")
        mine.sendall(mine.recv(7))
        theirs.recv(7)


@pytest.mark.skipif(ACKNOWLEDGE_AT_ONCE is None, reason="Linux has it")
def test_connections_acknowledge_at_once_when_a_task_has_ended() -> None:
    """A command, and the rows behind it, come before anything of ours is called: the rows waited
    40 ms, in every task. Between two tasks Spark's daemon collects garbage, and does no more."""
    assert ACKNOWLEDGE_AT_ONCE is not None
    known = list(gc.callbacks)
    try:
        after_each_task(acknowledge_at_once)
        with connection() as (mine, theirs):
            answer_ten_times(mine, theirs)
            gc.collect(0)
            assert not mine.getsockopt(socket.IPPROTO_TCP, ACKNOWLEDGE_AT_ONCE)
            gc.collect()
            assert mine.getsockopt(socket.IPPROTO_TCP, ACKNOWLEDGE_AT_ONCE)
    finally:
        gc.callbacks[:] = known
