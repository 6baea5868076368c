"""Ring 2, with topics on partitions that brokers replicate: one rule broken each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from magnetar.app.broker import Broker
from magnetar.log.engines.company import PartitionCompany
from magnetar.log.partition.hosting import HostedReplica
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


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, kind="led")


LED = (
    _mutant("a new leader shows what it may not yet", _shows_what_it_holds),
    _mutant("a leader's cursors end with it", _forgets_cursors),
    _mutant("a former leader's log goes on", _never_hears_of_another),
    _mutant("a new leader passes over acknowledgements", _passes_over_what_is_held),
    _mutant("a led topic closes with its bundle", _closes_with_its_bundle),
)
