"""Ring 2, with topics on partitions that brokers replicate: one rule broken each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.app.broker import Broker
from magnetar.log.engines.company import PartitionCompany
from magnetar.log.partition.hosting import HostedReplica
from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.election import Live
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.serving.cursor import PartitionCursor
from magnetar.log.partition.serving.partition_log import PartitionLog
from magnetar.model.ids import Position
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _passes_over_what_is_held() -> AbstractContextManager[None]:
    """What a new leader may not show yet is acknowledged in vain."""
    original = PartitionCursor._offsets_of

    def offsets_of(self: Any, position: Position) -> Sequence[Position]:
        return () if self._places.offset(position) >= self._places.end else original(self, position)

    return replaced((PartitionCursor, "_offsets_of", offsets_of))


def _shows_what_it_holds() -> AbstractContextManager[None]:
    """What no follower has is read, and said to be stored."""
    return replaced((HostedReplica, "high_watermark", property(lambda self: self.source.log_end)))


def _never_hears_of_another() -> AbstractContextManager[None]:
    """A log goes on where another leads by now."""
    original = PartitionLog._advance

    def advance(self: Any) -> None:
        if self._hosted.leader_epoch == self.epoch:
            original(self)

    return replaced((PartitionLog, "_advance", advance))


def _forgets_cursors() -> AbstractContextManager[None]:
    """Whoever leads next begins them anew."""

    async def recover(self: Any, names: Sequence[str], handed: Any) -> None:
        pass

    return replaced((PartitionCompany, "recover", recover))


def _closes_with_its_bundle() -> AbstractContextManager[None]:
    """Who gives a bundle away closes the topics in it that it leads, and opens them again."""
    return replaced((Broker, "_led_here", lambda *_: False))


def _relieved_by_anybody() -> AbstractContextManager[None]:
    """Who drains has the last replica that lives lead, in sync or not."""

    def relieve(state: PartitionState, live: Live) -> PartitionState | None:
        leader = live.get(state.leader)
        others = [each for each in state.replicas if each in live and not live[each].drains]
        if leader is None or not leader.drains or not others:
            return None
        member = Member(others[-1], live[others[-1]].lineage)
        isr = state.isr if member in state.isr else (member,)
        start = live[member.broker].start
        epoch = state.leader_epoch + 1
        return replace(
            state, isr=isr, elr=(), leader=member.broker, leader_start=start, leader_epoch=epoch
        )

    return replaced((election, "relieve", relieve))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, kind="led")


LED = (
    _mutant("a new leader shows what it may not yet", _shows_what_it_holds),
    _mutant("a leader's cursors end with it", _forgets_cursors),
    _mutant("a former leader's log goes on", _never_hears_of_another),
    _mutant("a new leader passes over acknowledgements", _passes_over_what_is_held),
    _mutant("a led topic closes with its bundle", _closes_with_its_bundle),
    _mutant("a broker that drains is relieved by any", _relieved_by_anybody),
)
