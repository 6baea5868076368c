"""What a connection keeps of frames that are not whole, and what all of them share."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from magnetar.env.network.connections import RECEIVE_BUFFER_BYTES, SMALL_FRAME_BYTES, Connections
from magnetar.env.network.framed import (
    BUFFER_STEP_BYTES,
    FREE_REASON,
    GROWTH,
    JOIN_BYTES_MAX,
    FramedConnection,
)
from magnetar.env.network.kept_buffers import KeptBuffers
from magnetar.model.errors import BookieIOError
from magnetar_sim.world.virtual_time import run_virtual

FRAME_BYTES_MAX = 5 << 20


class Transport(asyncio.Transport):
    """Says whether it is read, and whether it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.aborted = False
        self.written: list[int] = []
        """Of each write how many parts it had."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("peer", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written.append(1)

    def writelines(self, list_of_data: Any) -> None:
        self.written.append(len(list_of_data))

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True


class Peer(FramedConnection):
    """Keeps the frames it is given."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(FRAME_BYTES_MAX, connections)
        self.got: list[bytes] = []
        self.wire = Transport()
        self.connection_made(self.wire)

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        self.got += [bytes(view[start:end]) for start, end in bounds]

    def receive(self, data: bytes) -> bytes:
        """As a socket that has ``data``: until all is taken or it is not read. What is left."""
        while data and self.wire.reading:
            room = self.get_buffer(-1)
            size = min(len(room), len(data))
            assert size, "a buffer without room"
            room[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]
        return data

    @property
    def held_bytes(self) -> int:
        return len(self._partial) + (0 if self._own is None else self._own.nbytes)


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def test_a_peer_that_begins_with_tls_is_told_of_as_that() -> None:
    async def scenario() -> None:
        peer = Peer(Connections())
        with capture_logs() as logged:
            peer.receive(bytes.fromhex("16030100f8010000f40303"))
        assert peer.wire.aborted
        (line,) = logged
        assert "begins with TLS, which is not served here" in line["error"]
        with capture_logs() as logged:
            Peer(Connections()).receive(b"GET / HTTP/1.1\r\n\r\n")
        assert "another protocol" in logged[0]["error"]

    asyncio.run(scenario())


def begin(size: int, sent: int) -> bytes:
    return struct.pack(">I", size) + bytes(sent - 4)


def test_four_bytes_that_announce_a_large_frame_buy_nothing() -> None:
    async def main() -> None:
        connections = Connections()
        peers = [Peer(connections) for _ in range(1000)]
        for peer in peers:
            peer.receive(struct.pack(">I", FRAME_BYTES_MAX))
        assert sum(peer.held_bytes for peer in peers) == 4000
        assert connections.partial_frame_bytes == 0

    asyncio.run(main())


class StopAndGo(Peer):
    """Pauses itself after each frame, and goes on when it is told to."""

    PAUSED = FREE_REASON

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        start, end = bounds[0]
        self.got.append(bytes(view[start:end]))
        self.pause(self.PAUSED)
        self.stop_after(bounds, end)


def test_a_chunk_that_is_stopped_after_each_frame_goes_on_where_it_was() -> None:
    async def main(seed: int) -> None:
        rng = random.Random(seed)
        connections = Connections()
        peer = StopAndGo(connections)
        sizes, step = rng.choice([((0, 1, 40), 3), ((0, 900, 9000, 100_000, 300_000), 70_000)])
        sent = [rng.randbytes(rng.choice(sizes)) for _ in range(30)]
        data = b"".join(map(frame, sent))
        while len(peer.got) < len(sent):
            data = peer.receive(data[:step]) + data[step:]
            handled = len(peer.got)
            peer.resume(peer.PAUSED)
            peer.resume(peer.PAUSED)
            assert len(peer.got) == handled, "not within the call"
            await asyncio.sleep(0)
        assert peer.got == sent
        assert connections.partial_frame_bytes == 0
        peer.resume(peer.PAUSED)
        await asyncio.sleep(0)
        assert peer.wire.reading
        assert peer.held_bytes == 0

    for seed in range(8):
        asyncio.run(main(seed))


@pytest.mark.parametrize("error", [ValueError("a defect"), BookieIOError("a disk")])
def test_a_defect_in_what_waited_ends_the_connection(error: Exception) -> None:
    """Else it would never be read again, and its peer would wait for ever."""

    class Failing(StopAndGo):
        def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
            if self.got:
                raise error
            super().frames_received(view, bounds)

    async def main() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.append(context["exception"])
        )
        peer = Failing(Connections())
        peer.receive(frame(b"first") + frame(b"second"))
        peer.resume(peer.PAUSED)
        await asyncio.sleep(0)
        assert peer.wire.aborted
        assert told == [error]

    asyncio.run(main())


@pytest.mark.parametrize("step", [1000, 20_000, 64 * 1024, RECEIVE_BUFFER_BYTES])
def test_a_buffer_grows_with_what_has_arrived_and_goes_with_its_frame(step: int) -> None:
    async def main() -> None:
        connections = Connections()
        peer = Peer(connections)
        body = random.Random(step).randbytes(FRAME_BYTES_MAX)
        data = frame(body) + frame(b"next")
        for at in range(0, len(data), step):
            peer.receive(data[at : at + step])
            arrived = peer.partial_frame_bytes
            assert peer.held_bytes <= max(BUFFER_STEP_BYTES, GROWTH * arrived)
            assert peer.held_bytes <= FRAME_BYTES_MAX + BUFFER_STEP_BYTES
            if arrived > SMALL_FRAME_BYTES:
                assert connections.partial_frame_bytes == peer.held_bytes
        assert peer.got == [body, b"next"]
        assert (peer.held_bytes, connections.partial_frame_bytes) == (0, 0)

    asyncio.run(main())


class Keeper(Peer):
    """Keeps views, where those stay."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self.keep_frames()
        self.views: list[memoryview] = []

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        super().frames_received(view, bounds)
        if self.frames_stay:
            self.views += [view[start:end] for start, end in bounds]


@pytest.mark.parametrize("step", [1000, 70_000, RECEIVE_BUFFER_BYTES, 1 << 20])
def test_frames_that_are_kept_are_not_written_over(step: int) -> None:
    async def main() -> None:
        connections = Connections()
        peer, rng = Keeper(connections), random.Random(step)
        sizes = [2_000_000, 2_010_000, 30, 1_990_000, 300_000, 2_000_000, 2_000_000]
        bodies = [rng.randbytes(size) for size in sizes]
        data = b"".join(map(frame, bodies))
        for at in range(0, len(data), step):
            peer.receive(data[at : at + step])
        assert peer.got == bodies
        kept = [bytes(view) for view in peer.views]
        assert kept == [body for body in bodies if body in kept], "as they came"
        assert sum(map(len, kept)) > 9_000_000
        assert (peer.held_bytes, connections.partial_frame_bytes) == (0, 0)

    asyncio.run(main())


def test_a_buffer_is_used_again_when_nobody_looks_into_it() -> None:
    buffers = KeptBuffers(bytes_max=3000)
    first, second = buffers.lend(1000), buffers.lend(1000)
    part = first[10:20]
    first[0], second[0] = 1, 2
    del first, second
    assert buffers.lend(900)[0] == 2
    del part
    assert buffers.lend(900)[0] == 1
    assert buffers.lend(400)[0] == 0, "one of twice the size would be held for it"
    lent = [buffers.lend(1000) for _ in range(5)]
    assert [bytes(view) for view in lent[2:]] == [bytes(1000)] * 3


def test_frames_of_many_connections_come_out_whole_whatever_the_pieces() -> None:
    """The shared buffer holds now one's bytes, now another's."""

    async def main(seed: int) -> None:
        rng = random.Random(seed)
        connections = Connections(rng.choice([100_000, 1 << 20, 128 << 20]), patience_s=600.0)
        sizes = (0, 3, 500, 9000, 30_000, 200_000, 1_500_000)
        peers = [Peer(connections) for _ in range(6)]
        sent = [[rng.randbytes(rng.choice(sizes)) for _ in range(12)] for _ in peers]
        unread = [b"".join(map(frame, bodies)) for bodies in sent]
        for _ in range(100_000):
            if not any(unread):
                break
            number = rng.randrange(len(peers))
            data, step = unread[number], rng.choice([1, 7, 5000, 300_000])
            unread[number] = peers[number].receive(data[:step]) + data[step:]
            await asyncio.sleep(0)
        assert [peer.got for peer in peers] == sent
        assert connections.partial_frame_bytes == 0
        assert not connections.tight

    for seed in range(20):
        asyncio.run(main(seed))


def test_a_used_up_budget_slows_large_frames_and_no_small_ones() -> None:
    async def main() -> None:
        connections = Connections(partial_frame_bytes_max=1 << 20)
        holders = [Peer(connections) for _ in range(3)]
        large = begin(2 << 20, 4 + (2 << 20))
        unread = {holder: holder.receive(large[:300_000]) + large[300_000:] for holder in holders}
        await asyncio.sleep(0)
        assert connections.waiting == 2
        assert [holder.wire.reading for holder in holders] == [True, False, False]
        small = Peer(connections)
        small.receive(b"".join(frame(b"%d" % i) for i in range(1000)) + frame(bytes(8000)))
        assert len(small.got) == 1001
        big = Peer(connections)
        rest = big.receive(begin(1 << 20, 500_000))
        assert not big.wire.reading
        assert len(rest) > 480_000, "most stays in the socket"
        unread[big] = rest + bytes(4 + (1 << 20) - 500_000)
        for _ in range(20):  # each goes on when it may
            await asyncio.sleep(0)
            unread = {peer: peer.receive(data) for peer, data in unread.items()}
        assert [len(peer.got) for peer in unread] == [1, 1, 1, 1]
        assert connections.partial_frame_bytes == 0
        assert not connections.tight

    asyncio.run(main())


def test_frames_that_stand_still_go_when_others_wait() -> None:
    async def main() -> None:
        connections = Connections(partial_frame_bytes_max=1 << 20, patience_s=5)
        idle = [Peer(connections) for _ in range(8)]
        for peer in idle:
            peer.receive(begin(120_000, 30_000))  # each holds 120 kB
        assert not connections.waiting
        honest = Peer(connections)
        data = frame(bytes(900_000))
        rest = honest.receive(data)
        assert rest
        assert not honest.wire.reading
        await asyncio.sleep(6)
        rest = honest.receive(rest)
        assert not rest
        assert len(honest.got) == 1
        assert any(peer.wire.aborted for peer in idle)

    run_virtual(main())


def test_a_connection_that_ends_gives_back_what_it_held_or_waited_for() -> None:
    async def main() -> None:
        connections = Connections(partial_frame_bytes_max=500_000)
        holder, waiter = Peer(connections), Peer(connections)
        holder.receive(begin(1 << 20, 200_000))
        waiter.receive(begin(1 << 20, 200_000))
        await asyncio.sleep(0)
        assert connections.tight
        for peer in (waiter, holder):
            peer.connection_lost(None)
        await asyncio.sleep(0)
        assert connections.partial_frame_bytes == 0
        assert not connections.tight
        assert not connections.waiting

    asyncio.run(main())


def test_reading_goes_on_when_every_reason_is_gone() -> None:
    async def main() -> None:
        connections = Connections(partial_frame_bytes_max=200_000)
        first, second = Peer(connections), Peer(connections)
        first.receive(begin(1 << 20, 200_000))
        second.receive(begin(1 << 20, 200_000))
        second.pause(2)
        await asyncio.sleep(0)
        first.connection_lost(None)
        await asyncio.sleep(0)
        assert not second.wire.reading, "its own reason is left"
        second.resume(2)
        assert second.wire.reading

    asyncio.run(main())


def test_large_parts_are_not_joined() -> None:
    async def scenario() -> None:
        peer = Peer(Connections())
        large, small = bytes(JOIN_BYTES_MAX), bytes(100)
        for parts in ([small, large], [small, *[large] * 3], [small, large, small], [small] * 3):
            peer.write_now(parts, sum(map(len, parts)))
        assert peer.wire.written == [2, 4, 1, 1]

    asyncio.run(scenario())
