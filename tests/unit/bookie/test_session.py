"""A connection's bounds, without a network: a peer that asks and does not read; one that comes as
the server closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from magnetar.bookie.core import BookieCore
from magnetar.bookie.serving.lac_watch import LacWatch
from magnetar.bookie.serving.server import BookieServer
from magnetar.bookie.serving.session import BookieSession, SessionLimits
from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.entry import LacReply
from magnetar.wire.bookie import v2, v3
from magnetar.wire.bookie.messages import READ_FENCE, AddRun, Read
from tests.unit.bookie.storage_kit import KEY, entry

ENTRY_BYTES = 1 << 20
POLLS = 60


class Core:
    """Has every entry, each a large one."""

    async def read_lac(self, ledger_id: int, flags: int = 0, master_key: bytes = b"") -> LacReply:
        return LacReply(POLLS, None)

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes:
        return bytes(ENTRY_BYTES)


class StuckTransport(asyncio.Transport):
    """Keeps all that is written until ``taken``."""

    def __init__(self, protocol: BookieSession) -> None:
        super().__init__()
        self._protocol = protocol
        self.held_bytes = 0
        self.most_bytes = 0
        self.sent_bytes = 0
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It is full from the first byte on, whatever the limits."""

    def write(self, data: bytes | bytearray | memoryview) -> None:  # type: ignore[override]
        if not self.held_bytes:
            self._protocol.pause_writing()
        self.held_bytes += len(data)
        self.most_bytes = max(self.most_bytes, self.held_bytes)

    def writelines(self, parts: object) -> None:
        self.write(b"".join(cast("list[bytes]", parts)))

    def get_write_buffer_size(self) -> int:
        return self.held_bytes

    def taken(self) -> None:
        self.sent_bytes += self.held_bytes
        if self.held_bytes:
            self.held_bytes = 0
            self._protocol.resume_writing()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


def receive(session: BookieSession, data: bytes) -> None:
    session.get_buffer(-1)[: len(data)] = data
    session.buffer_updated(len(data))


def test_answers_to_long_polls_wait_for_a_peer_that_does_not_read() -> None:
    async def scenario() -> None:
        scope = TaskScope("test", awaited(by="the test"))
        limits = SessionLimits(unsent_bytes_max=4 << 20)
        session = BookieSession(
            cast(BookieCore, Core()),
            limits,
            Connections(),
            LacWatch(),
            scope,
            lambda _: None,
            lambda _: None,
        )
        transport = StuckTransport(session)
        session.connection_made(transport)
        for poll in range(POLLS):
            read = Read(poll, 1, -1, 0, b"", previous_lac=poll, timeout_ms=1000, piggyback=True)
            receive(session, v3.encode_read(read))
        async with asyncio.timeout(60):
            while transport.sent_bytes < (POLLS - 1) * ENTRY_BYTES:
                for _ in range(20):
                    await asyncio.sleep(0)
                transport.taken()
        assert transport.most_bytes < limits.unsent_bytes_max + 2 * ENTRY_BYTES
        await scope.close()

    asyncio.run(scenario())


class SlowCore(Core):
    """Gives entry 0 when ``freed``; ``read`` has what was asked for, in order."""

    def __init__(self) -> None:
        self.freed = asyncio.Event()
        self.read: list[int] = []

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return None

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes:
        self.read.append(entry_id)
        if entry_id == 0:
            await self.freed.wait()
        return bytes(100)


def test_a_fence_does_not_wait_for_a_slow_read() -> None:
    async def scenario() -> None:
        scope = TaskScope("test", awaited(by="the test"))
        core = SlowCore()
        session = BookieSession(
            cast(BookieCore, core),
            SessionLimits(),
            Connections(),
            LacWatch(),
            scope,
            lambda _: None,
            lambda _: None,
        )
        session.connection_made(StuckTransport(session))
        receive(session, v3.encode_read(Read(1, 1, 0, 0, b"")))
        for _ in range(20):
            await asyncio.sleep(0)
        assert core.read == [0]
        receive(session, v3.encode_read(Read(2, 1, 1, READ_FENCE, b"k" * 20)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert core.read == [0, 1]
        core.freed.set()
        await scope.close()

    asyncio.run(scenario())


def test_a_connection_accepted_as_the_server_closes_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its requests would be begun in a scope that is closed."""

    async def scenario() -> None:
        made: list[Callable[[], BookieSession]] = []
        loop = asyncio.get_running_loop()
        create = loop.create_server

        async def created(
            make: Callable[[], BookieSession], host: str, port: int
        ) -> asyncio.Server:
            made.append(make)
            return await create(make, host, port)

        monkeypatch.setattr(loop, "create_server", created)
        server = BookieServer(cast(BookieCore, Core()), "127.0.0.1", 0)
        await server.start()
        session = made[0]()
        await server.close()
        transport = StuckTransport(session)
        session.connection_made(transport)
        assert transport.aborted
        assert server.connection_count == 0

    asyncio.run(scenario())


class OrderedCore(Core):
    """``asked`` has the ledgers of adds and reads, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []

    def add_runs(self, runs: Sequence[AddRun], done: object) -> None:
        self.asked.append(("add", [run.ledger_id for run in runs]))

    def add_entries(self, ledger_id: int, *_: object) -> None:
        self.asked.append(("add", [ledger_id]))

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes:
        self.asked.append(("read", [ledger_id]))
        return bytes(100)


def test_a_read_comes_behind_the_adds_before_it_and_ahead_of_those_behind_it() -> None:
    """The adds of a chunk go to the core together, but not past what was asked between them."""

    async def scenario() -> None:
        scope = TaskScope("test", awaited(by="the test"))
        core = OrderedCore()
        session = BookieSession(
            cast(BookieCore, core),
            SessionLimits(),
            Connections(),
            LacWatch(),
            scope,
            lambda _: None,
            lambda _: None,
        )
        session.connection_made(StuckTransport(session))
        one, two, three = (b"".join(v2.encode_adds(KEY, [entry(i, 0)], 0)[0]) for i in (1, 2, 3))
        receive(session, one + two + v2.encode_read(1, 0, 0, b"") + three)
        assert core.asked == [("add", [1, 2]), ("read", [1]), ("add", [3])]
        await scope.close()

    asyncio.run(scenario())
