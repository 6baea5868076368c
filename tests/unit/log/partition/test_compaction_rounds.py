"""Replicas are compacted one after the other, beside what is done with them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed.store import policy_of
from magnetar.log.partition.batch_header import read_header
from magnetar.log.partition.checkpoint_files import COMPACTED_ENDS, Partition, decode_offsets
from magnetar.log.partition.compaction import records_of
from magnetar.log.partition.compaction_rounds import CompactionRounds
from magnetar.log.partition.limits import Cleanup, Kept, PartitionPolicy, SegmentLimits
from magnetar.log.partition.serving.partition_names import partition_of
from magnetar.log.policy import Engine
from magnetar.log.seam import Content, Stamp, WritableLog
from magnetar.model.entry import Entry
from magnetar.model.errors import MetadataUnavailableError
from magnetar.model.ids import EARLIEST, Position
from tests.unit.log.contract.engines import append
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.partition.kit import batch
from tests.unit.log.partition.world import NOW_MS, PartitionWorld

CONFIG = LedgerConfig(cursor_flush_interval_ms=1)
POLICY = replace(policy_of(CONFIG), engine=Engine.PARTITION)
TINY = PartitionPolicy(segments=SegmentLimits(segment_bytes_max=600, index_interval_bytes=100))
KEPT = Kept(cleanup=Cleanup.COMPACT, dirty_ratio_least=0.6)
OTHER = f"{NAME}-b"


class Compacted:
    """A process with logs and rounds over them."""

    def __init__(self) -> None:
        self.parts = PartitionWorld(TINY)
        self.kept: dict[str, Kept | MetadataUnavailableError] = {}

    def store(self) -> object:
        process = Process(World())
        return self.parts.store(process, process.store(CONFIG), POLICY, 1 << 31)

    def rounds(self) -> CompactionRounds:
        assert self.parts.host is not None
        return CompactionRounds(
            self.parts.host, self._kept_of, lambda: self.parts.now_ms, 1000, 1 << 20
        )

    async def _kept_of(self, partition: Partition) -> Kept | None:
        found = self.kept.get(partition[0])
        if isinstance(found, MetadataUnavailableError):
            raise found
        return found

    def log_file(self, name: str, offset: int = 0) -> Path:
        topic, number = partition_of(name)
        return self.parts.path / f"{topic}-{number}" / f"{offset:020d}.log"


async def put(source: WritableLog, values: Mapping[bytes, bytes]) -> None:
    for key, value in values.items():
        data = batch([value], keys=[key], time_ms=NOW_MS)
        await append(source, [data], Content([1], [NOW_MS], Stamp()))


async def entries(source: WritableLog) -> list[Entry]:
    found: list[Entry] = []
    at = EARLIEST
    while some := await source.read(at, 3, 1 << 20):
        found += some
        at = source.positions.next_position(position(some[-1]))
    return found


def position(entry: Entry) -> Position:
    return Position(entry.ledger_id, entry.entry_id)


async def contents(source: WritableLog) -> list[tuple[int, bytes | None, bytes | None]]:
    found = []
    for entry in await entries(source):
        header = read_header(entry.payload)
        found += [
            (header.base_offset + each.offset_delta, each.key, each.value)
            for each in records_of(entry.payload, header)
        ]
    return found


async def filled(store: object, name: str, count: int = 60, keys: int = 5) -> WritableLog:
    source: WritableLog = await store.open(name)  # type: ignore[attr-defined]
    for i in range(count):
        await put(source, {b"k%d" % (i % keys): b"%d" % i + bytes(40)})
    return source


def test_a_round_compacts_what_is_due_and_readers_see_it() -> None:
    setting = Compacted()

    async def main() -> None:
        async with asyncio.timeout(60), setting.parts.running():
            source, other = [await filled(setting.store(), each) for each in (NAME, OTHER)]
            setting.kept = {partition_of(NAME)[0]: KEPT}
            cursor = await source.cursors.open("c", EARLIEST)
            before = await contents(source)
            cursor.acknowledge([position((await entries(source))[0])])
            rounds = setting.rounds()
            await rounds.round()
            after = await contents(source)
            last = {key: offset for offset, key, _ in before}
            assert len(after) < len(before) / 3
            assert set(after) <= set(before)
            assert set(last.values()) <= {offset for offset, _, _ in after}
            assert source.positions.end_offset == 60
            assert len(await contents(other)) == 60, "its policy says nothing"
            for each in await entries(source):
                cursor.acknowledge([position(each)])
            assert cursor.backlog_entries() == 0
            assert cursor.mark_delete == source.positions.readable, "no hole is left behind"
            counts = rounds.counts
            assert (counts.passes, counts.failures, counts.compacted_logs) == (1, 0, 1)
            assert counts.freed_bytes > 0
            await put(source, {b"k1": b"new"})
            assert (await contents(source))[-1] == (60, b"k1", b"new")
            await rounds.round()
            assert rounds.counts.passes == 1, "little is dirty"
            assert rounds.counts.dirty_ratio < 0.6
            host = setting.parts.host
            assert host is not None
            await host.checkpoint()
            await rounds.close()
            path = setting.parts.path / COMPACTED_ENDS
            ends = decode_offsets(path.read_bytes(), path)
            assert 40 < ends[partition_of(NAME)] <= 60
            assert partition_of(OTHER) not in ends
        async with asyncio.timeout(60), setting.parts.running():
            host = setting.parts.host
            assert host is not None
            held = host.directory.held(partition_of(NAME))
            assert held is not None
            opened = host.directory.open_log(partition_of(NAME), NOW_MS, held.topic_id)
            assert opened.compacted_end == ends[partition_of(NAME)]
            assert opened.log_end == 61

    asyncio.run(main())


def test_a_log_that_fails_keeps_no_other_waiting() -> None:
    setting = Compacted()

    async def main() -> None:
        async with asyncio.timeout(60), setting.parts.running():
            store = setting.store()
            source, other = [await filled(store, each) for each in (NAME, OTHER)]
            setting.kept = {partition_of(each)[0]: KEPT for each in (NAME, OTHER)}
            path = setting.log_file(NAME)
            data = bytearray(path.read_bytes())
            data[200] ^= 1  # in a batch: its checksum tells
            path.write_bytes(data)
            before = len(path.read_bytes())
            rounds = setting.rounds()
            for _ in range(3):
                await rounds.round()
            assert len(path.read_bytes()) == before, "nothing of it is replaced"
            assert rounds.counts.failures == 1, "it is tried again after a while"
            assert rounds.counts.passes == 1
            assert "checksum" in rounds.trouble[partition_of(NAME)].why
            assert len(await contents(other)) < 30
            assert not list(path.parent.glob("*.cleaned"))
            await put(source, {b"k1": b"new"})  # it goes on
            setting.kept[partition_of(NAME)[0]] = MetadataUnavailableError("away")
            rounds.trouble[partition_of(NAME)].next_s = 0
            await rounds.round()
            assert rounds.counts.failures == 1, "what is not known is no failure"
            await rounds.close()

    asyncio.run(main())


def test_a_log_that_ends_meanwhile_ends_its_pass() -> None:
    setting = Compacted()

    async def main() -> None:
        async with asyncio.timeout(60), setting.parts.running():
            source = await filled(setting.store(), NAME)
            setting.kept = {partition_of(NAME)[0]: KEPT}
            rounds, host = setting.rounds(), setting.parts.host
            assert host is not None
            round_ = asyncio.ensure_future(rounds.round())
            while not setting.log_file(NAME).with_suffix(".log.cleaned").exists():
                await asyncio.sleep(0)
                if round_.done():
                    break
            await source.close()
            await host.doom(partition_of(NAME))
            await round_
            assert rounds.counts.failures == 0
            await rounds.close()

    asyncio.run(main())


@pytest.mark.parametrize("lag_ms", [1, 10**9])
def test_what_is_old_enough_is_sealed_and_compacted(lag_ms: int) -> None:
    setting = Compacted()

    async def main() -> None:
        async with asyncio.timeout(60), setting.parts.running():
            source = await filled(setting.store(), NAME, count=4, keys=2)  # one segment
            kept = replace(KEPT, compaction_lag_ms_max=lag_ms, dirty_ratio_least=1.0)
            setting.kept = {partition_of(NAME)[0]: kept}
            setting.parts.now_ms = NOW_MS + 1000
            rounds = setting.rounds()
            await rounds.round()
            await put(source, {b"k9": b"new"})
            assert len(await contents(source)) == (3 if lag_ms == 1 else 5)
            await rounds.close()

    asyncio.run(main())
