"""Ring 2 with queries that write by staged ledgers: the protocol with one rule broken each."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.env.metadata import MetadataStore
from magnetar.env.node_changes import NodeChanges
from magnetar.model.errors import BadVersionError, MetadataUnavailableError, NoNodeError
from magnetar.staging import collecting, commit_rules, committer
from magnetar.staging.commit_rules import CommitVerdict
from magnetar.staging.handing_out import HandingOut
from magnetar.staging.marks import QueryMarks
from magnetar.staging.queries import Queries, QueryRecords
from magnetar.staging.records import decode_query, encode_directory, encode_query, query_path
from magnetar.staging.writer import StagedLedger
from magnetar.topics import intakes
from magnetar.topics.publishing.intake import TopicIntake
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 400


# -- what is committed ------------------------------------------------------------------------


def _commit_before_close() -> AbstractContextManager[None]:
    """An attempt is offered while its ledger is open; it is closed a while later."""

    async def finish(self: Any) -> None:
        await self._writer.add([encode_directory(self._runs)])

    return replaced((StagedLedger, "finish", finish))


def _not_confirmed() -> AbstractContextManager[None]:
    """An attempt is offered without waiting for its entries."""

    async def add(self: Any, topic: str, part: int, payloads: Any) -> None:
        runs = self._runs.setdefault(topic, {}).setdefault(part, [])
        runs.append((self._next, len(payloads)))
        self._next += len(payloads)
        self._writer.append(payloads, lambda *_: None)

    async def finish(self: Any) -> None:
        self._writer.append([encode_directory(self._runs)], lambda *_: None)
        await self._writer.close()

    return replaced((StagedLedger, "add", add), (StagedLedger, "finish", finish))


def _epoch_not_checked() -> AbstractContextManager[None]:
    """Whoever offers a batch next may commit it, also a driver after which another began."""
    original = committer.decide

    def decide(record: Any, query: str, run: str, batch: int, offers: Any) -> Any:
        verdict, after = original(replace(record, run=run), query, run, batch, offers)
        return verdict, replace(after, run=record.run)

    return replaced((committer, "decide", decide))


def _decided_again() -> AbstractContextManager[None]:
    """That the batch was committed before is not looked at."""
    original = committer.decide

    def decide(record: Any, query: str, run: str, batch: int, offers: Any) -> Any:
        verdict, after = original(record, query, run, batch, offers)
        if verdict is CommitVerdict.ALREADY and run != record.first_run:
            before = replace(record, last_batch=batch - 1)
            verdict, after = original(before, query, run, batch, offers)
            after = replace(after, last_batch=record.last_batch)
        return verdict, after

    return replaced((committer, "decide", decide))


def _old_record_written() -> AbstractContextManager[None]:
    """A record is decided on as it was read, and written whatever it is by then."""

    def without_compare(store: MetadataStore) -> Any:
        class Store:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def put(self, path: str, value: bytes, version: int) -> int:
                return await store.put(path, value, -1)

        return Store()

    original = Queries.__init__

    def made(self: Any, metadata: MetadataStore) -> None:
        original(self, without_compare(metadata))

    return replaced((Queries, "__init__", made))


def _seen_is_believed() -> AbstractContextManager[None]:
    """What was decided on a record that a task saw is written, whatever the record is by then."""

    async def on_top_of(self: Any, query: str, seen: Any, decide: Any) -> Any:
        path = query_path(query)
        answer, after = decide(decode_query(path, seen.value))
        now = await self._records.get(query)
        await self._records.put(query, encode_query(after), now.version)
        return (answer,)

    return replaced((QueryRecords, "_on_top_of", on_top_of))


def _lost_answer_counts() -> AbstractContextManager[None]:
    """A commit on top of what a task saw, whose answer is lost, counts as written."""

    async def on_top_of(self: Any, query: str, seen: Any, decide: Any) -> Any:
        answer, after = decide(decode_query(query_path(query), seen.value))
        try:
            await self._records.put(query, encode_query(after), seen.version)
        except (BadVersionError, NoNodeError):
            return None
        except MetadataUnavailableError:
            return (answer,)
        return (answer,)

    return replaced((QueryRecords, "_on_top_of", on_top_of))


def _told_before_written() -> AbstractContextManager[None]:
    """A broker tells those who take in of a record that it is about to write."""
    original = HandingOut.write_record

    async def write_record(self: Any, query: str, value: bytes, version: int) -> int:
        if self.record_written is not None:
            self.record_written(query, value)
        return await original(self, query, value, version)

    return replaced((HandingOut, "write_record", write_record))


# -- what is deleted --------------------------------------------------------------------------


def _collects_what_is_committed() -> AbstractContextManager[None]:
    """What is left over is known by its batch alone."""

    def may_delete(record: Any, ledger_id: int, origin: Any) -> bool:
        return record is None or origin.batch <= record.last_batch

    return replaced((collecting, "may_delete", may_delete))


def _collects_what_may_be_committed() -> AbstractContextManager[None]:
    """What no commit names is left over, whether or not its batch is decided."""

    def may_delete(record: Any, ledger_id: int, origin: Any) -> bool:
        return record is None or not record.needs(ledger_id)

    return replaced((collecting, "may_delete", may_delete))


def _drops_what_it_committed() -> AbstractContextManager[None]:
    """A commit that is asked for again drops all that it offered, also what was chosen."""

    def dropped(record: Any, offers: Any) -> list[int]:
        return [i for offer in offers for i in offer.ledger_ids]

    return replaced((committer, "dropped", dropped))


def _garbage_with_the_first_topic() -> AbstractContextManager[None]:
    """The first topic that has its share has the batch's ledgers deleted."""
    original = commit_rules.taken_in

    def taken_in(record: Any, batch: int, topic: str) -> Any:
        ledgers = [i for c in record.commits if c.batch == batch for i in c.ledgers]
        after = original(record, batch, topic)
        return replace(after, garbage=(*after.garbage, *ledgers))

    return replaced((intakes, "taken_in", taken_in))


# -- what is taken in -------------------------------------------------------------------------


def _tail_not_read() -> AbstractContextManager[None]:
    """A new owner knows what the log's record says, and not what came after."""

    async def scan(self: Any, marks: Any, after: Any) -> None:
        return

    return replaced((TopicIntake, "_scan", scan))


def _marks_not_kept() -> AbstractContextManager[None]:
    """How far queries were taken in is lost with the owner, but for what the log's tail says."""
    return replaced((QueryMarks, "encode", lambda _: b"{}"))


def _counted_before_it_is_there() -> AbstractContextManager[None]:
    """An entry counts as taken in when it is appended."""
    original = TopicIntake._append

    def append(self: Any, key: str, mark: Any, payloads: Any) -> Any:
        self._marks.reach(key, mark)
        return original(self, key, mark, payloads)

    return replaced((TopicIntake, "_append", append))


def _no_checkpoint_at_first() -> AbstractContextManager[None]:
    """The first entry does not wait for the log's record to have a checkpoint."""

    async def begin(self: Any) -> None:
        await self.load()
        self._fed = True

    return replaced((TopicIntake, "_begin", begin))


def _batches_side_by_side() -> AbstractContextManager[None]:
    """A query's batches are taken in at once, each as fast as it goes."""

    async def take_in(self: Any, query: str, record: Any) -> None:
        key = record.key(query)
        await asyncio.gather(
            *(self._take_commit(query, key, each, set()) for each in record.commits)
        )
        if record.garbage:
            await self._collect(query, record.garbage)

    return replaced((intakes.Intakes, "_take_in", take_in))


def _forgotten_before_confirmed() -> AbstractContextManager[None]:
    """A share is taken in when it is appended."""

    async def until(self: Any, condition: Any) -> None:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken

    return replaced((TopicIntake, "_until", until))


def _goes_on_after_a_failure() -> AbstractContextManager[None]:
    """After an append that failed what is missing by the marks is appended again, at once."""
    original = TopicIntake._done

    def done(self: Any, item: Any, count: int, error: Any, runs: Any) -> None:
        if error is None:
            original(self, item, count, error, runs)
            return
        self._under_way.pop(0)
        self._under_way_bytes -= item.byte_count
        self._failed_once = error
        if self._moved is not None:
            self._moved.set()

    until = TopicIntake._until

    async def wait(self: Any, condition: Any) -> None:
        def failed() -> bool:
            return getattr(self, "_failed_once", None) is not None

        await until(self, lambda: condition() or failed())
        if failed():
            error, self._failed_once = self._failed_once, None
            raise error

    return replaced((TopicIntake, "_done", done), (TopicIntake, "_until", wait))


def _one_failure_cancels_all() -> AbstractContextManager[None]:
    """When one topic of a batch fails the others are cancelled, with appends under way, and begin
    again at once."""

    async def take_commit(
        self: Any, query: str, key: str, commit: Any, _elsewhere: set[str]
    ) -> None:
        shares = [
            asyncio.ensure_future(self._take(query, key, commit, topic)) for topic in commit.shares
        ]
        try:
            await asyncio.gather(*shares)
        finally:
            for share in shares:
                share.cancel()
            await asyncio.wait(shares)

    until = TopicIntake._until

    async def not_at_first(self: Any, condition: Any) -> None:
        if "all" in condition.__code__.co_names:
            return  # the one that waits for what a cancelled call has under way
        await until(self, condition)

    return replaced(
        (intakes.Intakes, "_take_commit", take_commit), (TopicIntake, "_until", not_at_first)
    )


def _passed_over_once() -> AbstractContextManager[None]:
    """A topic that is another broker's when a batch's turn is, and comes here then, takes in the
    next batch: what it has of the first is passed over for good."""
    take_commit = intakes.Intakes._take_commit

    async def forgetful(self: Any, query: str, key: str, commit: Any, _elsewhere: set[str]) -> None:
        await take_commit(self, query, key, commit, set())

    return replaced((intakes.Intakes, "_take_commit", forgetful))


def _nobody_watches() -> AbstractContextManager[None]:
    """A broker takes in what it finds when it starts, and hears of nothing later."""

    class NoChanges(NodeChanges):
        async def wait(self, at_most_s: float) -> None:
            await asyncio.Event().wait()

    return replaced((intakes, "NodeChanges", NoChanges))


def _mutant(name: str, plant: Any, seeds_max: int = SEEDS_MAX) -> Mutant:
    return Mutant(name, 2, "", plant, seeds_max, kind="staged")


STAGED = (
    _mutant("an attempt is committed before its ledger is closed", _commit_before_close),
    _mutant("an attempt is committed before its entries are confirmed", _not_confirmed),
    _mutant("a driver's epoch is not checked", _epoch_not_checked),
    _mutant("a batch is decided again", _decided_again),
    _mutant("a query's record is written without compare", _old_record_written),
    _mutant("what a task saw is written over what is there", _seen_is_believed),
    _mutant("a commit whose answer is lost counts as written", _lost_answer_counts),
    _mutant("a record is told of before it is written", _told_before_written),
    _mutant("a ledger is collected that is committed", _collects_what_is_committed),
    _mutant("a ledger is collected that may be committed yet", _collects_what_may_be_committed),
    _mutant("a repeated commit drops what it committed", _drops_what_it_committed),
    _mutant("staged ledgers go with the first topic", _garbage_with_the_first_topic),
    _mutant("what was taken in is lost with the owner", _tail_not_read),
    _mutant("marks are not kept in the log's record", _marks_not_kept),
    _mutant("an entry counts as taken in before it is there", _counted_before_it_is_there),
    _mutant("the first staged entry has no checkpoint before it", _no_checkpoint_at_first),
    _mutant("batches of a query are taken in side by side", _batches_side_by_side),
    _mutant("a share is forgotten before it is confirmed", _forgotten_before_confirmed),
    _mutant("taking in goes on after an append failed", _goes_on_after_a_failure, 2000),
    _mutant("a topic that fails cancels what others take in", _one_failure_cancels_all),
    _mutant("nobody watches for commits", _nobody_watches),
    _mutant("a topic that comes here takes in a later batch first", _passed_over_once),
)
