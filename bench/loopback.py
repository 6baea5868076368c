"""What the machine itself does of what an add needs besides its disk: the round trip of an entry
and a small answer between two processes that do nothing else, on the loop the platform runs on.

    python -m bench.loopback echo        answers, and says its port

"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from array import array
from typing import cast

import uvloop

from bench.ledger_clients import Report, percentile_ms
from bench.trees import ROOT

ENTRY_BYTES = 1120  # an add of 1 KiB on the wire
ANSWER_BYTES = 28


class Echo(asyncio.Protocol):
    """Gives ``ANSWER_BYTES`` for each ``ENTRY_BYTES``."""

    def __init__(self) -> None:
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by type

    def data_received(self, data: bytes) -> None:
        answers, self._received = divmod(self._received + len(data), ENTRY_BYTES)
        if answers:
            self._transport.write(bytes(answers * ANSWER_BYTES))


class Asking(asyncio.Protocol):
    """One entry outstanding until ``end_s``; ``done`` then."""

    def __init__(self, end_s: float, done: asyncio.Future[None]) -> None:
        self.latencies_s: array[float] = array("d")
        self._end_s = end_s
        self._done = done
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by type
        self._ask()

    def _ask(self) -> None:
        self._begun_s = time.perf_counter()
        self._transport.write(bytes(ENTRY_BYTES))

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received < ANSWER_BYTES:
            return
        self._received = 0
        now_s = time.perf_counter()
        self.latencies_s.append(now_s - self._begun_s)
        if now_s < self._end_s:
            self._ask()
        else:
            self._done.set_result(None)


async def _ask(port: int, seconds: float) -> array[float]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    end_s = time.perf_counter() + seconds
    transport, asking = await loop.create_connection(lambda: Asking(end_s, done), "127.0.0.1", port)
    await done
    transport.close()
    return asking.latencies_s


async def _echo() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def round_trips(seconds: float) -> Report:
    """p50 and p99 of one entry outstanding."""
    command = [sys.executable, "-m", "bench.loopback", "echo"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        latencies_s = uvloop.run(_ask(int(other.stdout.readline()), seconds))
        other.terminate()
    return {"p50_ms": percentile_ms(latencies_s, 50), "p99_ms": percentile_ms(latencies_s, 99)}


if __name__ == "__main__":
    if sys.argv[1:] == ["echo"]:
        uvloop.run(_echo())
    else:
        print(round_trips(2.0))
