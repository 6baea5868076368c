"""The client against a bookie that misbehaves, and the pool."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence

import pytest

from magnetar.ledger.bookies import AddFlag, BookieClient
from magnetar.ledger.connections.channel import Address, ConnectionOptions
from magnetar.ledger.connections.connection import BookieConnection, fixed_address
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.model.errors import BookieIOError, BookieUnavailableError, MagnetarError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import DigestType
from magnetar.wire.bookie import v2
from magnetar.wire.bookie.digest import EntryDigest

DIGEST = EntryDigest(DigestType.CRC32C, 7, b"")
SHORT_S = 0.3
PATIENT = ConnectionOptions(add_timeout_s=30, read_timeout_s=30)
SHORT = ConnectionOptions(add_timeout_s=SHORT_S, read_timeout_s=SHORT_S)
"""For bookies that leave something unanswered."""


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def play(
    answer: bytes,
    scenario: Callable[[BookieConnection], Awaitable[None]],
    options: ConnectionOptions = PATIENT,
) -> None:
    """A bookie that says ``answer`` to whatever comes first on a connection, then nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        while await reader.read(65536):
            pass
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = BookieConnection(BookieId("bad:1"), fixed_address("127.0.0.1", port), options)
        try:
            async with asyncio.timeout(60):
                await scenario(client)
        finally:
            await client.close()
            server.close()

    asyncio.run(main())


async def add(client: BookieClient, ids: Sequence[int]) -> dict[int, MagnetarError | None]:
    outcomes: dict[int, MagnetarError | None] = {}
    finished = asyncio.Event()

    def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        for entry_id in entry_ids:
            assert entry_id not in outcomes, "an entry was answered twice"
            outcomes[entry_id] = error
        if len(outcomes) == len(ids):
            finished.set()

    entries = [DIGEST.build(i, -1, 0, b"payload") for i in ids]
    client.add_entries(7, DIGEST.master_key, ids, entries, AddFlag.NONE, done)
    await finished.wait()
    return outcomes


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame of"),
        (framed(b""), "too short"),
        (framed(b"\x02\x09\x00\x00" + bytes(20)), "not an answer"),
        (framed(b"\x02\x01\x00\x00" + bytes(3)), "are needed"),
        (framed(b"\x02\x07\x00\x00" + bytes(28) + b"\xff\xff\xff\xff"), "entry of"),
    ],
)
def test_what_is_no_answer_breaks_the_connection_and_says_why(answer: bytes, reason: str) -> None:
    async def scenario(client: BookieConnection) -> None:
        outcomes = await add(client, [0, 1, 2])
        assert set(outcomes) == {0, 1, 2}
        for error in outcomes.values():
            assert isinstance(error, BookieUnavailableError)
            assert reason in str(error)
            assert "bad:1" in str(error)

    play(answer, scenario)


def test_version_3_garbage_breaks_the_connection_too() -> None:
    async def scenario(client: BookieConnection) -> None:
        with pytest.raises(BookieUnavailableError, match="not of version 3"):
            await client.read_lac(7)

    play(framed(b"\xff" * 30), scenario)


def test_answers_to_nothing_are_ignored() -> None:
    answer = (
        v2.encode_add_answers(99, [0], None)
        + v2.encode_add_answers(7, [55, 0, 55], None)
        + v2.encode_read_answer(7, 0, 1) + b"x"
        + framed(b"\x02\x07\x00\x00" + bytes(28))
    )  # fmt: skip

    async def scenario(client: BookieConnection) -> None:
        outcomes = await add(client, [0, 1])
        assert outcomes[0] is None
        assert isinstance(outcomes[1], BookieUnavailableError)
        assert "no answer" in str(outcomes[1])

    play(answer, scenario, ConnectionOptions(add_timeout_s=1.0))


def test_a_status_of_the_future_is_an_io_error() -> None:
    async def scenario(client: BookieConnection) -> None:
        outcomes = await add(client, [0])
        assert isinstance(outcomes[0], BookieIOError)
        assert "999" in str(outcomes[0])

    play(framed(struct.pack(">IIqq", 0x02010000, 999, 7, 0)), scenario)


def test_a_bookie_that_never_answers_is_given_up_in_time() -> None:
    async def scenario(client: BookieConnection) -> None:
        begin_s = asyncio.get_running_loop().time()
        outcomes = await add(client, range(100))
        assert set(outcomes) == set(range(100))
        with pytest.raises(BookieUnavailableError):
            await client.read_entry(7, 0)
        with pytest.raises(BookieUnavailableError):
            await client.read_batch(7, 0, 10, 1000)
        with pytest.raises(BookieUnavailableError):
            await client.read_lac(7)
        assert asyncio.get_running_loop().time() - begin_s < 20

    play(b"", scenario, SHORT)


def test_reads_under_way_are_bounded() -> None:
    async def scenario(client: BookieConnection) -> None:
        reads = [client.read_entry(7, i) for i in range(20)]
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        refused = [o for o in outcomes if "unanswered already" in str(o)]
        assert len(refused) == 10

    play(b"", scenario, ConnectionOptions(read_timeout_s=SHORT_S, calls_max=10))


# -- the pool ---------------------------------------------------------------------------------


class Local:
    """As much of a client as the pool touches."""

    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


def test_the_pool_keeps_one_client_per_bookie_and_closes_them() -> None:
    async def resolve(bookie_id: BookieId) -> Address:
        raise BookieUnavailableError(f"bookie {bookie_id} is not registered")

    async def available() -> list[BookieId]:
        return [BookieId("b"), BookieId("a")]

    async def main() -> None:
        local = Local()
        here: BookieClient = local  # type: ignore[assignment]
        pool = ConnectionPool(resolve, available, {BookieId("here"): here})
        assert pool.client(BookieId("here")) is here
        remote = pool.client(BookieId("a"))
        assert pool.client(BookieId("a")) is remote
        assert await pool.available() == ["a", "b"]
        outcomes = await add(remote, [0])
        assert "is not registered" in str(outcomes[0])
        await pool.close()
        assert local.closed
        with pytest.raises(BookieUnavailableError, match="closed"):
            await remote.read_entry(7, 0)

    asyncio.run(main())
