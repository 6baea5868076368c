"""``publishing.intake`` over a log in memory: what is taken in, once, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import pytest

from magnetar.model.errors import LogError, StagedWriteError
from magnetar.model.ids import Position
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.staging.marks import QueryMarks, sender
from magnetar.staging.records import Commit, Source
from magnetar.topics.publishing.intake import Buffer, TopicIntake
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head
from tests.doubles.memory_log import MemoryLog, MemoryLogStore

NAME = "public/default/persistent/t"
TOPIC = "t"
KEY = "q@r1"
BUILDER = EntryBuilder(Compression.NONE, bytes)


def entry(batch: int, part: int, number: int, messages: int = 2) -> bytes:
    values = [b"%d/%d/%d/%d" % (batch, part, number, i) for i in range(messages)]
    return BUILDER.entry(Head(sender(KEY, batch, part), number, 1_000 + number), Columns(values))


class Staged:
    """``intake.StagedEntries``: every part has the entries that its number and batch say."""

    def __init__(self, at_once: int = 2) -> None:
        self.at_once = at_once
        self.asked: list[tuple[int, int]] = []
        self.batch = 0

    async def entries(
        self, topic: str, source: Source, first: int
    ) -> AsyncGenerator[Sequence[Buffer], None]:
        assert topic == TOPIC
        self.asked.append((source.part, first))
        for start in range(first, source.entries, self.at_once):
            stop = min(start + self.at_once, source.entries)
            await asyncio.sleep(0)
            yield [memoryview(entry(self.batch, source.part, n)) for n in range(start, stop)]


def commit(batch: int, *sizes: int) -> Commit:
    sources = tuple(Source(part, 100 + part, size, 2 * size) for part, size in enumerate(sizes))
    return Commit(batch, 1, {TOPIC: sources}, ())


class World:
    def __init__(self) -> None:
        self.store = MemoryLogStore(4)
        self.counted = [0, 0, 0]

    async def open(self) -> tuple[MemoryLog, TopicIntake]:
        """As the next owner does."""
        log = await self.store.open(NAME)
        return log, TopicIntake(TOPIC, log, PulsarEntryFormat(), self._count)

    def _count(self, entries: int, byte_count: int, messages: int) -> None:
        for index, value in enumerate((entries, byte_count, messages)):
            self.counted[index] += value

    async def held(self) -> list[tuple[str, int]]:
        """What the log holds of ours: (producer, number), in order."""
        log = self.store.logs[NAME]
        found = await log.read(Position(1, 0), 1000, 1 << 20)
        return [PulsarEntryFormat().sent(each.payload) for each in found]


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario(World())

    asyncio.run(main())


def expected(batch: int, *sizes: int) -> list[tuple[str, int]]:
    return [(sender(KEY, batch, p), n) for p, size in enumerate(sizes) for n in range(size)]


def test_parts_come_in_order_and_are_counted() -> None:
    async def scenario(world: World) -> None:
        log, intake = await world.open()
        await intake.take(KEY, commit(0, 3, 5), Staged())
        assert await world.held() == expected(0, 3, 5)
        assert (world.counted[0], world.counted[2]) == (8, 16)
        assert log.positions.end_offset == 16, "messages, not entries"
        assert await log.first_at(1_004) == Position(2, 3), "when their producer published them"
        await intake.take(KEY, commit(0, 3, 5), Staged())
        assert await world.held() == expected(0, 3, 5), "asked again, nothing is left"

    run(scenario)


def test_the_record_has_a_checkpoint_before_the_log_has_an_entry() -> None:
    async def scenario(world: World) -> None:
        log, intake = await world.open()
        assert not intake.left_behind
        held: list[int] = []
        save = log.checkpoints.save

        async def saved() -> None:
            held.append(len(log._entries))
            await save()

        log.checkpoints.save = saved  # type: ignore[method-assign]
        await intake.take(KEY, commit(0, 1), Staged())
        assert held == [0]
        assert log.checkpoints.stored is not None

    run(scenario)


@pytest.mark.parametrize("stored", range(9))
def test_a_new_owner_goes_on_where_the_log_ends(stored: int) -> None:
    """The former owner has appended ``stored`` entries, and nobody said so."""

    async def scenario(world: World) -> None:
        log, intake = await world.open()
        await intake.take(KEY, commit(0), Staged())  # the checkpoint of before
        order = expected(0, 3, 5)
        for name, number in order[:stored]:
            log.append([entry(0, int(name[-1]), number)], lambda *_: None)
            await asyncio.sleep(0)
        again, taking = await world.open()
        assert taking.left_behind
        await taking.take(KEY, commit(0, 3, 5), Staged())
        assert await world.held() == order
        assert again.checkpoints.stored is not None

    run(scenario)


def test_entries_of_others_in_between_change_nothing() -> None:
    async def scenario(world: World) -> None:
        log, intake = await world.open()
        await intake.take(KEY, commit(0, 2), Staged())
        stranger = BUILDER.entry(Head("p", 7, 1), Columns([b"x"]))
        log.append([stranger, b"no message at all"], lambda *_: None)
        await asyncio.sleep(0)
        _, taking = await world.open()
        staged = Staged()
        await taking.take(KEY, commit(0, 3), staged)
        assert staged.asked == [(0, 2)]

    run(scenario)


def test_the_checkpoint_stays_before_what_is_under_way() -> None:
    async def scenario(world: World) -> None:
        log, intake = await world.open()
        await intake.take(KEY, commit(0, 2), Staged())
        before = log.positions.readable
        log.held = True
        staged = Staged()
        staged.batch = 1
        taking = asyncio.ensure_future(intake.take(KEY, commit(1, 4), staged))
        while not log.pending_bytes:  # noqa: ASYNC110 - two turns at most
            await asyncio.sleep(0)
        log._confirm([b"0" * 36 + b"a producer's, confirmed meanwhile"], lambda *_: None)
        await log.checkpoints.save()
        kept = log.checkpoints.stored
        assert kept is not None
        assert kept.position == before
        assert QueryMarks.decode(NAME, kept.state).of(KEY).batch == 0
        log.held = False
        log.release()
        await taking
        await log.checkpoints.save()
        kept = log.checkpoints.stored
        assert kept is not None
        assert kept.position == log.positions.readable
        assert QueryMarks.decode(NAME, kept.state).of(KEY).batch == 1

    run(scenario)


def test_after_a_failed_append_nothing_more_is_appended_here() -> None:
    async def scenario(world: World) -> None:
        log, intake = await world.open()
        await intake.take(KEY, commit(0, 1), Staged())
        before = log.positions.readable
        log.failing = LogError("too few bookies")
        staged = Staged()
        staged.batch = 1
        with pytest.raises(LogError, match="too few bookies"):
            await intake.take(KEY, commit(1, 3), staged)
        log.failing = None
        with pytest.raises(LogError):
            await intake.take(KEY, commit(1, 3), staged)
        await log.checkpoints.save()
        assert log.checkpoints.stored is not None
        assert log.checkpoints.stored.position == before
        _, taking = await world.open()
        await taking.take(KEY, commit(1, 3), staged)
        assert await world.held() == expected(0, 1) + expected(1, 3)

    run(scenario)


def test_what_a_cancelled_call_has_appended_is_not_appended_again() -> None:
    async def scenario(world: World) -> None:
        log, intake = await world.open()
        await intake.take(KEY, commit(0), Staged())
        staged = Staged()
        staged.batch = 1
        log.held = True
        first = asyncio.ensure_future(intake.take(KEY, commit(1, 2), staged))
        while not log.pending_bytes:  # noqa: ASYNC110 - two turns at most
            await asyncio.sleep(0)
        first.cancel()
        again = asyncio.ensure_future(intake.take(KEY, commit(1, 2), staged))
        for _ in range(20):
            await asyncio.sleep(0)
        log.held = False
        log.release()
        await again
        assert await world.held() == expected(1, 2)

    run(scenario)


def test_a_topic_that_no_query_feeds_any_more_has_no_checkpoint() -> None:
    async def scenario(world: World) -> None:
        log, intake = await world.open()
        await intake.take(KEY, commit(0, 1), Staged())
        intake.forget("q", KEY)
        await log.checkpoints.save()
        assert log.checkpoints.stored is not None
        intake.forget("q", None)
        await log.checkpoints.save()
        assert log.checkpoints.stored is None
        await intake.take(KEY, commit(0, 1), Staged())
        assert log.checkpoints.stored is not None

    run(scenario)


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (entry(0, 0, 7), "it says that it is entry 7 of staged:q@r1:0:0"),
        (entry(0, 5, 0), "it says that it is entry 0 of staged:q@r1:0:5"),
        (b"", "is refused"),
        (entry(0, 0, 0)[:-1], "is refused"),
        (b"\x0e\x02" + entry(0, 0, 0), "is refused"),
    ],
)
def test_an_entry_that_is_none_of_its_part_is_refused(payload: bytes, what: str) -> None:
    class Wrong(Staged):
        async def entries(
            self, topic: str, source: Source, first: int
        ) -> AsyncGenerator[Sequence[Buffer], None]:
            yield [memoryview(payload)]

    async def scenario(world: World) -> None:
        log, intake = await world.open()
        with pytest.raises(StagedWriteError, match=what):
            await intake.take(KEY, commit(0, 1), Wrong())
        assert intake.broken is None, "nothing was appended"
        assert not log._entries
        await intake.take(KEY, commit(0, 1), Staged())
        assert await world.held() == expected(0, 1)

    run(scenario)
