"""The cursor that stays before the oldest open transaction, where a log tells of several appends
together: what is open is found again by whoever opens the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from magnetar.log.seam import Content, LogStore, Run, Stamp, WritableLog
from magnetar.model.errors import LedgerError, MagnetarError
from magnetar.model.ids import Position
from magnetar.protocols.kafka.partitions.partition_transactions import PartitionTransactions
from magnetar.wire.kafka.batches import TRANSACTIONAL, read_batch_header
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.partition.kit import batch, marker
from tests.unit.log.partition.serving.test_partition_log import Setting

FIRST, SECOND = 7, 8
"""Producers."""


class Writing:
    """Transactions are appended as a partition does it."""

    def __init__(self, log: WritableLog) -> None:
        self.transactions = PartitionTransactions(log)
        self._log = log
        self._left = 0
        self._told = asyncio.Event()

    def records(self, producer_id: int) -> None:
        self._append(batch([b"a"], producer=(producer_id, 0, 0), attributes=TRANSACTIONAL))

    def commit(self, producer_id: int) -> None:
        self._append(marker(producer_id, 0, commits=True), commits=True)

    def _append(self, payload: bytes, commits: bool | None = None) -> None:
        header, stamp = read_batch_header(payload), Stamp()

        def done(error: MagnetarError | None, runs: Sequence[Run]) -> None:
            assert error is None
            position = Position(runs[0].ledger_id, runs[0].first_entry_id)
            if commits is None:
                self.transactions.batch_stored(header, stamp.base_offset, position)
            else:
                self.transactions.marker_stored(header, stamp.base_offset, position, commits)
            self._left -= 1
            if not self._left:
                self._told.set()

        self._left += 1
        self._told.clear()
        self._log.append([payload], done, Content((1,), (1,), stamp))

    async def told(self) -> None:
        async with asyncio.timeout(20):
            await self._told.wait()


async def one_ends_and_another_begins(log: WritableLog, hold: Callable[[], None]) -> Writing:
    """Of what is appended from ``hold`` on the outcomes come together."""
    writing = Writing(log)
    await writing.transactions.prepare()
    writing.records(FIRST)
    await writing.told()
    hold()
    writing.commit(FIRST)
    writing.records(SECOND)
    return writing


async def second_is_open(store: LogStore) -> None:
    again = await store.open(NAME)
    transactions = PartitionTransactions(again)
    transactions.learned(await transactions.read())
    assert transactions.stable_offset() == 2, "what the second producer wrote is not committed"
    assert transactions.writers.marker(SECOND, 0, 0), "and its transaction is to be ended"
    await again.close()


def test_what_became_readable_with_a_marker_is_open_at_the_next_leader() -> None:
    setting = Setting()

    async def scenario() -> None:
        log = await setting.store().open(NAME)
        writing = await one_ends_and_another_begins(log, lambda: None)
        await writing.told()
        await log.close()
        await second_is_open(setting.store())

    setting.run(scenario)


def test_a_marker_moves_nothing_while_it_is_not_known_what_is_stored() -> None:
    """An append has failed, and what it brought is in the log all the same."""
    setting = Setting()

    async def scenario() -> None:
        log = await setting.store().open(NAME)
        writing = Writing(log)
        await writing.transactions.prepare()
        writing.records(FIRST)
        await writing.told()
        failed = batch([b"a"], producer=(SECOND, 0, 0), attributes=TRANSACTIONAL)
        log.append([failed], lambda *_: writing.transactions.doubt(), Content((1,), (1,), Stamp()))
        writing.commit(FIRST)
        await writing.told()
        assert not writing.transactions.known
        await log.close()
        again = await setting.store().open(NAME)
        transactions = PartitionTransactions(again)
        transactions.learned(await transactions.read())
        assert transactions.stable_offset() == 1
        assert transactions.writers.marker(SECOND, 0, 0)
        await again.close()

    setting.run(scenario)


def test_what_was_found_with_a_marker_in_a_ledger_that_failed_is_open_at_the_next_owner() -> None:
    async def scenario() -> None:
        world = World()
        owner = Process(world)
        log = await owner.store().open(NAME)

        def hold() -> None:
            owner.ledgers.hold = True

        writing = await one_ends_and_another_begins(log, hold)
        writer = owner.ledgers.writers[-1]
        for _, entries, _ in writer._pending:
            writer._store(entries)
        owner.ledgers.hold = False
        owner.ledgers.close_errors = [LedgerError("it cannot be closed by its writer")]
        writer.fail(LedgerError("too few bookies"))
        await writing.told()
        await log.close()
        await second_is_open(Process(world).store())

    asyncio.run(asyncio.wait_for(scenario(), 60))
