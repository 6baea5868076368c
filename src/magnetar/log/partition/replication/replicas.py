"""This broker's replicas: each opened, told what the store says of it, and fetched for or fetched
from, as its part is.

Owns which replicas there are here, the fetchers (one for each broker that leads any of them), and
the way of a leader's change of the in-sync set to the store.

Rules:

* What the store says of a partition is taken in order, one at a time, and only the newest: a
  replica's part never changes while it is changing.
* A leader's proposal is compared and set with the version that it was made from. Whatever comes
  back, the state is read and learnt before the next one; until then both sets count.
* Who is not registered any more does not join the set, whatever fetch of it still counts: the
  controller would take it out again, as often as it joins.
* A replica whose log fails is given up: it leaves the in-sync set, another is elected, if there is
  one in sync, and only then it is opened anew, which recovers it. It must not go on leading with a
  log that stores nothing; and where syncs are not waited for, what was opened anew may lack what
  it counted as stored, so that nobody may be elected by what it was before.
* One whose log was cut when it was opened is played when that is settled (``cut_short``): nobody is
  to be cut to what it has.
* A replica is played with the files of its state's topic only. One whose state is gone is doomed:
  not served, and not deleted here (``log.partition.doom``).
* Whoever ends in order hands over what it leads first, so that nobody waits for its session.

Why: docs/adr/0114-brokers-replicate-partitions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import structlog

from magnetar.env.tasks import TaskScope
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.hosting import (
    HostedReplica,
    PartitionHost,
    no_advice,
    steady_ms,
)
from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.brokers import PeerBrokers, live_of
from magnetar.log.partition.replication.cut_short import CutShort
from magnetar.log.partition.replication.damaged import advice
from magnetar.log.partition.replication.fetcher import Fetcher, FetchLimits, Line
from magnetar.log.partition.replication.leader import PartitionLeader
from magnetar.log.partition.replication.partition_state import PartitionState
from magnetar.log.partition.replication.serving import FollowerFetches
from magnetar.log.partition.replication.state_image import StateImage
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.model.errors import (
    BadVersionError,
    LogDamagedError,
    MagnetarError,
    MetadataError,
    MetadataFormatError,
    NoNodeError,
)

log = structlog.get_logger(__name__)

TICK_S: Final = 1.0
PAUSE_S: Final = 0.2
REOPEN_S: Final = 5.0
HAND_OVERS_AT_ONCE: Final = 64
TOLD_MAX: Final = 10

_Change: TypeAlias = Callable[[PartitionState, election.Live], PartitionState | None]


class _OwnReplica:
    """A replica of this broker. ``stored``: the newest state; None: it is not here any more."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.stored: VersionedState | None = None
        self.played: VersionedState | None = None
        self.hosted: HostedReplica | None = None
        self.end_watch: Callable[[], None] = _nothing
        self.busy = False
        self.proposing = False
        self.failed = False
        self.damaged = False
        """Its files lack what they held: it is in sync no more, wherever syncs are waited for."""
        self.told = ""
        """Why it could not be opened, as the log says already."""

    def let_go(self) -> None:
        """Nothing of this replica is used any more."""
        self.end_watch()
        self.hosted, self.end_watch = None, _nothing


def _nothing() -> None:
    """There is no watch."""


class Replicas:
    """``connect``: see ``fetcher``."""

    def __init__(
        self,
        host: PartitionHost,
        image: StateImage,
        brokers: PeerBrokers,
        connect: Callable[[int], Awaitable[Line]],
        scope: TaskScope,
        limits: FetchLimits,
    ) -> None:
        self.fetches = FollowerFetches(self.find, steady_ms, limits.bytes_max, self._counted)
        self._host = host
        self._image = image
        self._brokers = brokers
        self._me = host.me
        self._connect = connect
        self._scope = scope
        self._limits = limits
        self._kept: dict[Partition, _OwnReplica] = {}
        self._fetchers: dict[int, tuple[Fetcher, asyncio.Task[None]]] = {}
        self._of: dict[Partition, int] = {}
        """Whose fetcher has which partition."""

    def find(self, partition: Partition) -> HostedReplica | None:
        """This broker's replica, if it has one that is open."""
        kept = self._kept.get(partition)
        if kept is None or kept.failed or kept.hosted is None or kept.hosted.failure is not None:
            return None
        return kept.hosted

    def led(self) -> list[Partition]:
        return [each for each, kept in self._kept.items() if _leader(kept) is not None]

    # -- what the store says ------------------------------------------------------------------

    def begin(self) -> None:
        """From now on replicas are played as the image says."""
        self._image.watch(self._told)
        self._host.advice = self._advice

    def _advice(self, partition: Partition) -> str:
        kept = self._kept.get(partition)
        stored = None if kept is None else kept.stored
        return "" if stored is None else advice(stored.state, self._me.broker)

    def _told(self, partition: Partition, stored: VersionedState | None) -> None:
        mine = stored is not None and self._me.broker in stored.state.replicas
        kept = self._kept.get(partition)
        if kept is None:
            if not mine:
                return
            kept = self._kept[partition] = _OwnReplica(partition)
        kept.stored = stored if mine else None
        self._poke(kept)

    def _poke(self, kept: _OwnReplica) -> None:
        if not kept.busy and not self._scope.closed:
            kept.busy = True
            topic, number = kept.partition
            self._scope.spawn(self._play(kept), f"replica of {topic}-{number}")

    async def _play(self, kept: _OwnReplica) -> None:
        partition = f"{kept.partition[0]}-{kept.partition[1]}"
        try:
            while kept.stored is not kept.played or kept.failed:
                if kept.failed:
                    await self._recover(kept)
                    continue
                kept.played = wanted = kept.stored
                try:
                    await self._take(kept, wanted)
                    kept.told = ""
                except MetadataError as error:
                    log.info("replica is not opened now", partition=partition, error=str(error))
                    self._image.refresh(kept.partition)
                    await asyncio.sleep(PAUSE_S)
                    kept.played = None
                except (OSError, MagnetarError) as error:
                    self._has_failed(kept, error)
        finally:
            kept.busy = False

    async def _take(self, kept: _OwnReplica, wanted: VersionedState | None) -> None:
        # Between two looks a topic may have been deleted and made again: what is open then is the
        # former one's.
        hosted = kept.hosted
        if wanted is None or (hosted is not None and hosted.topic_id != wanted.state.topic_id):
            self._unfollow(kept.partition)
            kept.let_go()
            await self._host.doom(kept.partition)
        if wanted is None:
            if kept.stored is None:
                self._kept.pop(kept.partition, None)
            return
        if kept.hosted is None:
            state = wanted.state
            opened = await self._host.replica(
                kept.partition, state.topic_id, counted_on=state.counts_on(self._me)
            )
            if not await self._is_believed(kept.partition):  # before anybody can fetch from it
                kept.played = None
                return
            kept.hosted = opened
            kept.end_watch = kept.hosted.watch(partial(self._moved, kept, kept.hosted))
        hosted = kept.hosted
        before = hosted.machine.follower
        await hosted.learnt(wanted)
        if kept.failed:
            return  # meanwhile: nothing is fetched for it
        follower = hosted.machine.follower
        if follower is not before:
            self._unfollow(kept.partition)
            if follower is not None:
                self._follow(kept.partition, follower.leader, hosted)
        hosted.advanced()
        self._propose(kept)

    # -- following ----------------------------------------------------------------------------

    def _follow(self, partition: Partition, leader: int, hosted: HostedReplica) -> None:
        found = self._fetchers.get(leader)
        if found is None:
            fetcher = Fetcher(
                self._me,
                leader,
                self._limits,
                self._connect,
                self._host.now_ms,
                self._image.refresh,
            )
            task = self._scope.spawn(fetcher.run(), f"fetches from broker {leader}")
            found = self._fetchers[leader] = fetcher, task
        self._of[partition] = leader
        found[0].add(partition, hosted)

    def _unfollow(self, partition: Partition) -> None:
        leader = self._of.pop(partition, None)
        if leader is None:
            return
        fetcher, task = self._fetchers[leader]
        fetcher.remove(partition)
        if not fetcher.members:
            del self._fetchers[leader]
            task.cancel()

    # -- leading ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at the clock, until it is cancelled: who has fallen behind leaves the set."""
        while True:
            await asyncio.sleep(TICK_S)
            for kept in list(self._kept.values()):
                if (leader := _leader(kept)) is not None:
                    leader.tick(steady_ms())
                    self._propose(kept)

    def _counted(self, partition: Partition) -> None:
        """A follower of it has fetched: it may join."""
        kept = self._kept.get(partition)
        if kept is not None:
            self._propose(kept)

    def _propose(self, kept: _OwnReplica) -> None:
        leader = _leader(kept)
        if kept.proposing or leader is None or leader.pending is None or self._scope.closed:
            return
        kept.proposing = True
        topic, number = kept.partition
        self._scope.spawn(self._store(kept, leader), f"in-sync set of {topic}-{number}")

    async def _store(self, kept: _OwnReplica, leader: PartitionLeader) -> None:
        """The change that ``leader`` wants, once; whatever is stored then is learnt, and has the
        next one made. (What was not stored is proposed again at the next look.)"""
        try:
            # Before the proposal is read: from there to the store nothing is waited for.
            live = await self._live()
            proposal, hosted = leader.proposal(), kept.hosted
            if proposal is None or hosted is None or _leader(kept) is not leader:
                return
            if not election.may_join(leader.state, proposal.isr, live):
                leader.withdraw()
                hosted.advanced()  # it is not waited for any more
                return
            old = VersionedState(leader.state, hosted.machine.version)
            stored: VersionedState | None
            try:
                stored = await self._image.store.replace(*kept.partition, old, proposal)
            except MetadataError as error:
                stored = await self._in_doubt(kept, leader, error)
            if stored is not None:
                self._tell_change(kept.partition, old.state, stored.state)
                self._image.stored(kept.partition, stored)
        finally:
            kept.proposing = False

    async def _live(self) -> election.Live:
        """Nobody, if that cannot be known now."""
        try:
            return live_of(await self._brokers.look())
        except MetadataError:
            return {}

    async def _in_doubt(
        self, kept: _OwnReplica, leader: PartitionLeader, error: MetadataError
    ) -> VersionedState | None:
        """What is stored, when it can be read; None: nothing of this is of interest any more."""
        if not isinstance(error, BadVersionError):
            log.info("in-sync set is not stored now", partition=kept.partition, error=str(error))
        if _leader(kept) is leader:
            leader.in_doubt()
        while _leader(kept) is leader:
            try:
                # The newest: by an older one the change would seem not to have been made, and be
                # taken back (``withdraw``), while whoever was to join is elected by it.
                return await self._image.store.read_newest(*kept.partition)
            except NoNodeError:
                self._image.refresh(kept.partition)
                return None
            except (MetadataError, MetadataFormatError):
                await asyncio.sleep(PAUSE_S)
        return None

    def _tell_change(self, partition: Partition, old: PartitionState, new: PartitionState) -> None:
        before, now = ([each.broker for each in state.isr] for state in (old, new))
        if before != now:
            log.info(
                "in-sync set is another one",
                partition=f"{partition[0]}-{partition[1]}",
                before=before,
                now=now,
            )

    # -- failures and the end -----------------------------------------------------------------

    def _moved(self, kept: _OwnReplica, hosted: HostedReplica) -> None:
        if hosted.failure is None or kept.hosted is not hosted:
            return
        if hosted.doomed:  # by the topic's owner, which has deleted the state
            self._image.deleted(kept.partition)
        else:
            self._has_failed(kept, hosted.failure)

    def _has_failed(self, kept: _OwnReplica, error: Exception) -> None:
        # A broker that cannot end in order closes its logs while this plays still: they are sound,
        # and whoever leads or is in sync is so until its session ends.
        if kept.failed or self._host.closed:
            return
        if kept.told != str(error):  # it is tried again every few seconds; health goes on saying it
            kept.told = str(error)
            log.error(
                "replica is given up: its log cannot go on; it is opened anew every few seconds",
                partition=f"{kept.partition[0]}-{kept.partition[1]}",
                error=str(error),
            )
        kept.failed, kept.damaged = True, isinstance(error, LogDamagedError)
        if kept.hosted is not None:
            kept.hosted.fail(error)  # whatever failed: what is opened anew is not this one
        self._unfollow(kept.partition)
        self._poke(kept)

    async def _recover(self, kept: _OwnReplica) -> None:
        """Others lead; then it is opened as after a crash."""
        kept.let_go()
        # Before it is opened again, however long that takes: a disk that takes nothing any more
        # must not keep the partition from brokers whose disks do. And where syncs are not waited
        # for, what was written may be on followers and not here, so that this process must not go
        # on in the epoch that it led.
        stepped_down = False
        while not stepped_down:
            change = self._disbelieved if kept.damaged else self._given_up
            stepped_down = await self._step_down(kept.partition, change)
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(REOPEN_S)
        kept.failed, kept.played = False, None

    async def _is_believed(self, partition: Partition) -> bool:
        """A log that was cut when it was opened may lack what others have (``cut_short``). False:
        it is not known yet, or what is stored is another state now."""
        since_ms = self._host.cut.get(partition)
        if since_ms is None:
            return True
        cut = CutShort(self._me.broker)
        known = await self._step_down(partition, cut.decide)
        if known and not cut.waits_still(steady_ms() - since_ms):
            self._host.cut.pop(partition, None)
        else:
            await asyncio.sleep(PAUSE_S)
        return False

    async def _step_down(self, partition: Partition, change: _Change) -> bool:
        """Store what ``change`` makes of the state. False: the store could not be asked, or what
        it has cannot be read."""
        try:
            live = live_of(await self._brokers.look())
            stored = await self._image.store.change(*partition, lambda state: change(state, live))
        except NoNodeError:
            return True
        except (MetadataError, MetadataFormatError) as error:
            log.info("partition is not handed over", partition=partition, error=str(error))
            return False
        self._image.stored(partition, stored)
        return True

    def _given_up(self, state: PartitionState, live: election.Live) -> PartitionState | None:
        """Another leads, if one is in sync; else nobody does, and this replica, whose log has
        failed, is in sync no more."""
        forgets = not self._host.directory.policy.sync.durable
        return election.give_up(state, live, self._me.broker, forgets=forgets)

    def _disbelieved(self, state: PartitionState, live: election.Live) -> PartitionState | None:
        """As above, of files that are known to lack what they held: never elected by what it was,
        and once they are removed it is copied anew."""
        return election.give_up(state, live, self._me.broker, forgets=True)

    def _without_me(self, state: PartitionState, live: election.Live) -> PartitionState | None:
        others = {number: each for number, each in live.items() if number != self._me.broker}
        if state.leader != self._me.broker or not any(each.broker in others for each in state.isr):
            return None
        return election.elect(state, others)

    def _relieved(self, state: PartitionState, live: election.Live) -> PartitionState | None:
        me = self._me.broker
        if state.leader != me or me not in live:
            return None
        # It drains, whatever others have heard by now.
        return election.relieve(state, {**live, me: live[me]._replace(drains=True)})

    async def hand_over(self) -> None:
        """Have others lead what is led here, where they are in sync."""
        await self._step_down_all(self.led(), self._without_me)

    async def relieve(self) -> None:
        """As ``hand_over``, of a broker that drains: it goes on as a replica in sync. What fails
        here the controller does."""
        led = self.led()
        await self._step_down_all(led, self._relieved)
        left = [each for each in led if self._leads_still(each)]
        if left:
            log.warning(
                "partitions are led here still: no other replica of them is in sync. They are "
                "handed over when one is",
                count=len(left),
                partitions=[f"{topic}-{number}" for topic, number in left[:TOLD_MAX]],
            )

    async def _step_down_all(self, partitions: Sequence[Partition], change: _Change) -> None:
        for start in range(0, len(partitions), HAND_OVERS_AT_ONCE):
            some = partitions[start : start + HAND_OVERS_AT_ONCE]
            await asyncio.gather(*(self._step_down(each, change) for each in some))

    def _leads_still(self, partition: Partition) -> bool:
        found = self._image.states.get(partition)
        return found is not None and found.state.leader == self._me.broker

    def close(self) -> None:
        """Play nothing more; before the log directory is closed."""
        for kept in self._kept.values():
            kept.let_go()
        self._kept.clear()
        self._host.advice = no_advice  # it leads back here, which would be a cycle


def _leader(kept: _OwnReplica) -> PartitionLeader | None:
    return None if kept.hosted is None or kept.failed else kept.hosted.machine.leader
