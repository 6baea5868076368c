"""The whole ledger client, unmodified, on virtual time: seeded faults of bookies and metadata.

Ring 1 (``test_ledger_runs``) drives the machines; here their shells run too: the writer, the
ensemble change, the stored metadata, the recovery, the reader.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from magnetar.ledger.bookies import AddDone, AddFlag, LacReply, ReadFlag
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.recovering import recovery, recovery_reads
from magnetar.ledger.recovering.recovery_plan import EntryVote
from magnetar.ledger.recovering.recovery_reads import Copy
from magnetar.ledger.replies import Refusal
from magnetar.ledger.writing.ensemble_change import EnsembleChange
from magnetar.ledger.writing.quorum_write import QuorumWrite
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import (
    BookieUnavailableError,
    LedgerError,
    LedgerRecoveryError,
    MagnetarError,
    MetadataUnavailableError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar_sim.world.scheduler import SimulationError
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, MemoryBookie, MemoryPool, payloads, until

SEEDS = 150
QUORUMS = [(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2), (5, 3, 2)]
CALM_AFTER_S = 60.0


class RoughBookie(MemoryBookie):
    """Delays, losses and outages, until the weather is calm."""

    def __init__(self, name: str, rng: random.Random) -> None:
        super().__init__(name)
        self._rng = rng
        self.loss = 0.0
        self.delay_s = rng.choice((0.01, 0.01, 0.3, 3.0))

    def calm(self) -> None:
        self.loss, self.delay_s, self.down = 0.0, 0.01, False

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: AddFlag,
        done: AddDone,
    ) -> None:
        loop = asyncio.get_running_loop()
        if self._rng.random() < self.loss:
            error = BookieUnavailableError(f"{self.bookie_id}: lost on the way")
            loop.call_later(1.0, done, error, entry_ids)
            return

        def arrive() -> None:
            error = self._add_error(ledger_id, flags)
            if error is None:
                held = self.entries.setdefault(ledger_id, {})
                held.update(zip(entry_ids, entries, strict=True))
            if self._rng.random() < self.loss:
                error = BookieUnavailableError(f"{self.bookie_id}: the answer was lost")
            loop.call_later(self._rng.uniform(0, self.delay_s), done, error, entry_ids)

        loop.call_later(self._rng.uniform(0, self.delay_s), arrive)

    async def _reached(self, ledger_id: int, flags: ReadFlag) -> None:
        await asyncio.sleep(self._rng.uniform(0, self.delay_s))
        if self._rng.random() < self.loss:
            raise BookieUnavailableError(f"{self.bookie_id}: lost on the way")
        await super()._reached(ledger_id, flags)

    async def read_lac(
        self, ledger_id: int, flags: ReadFlag = ReadFlag.NONE, master_key: bytes = b""
    ) -> LacReply:
        reply = await super().read_lac(ledger_id, flags, master_key)
        await asyncio.sleep(self._rng.uniform(0, self.delay_s))
        return reply


class Run:
    """One seed: a writer, bad weather, perhaps other clients that take the ledger."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.quorums = rng.choice(QUORUMS)
        count = self.quorums[0] + rng.randint(0, 2)
        self.cluster = Cluster(count, self.quorums, timeout_ms=5000, seed=seed)
        pool: MemoryPool = self.cluster.pool
        self.bookies = {name: RoughBookie(name, rng) for name in pool.bookies}
        pool.bookies = dict(self.bookies)
        self.total = rng.randint(5, 60)
        self.confirmed = 0
        self.told = 0
        self.failed = False
        self.writer: LedgerWriter | None = None
        self.store_back_at_s = 0.0
        self.faults: list[object] = []  # what callbacks raised, invariants among it

    def done(self, error: MagnetarError | None, _ledger: int, first: int, count: int) -> None:
        """Invariants: in order, nothing confirmed after a failure, named copies."""
        self.told += count
        if error is not None:
            self.failed = True
            return
        assert not self.failed, "confirmed after a failure"
        assert first == self.confirmed
        self.confirmed += count
        for entry_id in range(first, first + count):
            self.check_copies(entry_id)

    def check_copies(self, entry_id: int) -> None:
        assert self.writer is not None
        metadata = self.cluster.metadata(self.writer.ledger_id)
        copies = sum(
            entry_id in self.bookies[name].entries.get(metadata.ledger_id, {})
            for name in metadata.write_set(entry_id)
        )
        assert copies >= metadata.ack_quorum, f"entry {entry_id}: {copies} named copies"

    async def weather(self) -> None:
        rng, loop = self.rng, asyncio.get_running_loop()
        loss = rng.choice((0.0, 0.02, 0.1))
        for bookie in self.bookies.values():
            bookie.loss = loss

        async def store_trouble(metadata: LedgerMetadata) -> None:
            await asyncio.sleep(rng.uniform(0, 0.5))
            now_s = loop.time()
            if now_s < self.store_back_at_s or (now_s < CALM_AFTER_S and rng.random() < 0.1):
                raise MetadataUnavailableError("the connection broke")

        self.cluster.manager.before_write = store_trouble
        self.cluster.manager.after_write = store_trouble
        while loop.time() < CALM_AFTER_S:
            await asyncio.sleep(rng.uniform(0.05, 10))
            bookie = rng.choice(list(self.bookies.values()))
            bookie.down = rng.random() < 0.5
            if rng.random() < 0.2:
                self.store_back_at_s = min(loop.time() + rng.uniform(0, 15), CALM_AFTER_S)
        for bookie in self.bookies.values():
            bookie.calm()

    async def append(self) -> None:
        assert self.writer is not None
        first, pause_s = 0, self.rng.choice((0.05, 0.5, 2.0))
        while first < self.total:
            count = min(self.rng.randint(1, 6), self.total - first)
            self.writer.append(payloads(first, count), self.done)
            first += count
            await asyncio.sleep(self.rng.uniform(0, pause_s))

    async def open_until_closed(self, client: LedgerClient) -> int:
        """The last entry, as a client sees it that opens the ledger until it can."""
        assert self.writer is not None
        while True:
            try:
                reader = await client.open(self.writer.ledger_id)
            except (LedgerRecoveryError, MetadataUnavailableError):
                await asyncio.sleep(1)
            else:
                return reader.last_add_confirmed

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: self.faults.append(context))
        self.writer = writer = await self.cluster.client.create()
        takeover = self.rng.random() < 0.6
        async with asyncio.TaskGroup() as group:
            group.create_task(self.weather())
            group.create_task(self.append())
            if takeover:
                await asyncio.sleep(self.rng.uniform(0.1, 30))
                clients = [self.cluster.new_client() for _ in range(self.rng.randint(1, 3))]
                openings = [group.create_task(self.open_until_closed(c)) for c in clients]
        if not takeover:
            await self.finish_in_peace()
        ends = {opening.result() for opening in openings} if takeover else set()
        await asyncio.sleep(30)
        await self.check_end(ends)
        await writer.abandon()
        if not takeover:
            await self.check_whole()
        await self.cluster.client.close()
        assert not self.faults, self.faults[0]
        assert self.told == self.total, "an append was never told of, or told twice"

    async def finish_in_peace(self) -> None:
        assert self.writer is not None
        closed = await self.writer.close()  # the store is back by now
        assert closed.last_entry_id == self.confirmed - 1
        if not self.failed:
            assert self.confirmed == self.total

    async def check_whole(self) -> None:
        """Liveness: with everybody back, each bookie holds all that the metadata names it for,
        also what was confirmed without it."""
        assert self.writer is not None
        await until(lambda: not self.cluster.client.mender.has_missing, 120)
        metadata = self.cluster.metadata(self.writer.ledger_id)
        for entry_id in range(metadata.last_entry_id + 1):
            for name in metadata.write_set(entry_id):
                held = self.bookies[name].entries.get(metadata.ledger_id, {})
                assert entry_id in held, f"{name} lacks entry {entry_id}"

    async def check_end(self, ends: set[int]) -> None:
        assert self.writer is not None
        client = self.cluster.new_client()
        reader = await client.open(self.writer.ledger_id)
        last = reader.last_add_confirmed
        assert ends <= {last}
        assert last >= self.confirmed - 1, f"lost: confirmed {self.confirmed - 1}, ends at {last}"
        entries = await reader.read_range(0, last)
        assert [bytes(entry.payload) for entry in entries] == payloads(0, last + 1)
        assert reader.length == sum(map(len, payloads(0, last + 1)))
        for entry_id in range(last + 1):
            self.check_copies(entry_id)


def test_seeded_faults_of_bookies_and_metadata() -> None:
    confirmed = failed = fragments = 0
    for seed in range(SEEDS):
        run = Run(seed)
        try:
            run_virtual(run.play())
        except Exception as error:
            raise AssertionError(f"seed {seed}, quorums {run.quorums}") from error
        assert run.writer is not None
        confirmed += run.confirmed
        failed += run.failed
        fragments += len(run.cluster.metadata(run.writer.ledger_id).fragments)
    assert confirmed > 5 * SEEDS  # the runs are of some use
    assert 0 < failed < SEEDS
    assert fragments > SEEDS * 1.1


def breaks(seeds: range) -> bool:
    """Whether one of these seeds finds something wrong."""
    for seed in seeds:
        try:
            run_virtual(Run(seed).play())
        except (AssertionError, ExceptionGroup, LedgerError, TimeoutError):
            return True
    return False


def silence_is_absence(vote: EntryVote[Copy], told: object) -> None:
    if isinstance(told, Copy):
        vote.found(told)
    elif isinstance(told, Refusal):
        vote.negative()


def test_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks(range(30))
    with monkeypatch.context() as planted:
        planted.setattr(recovery, "FENCING", ReadFlag.NONE)
        assert breaks(range(SEEDS))
    with monkeypatch.context() as planted:
        planted.setattr(recovery_reads, "_count", silence_is_absence)
        assert breaks(range(SEEDS))
    with monkeypatch.context() as planted:
        planted.setattr(QuorumWrite, "lacking", lambda machine, slot: range(0))
        assert breaks(range(SEEDS))
    with monkeypatch.context() as planted:
        planted.setattr(EnsembleChange, "_note_missing", lambda change, bookie_id, entry_ids: None)
        assert breaks(range(SEEDS))


def test_virtual_time_costs_nothing_and_tells_of_a_hang() -> None:
    async def sleep_for_days() -> float:
        await asyncio.sleep(1_000_000)
        return asyncio.get_running_loop().time()

    assert run_virtual(sleep_for_days()) == 1_000_000

    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match="nothing will ever happen"):
        run_virtual(hang())


def test_the_bookies_of_a_run_have_their_names() -> None:
    run = Run(1)
    assert all(run.cluster.pool.client(BookieId(name)) is b for name, b in run.bookies.items())
