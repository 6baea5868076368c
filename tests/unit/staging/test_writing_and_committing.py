"""Attempts that write, the driver that commits, and what reads and deletes after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from magnetar.env.metadata import Versioned
from magnetar.model.errors import (
    MetadataUnavailableError,
    NoNodeError,
    StagedBacklogError,
    StagedWriteError,
    StaleRunError,
)
from magnetar.staging import committer as committer_module
from magnetar.staging import queries as queries_module
from magnetar.staging.collecting import Leftovers
from magnetar.staging.commit_rules import COMMITS_MAX, CommitVerdict, Offer, collected, taken_in
from magnetar.staging.committer import Committer, QueryRun
from magnetar.staging.queries import MetadataRecords, Queries, QueryRecords
from magnetar.staging.reading import StagedReading
from magnetar.staging.records import INLINE, Origin, QueryRecord, Source, query_path
from magnetar.staging.writer import StagedWriter
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.staging.doubles import MemoryStagedLedgers

NOW_MS = 1_000_000
RUN = QueryRun("q", "r1")
NEXT = QueryRun("q", "r2")


class World:
    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        self.ledgers = MemoryStagedLedgers()
        self.queries = Queries(self.metadata)
        self.committer = Committer(self.queries, self.ledgers, inline_bytes_max=20)

    def writer(
        self, part: int, *, run: QueryRun = RUN, batch: int = 0, inline: int = 0
    ) -> StagedWriter:
        return StagedWriter(self.ledgers, Origin(*run, batch, part, "1"), inline)

    async def offer(
        self, part: int, *, run: QueryRun = RUN, batch: int = 0, inline: int = 0
    ) -> Offer:
        writer = self.writer(part, run=run, batch=batch, inline=inline)
        await writer.add("t", [b"a%d" % part, b"b%d" % part], 3)
        await writer.add("u", [b"c%d" % part], 1)
        await writer.add("t", [b"d%d" % part], 1)
        return await writer.finish()

    async def record(self) -> QueryRecord:
        found = await self.queries.read("q")
        assert found is not None
        return found

    async def commit(self, run: QueryRun, batch: int, *offers: Offer) -> CommitVerdict:
        return await self.committer.commit(run, batch, offers, 5.0)

    async def leftovers(self) -> list[int]:
        async def ids() -> AsyncIterator[int]:
            for ledger_id in sorted(self.ledgers.ledgers):
                yield ledger_id

        return await Leftovers(self.queries, self.ledgers, lambda: NOW_MS).collect(ids())


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            world = World()
            await world.queries.begin(*RUN)
            await scenario(world)

    asyncio.run(main())


async def shares(world: World, topic: str) -> list[bytes]:
    """What the topic takes in of the first commit, in order."""
    reading = StagedReading(world.ledgers)
    commit = (await world.record()).commits[0]
    found = []
    for source in commit.shares[topic]:
        async for payloads in reading.entries(topic, source, 0):
            found += [bytes(payload) for payload in payloads]
    return found


def test_few_entries_travel_in_the_offer_and_many_in_a_closed_ledger() -> None:
    async def scenario(world: World) -> None:
        small = await world.offer(0, inline=100)
        assert small.shares["t"] == Source(0, INLINE, 3, 4, (b"a0", b"b0", b"d0"))
        assert world.ledgers.ledgers == {}
        large = await world.offer(1, inline=3)
        assert large.shares["u"] == Source(1, 1, 1, 1)
        assert world.ledgers.ledgers[1].closed
        assert await world.commit(RUN, 0, small, large) is CommitVerdict.COMMITTED
        assert await shares(world, "t") == [b"a0", b"b0", b"d0", b"a1", b"b1", b"d1"]
        assert await shares(world, "u") == [b"c0", b"c1"]

    run(scenario)


def test_what_is_too_much_for_the_record_goes_into_one_ledger() -> None:
    async def scenario(world: World) -> None:
        offers = [await world.offer(part, inline=100) for part in range(3)]
        assert await world.commit(RUN, 0, *offers) is CommitVerdict.COMMITTED
        assert (await world.record()).commits[0].ledgers == (1,)
        assert await shares(world, "t") == [
            b"%s%d" % (name, part) for part in range(3) for name in (b"a", b"b", b"d")
        ]

    run(scenario)


def test_reading_begins_in_the_middle() -> None:
    async def scenario(world: World) -> None:
        await world.commit(RUN, 0, await world.offer(0))
        source = (await world.record()).commits[0].shares["t"][0]
        found: list[bytes] = []
        async for payloads in StagedReading(world.ledgers).entries("t", source, 2):
            found += map(bytes, payloads)
        assert found == [b"d0"]

    run(scenario)


def test_what_is_taken_in_does_not_yield_to_its_own_appends() -> None:
    async def scenario(world: World) -> None:
        await world.commit(RUN, 0, await world.offer(0))
        await shares(world, "t")
        assert world.ledgers.opened_urgent == [True]

    run(scenario)


def test_a_ledger_that_is_not_what_was_committed_is_not_read() -> None:
    async def scenario(world: World) -> None:
        await world.commit(RUN, 0, await world.offer(0))
        source = (await world.record()).commits[0].shares["t"][0]
        reading = StagedReading(world.ledgers)
        with pytest.raises(StagedWriteError, match="holds other entries for t"):
            await anext(reading.entries("t", source._replace(entries=9), 0))
        world.ledgers.ledgers[1].closed = False
        with pytest.raises(StagedWriteError, match="was committed and is not closed"):
            await anext(StagedReading(world.ledgers).entries("t", source, 0))

    run(scenario)


def test_a_batch_that_comes_again_is_dropped_and_what_was_chosen_stays() -> None:
    async def scenario(world: World) -> None:
        first = await world.offer(0)
        assert await world.commit(RUN, 0, first) is CommitVerdict.COMMITTED
        await world.queries.begin(*NEXT)
        again = await world.offer(0, run=NEXT)
        assert await world.commit(NEXT, 0, again) is CommitVerdict.ALREADY
        assert list(world.ledgers.ledgers) == [1]
        assert await world.commit(NEXT, 0, first) is CommitVerdict.ALREADY
        assert list(world.ledgers.ledgers) == [1]

    run(scenario)


def test_a_run_after_which_another_began_is_refused() -> None:
    async def scenario(world: World) -> None:
        late = await world.offer(0)
        await world.queries.begin(*NEXT)
        with pytest.raises(StaleRunError):
            await world.commit(RUN, 0, late)
        assert (await world.record()).commits == ()
        assert world.ledgers.ledgers == {}
        with pytest.raises(StaleRunError):
            await world.queries.begin(*RUN)

    run(scenario)


def test_an_old_record_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of the metadata store that lags does not know the run yet."""

    async def scenario(world: World) -> None:
        offer = await world.offer(0, run=NEXT)
        old = dict(world.metadata.nodes)
        await world.queries.begin(*NEXT)
        true, synced = world.metadata.get, asyncio.Event()

        async def get(path: str) -> Versioned:
            return await true(path) if synced.is_set() else old[path]

        async def sync() -> None:
            synced.set()

        monkeypatch.setattr(world.metadata, "get", get)
        monkeypatch.setattr(world.metadata, "sync", sync)
        assert await world.commit(NEXT, 0, offer) is CommitVerdict.COMMITTED

    run(scenario)


def test_a_lost_answer_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        true, lost = world.metadata.put, 1

        async def put(path: str, value: bytes, version: int) -> int:
            nonlocal lost
            after = await true(path, value, version)
            if lost:
                lost -= 1
                raise MetadataUnavailableError("the answer was lost")
            return after

        monkeypatch.setattr(world.metadata, "put", put)
        monkeypatch.setattr(queries_module, "OUTAGE_WAIT_S", 0.0)
        offer = await world.offer(0)
        assert await world.commit(RUN, 0, offer) is CommitVerdict.ALREADY
        assert (await world.record()).commits[0].ledgers == (1,)
        assert list(world.ledgers.ledgers) == [1], "what was chosen is not dropped"

    run(scenario)


def test_a_commit_waits_while_topics_are_behind_and_then_gives_up() -> None:
    async def scenario(world: World) -> None:
        for batch in range(COMMITS_MAX):
            await world.commit(RUN, batch, await world.offer(0, batch=batch))
        late = await world.offer(0, batch=COMMITS_MAX)
        with pytest.raises(StagedBacklogError, match="waiting for t, u"):
            await world.committer.commit(RUN, COMMITS_MAX, [late], 0.05)
        waiting = asyncio.ensure_future(world.commit(RUN, COMMITS_MAX, late))
        for topic in ("t", "u"):
            await world.queries.change("q", lambda r, t=topic: (None, taken_in(r, 0, t)))  # type: ignore[misc]
        assert await waiting is CommitVerdict.COMMITTED

    run(scenario)


def test_who_wants_to_waits_until_topics_hold_the_rows() -> None:
    async def scenario(world: World) -> None:
        await world.commit(RUN, 0, await world.offer(0))
        with pytest.raises(StagedBacklogError, match="is committed, and was not taken in"):
            await world.committer.wait_taken_in("q", 0, 0.05)
        for topic in ("t", "u"):
            await world.queries.change("q", lambda r, t=topic: (None, taken_in(r, 0, t)))  # type: ignore[misc]
        await world.committer.wait_taken_in("q", 0, 5.0)

    run(scenario)


def test_who_waits_is_told_by_the_record_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking again now and then is for a watch that was lost: a micro-batch does not take that
    long."""
    monkeypatch.setattr(committer_module, "LOOK_AGAIN_S", 3600.0)

    async def scenario(world: World) -> None:
        await world.commit(RUN, 0, await world.offer(0))
        waiting = asyncio.ensure_future(world.committer.wait_taken_in("q", 0, 3600.0))
        for topic in ("t", "u"):
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await world.queries.change("q", lambda r, t=topic: (None, taken_in(r, 0, t)))  # type: ignore[misc]
        await waiting

    run(scenario)


def test_a_broker_that_does_not_answer_is_not_a_batch_that_is_committed() -> None:
    """Whoever hears of a backlog hears that the batch is committed, and does not write it again."""

    async def scenario(world: World) -> None:
        get = world.metadata.get

        async def silent(path: str) -> Versioned:
            world.metadata.get = get  # type: ignore[method-assign]
            raise TimeoutError("no answer")

        world.metadata.get = silent  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await world.committer.wait_taken_in("q", 0, 3600.0)

    run(scenario)


def test_an_abort_deletes_only_what_nobody_can_read() -> None:
    async def scenario(world: World) -> None:
        committed, undecided = await world.offer(0), await world.offer(0, batch=1)
        await world.commit(RUN, 0, committed)
        other = await world.offer(0)
        await world.committer.give_up(RUN, 0, [committed, other])
        await world.committer.give_up(RUN, 1, [undecided])
        assert list(world.ledgers.ledgers) == [1, 2], "the other attempt of batch 0 is gone"

    run(scenario)


def test_leftovers_go_when_their_query_has_decided() -> None:
    async def scenario(world: World) -> None:
        chosen = await world.offer(0)
        await world.offer(0)  # a twin
        failed = world.writer(1, batch=1)
        await failed.add("t", [b"x"], 1)
        await failed.abandon()
        await world.ledgers.create({"magnetar-log": b"a topic's"})
        assert await world.leftovers() == []
        await world.commit(RUN, 0, chosen)
        assert await world.leftovers() == [2]
        await world.queries.begin(*NEXT)
        assert await world.leftovers() == [3]
        assert list(world.ledgers.ledgers) == [1, 4]

    run(scenario)


def test_a_record_that_a_server_does_not_have_yet_is_not_a_query_that_is_gone() -> None:
    async def scenario(world: World) -> None:
        undecided = await world.offer(0)
        get, sync, lags = world.metadata.get, world.metadata.sync, True

        async def got(path: str) -> Versioned:
            if lags:
                raise NoNodeError(f"no node {path}")
            return await get(path)

        async def synced() -> None:
            nonlocal lags
            lags = False
            await sync()

        world.metadata.get = got  # type: ignore[method-assign]
        world.metadata.sync = synced  # type: ignore[method-assign]
        await world.committer.give_up(RUN, 0, [undecided])
        assert list(world.ledgers.ledgers) == [1]
        lags = True
        assert await world.leftovers() == []
        assert list(world.ledgers.ledgers) == [1]

    run(scenario)


def test_nothing_but_a_run_makes_a_record() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(StagedWriteError, match="there is no query other"):
            await world.commit(QueryRun("other", "r1"), 0, await world.offer(0))

    run(scenario)


def test_records_of_batch_writes_go_when_they_are_over_and_taken_in() -> None:
    async def scenario(world: World) -> None:
        leftovers = Leftovers(world.queries, world.ledgers, lambda: NOW_MS)
        once = QueryRun("once", "r")
        await world.queries.begin(*once, NOW_MS + 1)
        assert await leftovers.collect_records() == 0, "it is not over"
        offer = await world.offer(0, run=once)
        await world.committer.commit(once, 0, [offer], 5.0, NOW_MS - 1)
        assert await leftovers.collect_records() == 0, "it is not taken in"
        for topic in ("t", "u"):
            await world.queries.change("once", lambda r, t=topic: (None, taken_in(r, 0, t)))  # type: ignore[misc]
        assert await leftovers.collect_records() == 0, "a ledger of it is there"
        await world.queries.change("once", lambda r: (None, collected(r, r.garbage)))
        assert await leftovers.collect_records() == 1
        assert await world.queries.names() == ["q"], "a stream's record stays"
        with pytest.raises(StagedWriteError, match="there is no query once"):
            await world.committer.commit(once, 0, [offer], 5.0)

    run(scenario)


def test_a_record_that_cannot_be_read_keeps_only_what_is_its_own() -> None:
    async def scenario(world: World) -> None:
        bad = QueryRun("bad", "r")
        await world.queries.begin(*bad)
        await world.offer(0, run=bad)
        await world.metadata.put(query_path("bad"), b"of another release", -1)
        chosen = await world.offer(0)
        await world.offer(0)  # a twin
        await world.commit(RUN, 0, chosen)
        assert await world.leftovers() == [3]
        await world.queries.begin("once", "r", NOW_MS - 1)
        leftovers = Leftovers(world.queries, world.ledgers, lambda: NOW_MS)
        assert await leftovers.collect_records() == 1
        assert await world.queries.names() == ["bad", "q"]

    run(scenario)


def test_a_record_that_names_other_ledgers_reads_and_deletes_none() -> None:
    """Records are written by clients; a broker must not be made to delete a topic's ledger."""

    async def scenario(world: World) -> None:
        of_a_topic = await world.ledgers.create({"application": b"pulsar"})
        await of_a_topic.add([b"a", b"{}"])
        await of_a_topic.close()
        reading = StagedReading(world.ledgers)
        with pytest.raises(StagedWriteError, match="is no staged one"):
            await anext(reading.entries("t", Source(0, of_a_topic.ledger_id, 1, 1), 0))
        await reading.delete(of_a_topic.ledger_id)
        assert of_a_topic.ledger_id in world.ledgers.ledgers
        offer = await world.offer(0)
        (staged,) = set(offer.ledger_ids)
        await reading.delete(staged)
        assert staged not in world.ledgers.ledgers
        await reading.delete(staged)

    run(scenario)


# -- what a task saw --------------------------------------------------------------------------


class Counting(MetadataRecords):
    """What is asked of the store; ``lost``: so many writes are done, and their answers lost."""

    def __init__(self, metadata: MemoryMetadata) -> None:
        super().__init__(metadata)
        self.asked: list[str] = []
        self.lost = 0

    async def get(self, query: str) -> Versioned:
        self.asked.append("get")
        return await super().get(query)

    async def put(self, query: str, value: bytes, version: int) -> int:
        self.asked.append("put")
        version = await super().put(query, value, version)
        if self.lost:
            self.lost -= 1
            raise MetadataUnavailableError("the answer is lost")
        return version


def committing(world: World) -> tuple[Counting, Committer]:
    records = Counting(world.metadata)
    return records, Committer(QueryRecords(records), world.ledgers, inline_bytes_max=20)


def test_a_commit_on_top_of_what_a_task_saw_reads_nothing() -> None:
    async def scenario(world: World) -> None:
        records, committer = committing(world)
        _, seen = await world.queries.begin(*RUN)
        offers = [await world.offer(0)]
        verdict = await committer.commit(RUN, 0, offers, 5.0, seen=seen)
        assert (verdict, records.asked) == (CommitVerdict.COMMITTED, ["put"])
        assert (await world.record()).last_batch == 0

    run(scenario)


def test_the_run_that_begins_sees_what_it_wrote() -> None:
    async def scenario(world: World) -> None:
        records, committer = committing(world)
        _, first = await world.queries.begin(*QueryRun("q", "r1"))
        _, seen = await world.queries.begin(*NEXT)
        assert seen.version == first.version + 1
        offers = [await world.offer(0, run=NEXT)]
        assert await committer.commit(NEXT, 0, offers, 5.0, seen=seen) is CommitVerdict.COMMITTED
        assert records.asked == ["put"]

    run(scenario)


def test_what_a_task_saw_and_is_no_more_decides_nothing() -> None:
    """Neither that a batch is committed, nor that one is refused."""

    async def scenario(world: World) -> None:
        records, committer = committing(world)
        _, seen = await world.queries.begin(*RUN)
        await world.commit(RUN, 0, await world.offer(0))
        offers = [await world.offer(0)]
        assert await committer.commit(RUN, 0, offers, 5.0, seen=seen) is CommitVerdict.ALREADY
        assert records.asked[:2] == ["put", "get"]
        await world.queries.begin(*NEXT)
        offers = [await world.offer(0, run=NEXT, batch=1)]
        # A run that an old record does not know yet.
        assert await committer.commit(NEXT, 1, offers, 5.0, seen=seen) is CommitVerdict.COMMITTED
        with pytest.raises(StaleRunError):
            await committer.commit(RUN, 1, [await world.offer(0, batch=1)], 5.0, seen=seen)

    run(scenario)


def test_of_a_lost_answer_the_record_tells() -> None:
    async def scenario(world: World) -> None:
        records, committer = committing(world)
        _, seen = await world.queries.begin(*RUN)
        offers = [await world.offer(0)]
        records.lost = 1
        assert await committer.commit(RUN, 0, offers, 5.0, seen=seen) is CommitVerdict.ALREADY
        assert world.ledgers.ledgers, "what was chosen is kept"

    run(scenario)


def test_entries_are_counted_when_they_are_given() -> None:
    """The next are built in another thread, perhaps before the loop has begun with these."""

    async def scenario(world: World) -> None:
        writer = world.writer(0, inline=3)
        assert writer.keep_nowait("t", [b"abc"], 1)
        assert not writer.keep_nowait("t", [b"d"], 1), "too much to be kept"
        adding = writer.add("t", [b"d", b"e"], 2)
        assert writer.entries_of("t") == 3
        await adding
        assert writer.offer_nowait() is None
        offer = await writer.finish()
        assert offer.shares["t"] == Source(0, 1, 3, 3)
        small = world.writer(1, inline=3)
        await small.add("t", [b"abc"], 1)
        assert small.offer_nowait() == await small.finish()

    run(scenario)
