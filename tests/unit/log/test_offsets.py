"""Offsets of messages: exact through failures, recoveries, owners, trimming; and old logs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.config import LedgerConfig
from magnetar.env.metadata import Versioned
from magnetar.log.managed import appender
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import decode_log, encode_log, log_path
from magnetar.log.seam import Content, ReadableLog
from magnetar.model.errors import LedgerError, LogError
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.wire.pulsar.broker_metadata import HEADER_BYTES, TIME_MS_MAX, read_header
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata
from tests.unit.log.doubles import NAME, OFFSET, MemoryWriter, Outcomes, Process, World
from tests.unit.log.test_managed_log import read_all

SMALL = LedgerConfig(ledger_entries_max=10, cursor_flush_interval_ms=1)


def payload_of(messages: int, time_ms: int) -> bytes:
    return b"%d@%d" % (messages, time_ms)


async def check(log: ReadableLog) -> int:
    """Every entry of the log says how many messages it holds: offsets must add up, and times be
    found. Returns the end."""
    positions = log.positions
    offset = await positions.offset_of(EARLIEST)
    greatest = -1
    told = {each.ledger_id: each for each in log.stats().ledgers}
    for entry in await read_all(log):
        at = Position(entry.ledger_id, entry.entry_id)
        messages, time_ms = map(int, bytes(entry.payload).split(b"@"))
        assert told[at.ledger_id].least_ms <= time_ms
        assert time_ms <= told[at.ledger_id].greatest_ms or not told[at.ledger_id].greatest_ms
        assert await positions.offset_of(at) == offset
        assert await positions.position_of(offset + messages - 1) == at
        offset += messages
        if time_ms > greatest:
            assert await log.first_at(time_ms) == at
            greatest = time_ms
    assert positions.end_offset == offset
    assert await log.first_at(greatest + 1) == positions.next_position(positions.readable)
    return offset


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_offsets_have_no_gap_through_failures_and_owners(seed: int) -> None:
    async def scenario() -> None:
        rng, world = random.Random(seed), World()
        end = 0
        for _ in range(rng.randint(1, 4)):  # owners; those before may hold the log still
            process = Process(world)
            config = LedgerConfig(ledger_entries_max=rng.choice([3, 10, 1000]))
            log = await process.store(config).open(NAME)
            assert log.positions.end_offset >= end
            await publish_through_faults(rng, process, log)
            process.ledgers.create_errors = []
            process.ledgers.break_after = None
            end = await check(log)
            if rng.random() < 0.5:
                await log.close()
        log = await Process(world).store().open(NAME)
        assert await check(log) == end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender, "OPEN_RETRY_FIRST_S", 0.0)
        asyncio.run(scenario())


async def publish_through_faults(rng: random.Random, process: Process, log: ManagedLog) -> None:
    outcomes = Outcomes()
    for _ in range(30):
        messages = [rng.choice([1, 1, 2, 200]) for _ in range(rng.randint(1, 5))]
        times = [rng.randrange(1, 5000) for _ in messages]
        payloads = [payload_of(m, t) for m, t in zip(messages, times, strict=True)]
        log.append(payloads, outcomes, Content(messages, times))
        if rng.random() < 0.2 and process.ledgers.break_after is None:
            process.ledgers.break_after = rng.randrange(8)
        if rng.random() < 0.1:
            process.ledgers.create_errors = [LedgerError("none now")] * rng.randrange(5)
        for _ in range(rng.choice([0, 0, 1, 5])):
            await asyncio.sleep(0)
    await outcomes.wait(30)


def test_a_recovered_ledger_says_itself_how_far_it_goes() -> None:
    """The owner was killed with appends under way: some are in the ledger, some are not."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await process.store().open(NAME)
        outcomes = Outcomes()
        log.append([payload_of(3, 1)], outcomes, Content([3], [1]))
        await outcomes.wait(1)
        process.ledgers.silent = True
        log.append([payload_of(4, 2), payload_of(5, 9)], outcomes, Content([4, 5], [2, 9]))
        await asyncio.sleep(0)
        process.ledgers.hold = True
        log.append([payload_of(50, 60)], outcomes, Content([50], [60]))
        await asyncio.sleep(0)
        assert log.positions.end_offset == 3

        again = await Process(world).store().open(NAME)
        assert await check(again) == 12

    asyncio.run(scenario())


def test_what_a_failed_writer_refused_has_no_offsets_there() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store().open(NAME)
        outcomes = Outcomes()
        log.append([payload_of(3, 10)], outcomes, Content([3], [10]))
        await outcomes.wait(1)
        process.ledgers.writers[-1].fail(LedgerError("in silence, with nothing under way"))
        log.append([payload_of(4, 70), payload_of(1, 80)], outcomes, Content([4, 1], [70, 80]))
        await outcomes.wait(2)
        assert await check(log) == 8
        assert len(log.stats().ledgers) == 2
        assert await check(await Process(process.world).store().open(NAME)) == 8

    asyncio.run(scenario())


def test_a_ledger_says_when_its_messages_were_published() -> None:
    """Not in order; and the least time is not known of one that another owner has recovered."""

    async def scenario() -> None:
        world = World()
        config = LedgerConfig(ledger_entries_max=3)
        log = await Process(world).store(config).open(NAME)
        outcomes = Outcomes()
        for times in ([70, 50, 60], [40], [90, 80], [30, 2**60]):
            payloads = [payload_of(1, time_ms) for time_ms in times]
            log.append(payloads, outcomes, Content([1] * len(times), times))
            await outcomes.wait(outcomes.count + 1)
        found = [(each.least_ms, each.greatest_ms) for each in log.stats().ledgers]
        assert found == [(50, 70), (40, 90), (30, TIME_MS_MAX)]
        again = await Process(world).store(config).open(NAME)
        found = [(each.least_ms, each.greatest_ms) for each in again.stats().ledgers]
        assert found == [(50, 70), (40, 90), (0, TIME_MS_MAX)]
        await again.close()
        followed = await Process(world).store(config).follow(NAME)
        assert followed.stats().ledgers == again.stats().ledgers

    asyncio.run(scenario())


def test_the_header_is_in_the_ledger_and_not_in_what_is_read() -> None:
    async def scenario() -> None:
        world = World()
        for config in (SMALL, replace(SMALL, tail_cache_bytes=0)):
            log = await Process(world).store(config).open(NAME)
            outcomes = Outcomes()
            log.append([b"payload"], outcomes, Content([7], [1234]))
            await outcomes.wait(1)
            (found,) = await log.read(log.positions.readable, 1, 1000)
            assert bytes(found.payload) == b"payload"
            stored = world.ledgers[found.ledger_id].entries[found.entry_id]
            assert stored[OFFSET + HEADER_BYTES :] == b"payload"
            header = read_header(stored, OFFSET)
            assert header is not None
            assert header[1:] == (log.positions.end_offset - 1, 1234)
            await log.close()

    asyncio.run(scenario())


def test_offsets_go_on_after_everything_was_trimmed() -> None:
    async def scenario() -> None:
        world = World()
        config = replace(SMALL, ledger_entries_max=4, retention_ms=0, retention_bytes=0)
        log = await Process(world).store(config).open(NAME)
        outcomes = Outcomes()
        for _ in range(8):
            log.append([payload_of(5, 1)], outcomes, Content([5], [1]))
        await outcomes.wait(8)
        await log.close()
        log = await Process(world).store(config).open(NAME)
        log.tick()
        await asyncio.sleep(0.05)
        assert not log.stats().ledgers
        assert log.positions.end_offset == 40
        await log.close()
        log = await Process(world).store(config).open(NAME)
        assert log.positions.end_offset == 40
        log.append([payload_of(2, 1)], outcomes, Content([2], [1]))
        await outcomes.wait(9)
        assert await log.positions.offset_of(EARLIEST) == 40
        assert log.positions.messages_between(EARLIEST, LATEST) == 2

    asyncio.run(scenario())


def _without_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers as releases before this one wrote them."""
    original = MemoryWriter.append

    def append(self: MemoryWriter, payloads, done, prefixes=()):  # type: ignore[no-untyped-def]
        return original(self, payloads, done)

    monkeypatch.setattr(MemoryWriter, "append", append)


def _forget_offsets(world: World) -> None:
    """The log's record as releases before this one wrote it."""
    path = log_path(NAME)
    record = decode_log(NAME, world.nodes[path].value)
    ledgers = tuple(
        replace(info, first_offset=0, messages=0, greatest_ms=0) for info in record.ledgers
    )
    old = encode_log(replace(record, ledgers=ledgers, first_offset=0))
    world.nodes[path] = Versioned(old, world.nodes[path].version)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_log_of_an_older_release_counts_its_entries_as_messages(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    def frame(time_ms: int) -> bytes:
        meta = MessageMetadata(producer_name="p", sequence_id=1, publish_time=time_ms)
        meta.num_messages_in_batch = 9
        data = meta.SerializeToString()
        return len(data).to_bytes(4, "big") + data + b"x"

    async def scenario() -> None:
        world = World()
        with monkeypatch.context() as patch:
            _without_headers(patch)
            patch.setattr(appender, "HEADER_BYTES", 0)
            log = await Process(world).store(SMALL).open(NAME)
            outcomes = Outcomes()
            for i in range(14):
                log.append([frame(100 + 10 * i - 50 * (i % 2))], outcomes)
            await outcomes.wait(14)
            if closed:
                await log.close()
        _forget_offsets(world)

        log = await Process(world).store(SMALL).open(NAME)
        positions = log.positions
        assert positions.end_offset == 14, "one each: known without reading them"
        entries = await read_all(log)
        assert [bytes(e.payload) for e in entries] == [
            frame(100 + 10 * i - 50 * (i % 2)) for i in range(14)
        ]
        held = [Position(e.ledger_id, e.entry_id) for e in entries]
        assert [await positions.offset_of(p) for p in held] == list(range(14))
        assert await log.first_at(125) == held[4]
        log.append([b"new"], outcomes, Content([6], [500]))
        await outcomes.wait(15)
        assert await positions.offset_of(positions.readable) == 14
        assert await log.first_at(300) == positions.readable
        record = decode_log(NAME, world.nodes[log_path(NAME)].value)
        assert [(i.first_offset, i.messages) for i in record.ledgers[:2]] == [(0, 10), (10, 4)]

    asyncio.run(scenario())


def test_a_header_that_cannot_be_true_is_told() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store().open(NAME)
        outcomes = Outcomes()
        log.append([b"a", b"b"], outcomes)
        await outcomes.wait(1)
        (ledger,) = world.ledgers.values()
        ledger.entries[1] = ledger.entries[0]
        with pytest.raises(LogError, match="damaged"):
            await Process(world).store().open(NAME)

    asyncio.run(scenario())
