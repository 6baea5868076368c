"""A partition behind the seam: what is its own, beside the contract that every engine keeps."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed.store import policy_of
from magnetar.log.partition.checkpoint_files import LOG_STARTS, Partition, decode_offsets
from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.leading import NoCompany, PartitionLeading
from magnetar.log.partition.limits import PartitionPolicy, SegmentLimits, SyncPolicy
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.log_directory import LogDirectory
from magnetar.log.partition.replication.election import Live, LiveBroker
from magnetar.log.partition.replication.leader import FetchRequest
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.state_store import StateStore
from magnetar.log.partition.serving import partition_log
from magnetar.log.partition.serving.batch_places import BatchPlaces
from magnetar.log.partition.serving.partition_log import PartitionLog
from magnetar.log.partition.serving.partition_names import other_name, partition_of
from magnetar.log.policy import Engine, LogPolicy, PieceRule, Retention
from magnetar.log.seam import Checkpoint, Content, Cursor, LogStore, Run, WritableLog
from magnetar.model.errors import (
    LogClosedError,
    LogError,
    LogFencedError,
    MagnetarError,
    MessageTooLargeError,
    MetadataUnavailableError,
    NoSpaceError,
    NotAllowedError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OtherEngineError,
    ServiceNotReadyError,
)
from magnetar.model.ids import EARLIEST, Position
from tests.unit.log.contract.engines import append, fill, read_all
from tests.unit.log.doubles import NAME, Outcomes, Process, World
from tests.unit.log.partition.world import SMALL, PartitionWorld

CONFIG = LedgerConfig(cursor_flush_interval_ms=1)
POLICY = replace(policy_of(CONFIG), engine=Engine.PARTITION)


class Setting:
    """A cluster with one broker, which may be started again."""

    def __init__(self, policy: PartitionPolicy = SMALL) -> None:
        self.world = World()
        self.parts = PartitionWorld(policy)

    def store(self, policy: LogPolicy = POLICY) -> LogStore:
        process = Process(self.world)
        return self.parts.store(process, process.store(CONFIG), policy, 1 << 31)

    def run(self, scenario: Callable[[], Awaitable[None]], closing: bool = True) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), self.parts.running(closing):
                await scenario()

        asyncio.run(main())


def test_what_was_acknowledged_is_there_after_a_kill() -> None:
    setting = Setting()

    async def before() -> None:
        source = await setting.store().open(NAME)
        held = await append(source, [b"x"] * 30, Content([1 + i % 3 for i in range(30)], [1] * 30))
        cursor = await source.cursors.open("c", EARLIEST)
        cursor.acknowledge([held[0], held[1], held[7]])
        await cursor.wait_stored()

    async def after() -> None:
        source = await setting.store().open(NAME)
        assert source.epoch == 2
        assert len(await read_all(source)) == 30
        assert source.positions.end_offset == 60
        cursor = source.cursors.durable()["c"]
        assert source.positions.next_position(cursor.mark_delete) == Position(0, 3)
        assert cursor.backlog_entries() == 27
        (further,) = await fill(source, 1)
        assert further == Position(0, 60)
        await source.close()

    setting.run(before, closing=False)
    setting.run(after)


def test_what_comes_while_a_thread_looks_for_a_time_lies_behind_what_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it was passed over, too: it expired with what was old."""
    run = HostedReplica.run

    async def late(hosted: HostedReplica, job: Callable[[], Any]) -> Any:
        found = await run(hosted, job)
        looked.set()
        await answers.wait()
        return found

    looked, answers = asyncio.Event(), asyncio.Event()
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        await append(source, [b"old"], Content([1], [1000]))
        monkeypatch.setattr(HostedReplica, "run", late)
        search = asyncio.create_task(source.first_at(2000))
        await looked.wait()
        (held,) = await append(source, [b"new"], Content([1], [3000]))
        answers.set()
        assert await search == held
        await source.close()

    setting.run(scenario)


def test_of_an_append_that_is_refused_in_part_what_leads_is_told() -> None:
    """What lies behind a payload that was refused may be in the log: nobody can say which it is."""
    setting = Setting(replace(SMALL, batch_bytes_max=2000))

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        told: asyncio.Future[tuple[MagnetarError | None, Sequence[Run]]]
        told = asyncio.get_running_loop().create_future()
        source.append([b"a", bytes(5000), b"b"], lambda *said: told.set_result(said))
        error, runs = await told
        assert isinstance(error, MessageTooLargeError)
        assert [*runs] == [Run(0, 0, 1)]
        await source.close()

    setting.run(scenario)


def test_one_that_was_opened_again_is_lost_to_its_former_owner() -> None:
    setting = Setting()

    async def scenario() -> None:
        first = await setting.store().open(NAME)
        await fill(first, 3)
        told: list[LogFencedError] = []
        first.watch_lost(told.append)
        second = await setting.store().open(NAME)
        assert second.epoch > first.epoch
        outcomes = Outcomes()
        first.append([b"late"], outcomes)
        await outcomes.wait(1)
        assert isinstance(outcomes.errors[0], LogFencedError)
        assert len(told) == 1
        await fill(second, 2)
        assert len(await read_all(second)) == 5
        await first.close()
        await second.close()

    setting.run(scenario)


def test_closing_ends_though_another_leads_meanwhile() -> None:
    setting = Setting()

    async def scenario() -> None:
        first = await setting.store().open(NAME)
        replica = next(iter(setting.parts.host.replicas.values())) if setting.parts.host else None
        assert replica is not None
        outcomes = Outcomes()
        async with replica._changing:  # nothing is appended before the part has changed
            first.append([b"late"], outcomes)
            closing = asyncio.ensure_future(first.close())
            await asyncio.sleep(0.01)
        second = await setting.store().open(NAME)
        await closing
        await outcomes.wait(1)
        await second.close()

    setting.run(scenario)


@pytest.mark.parametrize("held_back", [True, False])
def test_retention_lets_go_what_no_subscription_needs(held_back: bool) -> None:
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        held = await append(source, [bytes(100)] * 40)
        cursor = await source.cursors.open("c", EARLIEST)
        if held_back:
            cursor.acknowledge_cumulative(held[19])
        else:
            cursor.acknowledge_cumulative(held[-1])
        await cursor.wait_stored()
        source.set_policy(replace(POLICY, retention=Retention(-1, 1000)))
        async with asyncio.timeout(30):
            while source.positions.first == held[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert source.stats().stored_bytes < (6_000 if held_back else 2_000)
        first = source.positions.first
        assert held[0] < first <= (held[20] if held_back else held[-1])
        entries = await source.read(EARLIEST, 1, 1)
        assert Position(entries[0].ledger_id, entries[0].entry_id) == first
        assert source.positions.entries_between(EARLIEST, held[-1]) == 40 - held.index(first)
        await source.close()

    setting.run(scenario)


@pytest.mark.parametrize("store_is_away", [False, True])
def test_what_goes_is_counted_by_the_checkpoint_that_a_later_owner_finds(
    store_is_away: bool,
) -> None:
    """It looks for the rest behind that, and takes in once more what it does not find."""
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        held = await append(source, [bytes(100)] * 10)
        source.checkpoints.keep(lambda: Checkpoint(held[9], b"ten"))
        await source.checkpoints.save()
        held += await append(source, [bytes(100)] * 30)
        source.checkpoints.keep(lambda: Checkpoint(held[29], b"thirty"))
        if store_is_away:

            async def away() -> None:
                raise MetadataUnavailableError("no answer")

            source.checkpoints.save = away  # type: ignore[method-assign]
        source.set_policy(replace(POLICY, retention=Retention(0, -1)))
        setting.parts.now_ms += 1000
        assert isinstance(source, PartitionLog)
        source.tick()
        while source._trimming:
            await asyncio.wait(list(source.scope._tasks.running))
        again = await setting.store().open(NAME)
        stored = again.checkpoints.stored
        assert stored == (
            Checkpoint(held[9], b"ten") if store_is_away else Checkpoint(held[29], b"thirty")
        )
        first = again.positions.first
        assert held[0] < first <= again.positions.next_position(stored.position)
        await again.close()

    setting.run(scenario)


def test_entries_are_read_from_files_when_memory_has_let_them_go() -> None:
    setting = Setting()

    async def scenario() -> None:
        store = setting.store()
        source = await store.open(NAME)
        values = [b"%d" % i + bytes(i) for i in range(60)]
        await append(source, values)
        await source.close()
        source = await store.open(NAME)  # nothing is in memory
        assert source.read_cached(EARLIEST, 9, 1 << 20) is None
        assert await read_all(source) == values
        await source.close()

    setting.run(scenario)


@pytest.mark.parametrize("lost", [False, True])
def test_an_epoch_ends_before_the_log_does_only_if_something_may_be_gone(lost: bool) -> None:
    """A consumer that has read more of one learns that it is gone; nobody else is to take the end
    of an epoch for the end of what is there."""
    setting = Setting()

    async def before() -> None:
        source = await setting.store().open(NAME)
        await append(source, [b"%d" % i for i in range(30)])
        assert await source.epochs.end_of(source.epoch) == (source.epoch, 30)
        epochs.append(source.epoch)
        await source.close()
        if lost:  # the only replica was one that its broker does not have any more
            states = StateStore(Process(setting.world).metadata)
            await states.change(
                *partition_of(NAME),
                lambda state: replace(state, isr=(Member(state.leader, 99),)),
            )

    async def after() -> None:
        source = await setting.store().open(NAME)
        (former,) = epochs
        assert source.epoch > former
        await append(source, [b"later"])
        assert source.epochs.whole_since == (source.epoch if lost else former)
        assert await source.epochs.end_of(former) == (former, 30 if lost else 31)
        assert await source.epochs.end_of(source.epoch) == (source.epoch, 31)
        assert await source.epochs.end_of(source.epoch + 1) == (-1, -1)
        await source.close()
        with pytest.raises(LogClosedError):
            await source.epochs.end_of(former)

    epochs: list[int] = []
    setting.run(before)
    setting.run(after)


def test_a_log_is_whole_since_its_first_epoch_whoever_has_led_it_since() -> None:
    """Else a reader whose topic is unloaded before it comes back would never read."""
    setting = Setting()

    async def once() -> None:
        for _ in range(2):
            source = await setting.store().open(NAME)
            epochs.append(source.epoch)
            assert source.epochs.whole_since == epochs[0]
            await fill(source, 3)
            await source.close()

    epochs: list[int] = []
    setting.run(once)
    setting.run(once)
    assert epochs == sorted(set(epochs))


def test_deleted_records_are_gone_after_a_kill_too() -> None:
    setting = Setting()

    async def before() -> None:
        source = await setting.store().open(NAME)
        await append(source, [b"%d" % i for i in range(30)], Content([3] * 30, [1] * 30))
        assert source.front.offset == 0
        for offset in (91, -2):
            with pytest.raises(OffsetOutOfRangeError):
                await source.front.delete_before(offset)
        assert await source.front.delete_before(40) == 40
        assert await source.front.delete_before(7) == 40, "it begins later already"
        assert source.positions.first == Position(0, 39), "an entry is whole"
        assert await read_all(source) == [b"%d" % i for i in range(13, 30)]

    async def after() -> None:
        source = await setting.store().open(NAME)
        assert source.front.offset == 40
        assert await read_all(source) == [b"%d" % i for i in range(13, 30)]
        assert await source.front.delete_before(-1) == 90
        assert await read_all(source) == []
        assert source.positions.end_offset == 90
        (further,) = await fill(source, 1)
        assert further == Position(0, 90)
        await source.close()

    setting.run(before, closing=False)
    setting.run(after)


def test_logs_stay_on_the_engine_that_they_were_made_on() -> None:
    setting = Setting()

    async def scenario() -> None:
        on_ledgers = replace(POLICY, engine=Engine.LEDGER)
        source: WritableLog = await setting.store(on_ledgers).open(NAME)
        assert source.followable
        await source.close()
        source = await setting.store().open(NAME)
        assert source.followable, "it was there"
        await source.close()
        other = f"{NAME}2"
        source = await setting.store().open(other)
        await source.close()
        with pytest.raises(NotAllowedError, match="read-only"):
            await setting.store().follow(other)
        source = await setting.store(on_ledgers).open(other)
        assert not source.followable
        await source.close()
        process = Process(setting.world)
        with pytest.raises(OtherEngineError):
            await process.store(CONFIG).delete(other)
        await setting.store().delete(other)
        assert not await setting.store().exists(other)

    setting.run(scenario)


def test_two_names_of_one_partition_are_not_both_made() -> None:
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        with pytest.raises(NotAllowedError, match="same partition"):
            await setting.store().open(f"{NAME}-partition-0")
        await source.close()

    setting.run(scenario)


def test_names() -> None:
    assert partition_of("public/default/persistent/t") == ("t", 0)
    assert partition_of("public/default/persistent/a.b-partition-12") == ("a.b", 12)
    assert partition_of("x/y/persistent/t") == ("x%2Fy%2Fpersistent%2Ft", 0)
    assert partition_of("public/default/persistent/t-partition-012") == ("t-partition-012", 0)
    assert other_name("public/default/persistent/t-partition-1") is None
    with pytest.raises(LogError, match="too long"):
        partition_of("public/default/persistent/" + "t" * 250)


def test_who_has_no_replica_in_sync_does_not_lead() -> None:
    setting = Setting()

    async def scenario() -> None:
        states = StateStore(Process(setting.world).metadata)
        elsewhere = PartitionState((1, 2), 1, (Member(1, 5),), (), 1, 9, 3)
        await states.create("t", 0, elsewhere)
        assert setting.parts.host is not None
        with pytest.raises(NotLeaderError, match="cannot be led here"):
            await PartitionLeading(setting.parts.host, states).lead(("t", 0))

    setting.run(scenario)


def test_who_waits_for_the_leader_alone_is_told_by_its_own_log() -> None:
    setting = Setting()

    async def scenario() -> None:
        store, host = setting.store(), setting.parts.host
        assert host is not None
        silent = Member(2, 5)
        states = StateStore(Process(setting.world).metadata)
        source = await store.open(NAME)
        replica = host.replicas[partition_of(NAME)]

        async def in_sync(least: int, *isr: Member) -> None:
            def change(state: PartitionState) -> PartitionState:
                return replace(state, replicas=(host.me.broker, 2), min_isr=least, isr=isr)

            await replica.learnt(await states.change(*partition_of(NAME), change))

        await in_sync(2, host.me, silent)
        outcomes = Outcomes()
        for_all, for_one = outcomes.for_append("all"), outcomes.for_append("leader")
        source.append([b"a"], for_all, Content((1,), (1,)))
        source.append([b"b"], for_one, Content((1,), (1,), awaits_all=False))
        await outcomes.wait(1)
        assert outcomes.order == [("leader", 1)], "whatever those before it wait for"
        assert replica.source.synced_end == 2
        assert await read_all(source) == [], "nobody reads what is not committed"

        # With too few in sync an append that waits for all is refused; this one is taken.
        await in_sync(2, host.me)
        source.append([b"c"], for_one, Content((1,), (1,), awaits_all=False))
        source.append([b"d"], for_all, Content((1,), (1,)))
        await outcomes.wait(2)
        assert outcomes.order[1:] == [("leader", 1)]
        await in_sync(1, host.me)
        await outcomes.wait(4)
        assert outcomes.order[2:] == [("all", 1), ("all", 0)]
        assert [type(each) for each in outcomes.errors] == [NotEnoughReplicasError]
        assert await read_all(source) == [b"a", b"b", b"c"]
        await source.close()

    setting.run(scenario)


def test_what_comes_behind_a_refused_append_is_not_appended_without_it() -> None:
    """The refusal waits for its turn. A producer that sends on has all of the rest refused, and
    sends it again in order."""
    setting = Setting()

    async def scenario() -> None:
        store, host = setting.store(), setting.parts.host
        assert host is not None
        silent = Member(2, 5)
        states = StateStore(Process(setting.world).metadata)
        source = await store.open(NAME)
        replica = host.replicas[partition_of(NAME)]

        async def in_sync(*isr: Member) -> None:
            def change(state: PartitionState) -> PartitionState:
                return replace(state, replicas=(host.me.broker, 2), min_isr=2, isr=isr)

            await replica.learnt(await states.change(*partition_of(NAME), change))

        def fetched(offset: int) -> None:
            leader = replica.machine.leader
            assert leader is not None
            leader.fetched(FetchRequest(silent, leader.epoch, offset, leader.epoch), 0)
            replica.advanced()

        outcomes = Outcomes()
        await in_sync(host.me, silent)
        source.append([b"a"], outcomes.for_append("a"))
        await in_sync(host.me)
        source.append([b"b"], outcomes.for_append("b"))
        await in_sync(host.me, silent)
        source.append([b"c"], outcomes.for_append("c"))
        while replica.source.log_end == 0:  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0.01)
        fetched(1)
        await outcomes.wait(3)
        assert outcomes.order == [("a", 1), ("b", 0), ("c", 0)]
        assert [type(each) for each in outcomes.errors] == [NotEnoughReplicasError] * 2
        source.append([b"b", b"c"], outcomes.for_append("again"))
        while replica.source.log_end < 3:  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0.01)
        fetched(3)
        await outcomes.wait(4)
        assert await read_all(source) == [b"a", b"b", b"c"]
        await source.close()

    setting.run(scenario)


class FullOnce:
    """A disk that is full at one write of a log, and has room again behind it. ``met``: that
    write has begun, on the lane, and waits for ``goes_on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.met, self.goes_on = threading.Event(), threading.Event()
        write = LocalLog.write

        def full_once(source: LocalLog, *given: Any) -> None:
            if not self.full:
                write(source, *given)
                return
            self.full = False
            self.met.set()
            assert self.goes_on.wait(20)
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(LocalLog, "write", full_once)


def test_what_waits_behind_a_full_disk_is_not_appended_without_what_it_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Room came between two groups: the later messages were stored, and then sent again."""
    setting, disk = Setting(), FullOnce(monkeypatch)

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        outcomes = Outcomes()
        disk.full = True
        source.append([b"a"], outcomes.for_append("a"))
        assert await asyncio.to_thread(disk.met.wait, 20)
        source.append([b"b"], outcomes.for_append("b"))
        source.append([b"c"], outcomes.for_append("c"), Content((1,), (1,), awaits_all=False))
        disk.goes_on.set()
        await outcomes.wait(3)
        assert sorted(outcomes.order) == [("a", 0), ("b", 0), ("c", 0)]
        assert [type(each) for each in outcomes.errors] == [NoSpaceError] * 3
        assert await read_all(source) == []
        source.append([b"a", b"b", b"c"], outcomes.for_append("again"))
        await outcomes.wait(4)
        assert await read_all(source) == [b"a", b"b", b"c"]
        await source.close()

    setting.run(scenario)


def test_what_comes_before_a_full_disk_is_told_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal waits for those before it, which wait for a follower."""
    setting, disk = Setting(), FullOnce(monkeypatch)

    async def scenario() -> None:
        store, host = setting.store(), setting.parts.host
        assert host is not None
        silent = Member(2, 5)
        states = StateStore(Process(setting.world).metadata)
        source = await store.open(NAME)
        replica = host.replicas[partition_of(NAME)]

        def change(state: PartitionState) -> PartitionState:
            return replace(state, replicas=(host.me.broker, 2), min_isr=2, isr=(host.me, silent))

        await replica.learnt(await states.change(*partition_of(NAME), change))
        outcomes = Outcomes()
        source.append([b"a"], outcomes.for_append("a"))
        while replica.source.log_end == 0:  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0.01)
        disk.full = True
        disk.goes_on.set()
        source.append([b"b"], outcomes.for_append("b"))
        await replica.settle()
        assert disk.met.is_set()
        assert outcomes.order == []
        source.append([b"c"], outcomes.for_append("c"))
        await replica.settle()
        assert replica.source.log_end == 1
        leader = replica.machine.leader
        assert leader is not None
        leader.fetched(FetchRequest(silent, leader.epoch, 1, leader.epoch), 0)
        replica.advanced()
        await outcomes.wait(3)
        assert outcomes.order == [("a", 1), ("b", 0), ("c", 0)]
        assert [type(each) for each in outcomes.errors] == [NoSpaceError] * 2
        await source.close()

    setting.run(scenario)


class NewLeader:
    """A log whose leader has a follower in sync that has not fetched yet: what it holds may not be
    read. ``replica`` leads; ``caught_up`` has the follower fetch all up to an offset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.setting, self.silent = Setting(), Member(2, 5)
        silent = self.silent

        async def both(self: NoCompany) -> Live:
            me, start = self._host.me, self._host.start
            return {me.broker: LiveBroker(start, me.lineage), 2: LiveBroker(1, silent.lineage)}

        monkeypatch.setattr(NoCompany, "live", both)

    async def elected(self) -> WritableLog:
        host = self.setting.parts.host
        assert host is not None
        me, silent = host.me, self.silent

        def with_another(state: PartitionState) -> PartitionState:
            return replace(state, replicas=(me.broker, 2), isr=(me, silent))

        partition = partition_of(NAME)
        self.replica = host.replicas[partition]
        states = StateStore(Process(self.setting.world).metadata)
        await self.replica.learnt(await states.change(*partition, with_another))
        assert self.replica.machine.leader is not None
        self.replica.machine.leader.high_watermark = 0  # as far as another replica has heard
        return await self.setting.store().open(NAME)

    def caught_up(self, offset: int) -> None:
        leader = self.replica.machine.leader
        assert leader is not None
        leader.fetched(FetchRequest(self.silent, leader.epoch, offset, leader.epoch - 1), 0)
        self.replica.advanced()


def test_a_batch_that_is_acknowledged_again_is_not_gone_through_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Rust client acknowledges a whole batch with each of its messages."""
    setting, looked = Setting(), []
    position = BatchPlaces.position

    def counted(places: BatchPlaces, offset: int) -> Position:
        looked.append(offset)
        return position(places, offset)

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        held = await append(source, [b"x"] * 3, Content([1, 500, 500], [1] * 3))
        cursor = await source.cursors.open("c", EARLIEST)
        cursor.acknowledge([held[2]])  # behind what is not: it is a hole
        monkeypatch.setattr(BatchPlaces, "position", counted)
        for _ in range(500):
            cursor.acknowledge([held[2]])
        assert not looked
        cursor.acknowledge([held[1]])
        assert set(looked) == set(range(1, 501))
        cursor.acknowledge([held[0]])
        looked.clear()
        for each in held * 500:  # before mark-delete now
            cursor.acknowledge([each])
        assert not looked
        assert cursor.mark_delete == Position(0, 1000)
        assert cursor.backlog_entries() == 0
        await source.close()

    setting.run(scenario)


def test_acknowledgements_past_what_a_new_leader_can_show_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was acknowledged is committed; a replica is elected before it can know that."""
    new = NewLeader(monkeypatch)

    async def scenario() -> None:
        source = await new.setting.store().open(NAME)
        held = await fill(source, 3)
        cursor = await source.cursors.open("c", EARLIEST)
        cursor.acknowledge([held[2]])
        await cursor.wait_stored()
        again = await new.elected()
        assert again.positions.end_offset == 0
        cursor = again.cursors.durable()["c"]
        new.caught_up(3)
        assert again.positions.end_offset == 3
        assert cursor.backlog_entries() == 2
        await again.close()
        await source.close()

    new.setting.run(scenario)


HELD: dict[str, Callable[[Cursor, list[Position]], object]] = {
    "one": lambda cursor, held: cursor.acknowledge(held[1:2]),
    "many": lambda cursor, held: cursor.acknowledge(held[1:]),
    "a batch by its parts": lambda cursor, held: [
        cursor.acknowledge_batch(held[1], 3, [bits]) for bits in (0b110, 0b001)
    ],
    "cumulative": lambda cursor, held: cursor.acknowledge_cumulative(held[1]),
    "cumulative, past the end": lambda cursor, held: cursor.acknowledge_cumulative(
        Position(0, 1_000_000)
    ),
}


@pytest.mark.parametrize(
    ("shape", "left"), list(zip(HELD, [[0, 2, 3], [0], [0, 2, 3], [2, 3], []], strict=True))
)
def test_what_a_former_leader_delivered_is_acknowledged_to_one_that_cannot_show_it_yet(
    shape: str, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers acknowledge after the election what they had before it; whole batches of it."""
    new = NewLeader(monkeypatch)

    async def scenario() -> None:
        source = await new.setting.store().open(NAME)
        held = await append(source, [b"x"] * 4, Content([2, 3, 1, 2], [1] * 4))
        await source.cursors.open("c", EARLIEST)
        again = await new.elected()
        assert again.positions.end_offset == 0
        cursor = again.cursors.durable()["c"]
        HELD[shape](cursor, held)
        await cursor.wait_stored()
        new.caught_up(8)
        await again.opening.wait_whole()
        assert cursor.backlog_entries() == len(left)
        entries = await again.read(EARLIEST, 100, 1 << 20)
        kept = cursor.unacknowledged(entries)
        assert [Position(each.ledger_id, each.entry_id) for each in kept] == [
            held[each] for each in left
        ]
        await again.close()
        await source.close()

    new.setting.run(scenario)


def test_a_former_leader_confirms_nothing_of_what_only_a_later_one_has() -> None:
    setting = Setting()

    async def scenario() -> None:
        first = await setting.store().open(NAME)
        await fill(first, 3)
        cursors = [await first.cursors.open(name, EARLIEST) for name in ("a", "b")]
        second = await setting.store().open(NAME)
        news = await fill(second, 2)
        cursors[0].acknowledge(news)
        cursors[1].acknowledge_cumulative(news[1])
        for cursor in cursors:
            with pytest.raises(LogFencedError):
                await cursor.wait_stored()
        await first.close()
        await second.close()

    setting.run(scenario)


def test_acknowledgements_of_what_a_log_has_lost_are_none_of_what_comes_in_its_place() -> None:
    """The only replica goes on with what it has, or another was elected uncleanly."""
    setting = Setting(PartitionPolicy())

    async def before() -> None:
        source = await setting.store().open(NAME)
        held = await fill(source, 4)
        some, every = [await source.cursors.open(name, EARLIEST) for name in ("some", "every")]
        some.acknowledge([held[1], held[3]])
        every.acknowledge_cumulative(held[3])
        for cursor in (some, every):
            await cursor.wait_stored()

    async def after() -> None:
        source = await setting.store().open(NAME)
        some, every = [source.cursors.durable()[name] for name in ("some", "every")]
        assert len(await read_all(source)) == 2, "two are lost"
        assert (some.backlog_entries(), every.backlog_entries()) == (1, 0)
        await fill(source, 3)
        assert (some.backlog_entries(), every.backlog_entries()) == (4, 3)
        await source.close()

    async def again() -> None:
        source = await setting.store().open(NAME)
        some, every = [source.cursors.durable()[name] for name in ("some", "every")]
        assert (some.backlog_entries(), every.backlog_entries()) == (4, 3), "it is stored"
        await source.close()

    setting.run(before, closing=False)
    (segment,) = setting.parts.path.glob("*/*.log")
    data = segment.read_bytes()
    segment.write_bytes(data[: len(data) // 2])  # batches of one size
    setting.run(after)
    setting.run(again)


def test_closing_does_not_wait_for_followers_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "DRAIN_S", 0.1)
    setting = Setting()

    async def scenario() -> None:
        store, host = setting.store(), setting.parts.host
        assert host is not None
        me = host.me
        states = StateStore(Process(setting.world).metadata)
        source = await store.open(NAME)

        def with_a_silent_one(state: PartitionState) -> PartitionState:
            return replace(state, replicas=(me.broker, 2), isr=(me, Member(2, 5)))

        partition = partition_of(NAME)
        await host.replicas[partition].learnt(await states.change(*partition, with_a_silent_one))
        outcomes = Outcomes()
        source.append([b"a"], outcomes, Content((1,), (1,)))
        await source.close()
        await outcomes.wait(1)
        assert [type(each) for each in outcomes.errors] == [LogClosedError]
        assert "may be stored or not" in str(outcomes.errors[0])
        assert source.pending_bytes == 0

    setting.run(scenario)


def test_what_waits_for_the_leader_alone_is_refused_once_another_leads() -> None:
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        assert isinstance(source, PartitionLog)
        outcomes = Outcomes()
        source.append([b"a"], outcomes, Content((1,), (1,), awaits_all=False))
        source.lose(LogFencedError("another leads"))
        await outcomes.wait(1)
        await asyncio.sleep(0.05)
        assert outcomes.count == 1, "once"
        assert [type(each) for each in outcomes.errors] == [LogFencedError]
        assert source.pending_bytes == 0

    setting.run(scenario)


def test_an_unsafe_policy_acknowledges_before_the_sync_and_goes_on_after_a_kill() -> None:
    """The directory forgets whom it was counted as: as the only replica it goes on all the same."""
    unsafe = PartitionPolicy(SyncPolicy.INTERVAL, 10_000_000, SegmentLimits())
    setting = Setting(unsafe)

    async def before() -> None:
        source = await setting.store().open(NAME)
        await fill(source, 5)
        host = setting.parts.host
        assert host is not None
        replica = host.replicas[partition_of(NAME)]
        assert replica.source.synced_end < replica.source.log_end == replica.high_watermark

    async def after() -> None:
        source = await setting.store().open(NAME)
        assert len(await read_all(source)) == 5, "a kill is no loss of power"
        await source.close()

    setting.run(before, closing=False)
    setting.run(after)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


def test_a_full_disk_ends_no_log_whose_records_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what they are deleted for. Whoever asks again is answered when it is durable."""
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        assert isinstance(source, PartitionLog)
        await append(source, [b"%d" % i for i in range(60)], Content([1] * 60, [1] * 60))
        host = setting.parts.host
        assert host is not None
        directory = host.directory
        (kept,) = directory.logs.values()
        before = len(kept.segments)
        with monkeypatch.context() as patched:
            patched.setattr(kept, "_write_epochs", full)
            patched.setattr(directory, "checkpoint", full)
            for _ in range(2):
                with pytest.raises(LogError, match="are not deleted"):
                    await source.front.delete_before(40)
            source.set_policy(replace(POLICY, retention=Retention(0, 0)))
            while source._trimming:
                await asyncio.wait(list(source.scope._tasks.running))
        assert source.lost is None
        assert len(kept.segments) < before, "room is made first"
        assert await source.front.delete_before(40) >= 40
        assert read_offsets(directory) == {partition_of(NAME): source.front.offset}
        await append(source, [b"more"])
        await source.close()

    setting.run(scenario)


def read_offsets(directory: LogDirectory) -> dict[Partition, int]:
    path = directory.path / LOG_STARTS
    return decode_offsets(path.read_bytes(), path)


def test_records_that_a_later_owner_has_to_find_are_not_deleted() -> None:
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        held = await append(source, [b"x"] * 30, Content([1] * 30, [1] * 30))
        place = held[9]
        source.checkpoints.keep(lambda: Checkpoint(place, b"state"))
        await source.checkpoints.save()
        with pytest.raises(ServiceNotReadyError, match="in a moment"):
            await source.front.delete_before(11)
        assert source.front.offset == 0
        assert await source.front.delete_before(10) == 10
        place = held[19]  # it went on, and nobody has stored it
        assert await source.front.delete_before(20) == 20
        again = await setting.store().open(NAME)
        assert again.checkpoints.stored == Checkpoint(place, b"state")
        await again.close()

    setting.run(scenario)


def test_whoever_leads_no_more_deletes_no_records() -> None:
    """What an owner deletes while another one has taken its place that one's readers would miss."""
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        await append(source, [b"x"] * 30, Content([1] * 30, [1] * 30))
        host = setting.parts.host
        assert host is not None
        (hosted,) = host.replicas.values()
        count = source.front._count  # type: ignore[attr-defined]

        async def slow(offset: int) -> None:
            await count(offset)
            await source.close()

        source.front._count = slow  # type: ignore[attr-defined]
        with pytest.raises(LogClosedError):
            await source.front.delete_before(20)
        assert hosted.source.log_start == 0
        with pytest.raises(LogClosedError):
            await source.front.delete_before(0)

    setting.run(scenario)


def test_a_log_whose_disk_fails_while_records_are_deleted_has_failed() -> None:
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        await append(source, [b"x"] * 30, Content([1] * 30, [1] * 30))
        host = setting.parts.host
        assert host is not None
        (hosted,) = host.replicas.values()

        async def fails() -> None:
            raise OSError(errno.EIO, "Input/output error")

        hosted.store_start = fails
        with pytest.raises(LogError, match="are not deleted"):
            await source.front.delete_before(20)
        assert hosted.failure is not None
        assert hosted.leader_epoch is None

    setting.run(scenario)


def test_two_who_delete_the_same_records_are_both_answered_when_it_is_durable() -> None:
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        await append(source, [b"x"] * 30, Content([1] * 30, [1] * 30))
        host = setting.parts.host
        assert host is not None
        (hosted,) = host.replicas.values()
        store_start, storing = hosted.store_start, asyncio.Event()

        def store() -> Awaitable[None]:
            storing.set()
            return store_start()

        hosted.store_start = store
        first = asyncio.create_task(source.front.delete_before(20))
        await storing.wait()
        assert await source.front.delete_before(20) == 20
        assert read_offsets(host.directory) == {partition_of(NAME): 20}
        assert await first == 20
        await source.close()

    setting.run(scenario)


def test_where_records_begin_is_not_stored_once_all_is_closed() -> None:
    """Who deletes records while the broker ends is refused: its lanes take nothing more."""
    setting = Setting()

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        await append(source, [b"x"] * 30, Content([1] * 30, [1] * 30))
        host = setting.parts.host
        assert host is not None
        (hosted,) = host.replicas.values()
        await host.close()
        with pytest.raises(LogClosedError):
            await hosted.store_start()

    setting.run(scenario)


def test_a_part_that_cannot_be_stored_is_an_error_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not one of the disk, which nobody who opens a log awaits; and the replica is opened anew."""
    setting = Setting()

    async def scenario() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(LocalLog, "store_epochs", full)
            with pytest.raises(LogError, match="no space"):
                await setting.store().open(NAME)
        source = await setting.store().open(NAME)
        await append(source, [b"x"])
        await source.close()

    setting.run(scenario)


def test_segments_end_as_the_topic_says() -> None:
    """From the append on that comes next; an owner that opens the log knows it, too."""
    setting = Setting(replace(SMALL, segments=SegmentLimits()))
    smaller = replace(POLICY, pieces=PieceRule(600))

    def bases() -> list[int]:
        files = (setting.parts.path / "t-0").glob("*.log")
        return sorted(int(each.stem) for each in files)

    async def scenario() -> None:
        source = await setting.store().open(NAME)
        await fill(source, 20)
        assert bases() == [0]
        source.set_policy(smaller)
        await fill(source, 20)
        assert len(bases()) > 2
        assert bases()[1] == 20, "what is there stays as it is"
        source.set_policy(POLICY)
        before = bases()
        await fill(source, 20)
        assert bases() == before
        await source.close()
        again = await setting.store(smaller).open(NAME)
        await fill(again, 20)
        assert len(bases()) > len(before)
        assert len(await read_all(again)) == 80

    setting.run(scenario)
