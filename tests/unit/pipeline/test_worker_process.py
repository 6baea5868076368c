"""Spark's Python processes are prepared when they are first asked for something."""

from __future__ import annotations

import socket
import subprocess
import sys

from magnetar.pipeline.worker_process import FREEZES, WorkerProcess, send_at_once

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


def test_later_calls_do_nothing() -> None:
    done: list[str] = []
    process = WorkerProcess(
        lambda: done.append("freeze"), lambda: done.append("tune"), lambda: done.append("hurry")
    )
    for _ in range(5):
        process.prepare()
    assert done == ["tune", "hurry", *["freeze"] * FREEZES]


def test_connections_send_at_once() -> None:
    """Else the second of two small pieces waits until the first is acknowledged."""
    unix = socket.socketpair()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
        unix[0],
        unix[1],
    ):
        assert not mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        send_at_once()
        assert mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        mine.sendall(b"still open")
        unix[0].sendall(b"still open")
