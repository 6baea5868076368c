"""Our client against our server over TCP, with a storage core in memory behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from magnetar.bookie.serving.server import BookieServer
from magnetar.bookie.serving.session import SessionLimits
from magnetar.ledger.bookies import AddFlag, ReadFlag
from magnetar.ledger.connections.channel import ConnectionOptions
from magnetar.ledger.connections.connection import BookieConnection, fixed_address
from magnetar.model.errors import (
    BookieIOError,
    BookieUnavailableError,
    FencedError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    TooManyRequestsError,
    UnauthorizedError,
)
from magnetar.model.ledger import DigestType
from magnetar.wire.bookie import availability
from magnetar.wire.bookie.digest import EntryDigest
from tests.memory_bookie import MemoryBookie, until

KEY = b"k" * 20
BOTH = pytest.mark.parametrize("v3_only", [False, True], ids=["v2", "v3"])


class Pair:
    """A server over ``core`` and one client of it."""

    def __init__(self, core: MemoryBookie, server: BookieServer, client: BookieConnection) -> None:
        self.core = core
        self.server = server
        self.client = client

    async def add(
        self,
        ledger_id: int,
        entries: dict[int, bytes],
        flags: AddFlag = AddFlag.NONE,
        key: bytes = KEY,
    ) -> dict[int, MagnetarError | None]:
        """Add; returns each entry id's outcome once all have come."""
        outcomes: dict[int, MagnetarError | None] = {}
        finished = asyncio.Event()

        def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
            for entry_id in entry_ids:
                assert entry_id not in outcomes, "an entry was answered twice"
                outcomes[entry_id] = error
            if len(outcomes) == len(entries):
                finished.set()

        ids = list(entries)
        self.client.add_entries(ledger_id, key, ids, [entries[i] for i in ids], flags, done)
        assert not outcomes, "done was called from inside add_entries"
        async with asyncio.timeout(60):
            await finished.wait()
        return outcomes

    async def add_again(self, ledger_id: int, entries: dict[int, bytes]) -> None:
        """Add until every entry is stored: a stall of the machine may outlast a short time-out."""
        while any((await self.add(ledger_id, entries)).values()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def pair(
    options: ConnectionOptions | None = None, limits: SessionLimits | None = None
) -> AsyncIterator[Pair]:
    core = MemoryBookie()
    server = BookieServer(core, "127.0.0.1", 0, limits)
    await server.start()
    client = BookieConnection(core.bookie_id, fixed_address("127.0.0.1", server.port), options)
    try:
        yield Pair(core, server, client)
    finally:
        await client.close()
        await server.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(main())


def entry(
    ledger_id: int, entry_id: int, payload: bytes = b"hello", lac: int | None = None
) -> bytes:
    digest = EntryDigest(DigestType.CRC32C, ledger_id, b"")
    return digest.build(entry_id, entry_id - 1 if lac is None else lac, 5, payload)


@BOTH
def test_adds_are_stored_and_read_back(v3_only: bool) -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(v3_only=v3_only)) as p:
            entries = {i: entry(7, i, b"payload %d" % i) for i in range(100)}
            assert await p.add(7, entries) == dict.fromkeys(range(100))
            assert p.core.ledgers[7].entries == entries
            assert await p.client.read_entry(7, 42) == entries[42]
            assert await p.client.read_entry(7, -1) == entries[99]
            assert await p.client.read_batch(7, 10, 5, 1 << 20) == [
                entries[i] for i in range(10, 15)
            ]

    run(scenario)


def test_a_batch_of_adds_reaches_the_core_in_one_call() -> None:
    async def scenario() -> None:
        async with pair() as p:
            await p.add(7, {0: entry(7, 0)})
            calls = p.core.add_calls
            await p.add(7, {i: entry(7, i) for i in range(1, 200)})
            assert p.core.add_calls == calls + 1

    run(scenario)


@BOTH
def test_refusals_arrive_as_their_errors(v3_only: bool) -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(v3_only=v3_only)) as p:
            with pytest.raises(NoLedgerError):
                await p.client.read_entry(7, 0)
            with pytest.raises(NoLedgerError):
                await p.client.read_batch(7, 0, 10, 1000)
            await p.add(7, {0: entry(7, 0)})
            with pytest.raises(NoEntryError, match="7:1"):
                await p.client.read_entry(7, 1)
            outcome = await p.add(7, {1: entry(7, 1)}, key=b"x" * 20)
            assert isinstance(outcome[1], UnauthorizedError)
            p.core.fail_adds = BookieIOError("disk")
            outcome = await p.add(7, {1: entry(7, 1), 2: entry(7, 2)})
            assert [type(error) for error in outcome.values()] == [BookieIOError] * 2

    run(scenario)


@BOTH
def test_a_fence_stops_the_writer_but_not_the_recovery(v3_only: bool) -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(v3_only=v3_only)) as p:
            entries = {i: entry(7, i) for i in range(3)}
            await p.add(7, entries)
            reply = await p.client.read_lac(7, ReadFlag.FENCE, KEY)
            assert (reply.last_add_confirmed, reply.last_entry) == (1, entries[2])
            assert p.core.ledgers[7].fenced
            outcome = await p.add(7, {3: entry(7, 3)})
            assert isinstance(outcome[3], FencedError)
            assert await p.add(7, {3: entry(7, 3)}, AddFlag.RECOVERY) == {3: None}
            with pytest.raises(UnauthorizedError):
                await p.client.read_lac(7, ReadFlag.FENCE, b"x" * 20)
            with pytest.raises(UnauthorizedError):
                await p.client.read_entry(7, 0, ReadFlag.FENCE)
            assert await p.client.read_entry(7, 0, ReadFlag.FENCE, KEY) == entries[0]

    run(scenario)


@BOTH
def test_a_batch_read_may_fence(v3_only: bool) -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(v3_only=v3_only)) as p:
            entries = {i: entry(7, i) for i in (0, 1, 2, 4)}
            await p.add(7, entries)
            read = p.client.read_batch
            assert len(await read(7, 0, 10, 1 << 20)) == 3
            assert not p.core.ledgers[7].fenced
            with pytest.raises(UnauthorizedError):
                await read(7, 0, 10, 1 << 20, ReadFlag.FENCE, b"x" * 20)
            assert not p.core.ledgers[7].fenced
            found = await read(7, 1, 10, 1 << 20, ReadFlag.FENCE, KEY)
            assert found == [entries[1], entries[2]]
            assert p.core.ledgers[7].fenced
            with pytest.raises(NoEntryError):
                await read(8, 0, 10, 1 << 20, ReadFlag.FENCE, KEY)
            assert p.core.ledgers[8].fenced

    run(scenario)


def test_a_fence_of_an_unknown_ledger_creates_it_fenced() -> None:
    async def scenario() -> None:
        async with pair() as p:
            reply = await p.client.read_lac(7, ReadFlag.FENCE, KEY)
            assert (reply.last_add_confirmed, reply.last_entry) == (-1, None)
            outcome = await p.add(7, {0: entry(7, 0)})
            assert isinstance(outcome[0], FencedError)

    run(scenario)


def test_explicit_lac_and_the_rest_of_version_3() -> None:
    async def scenario() -> None:
        async with pair() as p:
            with pytest.raises(NoLedgerError):
                await p.client.read_lac(7)
            await p.add(7, {i: entry(7, i) for i in (0, 1, 3, 4)})
            assert (await p.client.read_lac(7)).last_add_confirmed == 3
            body = EntryDigest(DigestType.CRC32C, 7, b"").build_lac(4)
            await p.client.write_lac(7, KEY, 4, body)
            reply = await p.client.read_lac(7)
            assert (reply.last_add_confirmed, reply.explicit_lac) == (4, body)
            await p.client.force_ledger(7)
            assert p.core.forced == [7]
            groups = await p.client.list_entries(7)
            held = [i for i in range(6) if availability.holds(groups, i)]
            assert held == [0, 1, 3, 4]
            assert await p.client.disk_space() == (1000, 400)

    run(scenario)


@BOTH
def test_answers_may_come_one_by_one_and_in_any_order(v3_only: bool) -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(v3_only=v3_only)) as p:
            p.core.hold = True
            adding = [
                asyncio.create_task(p.add(ledger, {i: entry(ledger, i) for i in range(50)}))
                for ledger in (1, 2)
            ]
            await until(lambda: p.core.add_calls >= 2)
            p.core.release(one_by_one=True)
            for outcome in await asyncio.gather(*adding):
                assert outcome == dict.fromkeys(range(50))

    run(scenario)


@BOTH
def test_the_same_entry_twice_under_way_is_answered_twice(v3_only: bool) -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(v3_only=v3_only)) as p:
            sends = [p.add(7, {5: entry(7, 5)}) for _ in range(3)]
            assert await asyncio.gather(*sends) == [{5: None}] * 3

    run(scenario)


@BOTH
def test_a_large_entry_makes_the_way_there_and_back(v3_only: bool) -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(v3_only=v3_only)) as p:
            entries = {i: entry(7, i, bytes([i]) * (5 << 20)) for i in range(3)}
            assert await p.add(7, entries) == dict.fromkeys(range(3))
            for cached in (True, False):
                p.core.cached = cached
                reads = await asyncio.gather(*(p.client.read_entry(7, i) for i in range(3)))
                assert reads == list(entries.values())

    run(scenario)


def test_a_batch_read_stops_at_its_bounds() -> None:
    async def scenario() -> None:
        async with pair() as p:
            entries = {i: entry(7, i, b"x" * 1000) for i in (0, 1, 2, 3, 5)}
            await p.add(7, entries)
            size = len(entries[0])
            read = p.client.read_batch
            assert len(await read(7, 0, 100, 1 << 20)) == 4, "stops before the missing entry"
            assert len(await read(7, 0, 3, 1 << 20)) == 3
            assert len(await read(7, 0, 100, 1)) == 1, "at least one entry"
            assert len(await read(7, 0, 100, 2 * (size + 4))) == 2
            with pytest.raises(NoEntryError):
                await read(7, 4, 10, 1 << 20)

    run(scenario)


# -- breaks -----------------------------------------------------------------------------------


@BOTH
def test_a_break_fails_everything_unanswered_and_the_next_use_connects_again(
    v3_only: bool,
) -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(v3_only=v3_only)) as p:
            await p.add(7, {0: entry(7, 0)})
            p.core.hold, p.core.cached, p.core.read_delay_s = True, False, 30.0
            adding = asyncio.create_task(p.add(7, {i: entry(7, i) for i in range(1, 50)}))
            reading = asyncio.create_task(p.client.read_entry(7, 0))
            await until(lambda: p.core.add_calls >= 2 and bool(p.core.reading))
            port = p.server.port
            await p.server.close()
            outcome = await adding
            assert set(outcome) == set(range(1, 50))
            assert all(isinstance(e, BookieUnavailableError) for e in outcome.values())
            with pytest.raises(BookieUnavailableError):
                await reading
            p.core.hold, p.core.read_delay_s = False, 0.0
            again = BookieServer(p.core, "127.0.0.1", port)
            await again.start()
            try:
                assert await p.add(7, {60: entry(7, 60)}) == {60: None}
            finally:
                await again.close()

    run(scenario)


def test_a_bookie_that_is_down_fails_at_once_until_the_pause_is_over() -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(backoff_min_s=1.0, backoff_max_s=1.0)) as p:
            port = p.server.port
            await p.server.close()
            outcome = await p.add(7, {0: entry(7, 0)})
            assert isinstance(outcome[0], BookieUnavailableError)
            with pytest.raises(BookieUnavailableError, match="next attempt in"):
                await p.client.read_entry(7, 0)
            outcome = await p.add(7, {0: entry(7, 0)})
            assert "next attempt in" in str(outcome[0])
            again = BookieServer(p.core, "127.0.0.1", port)
            await again.start()
            try:
                await asyncio.sleep(1.0)
                await p.add_again(7, {0: entry(7, 0)})
            finally:
                await again.close()

    run(scenario)


def test_adds_before_the_connection_is_up_are_bounded() -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(unsent_bytes_max=100_000)) as p:
            big = {i: entry(7, i, b"x" * 60_000) for i in range(3)}
            sends = [p.add(7, {i: body}) for i, body in big.items()]
            outcomes = await asyncio.gather(*sends)
            assert outcomes[0] == {0: None}
            assert all(
                isinstance(error, BookieUnavailableError)
                for outcome in outcomes[1:]
                for error in outcome.values()
            )

    run(scenario)


@BOTH
def test_no_answer_in_time_fails_and_breaks_a_silent_connection(v3_only: bool) -> None:
    async def scenario() -> None:
        options = ConnectionOptions(v3_only=v3_only, add_timeout_s=0.2, read_timeout_s=0.2)
        async with pair(options) as p:
            await p.add(7, {0: entry(7, 0)})
            p.core.hold, p.core.cached, p.core.read_delay_s = True, False, 30.0
            outcome = await p.add(7, {1: entry(7, 1), 2: entry(7, 2)})
            assert all("no answer" in str(error) for error in outcome.values())
            with pytest.raises(BookieUnavailableError, match="no answer"):
                await p.client.read_entry(7, 0)
            await until(lambda: not p.server.connection_count)
            p.core.hold = False
            await p.add_again(7, {3: entry(7, 3)})

    run(scenario)


def test_closing_the_client_fails_what_is_unanswered() -> None:
    async def scenario() -> None:
        async with pair() as p:
            p.core.hold = True
            adding = asyncio.create_task(p.add(7, {0: entry(7, 0)}))
            await until(lambda: bool(p.core.add_calls))
            await p.client.close()
            assert isinstance((await adding)[0], BookieUnavailableError)
            outcome = await p.add(7, {1: entry(7, 1)})
            assert "closed" in str(outcome[1])

    run(scenario)


# -- bounds of the server ---------------------------------------------------------------------


def test_reads_are_served_by_few_workers_and_refused_past_the_queue() -> None:
    async def scenario() -> None:
        limits = SessionLimits(workers_max=4, queued_requests_max=10)
        async with pair(limits=limits) as p:
            await p.add(7, {0: entry(7, 0)})
            p.core.cached, p.core.read_delay_s = False, 0.05
            reads = [p.client.read_entry(7, 0) for _ in range(50)]
            outcomes = await asyncio.gather(*reads, return_exceptions=True)
            assert p.core.most_reading <= 4
            refused = [o for o in outcomes if isinstance(o, TooManyRequestsError)]
            served = [o for o in outcomes if isinstance(o, bytes)]
            assert len(refused) + len(served) == 50
            assert len(served) >= 10
            assert refused

    run(scenario)


def test_adds_past_the_bound_wait_in_the_socket_and_none_is_lost() -> None:
    async def scenario() -> None:
        async with pair(limits=SessionLimits(add_bytes_max=1 << 20)) as p:
            p.core.hold = True
            adding = [
                asyncio.create_task(p.add(7, {i: entry(7, i, b"x" * 100_000)})) for i in range(200)
            ]
            await until(lambda: 7 in p.core.ledgers)
            await asyncio.sleep(0.3)
            taken = len(p.core.ledgers[7].entries)
            assert taken < 100, "the connection was read on past the bound"
            p.core.hold = False
            p.core.release()
            for i, outcome in enumerate(await asyncio.gather(*adding)):
                assert outcome == {i: None}

    run(scenario)


def test_a_cached_read_costs_no_task() -> None:
    async def scenario() -> None:
        async with pair() as p:
            await p.add(7, {i: entry(7, i) for i in range(10)})
            await asyncio.gather(*(p.client.read_entry(7, i) for i in range(10)))
            assert p.core.cached_reads == 10
            assert p.core.most_reading == 0

    run(scenario)
