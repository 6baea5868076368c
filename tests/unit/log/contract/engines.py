"""The engines that the contracts of ``log/seam.py`` are held against, and what tests do with them.

Every engine is asked for small ledgers (``LEDGER_ENTRIES`` each), so that positions step over
them. A test takes ``engine`` and writes as nobody does who knows which one it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed.store import policy_of
from magnetar.log.policy import Engine as Engines
from magnetar.log.seam import Content, LogStore, ReadableLog, WritableLog
from magnetar.model.ids import EARLIEST, Position
from tests.doubles.memory_log import MemoryLogStore
from tests.unit.log.doubles import NAME, Outcomes, Process, World
from tests.unit.log.partition.world import PartitionWorld

LEDGER_ENTRIES = 5
MANY = 1 << 20


@asynccontextmanager
async def nothing_runs() -> AsyncIterator[None]:
    yield


@dataclass(frozen=True)
class Engine:
    """``stores`` gives a new store over the same world, as a process started again has it."""

    name: str
    stores: Callable[[], LogStore]
    followed: bool = True
    """Whether other processes follow its logs."""
    running: Callable[[], AbstractAsyncContextManager[None]] = nothing_runs
    """What has to run on the loop that uses its stores."""


def _managed() -> Engine:
    world = World()
    config = LedgerConfig(ledger_entries_max=LEDGER_ENTRIES, cursor_flush_interval_ms=1)
    return Engine("managed", lambda: Process(world).store(config))


def _memory() -> Engine:
    store = MemoryLogStore(LEDGER_ENTRIES)
    return Engine("memory", lambda: store)


def _partition() -> Engine:
    """Another store over the same replicas is another owner: it leads in another epoch."""
    world, parts = World(), PartitionWorld()
    config = LedgerConfig(ledger_entries_max=LEDGER_ENTRIES, cursor_flush_interval_ms=1)
    policy = replace(policy_of(config), engine=Engines.PARTITION)

    def store() -> LogStore:
        process = Process(world)
        return parts.store(process, process.store(config), policy, LEDGER_ENTRIES)

    return Engine("partition", store, followed=False, running=parts.running)


ENGINES: tuple[Callable[[], Engine], ...] = (_managed, _memory, _partition)
each_engine = pytest.mark.parametrize("engine", [make() for make in ENGINES], ids=lambda e: e.name)
each_followed_engine = pytest.mark.parametrize(
    "engine", [each for each in (make() for make in ENGINES) if each.followed], ids=lambda e: e.name
)


def run_with(engine: Engine, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run ``scenario`` beside what ``engine`` needs."""

    async def run() -> None:
        async with asyncio.timeout(60), engine.running():
            await scenario()

    asyncio.run(run())


def with_log(engine: Engine, scenario: Callable[[WritableLog], Awaitable[None]]) -> None:
    """Run ``scenario`` with a new log of ``engine``, and delete the log after it."""

    async def run() -> None:
        store = engine.stores()
        source = await store.open(NAME)
        try:
            await scenario(source)
        finally:
            await source.close()
            await store.delete(NAME)

    run_with(engine, run)


@dataclass(frozen=True)
class Reading:
    """A log of ``engine`` and how it is read: through the log that is written, or as a follower in
    another process reads it."""

    engine: Engine
    followed: bool


each_reading = pytest.mark.parametrize(
    "reading",
    [
        Reading(made, followed)
        for made in (make() for make in ENGINES)
        for followed in (False, True)
        if made.followed or not followed
    ],
    ids=lambda r: f"{r.engine.name}-{'followed' if r.followed else 'own'}",
)


def with_pair(
    reading: Reading, scenario: Callable[[WritableLog, ReadableLog], Awaitable[None]]
) -> None:
    """As ``with_log``; ``scenario`` gets the writer of a log and the log as it is read."""

    async def run(writer: WritableLog) -> None:
        if not reading.followed:
            await scenario(writer, writer)
            return
        source = await reading.engine.stores().follow(NAME)
        try:
            await scenario(writer, source)
        finally:
            await source.close()

    with_log(reading.engine, run)


async def seen(source: ReadableLog, position: Position) -> None:
    """Wait until ``position`` is readable."""
    grown = asyncio.Event()
    end = source.watch_readable(grown.set)
    async with asyncio.timeout(600):
        while source.positions.readable < position:
            await grown.wait()
            grown.clear()
    end()


async def append(
    source: WritableLog, payloads: Sequence[bytes], content: Content | None = None
) -> list[Position]:
    """Append one by one; the positions, all confirmed."""
    outcomes = Outcomes()
    for i, payload in enumerate(payloads):
        one = None
        if content is not None:
            one = Content([content.messages[i]], [content.publish_times_ms[i]], content.stamp)
        source.append([payload], outcomes, one)
    await outcomes.wait(len(payloads))
    assert not outcomes.errors
    return outcomes.positions


async def fill(source: WritableLog, count: int) -> list[Position]:
    return await append(source, [b"%d" % i for i in range(count)])


async def read_all(source: ReadableLog, start: Position = EARLIEST) -> list[bytes]:
    found: list[bytes] = []
    while entries := await source.read(start, 3, MANY):
        found += [bytes(entry.payload) for entry in entries]
        last = entries[-1]
        start = source.positions.next_position(Position(last.ledger_id, last.entry_id))
    return found
