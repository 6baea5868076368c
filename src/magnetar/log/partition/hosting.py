"""A process's replicas of partitions, and what runs beside them: lanes, syncs, checkpoints.

Owns the log directory, its lanes and timers, and one ``HostedReplica`` for each partition that was
opened. It is the ground on which both sides stand: the log behind the seam (``partition_log``),
and what replicates (whoever learns states, answers followers' fetches, fetches as a follower).

Rules:

* All that touches a partition's files is a job of its lane, in order. Lanes are shared: there are
  ``LANES`` of them, however many partitions.
* A replica changes its part only while nothing is under way for its log: appends wait, and those
  of a part that has ended are refused (``LogFencedError``).
* Appends that come while the lane works are one group: one write, one sync. Those that came while
  a group met a full disk are refused with its end: room may come at any moment, and they would lie
  in the log before what was refused, which is sent again.
* A partition whose state is gone is closed and doomed (``doomed_files``); only that deletes files.
* A log whose disk failed is not used any more: whoever opens it again finds what is on the disk.

Why: docs/adr/0111-partitions-behind-the-seam.md.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

import structlog
from pyroaring import BitMap

from magnetar.env.files.disk import Disk, DiskSpace, Lane
from magnetar.env.files.disk_space import SpaceRules
from magnetar.env.tasks import TaskScope
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.doomed_files import GRACE_MS, DoomedPartitions
from magnetar.log.partition.group_append import GroupResult, Outcome, append_group
from magnetar.log.partition.limits import PartitionPolicy, SyncPolicy
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.log_directory import NO_BROKER, LogDirectory
from magnetar.log.partition.replication.follower import PartitionFollower
from magnetar.log.partition.replication.partition_state import Member
from magnetar.log.partition.replication.replica import PartitionReplica
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.log.partition.replication.state_witness import Witness
from magnetar.log.partition.room import DiskRoom
from magnetar.model.errors import (
    LogClosedError,
    LogDamagedError,
    LogError,
    LogFencedError,
    MagnetarError,
    MetadataError,
)

log = structlog.get_logger(__name__)

LANES: Final = 4
CHECKPOINT_S: Final = 5.0
LOOK_S: Final = 1.0
MASK: Final = (1 << 64) - 1
LAG_MS_MAX: Final = 30_000
"""[replica.lag.time.max.ms]"""

T = TypeVar("T")
GroupDone: TypeAlias = Callable[[Sequence[Outcome]], None]


class Rewritten(NamedTuple):
    """Of the offsets [first, end) of a log these are now the first ones of batches, less
    ``first``."""

    first: int
    end: int
    starts: BitMap


def steady_ms() -> int:
    """By the loop's clock, which nobody sets: what replicas are waited by. (What is stored has the
    dates of ``PartitionHost.now_ms``; the two are of different beginnings.)"""
    return int(asyncio.get_running_loop().time() * 1000)


def _nothing() -> None:
    """What a job has made of the log concerns nobody."""


def _of_no_concern(what: Rewritten) -> None:
    """A follower keeps no list of its batches."""


class HostedReplica:
    """See the module's text. Made by ``PartitionHost.replica``. On the loop only, but for
    ``source``, which is the lane's."""

    def __init__(
        self,
        partition: Partition,
        source: LocalLog,
        machine: PartitionReplica,
        lane: Lane,
        now_ms: Callable[[], int],
        store_start: Callable[[], Awaitable[None]],
        room: DiskRoom,
    ) -> None:
        self.partition = partition
        self.room = room
        self.source = source
        self.machine = machine
        self.lane = lane
        self.stored: VersionedState | None = None
        """The state that it takes part by."""
        self.failure: LogError | None = None
        self.topic_id = ""
        self.doomed = False
        """Closed, since its state is gone."""
        self.store_start: Callable[[], Awaitable[None]] = store_start
        """Makes durable where the log begins. Raises ``OSError``, ``LogClosedError``."""
        self._now_ms = now_ms
        self._waiting: list[tuple[Sequence[bytearray], int, GroupDone]] = []
        self._under_way = False
        self._soon = False
        self._changing = asyncio.Lock()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._watchers: dict[int, Callable[[], None]] = {}
        self._next_key = 0
        self.rewrites = 0
        """How often batches of the log were replaced."""
        self.told_rewritten: Callable[[Rewritten], None] = _of_no_concern
        """Whoever knows which batches there are; called on the loop."""
        self._loop = asyncio.get_running_loop()

    @property
    def name(self) -> str:
        return f"partition {self.partition[0]}-{self.partition[1]}"

    @property
    def high_watermark(self) -> int:
        return self.machine.high_watermark

    @property
    def leader_epoch(self) -> int | None:
        """The epoch in which it leads; None: it does not."""
        leader = self.machine.leader
        return None if leader is None or self.failure is not None else leader.epoch

    def run(self, job: Callable[[], T]) -> Awaitable[T]:
        """A blocking job on the partition's lane, after those that were given before."""
        return self.lane.run(job)

    # -- watching -----------------------------------------------------------------------------

    def watch(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Call ``moved`` on the loop after the high watermark or the part may have changed; returns
        what ends that."""
        key, self._next_key = self._next_key, self._next_key + 1
        self._watchers[key] = moved

        def end() -> None:
            self._watchers.pop(key, None)

        return end

    def advanced(self) -> None:
        """The high watermark, or the part, may have changed."""
        for moved in list(self._watchers.values()):
            moved()

    def rewritten(self, what: Rewritten) -> None:
        """Compaction has replaced batches."""
        self.rewrites += 1
        self.told_rewritten(what)

    # -- appending ----------------------------------------------------------------------------

    def append(self, batches: Sequence[bytearray], leader_epoch: int, done: GroupDone) -> None:
        """Batches with right checksums get the next offsets, and are synced as the policy says.
        ``done`` is called on the loop, later, with an outcome for each: offsets (committed only
        when the high watermark is past them) or why it was not appended."""
        self._waiting.append((batches, leader_epoch, done))
        self._begin_soon()

    def _begin_group(self) -> None:
        self._soon = False
        if self._under_way or self._changing.locked() or not self._waiting:
            return  # it begins when that is over
        group, self._waiting = self._waiting, []
        epoch = self.leader_epoch
        current = [each for each in group if each[1] == epoch]
        for batches, asked, done in group:
            if asked != epoch:
                done([self._not_leading(asked)] * len(batches))
        if not current:
            return
        assert epoch is not None
        self._under_way = True
        self._quiet.clear()
        data = [each for batches, _, _ in current for each in batches]
        now_ms, source, lane = self._now_ms(), self.source, self.lane
        self.room.took(sum(map(len, data)))

        def job() -> None:
            try:
                result = append_group(source, data, epoch, now_ms)
            except Exception as error:  # noqa: BLE001 (told: the replica ends)
                lane.post(self._group_failed, current, error)
            else:
                lane.post(self._group_ended, current, result)

        lane.submit(job)

    def _not_leading(self, asked: int) -> MagnetarError:
        if self.failure is not None:
            return self.failure
        return LogFencedError(
            f"{self.name} is not led here in epoch {asked} any more; look its topic up again"
        )

    def _group_ended(
        self, group: Sequence[tuple[Sequence[bytearray], int, GroupDone]], result: GroupResult
    ) -> None:
        leader = self.machine.leader
        assert leader is not None, "a part changes only while nothing is under way"
        leader.appended(result.log_end)
        durable = self.source.policy.sync.durable
        leader.stored(result.synced_end if durable else result.log_end)
        behind: list[tuple[Sequence[bytearray], int, GroupDone]] = []
        if result.refusal is not None:  # taken out before anybody is told, who may send on
            behind, self._waiting = self._waiting, behind
        at = 0
        for batches, _, done in group:
            done(result.outcomes[at : at + len(batches)])
            at += len(batches)
        for batches, _, done in behind:
            assert result.refusal is not None
            done([result.refusal] * len(batches))
        self.advanced()  # after the outcomes: who waits for the high watermark knows its offsets
        self._group_over()

    def _group_failed(
        self, group: Sequence[tuple[Sequence[bytearray], int, GroupDone]], error: Exception
    ) -> None:
        self.fail(error)
        for batches, _, done in group:
            done([self._not_leading(-1)] * len(batches))
        self._group_over()

    def _group_over(self) -> None:
        self._under_way = False
        self._quiet.set()
        self._begin_soon()

    def _begin_soon(self) -> None:
        """Those that wait are a group, if nothing is under way then."""
        if self._waiting and not self._soon:
            self._soon = True
            self._loop.call_soon(self._begin_group)

    def fail(self, error: BaseException) -> None:
        """The disk failed: what is on it is found by opening it again."""
        if self.failure is None:
            self.failure = LogFencedError(f"{self.name} could not be written: {error}")
            log.error("partition's disk failed", partition=self.name, error=repr(error))
            self.advanced()

    # -- taking part --------------------------------------------------------------------------

    async def learnt(self, stored: VersionedState) -> bool:
        """The store holds ``stored``. True if the part or its epoch is another one now. Raises
        ``LogError``: the disk failed, and this replica ends."""
        try:
            async with self._changing:
                changed = await self._learn(stored)
        except OSError as error:
            self.fail(error)
            raise LogError(f"{self.name} cannot store that its part is another: {error}") from error
        finally:
            self._begin_soon()  # appends waited; also if this was given up half way
        self.advanced()
        return changed

    async def _learn(self, stored: VersionedState) -> bool:
        await self._quiet.wait()
        source = self.source
        log_start, log_end, synced_end = await self.run(
            lambda: (source.first_base, source.log_end, source.synced_end)
        )
        durable = source.policy.sync.durable
        changed = self.machine.learnt(
            stored.state,
            stored.version,
            source.epochs,
            log_start=log_start,
            log_end=log_end,
            stored_end=synced_end if durable else log_end,
            # As whoever looks later who has fallen behind: by a date nobody ever would have.
            now_ms=steady_ms(),
        )
        if self.stored is None or stored.version > self.stored.version:
            self.stored = stored
        if changed:
            await self.run(source.store_epochs)
        return changed

    async def follow(
        self,
        follower: PartitionFollower,
        job: Callable[[], object],
        done: Callable[[], None] = _nothing,
    ) -> None:
        """A job on the log of a follower, and ``done`` on the loop behind it: the part does not
        change in between. Nothing is done if it has ended. Raises what ``job`` raises."""
        try:
            async with self._changing:
                if self.machine.follower is not follower or self.failure is not None:
                    return
                await self.run(job)
                done()
        finally:
            self._begin_soon()  # to be refused: they waited
        self.advanced()

    async def settle(self) -> None:
        """Until nothing is under way."""
        while self._waiting or self._under_way:
            self._begin_soon()
            await self._quiet.wait()
            async with self._changing:
                pass  # no group begins before that is over, however often one looks
            await asyncio.sleep(0)


def no_advice(_partition: Partition) -> str:
    """Nobody else is known to have a replica."""
    return ""


class PartitionHost:
    """All replicas of this process. ``start`` tells its starts apart."""

    def __init__(
        self,
        disk: Disk,
        directory: LogDirectory,
        scope: TaskScope,
        now_ms: Callable[[], int],
        start: int,
        lanes: list[Lane],
        lag_ms_max: int,
        draw: Callable[[], int],
        witness: Witness | None,
        grace_ms: int,
        room: DiskRoom,
    ) -> None:
        """Use ``open``."""
        self.room = room
        self._draw = draw
        self._lag_ms_max = lag_ms_max
        self.directory = directory
        self.disk = disk
        self.start = start
        self.me = Member(directory.broker, directory.lineage)
        self.replicas: dict[Partition, HostedReplica] = {}
        self._scope = scope
        self.now_ms = now_ms
        self._lanes = lanes
        self._opening = asyncio.Lock()
        self.doomed = DoomedPartitions(directory, lanes[0], self._opening, witness, grace_ms)
        self._closed = False
        self.unusable: dict[Partition, LogError] = {}
        """Those that could not be opened when they were asked for last, and why."""
        self.cut: dict[Partition, int] = {}
        """Those whose end was cut when they were opened, and when (``steady_ms``): whoever gives
        one its part says first whether it counts (``replication.cut_short``)."""
        self.advice: Callable[[Partition], str] = no_advice
        """What is to be said of a damaged replica besides; set by whoever knows of others."""

    @classmethod
    async def open(
        cls,
        disk: Disk,
        path: Path,
        policy: PartitionPolicy,
        scope: TaskScope,
        *,
        now_ms: Callable[[], int],
        draw: Callable[[], int],
        broker: int = NO_BROKER,
        lag_ms_max: int = LAG_MS_MAX,
        cluster: str = "",
        witness: Witness | None = None,
        grace_ms: int = GRACE_MS,
        space: SpaceRules | None = None,
        look_s: float = LOOK_S,
    ) -> PartitionHost:
        """``draw`` gives random numbers, 63 bits; ``broker``, ``cluster``: see
        ``LogDirectory.open``. Followers that were not at the log's end for ``lag_ms_max`` are out
        of sync. ``witness``: of the metadata store; files that no state claims go ``grace_ms``
        later. ``space``: what is kept free, looked at every ``look_s``; None: nothing. Raises
        ``OtherClusterError``, ``OSError``."""
        lanes = [disk.lane(f"partitions-{number}") for number in range(LANES)]
        try:
            directory = await lanes[0].run(
                lambda: LogDirectory.open(disk, path, policy, draw, broker, cluster)
            )
        except BaseException:
            for lane in lanes:
                await lane.close()
            raise
        if policy.warning is not None:
            log.warning("unsafe sync policy", what=policy.warning)
        room = DiskRoom(disk, path, space)
        room.look()
        more = lag_ms_max, draw, witness, grace_ms, room
        host = cls(disk, directory, scope, now_ms, draw(), lanes, *more)
        scope.spawn(host._keep(), "checkpoints")
        scope.spawn(host.doomed.run(), "doomed partitions")
        if space is not None:
            scope.spawn(room.watch(look_s), "disk space")
        if policy.sync is SyncPolicy.INTERVAL:
            scope.spawn(host._sync_by_time(policy.sync_interval_ms / 1000), "syncs")
        return host

    def lane_of(self, partition: Partition) -> Lane:
        """Not the first one, which has the directory's own jobs, and openings."""
        number = zlib.crc32(f"{partition[0]}-{partition[1]}".encode())
        return self._lanes[1 + number % (LANES - 1)]

    def new_id(self) -> str:
        """Of a topic that is made now."""
        return f"{self._draw() & MASK:016x}{self._draw() & MASK:016x}"

    async def replica(
        self, partition: Partition, topic_id: str = "", *, counted_on: bool = True
    ) -> HostedReplica:
        """This process's replica, opened (and made) if need be; it takes no part before it has
        learnt a state. ``topic_id``: of its state; files of another topic of that name go first, if
        that one is over for certain. ``counted_on``: see ``LogDirectory``. Raises
        ``LogError``: its files cannot be used;
        ``MetadataError``: it is not known whose they are."""
        async with self._opening:
            found = self.replicas.get(partition)
            if found is not None and found.failure is None:
                if topic_id and found.topic_id not in ("", topic_id):
                    raise LogError(f"{found.name} of a deleted topic is still open; try again")
                return found
            if self._closed:
                raise LogClosedError("this broker's partitions are closed")
            directory, now_ms = self.directory, self.now_ms()
            try:
                if found is not None:
                    await found.run(found.source.abandon)
                    directory.closed(partition, in_order=False)
                    del self.replicas[partition]
                await self.doomed.make_way(partition, topic_id)
                source = await self._lanes[0].run(
                    lambda: directory.open_log(partition, now_ms, topic_id, counted_on=counted_on)
                )
            except MetadataError:  # whose the files are is not known now: nothing is wrong here
                raise
            except (OSError, MagnetarError) as error:
                raise self._unusable(partition, error) from error
            self.unusable.pop(partition, None)
            for cut in directory.recovered[partition].cuts:
                log.warning("end of a partition's log is cut", what=str(cut))
                self.cut[partition] = steady_ms()
            made = self._hosted(partition, source)
            made.topic_id = topic_id
            self.replicas[partition] = made
            return made

    def _unusable(self, partition: Partition, error: Exception) -> LogError:
        """Said once, however often clients ask for it."""
        name, why = f"{partition[0]}-{partition[1]}", str(error)
        damaged = isinstance(error, LogDamagedError)
        if damaged and (advice := self.advice(partition)):
            why = f"{why}. {advice}"
        if partition not in self.unusable:
            log.error("a partition cannot be opened", partition=name, error=why)
        kind = LogDamagedError if damaged else LogError
        said = kind(f"partition {name} in {self.directory.path}: {why}")
        self.unusable[partition] = said
        return said

    def _hosted(self, partition: Partition, source: LocalLog) -> HostedReplica:
        known = self.directory.high_watermarks.get(partition, source.log_start)
        machine = PartitionReplica(
            self.me,
            self.start,
            high_watermark=max(source.log_start, min(known, source.log_end)),
            lag_ms_max=self._lag_ms_max,
        )
        lane = self.lane_of(partition)
        store_start, room = self._store_points, self.room
        return HostedReplica(partition, source, machine, lane, self.now_ms, store_start, room)

    async def doom(self, partition: Partition) -> None:
        """Its state is gone: it is closed, and its files wait for what becomes of them. Raises
        nothing: what cannot be closed in order is recovered when it is opened again."""
        async with self._opening:
            self.unusable.pop(partition, None)
            found = self.replicas.pop(partition, None)
            if found is None:
                if not self._closed:
                    await self._forget_lost(partition)
                return
            self._take_watermark(found)
            in_order = found.failure is None
            found.doomed = True
            found.failure = LogClosedError(
                f"{found.name} is not served: it has no state in the metadata store any more. Its "
                "topic was deleted, or the store has lost it"
            )
            found.advanced()
            await found.settle()  # appends under way; those that wait are refused
            try:
                await found.run(found.source.close if in_order else found.source.abandon)
            except OSError as error:
                in_order = False
                log.warning("a log is not closed in order", partition=found.name, error=str(error))
            self.directory.closed(partition, in_order=in_order)
            self.doomed.add(partition)

    async def _forget_lost(self, partition: Partition) -> None:
        """Its folder may be gone: then nothing is left of it, and the next topic of its name is
        another one."""
        try:
            await self._lanes[0].run(lambda: self.directory.forget_lost(partition))
        except OSError as error:
            log.warning("partitions' checkpoints are not written", error=str(error))

    async def space(self) -> DiskSpace:
        """Of the file system that has the directory. Raises ``OSError``."""
        return await self._lanes[1].run(lambda: self.disk.space(self.directory.path))

    # -- what passes with time ----------------------------------------------------------------

    async def _keep(self) -> None:
        """Recovery points, log starts and high watermarks, written now and then."""
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            await self.checkpoint()

    async def checkpoint(self) -> None:
        try:
            await self._store_points()
        except OSError as error:  # a point that is too low means a longer recovery
            log.warning("partitions' checkpoints are not written", error=str(error))

    async def _store_points(self) -> None:
        async with self._opening:
            if self._closed:  # closing has written them, or is about to
                raise LogClosedError("this broker's partitions are closed")
            self._take_watermarks()
            await self._lanes[0].run(self.directory.checkpoint)

    def _take_watermarks(self) -> None:
        for each in self.replicas.values():
            self._take_watermark(each)

    def _take_watermark(self, replica: HostedReplica) -> None:
        self.directory.high_watermarks[replica.partition] = replica.high_watermark

    async def _sync_by_time(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            for each in list(self.replicas.values()):
                if each.failure is None and each.source.synced_end < each.source.log_end:
                    try:
                        await each.run(each.source.sync)
                    except OSError as error:
                        each.fail(error)

    @property
    def closed(self) -> bool:
        """It closes, or is closed: what ends with it has not failed."""
        return self._closed

    async def close(self) -> None:
        """In order; closing again does nothing. Raises ``LogError``: then the next start
        recovers."""
        if self._closed:
            return
        self._closed = True
        await self._scope.close()
        async with self._opening:
            self._take_watermarks()
            try:
                for each in self.replicas.values():
                    await each.settle()
                    if each.failure is None:
                        each.failure = LogClosedError(f"{each.name} is closed here")
                        each.advanced()
                    else:
                        self.directory.closed(each.partition, in_order=False)
                for lane in self._lanes[1:]:
                    await lane.close()
                await self._lanes[0].run(self.directory.close)
            except OSError as error:
                raise LogError(f"partitions are not closed in order: {error}") from error
            finally:
                for lane in self._lanes:
                    await lane.close()
