"""The server against raw sockets: version choice, long polls, and every kind of bad input."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable

import pytest

from magnetar.bookie.serving.server import BookieServer
from magnetar.bookie.serving.session import SessionLimits
from magnetar.model.ledger import DigestType
from magnetar.wire.bookie import v2, v3
from magnetar.wire.bookie.digest import EntryDigest
from magnetar.wire.bookie.messages import Read, WriteLac
from tests.memory_bookie import MemoryBookie, until

KEY = b"k" * 20
DIGEST = EntryDigest(DigestType.CRC32C, 7, b"")
ANSWER_S = 20.0


class Raw:
    """A socket that speaks frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def frame(self) -> bytes:
        async with asyncio.timeout(ANSWER_S):
            (size,) = struct.unpack(">I", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def answer(self) -> v3.Answer:
        return v3.decode_answer(await self.frame())

    async def ended(self) -> bool:
        """Whether the server ends the connection without another byte."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._reader.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._writer.close()


class World:
    def __init__(self, core: MemoryBookie, server: BookieServer) -> None:
        self.core = core
        self.server = server

    async def connect(self) -> Raw:
        return Raw(*await asyncio.open_connection("127.0.0.1", self.server.port))

    async def assert_alive(self) -> None:
        self.core.ledgers.clear()
        raw = await self.connect()
        raw.send(add(0))
        assert await raw.frame() == v2.encode_add_answers(7, [0], None)[4:]
        raw.close()


def run(scenario: Callable[[World], Awaitable[None]], limits: SessionLimits | None = None) -> None:
    async def main() -> None:
        core = MemoryBookie()
        server = BookieServer(core, "127.0.0.1", 0, limits, connections_max=20)
        await server.start()
        try:
            async with asyncio.timeout(120):
                await scenario(World(core, server))
        finally:
            await server.close()

    asyncio.run(main())


def add(entry_id: int, payload: bytes = b"payload") -> bytes:
    parts, _ = v2.encode_adds(KEY, [DIGEST.build(entry_id, entry_id - 1, 0, payload)], 0)
    return b"".join(parts)


def v3_add(txn_id: int, entry_id: int) -> bytes:
    body = DIGEST.build(entry_id, entry_id - 1, 0, b"payload")
    return b"".join(v3.encode_add(txn_id, 7, entry_id, KEY, body, 0))


def test_a_connection_begins_in_version_3_and_latches_to_version_2() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        raw.send(v3.encode_auth(1, "any", b"") + add(0))
        auth = await raw.frame()
        assert b"AuthDisabledPlugin" in auth
        assert v3.decode_answer(auth).code == 0
        assert await raw.frame() == v2.encode_add_answers(7, [0], None)[4:]
        raw.send(v3.encode_read_lac(2, 7))  # too late: not understood in version 2
        assert await raw.ended()

    run(scenario)


def test_auth_in_version_2() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        raw.send(v2.encode_auth("org.example.Plugin", b"secret"))
        assert await raw.frame() == v2.encode_auth("AuthDisabledPlugin", b"")[4:]

    run(scenario)


def test_start_tls_is_refused_and_the_connection_goes_on() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        raw.send(bytes.fromhex("0000000b0a06080310091805d20600"))
        answer = await raw.answer()
        assert (answer.txn_id, answer.operation, answer.code) == (5, 9, 404)
        raw.send(v3_add(6, 0))
        assert (await raw.answer()).code == 0

    run(scenario)


def test_a_pipeline_in_one_segment_is_answered_whole() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        raw.send(b"".join(add(i) for i in range(100)))
        answers = [await raw.frame() for _ in range(100)]
        assert answers == [v2.encode_add_answers(7, [i], None)[4:] for i in range(100)]
        assert world.core.add_calls == 1

    run(scenario)


def test_a_request_byte_by_byte_is_served() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        for byte in add(0):
            raw.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await raw.frame() == v2.encode_add_answers(7, [0], None)[4:]

    run(scenario)


# -- long polls -------------------------------------------------------------------------------


def poll(txn_id: int, previous_lac: int, timeout_ms: int) -> bytes:
    return v3.encode_read(Read(txn_id, 7, -1, 0, b"", previous_lac, timeout_ms, True))


def test_a_long_poll_waits_for_the_next_entry() -> None:
    async def scenario(world: World) -> None:
        writer, reader = await world.connect(), await world.connect()
        writer.send(v3_add(1, 0) + v3_add(2, 1))  # LAC 0
        assert [(await writer.answer()).code for _ in range(2)] == [0, 0]
        reader.send(poll(9, -1, 10_000))
        answer = await reader.answer()
        assert (answer.txn_id, answer.entry_id, answer.max_lac) == (9, 0, 0)
        assert answer.body == world.core.ledgers[7].entries[0]
        reader.send(poll(10, 0, 10_000))
        await asyncio.sleep(0.05)
        writer.send(v3_add(3, 2))  # carries LAC 1
        answer = await reader.answer()
        assert (answer.txn_id, answer.entry_id, answer.max_lac) == (10, 1, 1)
        assert answer.body == world.core.ledgers[7].entries[1]

    run(scenario)


def test_a_long_poll_ends_empty_at_its_time() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        raw.send(v3_add(1, 0) + poll(2, 5, 100))
        assert (await raw.answer()).txn_id == 1
        answer = await raw.answer()
        assert (answer.txn_id, answer.code, answer.body, answer.max_lac) == (2, 0, None, -1)

    run(scenario)


def test_a_fence_wakes_a_long_poll() -> None:
    async def scenario(world: World) -> None:
        reader, other = await world.connect(), await world.connect()
        reader.send(v3_add(1, 0))
        await reader.answer()
        reader.send(poll(2, 5, 30_000))
        await asyncio.sleep(0.05)
        other.send(v3.encode_read(Read(3, 7, -1, 1, KEY)))
        assert (await other.answer()).code == 0
        assert (await reader.answer()).txn_id == 2

    run(scenario)


def test_an_explicit_lac_wakes_a_long_poll() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        raw.send(v3_add(1, 0))
        await raw.answer()
        raw.send(poll(2, -1, 30_000))
        await asyncio.sleep(0.05)
        raw.send(v3.encode_write_lac(WriteLac(3, 7, 0, KEY, DIGEST.build_lac(0))))
        answers = {a.txn_id: a for a in (await raw.answer(), await raw.answer())}
        assert (answers[2].entry_id, answers[2].max_lac) == (0, 0)
        assert answers[3].code == 0

    run(scenario)


def test_a_long_poll_of_a_ledger_without_entries_here_waits_its_time() -> None:
    """Its first entry may come at any moment; a tail must not be told that there is none."""

    async def scenario(world: World) -> None:
        raw = await world.connect()
        raw.send(poll(2, 5, 100))
        answer = await raw.answer()
        assert (answer.code, answer.body, answer.max_lac) == (0, None, -1)

    run(scenario)


# -- bad input --------------------------------------------------------------------------------


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">I", 6 << 20),
        b"\xff\xff\xff\xff",
        framed(b""),
        framed(b"\x00"),
        framed(b"\x02\x63\x00\x00" + bytes(40)),
        framed(b"\x02\x01\x00\x00" + bytes(10)),
        framed(b"\x02\x02\x00\x01" + bytes(16)),
        framed(b"\x02\x07\x00\x00" + bytes(20)),
        framed(b"\x02\x03\x00\x00\xff\xff\xff"),
        framed(b"\x7f" * 1000),
    ],
    ids=[
        "http", "oversize", "negative-size", "empty", "one-byte", "unknown-operation",
        "short-add", "fence-without-key", "short-batch-read", "bad-auth", "garbage",
    ],
)  # fmt: skip
def test_what_is_no_request_ends_its_connection_only(data: bytes) -> None:
    async def scenario(world: World) -> None:
        other = await world.connect()
        raw = await world.connect()
        raw.send(data)
        assert await raw.ended()
        other.send(add(1))
        assert await other.frame() == v2.encode_add_answers(7, [1], None)[4:]
        await world.assert_alive()

    run(scenario)


def test_what_can_be_answered_is_answered_bad_request() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        head = struct.pack(">qq", 7, -5)
        raw.send(framed(b"\x02\x01\x00\x00" + KEY + head + bytes(30)))  # id below 0
        raw.send(framed(b"\x02\x01\x00\x00" + KEY + struct.pack(">qq", 7, 5)))  # no header
        raw.send(add(1))
        codes = sorted([struct.unpack_from(">i", await raw.frame(), 4)[0] for _ in range(3)])
        assert codes == [0, 100, 100]

    run(scenario)


def test_a_version_3_add_that_contradicts_itself_is_refused() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        body = DIGEST.build(2, 1, 0, b"")
        raw.send(b"".join(v3.encode_add(1, 7, 1, KEY, body, 0)))
        assert (await raw.answer()).code == 404
        assert not world.core.ledgers

    run(scenario)


def test_a_frame_that_takes_too_long_ends_its_connection() -> None:
    async def scenario(world: World) -> None:
        slow, idle = await world.connect(), await world.connect()
        idle.send(add(0))
        await idle.frame()
        data = add(1, b"x" * 1000)

        async def trickle() -> None:
            for i in range(len(data)):
                slow.send(data[i : i + 1])
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        assert await slow.ended()
        trickling.cancel()
        assert list(world.core.ledgers[7].entries) == [0]
        idle.send(add(2))  # a connection may be silent between frames for as long as it likes
        assert await idle.frame() == v2.encode_add_answers(7, [2], None)[4:]

    run(scenario, SessionLimits(frame_timeout_s=0.4))


def test_a_frame_that_waits_because_we_do_not_read_is_not_late() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        world.core.hold = True
        raw.send(b"".join(add(i, b"x" * 100_000) for i in range(20)))
        await until(lambda: bool(world.core.add_calls))
        await asyncio.sleep(1.5)
        assert len(world.core.ledgers[7].entries) < 20
        world.core.hold = False
        world.core.release()
        answers = {await raw.frame() for _ in range(20)}
        assert answers == {v2.encode_add_answers(7, [i], None)[4:] for i in range(20)}

    run(scenario, SessionLimits(frame_timeout_s=0.6, add_bytes_max=300_000))


def test_a_peer_that_vanishes_mid_request_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        world.core.cached, world.core.read_delay_s = False, 0.1
        raw.send(add(0))
        await raw.frame()
        raw.send(v2.encode_read(7, 0, 0, b"") * 50 + add(1)[:30])
        await asyncio.sleep(0.05)
        raw.close()
        await until(lambda: not world.server.connection_count)
        await world.assert_alive()

    run(scenario)


def test_a_peer_that_does_not_read_its_answers_is_not_read() -> None:
    async def scenario(world: World) -> None:
        raw = await world.connect()
        raw.send(add(0, b"x" * 1_000_000))
        await raw.frame()
        raw._reader._transport.pause_reading()  # type: ignore[attr-defined]
        served = world.core.cached_reads
        raw.send(v2.encode_read(7, 0, 0, b"") * 400)
        await asyncio.sleep(0.3)
        assert world.core.cached_reads - served < 40, "answers pile up in memory"
        raw._reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(400):
            assert len(await raw.frame()) > 1_000_000

    run(scenario)


def test_connections_past_the_bound_are_closed() -> None:
    async def scenario(world: World) -> None:
        raws = [await world.connect() for _ in range(20)]
        await until(lambda: world.server.connection_count >= 20)
        assert await (await world.connect()).ended()
        raws[0].send(add(0))
        await raws[0].frame()
        raws.pop().close()
        await until(lambda: world.server.connection_count < 20)
        await world.assert_alive()

    run(scenario)


def test_random_bytes_never_harm_the_server() -> None:
    async def scenario(world: World) -> None:
        rng = random.Random(23)
        sound = [add(0), v3_add(1, 0), v2.encode_read(7, 0, 0, b""), poll(2, 0, 10)]
        for _ in range(150):
            raw = await world.connect()
            data = bytearray(b"".join(rng.choice(sound) for _ in range(3)))
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            raw.send(bytes(data[: rng.randint(1, len(data))]))
            await asyncio.sleep(0)
            raw.close()
        await until(lambda: not world.server.connection_count)
        await world.assert_alive()

    run(scenario)
