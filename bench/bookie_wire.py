"""What BookKeeper's protocol costs: CPU microseconds per entry of each step, each side.

Run: ``python bench/bookie_wire.py [--entry-bytes 1024] [--batch 100] [--entries 200000]``.

First the codecs alone, then client and server over loopback in two processes, with a storage core
that keeps nothing, so that what is measured is the wire: encode, write, read, parse, answer.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import uvloop

from magnetar.bookie.core import AddDone
from magnetar.bookie.serving.server import BookieServer
from magnetar.ledger.bookies import AddFlag
from magnetar.ledger.connections.connection import BookieConnection, fixed_address
from magnetar.ledger.connections.pending_adds import PendingAdds
from magnetar.model.entry import LacReply
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import DigestType
from magnetar.speedups import decode_add_answers
from magnetar.wire.bookie import v2
from magnetar.wire.bookie.digest import EntryDigest


class Space(NamedTuple):
    total_bytes: int = 0
    free_bytes: int = 0


class NullBookie:
    """Takes everything, keeps nothing, answers at the end of the loop turn."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None:
        self._loop.call_soon(done, None, entry_ids)

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return None

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes:
        return b""

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: int = 0,
        master_key: bytes = b"",
    ) -> list[bytes]:
        return []

    async def read_lac(self, ledger_id: int, flags: int = 0, master_key: bytes = b"") -> LacReply:
        return LacReply(-1, None)

    async def write_lac(
        self, ledger_id: int, master_key: bytes, lac: int, body: bytes, durable: bool = True
    ) -> None:
        return None

    async def force(self, ledger_id: int) -> None:
        return None

    async def list_entries(self, ledger_id: int) -> Iterable[int]:
        return ()

    def info(self) -> Space:
        return Space()


def per_entry_us(work: Callable[[], object], entries: int, seconds: float = 0.7) -> float:
    """Best of three rounds; ``work`` handles ``entries`` entries."""
    best = float("inf")
    for _ in range(3):
        rounds = 0
        begin_s = time.process_time()
        while time.process_time() - begin_s < seconds / 3:
            work()
            rounds += 1
        best = min(best, (time.process_time() - begin_s) / (rounds * entries))
    return best * 1e6


def codecs(entry_bytes: int, batch: int) -> None:
    digest = EntryDigest(DigestType.CRC32C, 7, b"")
    payload = memoryview(b"x" * entry_bytes)
    ids = range(1000, 1000 + batch)
    entries = [digest.build(i, i - 1, i * entry_bytes, payload) for i in ids]
    parts, _ = v2.encode_adds(digest.master_key, entries, 0)
    chunk = b"".join(parts)
    view = memoryview(bytearray(chunk))
    answers = v2.encode_add_answers(7, ids, None)
    answer_view = memoryview(bytearray(answers))

    def pending() -> None:
        adds = PendingAdds()
        adds.add(7, (ids, lambda error, entry_ids: None, 0.0))
        adds.answered(7, answered_ids)

    answered_ids = list(ids)
    steps: dict[str, Callable[[], object]] = {
        "digest: build an entry": lambda: [digest.build(i, i - 1, 9, payload) for i in ids],
        "client: encode ADDs": lambda: v2.encode_adds(digest.master_key, entries, 0),
        "client: join for the socket": lambda: b"".join(parts),
        "server: decode ADDs": lambda: v2.decode_requests(view, 0, len(view), len(view)),
        "server: encode answers": lambda: v2.encode_add_answers(7, ids, None),
        "client: decode answers": lambda: decode_add_answers(answer_view, 0, len(answers)),
        "client: match answers": pending,
    }
    for name, work in steps.items():
        print(f"  {name:32} {per_entry_us(work, batch):6.3f} us/entry")


def serve(pipe: multiprocessing.connection.Connection) -> None:
    async def main() -> None:
        server = BookieServer(NullBookie(), "127.0.0.1", 0)
        await server.start()
        pipe.send(server.port)
        while True:
            command = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
            if command == "stop":
                break
            pipe.send(time.process_time())
        await server.close()

    uvloop.run(main())


async def publish(port: int, entry_bytes: int, batch: int, total: int, window: int) -> None:
    client = BookieConnection(BookieId("bench"), fixed_address("127.0.0.1", port))
    digest = EntryDigest(DigestType.CRC32C, 7, b"")
    payload = b"x" * entry_bytes
    prepared = [digest.build(i, i - 1, entry_bytes, payload) for i in range(window * 2)]
    sent = answered = 0
    finished = asyncio.Event()

    def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        nonlocal answered
        if error is not None:
            raise error
        answered += len(entry_ids)
        send()
        if answered >= total:
            finished.set()

    def send() -> None:
        nonlocal sent
        while sent < total and sent - answered <= window - batch:
            first = sent % len(prepared)
            ids, entries = range(first, first + batch), prepared[first : first + batch]
            client.add_entries(7, digest.master_key, ids, entries, AddFlag.NONE, done)
            sent += batch

    send()
    await finished.wait()
    await client.close()


def loopback(entry_bytes: int, batch: int, total: int) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    server.start()
    port = ours.recv()

    def server_cpu_s() -> float:
        ours.send("cpu")
        used: float = ours.recv()
        return used

    uvloop.run(publish(port, entry_bytes, batch, total // 10, 2000))  # warm up
    server_s, client_s, wall_s = server_cpu_s(), time.process_time(), time.monotonic()
    uvloop.run(publish(port, entry_bytes, batch, total, 2000))
    wall_s = time.monotonic() - wall_s
    client_us = (time.process_time() - client_s) / total * 1e6
    server_us = (server_cpu_s() - server_s) / total * 1e6
    print(f"  client {client_us:.2f} us/entry, server {server_us:.2f} us/entry, kernel included;")
    print(f"  {total / wall_s:,.0f} entries/s")
    ours.send("stop")
    server.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--entries", type=int, default=200_000)
    options = parser.parse_args()
    print(f"codecs, entries of {options.entry_bytes} bytes, batches of {options.batch}:")
    codecs(options.entry_bytes, options.batch)
    print("client and server over loopback, two processes:")
    loopback(options.entry_bytes, options.batch, options.entries)


if __name__ == "__main__":
    main()
