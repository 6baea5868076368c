"""A partition's files on a disk that forgets: what was stored is there, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from magnetar.log.partition.batch_header import BatchHead
from magnetar.log.partition.compacting import LogCompactor
from magnetar.log.partition.compaction import records_of
from magnetar.log.partition.limits import Kept, PartitionPolicy, SegmentLimits, SyncPolicy
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.log_directory import LogDirectory
from magnetar.log.partition.recovery import open_log
from magnetar_sim.world.disk import SimDisk, SimLane
from magnetar_sim.world.loop import SimLoop
from tests.unit.log.partition.kit import NOW_MS, batch

ROOT, PARTITION = Path("/logs"), ("t", 0)
LIVES = 5
POLICY = PartitionPolicy(segments=SegmentLimits(segment_bytes_max=3000, index_interval_bytes=300))


class Expected:
    """What a log may hold after a crash."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, int]] = []
        """(first offset, checksum) of the batches that are appended."""
        self.stored_end = 0
        """What is before it is there."""
        self.end = 0
        """What is after it is not, unless ``cutting``."""
        self.first = 0
        self.cutting = False
        self.ever: set[tuple[int, int]] = set()

    def found(self, heads: list[tuple[int, int]], log_end: int) -> None:
        have = [each for each in self.heads if self.first <= each[0] < self.stored_end]
        assert [each for each in heads if self.first <= each[0] < self.stored_end] == have
        assert set(heads) <= self.ever
        assert log_end <= self.end or self.cutting, "what was cut is back"
        self.heads, self.end, self.stored_end, self.cutting = heads, log_end, log_end, False


def _heads(log: LocalLog) -> list[tuple[int, int]]:
    def of(header: BatchHead) -> tuple[int, int]:
        return header.base_offset, header.crc

    return [of(header) for segment in log.segments for _, header in segment.headers()]


async def _life(
    loop: SimLoop, lane: SimLane, disk: SimDisk, rng: random.Random, expected: Expected,
    epoch: int, met: Counter[str], policy: PartitionPolicy,
) -> None:  # fmt: skip
    """One process, until it is killed."""
    directory = await lane.run(
        lambda: LogDirectory.open(disk, ROOT, policy, lambda: rng.getrandbits(30))
    )
    log = await lane.run(lambda: directory.open_log(PARTITION, NOW_MS))
    heads = await lane.run(lambda: _heads(log))
    met["cuts"] += len(directory.recovered[PARTITION].cuts)
    expected.found(heads, log.log_end)
    while True:
        choice = rng.random()
        if choice < 0.03 and log.log_end:
            await _cut(lane, log, rng, expected)
            met["truncated"] += 1
        elif choice < 0.1:
            await lane.run(directory.checkpoint)
        elif choice < 0.13 and len(log.segments) > 2:
            expected.first = log.segments[1].base_offset
            await lane.run(lambda: log.delete_segments(1))
        else:
            await _append(lane, log, rng, expected, epoch, policy)
            met["appended"] += 1


async def _append(
    lane: SimLane, log: LocalLog, rng: random.Random, expected: Expected, epoch: int,
    policy: PartitionPolicy,
) -> None:  # fmt: skip
    many = [batch([rng.randbytes(rng.randint(1, 400))] * rng.randint(1, 3)) for _ in range(3)]
    data = b"".join(many[: rng.randint(1, 3)])
    end = log.log_end
    at, ahead = 0, end
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        crc = int.from_bytes(data[at + 17 : at + 21], "big")
        expected.heads.append((ahead, crc))
        expected.ever.add((ahead, crc))
        ahead += int.from_bytes(data[at + 57 : at + 61], "big")
        at += size
    expected.end = ahead
    await lane.run(lambda: log.append_as_leader(data, epoch, NOW_MS))
    assert log.log_end == ahead
    if not policy.sync.durable and rng.random() < 0.7:
        return
    if not policy.sync.durable:
        await lane.run(log.sync)
    expected.stored_end = ahead


async def _cut(lane: SimLane, log: LocalLog, rng: random.Random, expected: Expected) -> None:
    end = rng.choice([each for each, _ in expected.heads[-6:]])
    if end < log.log_start:
        return
    expected.stored_end = min(expected.stored_end, end)
    expected.cutting = True
    await lane.run(lambda: log.truncate(end, NOW_MS))
    assert log.log_end == end
    expected.heads = [each for each in expected.heads if each[0] < end]
    expected.end, expected.cutting = end, False
    expected.stored_end = end


def run_lives(seed: int, met: Counter[str]) -> None:
    rng = random.Random(seed)
    loop = SimLoop(rng)
    sync = rng.choice((SyncPolicy.EACH_BATCH, SyncPolicy.EACH_BATCH, SyncPolicy.OPERATING_SYSTEM))
    policy = PartitionPolicy(sync=sync, segments=POLICY.segments)

    async def main() -> None:
        disk, expected = SimDisk(loop, random.Random(seed)), Expected()
        for epoch in range(LIVES):
            process = loop.new_process(f"broker {epoch}")
            lane = SimLane(disk)
            process.spawn(_life(loop, lane, disk, rng, expected, epoch, met, policy), "life")
            await asyncio.sleep(rng.choice((0.01, 0.05, 0.2)) * rng.random())
            loop.check_spawned()
            process.kill()
            disk.crash(power=True)

    try:
        loop.run_until_complete(main())
    finally:
        loop.finish()


@pytest.mark.parametrize("first", range(0, 120, 60))
def test_what_was_stored_outlives_a_loss_of_power(first: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first, first + 60):
        run_lives(seed, met)
    assert met["appended"] > 1000
    assert met["cuts"]
    assert met["truncated"]


def _records(log: LocalLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """(key, value) by offset."""
    found = {}
    for segment in log.segments:
        for position, header in segment.headers():
            data = segment.file.pread(header.byte_count, position)
            for record in records_of(data, header):
                found[header.base_offset + record.offset_delta] = record.key, record.value
    return found


def run_compaction(seed: int, met: Counter[str]) -> None:
    """A log is compacted while the power goes; nothing but what is superseded may be missing."""
    rng = random.Random(seed)
    loop = SimLoop(rng)

    async def compact(lane: SimLane, log: LocalLog) -> None:
        await lane.run(
            lambda: LogCompactor(log).compact(Kept(), committed_end=log.log_end, now_ms=NOW_MS)
        )
        met["finished"] += 1

    async def main() -> None:
        disk = SimDisk(loop, random.Random(seed))
        lane = SimLane(disk)
        log, _ = await lane.run(lambda: open_log(disk, ROOT / "t-0", POLICY, now_ms=NOW_MS))
        for i in range(60):
            keys = [b"k%d" % rng.randrange(12) for _ in range(rng.randint(1, 3))]
            data = batch([b"%d" % i + bytes(90) for _ in keys], keys=keys)
            await lane.run(lambda data=data: log.append_as_leader(data, 0, NOW_MS))  # type: ignore[misc]
        point = log.segments[-1].base_offset
        before = await lane.run(lambda: _records(log))
        last = {key: offset for offset, (key, _) in before.items()}
        process = loop.new_process("broker")
        process.spawn(compact(SimLane(disk), log), "compact")
        await asyncio.sleep(0.1 * rng.random())
        loop.check_spawned()
        process.kill()
        disk.crash(power=True)
        found, told = await SimLane(disk).run(
            lambda: open_log(disk, ROOT / "t-0", POLICY, now_ms=NOW_MS, recovery_point=point)
        )
        after = await SimLane(disk).run(lambda: _records(found))
        assert told.cuts == []
        assert after.items() <= before.items()
        assert all(offset in after for offset in last.values())
        met["partly"] += len(last) < len(after) < len(before)

    try:
        loop.run_until_complete(main())
    finally:
        loop.finish()


def test_a_compaction_that_a_loss_of_power_ends_loses_nothing() -> None:
    met: Counter[str] = Counter()
    for seed in range(60):
        run_compaction(seed, met)
    assert met["finished"] > 3
    assert met["partly"] > 10


def test_what_a_sync_that_failed_has_left_is_not_opened_again() -> None:
    """Readers would see it until the power goes, and then it, and all that was synced behind it,
    would be gone."""
    loop = SimLoop(random.Random(1))

    async def main() -> None:
        disk = SimDisk(loop, random.Random(1))
        folder = ROOT / "t-0"
        log, _ = open_log(disk, folder, POLICY, now_ms=NOW_MS)
        log.append_as_leader(batch([b"stored"]), 0, NOW_MS)
        disk.fails_syncs = True
        with pytest.raises(OSError, match="Input/output"):
            log.append_as_leader(batch([b"not stored"]), 0, NOW_MS)
        disk.fails_syncs = False
        log.abandon()
        again, told = open_log(disk, folder, POLICY, now_ms=NOW_MS)
        assert (again.log_end, told.cuts) == (1, [])
        again.append_as_leader(batch([b"stored too"]), 1, NOW_MS)
        await asyncio.sleep(1)  # the device has done all that it said
        disk.crash(power=True)
        last, told = open_log(disk, folder, POLICY, now_ms=NOW_MS)
        assert [value for _, value in _records(last).values()] == [b"stored", b"stored too"]
        assert told.cuts == []

    try:
        loop.run_until_complete(main())
    finally:
        loop.finish()
