"""The controller's loop: one broker looks after who leads which partition.

Owns the claim (an ephemeral node: whoever has made it is the controller), and when it looks. What
follows from a look is ``election``'s to say, and is compared and set, so that two controllers at
once, or one that acts on what was true a while ago, can do no harm: the late one loses the compare
and reads again.

Rules:

* It looks when brokers come or go, when a state changes, and now and then: a leader that has left
  the in-sync set of its own accord, a watch that was lost.
* It decides by the copy in memory whether there is something to do; what it stores it decides again
  by what it has read then.
* Partitions are led by their preferred replica again, where that is in sync, each
  ``preferred_leader_interval_ms``; never sooner, since each move costs clients a new connection.
* Of a broker that drains it takes what another can lead: also what nobody else could lead when the
  broker itself handed over.
* What fails (the store is out of reach) is tried again after ``PAUSE_S``; nothing is remembered of
  it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import structlog

from magnetar.env.metadata import CreateMode, MetadataStore
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.brokers import PeerBroker, PeerBrokers, live_of
from magnetar.log.partition.replication.election import Live
from magnetar.log.partition.replication.partition_state import PartitionState
from magnetar.log.partition.replication.state_image import StateImage
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.log.partition.replication.wake import Wake
from magnetar.model.errors import (
    MetadataError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
)

log = structlog.get_logger(__name__)

CONTROLLER: Final = "/controller"
LOOK_S: Final = 5.0
PAUSE_S: Final = 0.5
CHANGES_AT_ONCE: Final = 64


class Controller:
    """Of one process. ``unclean``: a partition of which nobody in sync is left may be led by any
    replica, and loses what that lacks. ``clock_s``: a clock that does not go back."""

    def __init__(
        self,
        metadata: MetadataStore,
        image: StateImage,
        brokers: PeerBrokers,
        me: str,
        clock_s: Callable[[], float],
        *,
        unclean: bool = False,
        preferred_leader_interval_ms: int = 300_000,
    ) -> None:
        self.acts = False
        """This process is the controller, as far as it knows."""
        self._metadata = metadata
        self._image = image
        self._brokers = brokers
        self._me = me.encode()
        self._clock_s = clock_s
        self._unclean = unclean
        self._preferred_s = preferred_leader_interval_ms / 1000
        self._wake = Wake()
        self._prefers_at_s = clock_s() + self._preferred_s
        self._ends = [
            metadata.watch_value(CONTROLLER, lambda _path: self._wake.set()),
            brokers.watch(self._wake.set),
        ]
        image.watch(self._state_changed)
        if unclean:
            log.warning(
                "unclean election is on: a partition of which no replica in sync is left loses "
                "what the next leader lacks"
            )

    def _state_changed(self, _partition: Partition, _state: VersionedState | None) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._image.whole.wait()
        while True:
            pause_s = LOOK_S
            try:
                self.acts = await self._claim()
                if self.acts:
                    await self._look()
            except MetadataError as error:
                log.info("the controller cannot look now", error=str(error))
                await asyncio.sleep(PAUSE_S)
                pause_s = PAUSE_S
            await self._wake.wait(pause_s)

    async def _claim(self) -> bool:
        """Whether this process is the controller; it becomes it if nobody is."""
        try:
            await self._metadata.create(CONTROLLER, self._me, CreateMode.EPHEMERAL)
        except NodeExistsError:
            try:
                return (await self._metadata.get(CONTROLLER)).value == self._me
            except NoNodeError:
                self._wake.set()  # it has just gone: once more
                return False
        log.info("this broker is the controller of partitions")
        return True

    async def _look(self) -> None:
        brokers = await self._brokers.look()
        prefers = self._prefers_now()
        live = live_of(brokers)
        due = [
            partition
            for partition, found in self._image.states.items()
            if self._following(found.state, live, prefers) is not None
        ]
        for start in range(0, len(due), CHANGES_AT_ONCE):
            some = due[start : start + CHANGES_AT_ONCE]
            changes = (self._change(each, brokers, prefers) for each in some)
            # With their errors as results: else one that comes first would take the place of a
            # cancellation, and this would go on for ever.
            for outcome in await asyncio.gather(*changes, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    def _prefers_now(self) -> bool:
        if not self._preferred_s or self._clock_s() < self._prefers_at_s:
            return False
        self._prefers_at_s = self._clock_s() + self._preferred_s
        return True

    def _following(self, state: PartitionState, live: Live, prefers: bool) -> PartitionState | None:
        elected = election.elect(state, live, unclean=self._unclean)
        if elected is None:
            elected = election.relieve(state, live)
        if elected is None and prefers:
            return election.prefer(state, live)
        return elected

    async def _change(
        self, partition: Partition, brokers: Mapping[int, PeerBroker], prefers: bool
    ) -> None:
        change = partial(self._following, live=live_of(brokers), prefers=prefers)
        before = self._image.states.get(partition)
        try:
            stored = await self._image.store.change(*partition, change)
        except NoNodeError:
            self._image.refresh(partition)
            return
        except MetadataFormatError as error:  # of this one alone
            name = f"{partition[0]}-{partition[1]}"
            log.warning("nothing is decided of a partition", partition=name, error=str(error))
            return
        if before is None or stored.state.leader_epoch != before.state.leader_epoch:
            log.info(
                "partition has another leader",
                partition=f"{partition[0]}-{partition[1]}",
                leader=stored.state.leader,
                epoch=stored.state.leader_epoch,
                in_sync=[member.broker for member in stored.state.isr],
            )
            self._tell_forgotten(partition, before, stored)
        self._image.stored(partition, stored)

    @staticmethod
    def _tell_forgotten(
        partition: Partition, before: VersionedState | None, stored: VersionedState
    ) -> None:
        known = () if before is None else (*before.state.isr, *before.state.elr)
        if len(stored.state.replicas) == 1 and not set(stored.state.isr) <= {*known}:
            log.warning(
                "the only replica of a partition goes on with what it has; what was not synced "
                "may be gone",
                partition=f"{partition[0]}-{partition[1]}",
                broker=stored.state.leader,
            )

    def close(self) -> None:
        """End every watch. The claim goes with the session, or at once by ``resign``."""
        for end in self._ends:
            end()

    async def resign(self) -> None:
        """Another may be the controller at once. Idempotent."""
        if not self.acts:
            return
        self.acts = False
        try:
            if (await self._metadata.get(CONTROLLER)).value == self._me:
                await self._metadata.delete(CONTROLLER)
        except MetadataError as error:  # then it goes with the session
            log.info("the controller's claim is not withdrawn", error=str(error))
