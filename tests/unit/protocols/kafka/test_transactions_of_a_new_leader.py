"""A replica is elected before it can know that the last of its log is committed: what opens or ends
transactions there is read all the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.log.partition.leading import NoCompany
from magnetar.log.partition.replication.election import Live, LiveBroker
from magnetar.log.partition.replication.leader import FetchRequest
from magnetar.log.partition.replication.partition_state import Member
from magnetar.log.partition.replication.state_store import StateStore
from magnetar.log.partition.serving import opening
from magnetar.log.partition.serving.partition_names import partition_of
from magnetar.log.seam import Content, Stamp
from magnetar.model.errors import LogClosedError, LogError
from magnetar.protocols.kafka.partitions.partition_transactions import PartitionTransactions
from magnetar.wire.kafka.batches import TRANSACTIONAL
from tests.unit.log.doubles import NAME, Outcomes, Process
from tests.unit.log.partition.kit import batch
from tests.unit.log.partition.serving.test_partition_log import Setting

SILENT = Member(2, 5)
PARTITION = partition_of(NAME)


def test_a_log_that_closes_while_it_is_read_says_nothing_of_transactions() -> None:
    """Nothing was found open in it, so that no marker was written: what the producer had aborted
    was committed by its next transaction."""
    setting = Setting()

    async def scenario() -> None:
        log = await setting.store().open(NAME)
        await PartitionTransactions(log).prepare()
        outcomes = Outcomes()
        part = batch([b"a"], producer=(7, 0, 0), attributes=TRANSACTIONAL)
        log.append([part], outcomes, Content((1,), (1,), Stamp()))
        await outcomes.wait(1)

        class ClosesMeanwhile:
            async def wait_whole(self) -> None:
                await log.close()

        log.opening = ClosesMeanwhile()  # type: ignore[assignment]
        with pytest.raises(LogClosedError):
            await PartitionTransactions(log).read()

    setting.run(scenario)


def test_a_transaction_that_is_not_known_to_be_committed_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = Setting()

    async def both(self: NoCompany) -> Live:
        me, start = self._host.me, self._host.start
        return {me.broker: LiveBroker(start, me.lineage), 2: LiveBroker(1, SILENT.lineage)}

    monkeypatch.setattr(NoCompany, "live", both)

    async def scenario() -> None:
        first, host = await setting.store().open(NAME), setting.parts.host
        assert host is not None
        await PartitionTransactions(first).prepare()
        replica, me = host.replicas[PARTITION], host.me
        states = StateStore(Process(setting.world).metadata)
        await replica.learnt(
            await states.change(
                *PARTITION,
                lambda state: replace(state, replicas=(me.broker, 2), isr=(me, SILENT)),
            )
        )
        outcomes = Outcomes()
        part = batch([b"a"], producer=(7, 0, 0), attributes=TRANSACTIONAL)
        first.append([part], outcomes, Content((1,), (1,), Stamp()))
        while replica.source.log_end == 0:  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0.01)

        again = await setting.store().open(NAME)
        transactions = PartitionTransactions(again)
        monkeypatch.setattr(opening, "WHOLE_S", 0.05)
        with pytest.raises(LogError, match="try again"):
            await transactions.read()
        monkeypatch.setattr(opening, "WHOLE_S", 60.0)
        reading = asyncio.create_task(transactions.read())
        await asyncio.sleep(0)
        leader = replica.machine.leader
        assert leader is not None
        leader.fetched(FetchRequest(SILENT, leader.epoch, 1, 1), 0)
        replica.advanced()
        transactions.learned(await reading)
        assert again.positions.end_offset == 1
        assert transactions.stable_offset() == 0, "it is open"
        assert transactions.writers.marker(7, 0, 0), "and a marker ends it"
        await again.close()
        await first.close()

    setting.run(scenario)
