"""Whether a connection, a topic and a start cost the same when there are many, or much data.

    python -m bench.growth [--counts 100 1000 10000] [--gigabytes 0.1 1 4] [--rest 0] [--parts ...]

A standalone of its own for each figure, journal sync on.

* Connections have greeted and are idle: resident memory of each.
* Topics have a producer each, all on one connection. Then messages of 100 bytes go to them round
  robin, five at a time to five topics, the next when all are acknowledged, so that a turn of the
  loop has as many to do with few topics as with many. CPU time is of the whole process; memory is
  resident memory above that of the same process before; a collector's pause is CPU time of the
  thread that collected. After a rest of 15 s memory is on huge pages (``process.huge_pages``).
* A start is from the process's start to its ready line, after a clean end and after ``kill -9``.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import results
from bench.loadgen import PublishLoad, Target, publish
from bench.many_topics import message, resident_bytes
from bench.measure import CpuClock, cpu_seconds, machine
from bench.server import Server, standalone_on, work_directory
from bench.wire_client import Connection
from magnetar.wire.pulsar.commands import encode_command, encode_payload_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

OUTSTANDING: Final = 5
AT_ONCE: Final = 100
"""Topics that are asked for at once."""
REST_S: Final = 3.0
QUIET: Final = (
    "--set", "broker.keep_alive_ms=600000", "--set", "broker.connections_max=11000",
)  # fmt: skip
PARTS: Final = ("connections", "topics", "start")


# -- connections ----------------------------------------------------------------------------------


def connections(count: int) -> list[object]:
    with work_directory() as folder, standalone_on(folder, 1, *QUIET) as server:
        warm = [Connection("127.0.0.1", server.broker_port) for _ in range(50)]
        time.sleep(REST_S)
        before, clock = resident_bytes(server.pid), CpuClock([server.pid])
        held = [Connection("127.0.0.1", server.broker_port) for _ in range(count)]
        cpu_us = clock.total_s() / count * 1e6
        time.sleep(REST_S)
        grown = resident_bytes(server.pid) - before
        idle = CpuClock([server.pid])
        time.sleep(REST_S)
        idle_percent = idle.total_s() / REST_S * 100
        for each in (*warm, *held):
            each.sock.close()
        return [count, f"{grown / count / 1000:.1f}", f"{cpu_us:.0f}", f"{idle_percent:.2f}"]


# -- topics ---------------------------------------------------------------------------------------


def producers(connection: Connection, count: int) -> list[bytes]:
    """Of so many topics, and a SEND for each."""
    frames = []
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        asked = []
        for number in numbers:
            command = BaseCommand(type=BaseCommand.PRODUCER)
            command.producer.topic = f"persistent://public/default/growth-{number}"
            command.producer.producer_id = command.producer.request_id = number
            asked.append(encode_command(command))
        connection.sock.sendall(b"".join(asked))
        for _ in numbers:
            answer = connection.receive()
            assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
            success = answer.producer_success
            send = BaseCommand(type=BaseCommand.SEND)
            send.send.producer_id, send.send.sequence_id = success.request_id, 0
            frames.append(encode_payload_command(send, message(success.producer_name)))
    return frames


def round_robin(connection: Connection, frames: Sequence[bytes], count: int) -> None:
    """So many messages at least, and one for each topic. A frame has its sequence id again and
    again, which without deduplication nobody minds."""
    for first in range(0, max(count, len(frames)), OUTSTANDING):
        turn = [frames[(first + i) % len(frames)] for i in range(OUTSTANDING)]
        connection.sock.sendall(b"".join(turn))
        for _ in turn:
            answer = connection.receive()
            assert answer.type == BaseCommand.SEND_RECEIPT, answer


def topics(count: int, messages: int, rest_s: float) -> list[object]:
    with work_directory() as folder:
        pauses = folder.with_name("pauses.txt")
        pauses.write_text("")
        os.environ["PAUSES"] = str(pauses)
        with standalone_on(folder, 1, *QUIET, module="bench.told_server") as server:
            return [count, *_topics(server, count, messages, rest_s, pauses)]


def _topics(server: Server, count: int, messages: int, rest_s: float, pauses: Path) -> list[object]:
    connection = Connection("127.0.0.1", server.broker_port)
    time.sleep(REST_S)
    before, clock = resident_bytes(server.pid), CpuClock([server.pid])
    frames = producers(connection, count)
    open_ms = clock.total_s() / count * 1e3
    time.sleep(REST_S)
    opened = resident_bytes(server.pid) - before
    round_robin(connection, frames, 0)  # each has a ledger, and code is warm
    written = resident_bytes(server.pid) - before
    opening = longest(pauses)
    time.sleep(rest_s)
    pauses.write_text("")
    clock = CpuClock([server.pid])
    round_robin(connection, frames, messages)
    cpu_us = clock.total_s() / max(messages, count) * 1e6
    return [
        f"{opened / count / 1024:.1f}", f"{written / count / 1024:.1f}", f"{open_ms:.2f}",
        f"{cpu_us:.1f}", opening, longest(pauses),
    ]  # fmt: skip


def longest(pauses: Path) -> str:
    """Milliseconds, of each generation."""
    found: dict[str, float] = {}
    for line in pauses.read_text().splitlines():
        generation, ms = line.split()
        found[generation] = max(found.get(generation, 0.0), float(ms))
    return ", ".join(f"{found[each]:.0f}" if each in found else "-" for each in "012")


# -- starts ---------------------------------------------------------------------------------------


def starts(gigabytes: float) -> list[object]:
    with work_directory() as folder:
        entries = max(100, round(gigabytes * 1e9 / (128 * 1024)))
        with standalone_on(folder) as server:
            load = PublishLoad(
                connections=4, depth=16, entries=entries, warmup_entries=10, batch=127
            )
            publish(Target("127.0.0.1", server.broker_port, "growth", (server.pid,)), load)
        with standalone_on(folder) as server:
            clean = _ready(server)
            load = PublishLoad(connections=4, depth=16, entries=2_000, warmup_entries=10, batch=127)
            publish(Target("127.0.0.1", server.broker_port, "growth", (server.pid,)), load)
            os.kill(server.pid, signal.SIGKILL)
        with standalone_on(folder) as server:
            return [gigabytes, clean, _ready(server)]


def _ready(server: Server) -> str:
    return f"{server.ready_s:.2f} ({sum(cpu_seconds(server.pid)):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.1, 1.0, 4.0])
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--rest", type=float, default=0.0, help="seconds before messages")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    where = machine()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    tables: dict[str, tuple[tuple[str, ...], list[list[object]]]] = {}
    if "connections" in given.parts:
        columns = ("idle connections", "kB each", "CPU us to greet", "idle, % of a core")
        tables["connections"] = columns, [connections(count) for count in given.counts]
    if "topics" in given.parts:
        columns = (
            "topics", "KiB each, with a producer", "and messages", "CPU ms to open",
            "CPU us a message", "longest collections ms, opening", "publishing",
        )  # fmt: skip
        tables["topics"] = (
            columns,
            [topics(count, given.messages, given.rest) for count in given.counts],
        )
    if "start" in given.parts:
        columns = ("GB", "start s (CPU s), clean", "killed")
        tables["start"] = columns, [starts(each) for each in given.gigabytes]
    text = "\n\n".join(results.table(columns, rows) for columns, rows in tables.values())
    results.store("growth", {name: rows for name, (_, rows) in tables.items()}, text, where)


if __name__ == "__main__":
    main()
