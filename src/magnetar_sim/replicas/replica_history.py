"""What must hold of replicated partitions, whatever fails (ring 2).

A topic may be deleted and made again: each *making* of it has a history of its own (``making``).
*Committed* is what a leader has shown to a reader or acknowledged. Whatever fails:

1. At one offset of a partition nobody is ever shown two different batches, and what is acknowledged
   at acks=all is that batch.
2. Offsets that are acknowledged one after the other to one producer grow.
3. An epoch has one leader.
4. What was written to one making of a topic is never shown by another one.

When all faults are over:

5. Every partition has a leader soon, all its replicas are in sync, and a new value is acknowledged.
6. The logs of all replicas are the same, batch for batch, and hold whatever was committed.

Of records that were deleted (``deletes``) nothing is asked any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from magnetar.log.partition.checkpoint_files import Partition
from magnetar_sim.world.scheduler import SimulationError


def making(partition: Partition, topic_id: str) -> Partition:
    """What the history calls a partition of one making of its topic."""
    return f"{partition[0]}@{topic_id}", partition[1]


class StoredBatch(NamedTuple):
    """Of one record."""

    offset: int
    epoch: int
    value: int


class ReplicaHistory:
    """Is told what happens. Raises ``SimulationError``."""

    def __init__(self) -> None:
        self.committed: dict[tuple[Partition, int], StoredBatch] = {}
        self.acknowledged: dict[tuple[Partition, int], int] = {}
        self.shown = 0
        self._leaders: dict[tuple[Partition, int], tuple[int, int]] = {}
        self._last: dict[tuple[Partition, str], int] = {}
        self._written: dict[int, Partition] = {}
        self._deleted: dict[Partition, int] = {}

    def writes(self, partition: Partition, value: int) -> None:
        """A leader appends it."""
        self._written[value] = partition

    def deletes(self, partition: Partition, offset: int) -> None:
        """Records before ``offset`` may go from now on: they are committed."""
        self._deleted[partition] = max(offset, self._deleted.get(partition, 0))

    def leads(self, partition: Partition, epoch: int, who: tuple[int, int]) -> None:
        """A start of a broker leads."""
        first = self._leaders.setdefault((partition, epoch), who)
        if first != who:
            raise SimulationError(f"{partition}: epoch {epoch} is led by {first} and by {who}")

    @property
    def elections(self) -> int:
        return len(self._leaders)

    def show(self, partition: Partition, batch: StoredBatch, by: str) -> None:
        """A leader says that it is committed."""
        self.shown += 1
        written = self._written[batch.value]
        if written != partition:
            raise SimulationError(f"{by} shows {batch} of {written} in {partition}")
        known = self.committed.setdefault((partition, batch.offset), batch)
        if known != batch:
            raise SimulationError(f"{partition}: {by} shows {batch}, where {known} is committed")

    def acknowledge(self, partition: Partition, producer: str, batch: StoredBatch) -> None:
        """To a producer that waits for all in-sync replicas."""
        self.show(partition, batch, f"{producer}'s acknowledgement")
        if batch.offset <= self._last.get((partition, producer), -1):
            raise SimulationError(f"{partition}: {producer} is told offset {batch.offset} late")
        self._last[partition, producer] = batch.offset
        self.acknowledged[partition, batch.offset] = batch.value

    def ended(self, partition: Partition, logs: Mapping[int, Sequence[StoredBatch]]) -> None:
        """``logs``: of all its replicas, by broker, when nothing changes any more."""
        start = self._deleted.get(partition, 0)
        logs = {
            broker: [batch for batch in log if batch.offset >= start]
            for broker, log in logs.items()
        }
        first, *others = sorted(logs)
        for other in others:
            if logs[other] != logs[first]:
                raise SimulationError(
                    f"{partition}: the logs of {first} and {other} differ: "
                    f"{_differ(logs[first], logs[other])}"
                )
        found = {batch.offset: batch for batch in logs[first]}
        for (where, offset), batch in self.committed.items():
            if where == partition and offset >= start and found.get(offset) != batch:
                raise SimulationError(
                    f"{partition}: {batch} was committed, and is {found.get(offset)} in the end"
                )


def _differ(one: Sequence[StoredBatch], other: Sequence[StoredBatch]) -> str:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return f"{mine} and {theirs}"
    return f"{len(one)} and {len(other)} batches"
