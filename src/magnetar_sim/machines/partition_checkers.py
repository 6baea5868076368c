"""What must hold of a partition's replicas, whatever fails (ring 1).

*Committed* is what any leader's high watermark has passed. Unless an unclean election was allowed:

1. Two high watermarks never pass different batches at one offset, and a leader's never goes back.
2. Whoever is elected has, when it begins to lead, everything that is committed.
3. What was acknowledged at acks=all is committed, with ``min_isr`` replicas in sync; and where
   syncs are waited for, it is on the platter of as many.
4. A consumer is given what is committed, and nothing else.
5. An election picks a replica in sync, or, when none of those lives, an eligible one, of the
   lineage that it was counted with. Another leader, or the same one started again, has a larger
   epoch; so has one whose topic is opened anew, of which nothing else changes.
6. A follower never cuts what it knew to be committed.

Always:

7. What was acknowledged at acks=1 is in the leader's log then, and on its platter where syncs are
   waited for. It is lost only with a leader: whoever is elected next may lack it.
8. One epoch has one leader and one content: batches of one offset and epoch are the same, and
   follow batches of the same epoch, wherever they lie.
9. What could be read in the epoch since which the log is said to be whole, or in a later one, is in
   the log of whoever leads.
10. When the faults are over there is a leader (if any may be elected), all replicas are in sync
    soon, and their logs are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.partition_state import NO_LEADER, NOT_KNOWN, PartitionState
from magnetar_sim.world.scheduler import SimulationError


class SimBatch(NamedTuple):
    """Of one record."""

    epoch: int
    value: int


class PartitionChecker:
    """Is told what happens. Raises ``SimulationError``."""

    def __init__(self, unclean: bool, durable: bool) -> None:
        self.unclean = unclean
        self.durable = durable
        self.committed: dict[int, SimBatch] = {}
        self.acknowledged: dict[int, int] = {}  # value -> offset, at acks=all
        self.alone: dict[int, int] = {}  # the same, at acks=1
        self.lost_alone: set[int] = set()  # of those, what some later leader began without
        self.elections = 0
        self.consumed = 0
        self.whole = 0
        """How often somebody began to lead whose log was said to be whole."""
        self.cut = 0
        self._written: dict[tuple[int, int], tuple[int, int]] = {}
        self._readable: dict[int, dict[int, SimBatch]] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self._high_watermarks: dict[tuple[int, int, int], int] = {}

    def appended(self, log: Sequence[SimBatch], first: int) -> None:
        """``log`` has grown from offset ``first`` on."""
        for offset in range(first, len(log)):
            before = log[offset - 1].epoch if offset else -1
            entry = (log[offset].value, before)
            found = self._written.setdefault((offset, log[offset].epoch), entry)
            if found != entry:
                raise SimulationError(
                    f"offset {offset} of epoch {log[offset].epoch} is {found} and {entry}"
                )

    def leads(self, who: tuple[int, int], state: PartitionState, log: Sequence[SimBatch]) -> None:
        """A start of a broker begins to lead."""
        epoch = state.leader_epoch
        self.elections += 1
        if self._leaders.setdefault(epoch, who) != who:
            raise SimulationError(f"epoch {epoch} is led by {self._leaders[epoch]} and by {who}")
        self.lost_alone |= self._missing(self.alone, log)
        if state.whole_since != NOT_KNOWN:
            self._check_whole(state, log)
        if self.unclean:
            return
        for offset, batch in self.committed.items():
            if offset >= len(log) or log[offset] != batch:
                raise SimulationError(
                    f"broker {who[0]} leads epoch {epoch} without what is committed at {offset}"
                )

    def _check_whole(self, state: PartitionState, log: Sequence[SimBatch]) -> None:
        for epoch in range(state.whole_since, state.leader_epoch):
            for offset, batch in self._readable.get(epoch, {}).items():
                if offset >= len(log) or log[offset] != batch:
                    raise SimulationError(
                        f"{batch} at {offset} could be read in epoch {epoch}, and is gone in "
                        f"{state.leader_epoch}, whole since {state.whole_since}"
                    )
        self.whole += state.whole_since < state.leader_epoch

    def high_watermark(
        self,
        who: tuple[int, int, int],
        offset: int,
        log: Sequence[SimBatch],
        platters: Sequence[Sequence[Sequence[SimBatch]]],
        least: int,
    ) -> None:
        """Of the leader ``who`` (broker, start, epoch). ``platters`` of each broker: its disk's,
        and those of disks that were replaced, which it may have spoken of."""
        before = self._high_watermarks.get(who, 0)
        if offset < before:
            raise SimulationError(f"the high watermark of {who} goes back: {before}, {offset}")
        self._high_watermarks[who] = offset
        readable = self._readable.setdefault(who[2], {})
        for at in range(before, offset):
            readable[at] = log[at]
            if self.unclean:
                self.committed[at] = log[at]
                continue
            known = at in self.committed
            if self.committed.setdefault(at, log[at]) != log[at]:
                raise SimulationError(
                    f"{who} commits {log[at]} at {at}, where {self.committed[at]} is committed"
                )
            if self.durable and not known:  # later a disk may have been lost
                held = sum(
                    any(each[at : at + 1] == [log[at]] for each in disks) for disks in platters
                )
                if held < least:
                    raise SimulationError(
                        f"{at} is committed with {held} copies on a platter, and not {least}"
                    )

    def acknowledge(self, value: int, offset: int) -> None:
        if self.unclean:
            return
        if self.committed.get(offset, SimBatch(-1, -1)).value != value:
            raise SimulationError(f"{value} is acknowledged at {offset}, and is not committed")
        self.acknowledged[value] = offset

    def acknowledge_alone(
        self,
        value: int,
        offset: int,
        epoch: int,
        log: Sequence[SimBatch],
        platter: Sequence[SimBatch],
    ) -> None:
        """At acks=1, by the leader of ``epoch``, whose log and platter these are."""
        mine = {value: offset}
        if self._missing(mine, log) or (self.durable and self._missing(mine, platter)):
            raise SimulationError(
                f"{value} is acknowledged at {offset}, and its leader may lose it"
            )
        self.alone[value] = offset
        if epoch < max(self._leaders):  # its leader does not know yet that it is none
            self.lost_alone.add(value)

    @staticmethod
    def _missing(acknowledged: Mapping[int, int], log: Sequence[SimBatch]) -> set[int]:
        return {
            value
            for value, offset in acknowledged.items()
            if offset >= len(log) or log[offset].value != value
        }

    def consume(self, offset: int, batch: SimBatch) -> None:
        self.consumed += 1
        if not self.unclean and self.committed.get(offset) != batch:
            raise SimulationError(f"a consumer is given {batch} at {offset}: not committed")

    def truncated(self, who: int, lost: int) -> None:
        self.cut += 1
        if lost and not self.unclean:
            raise SimulationError(f"broker {who} cuts {lost} batches that it knew to be committed")

    def stored(
        self, old: PartitionState, new: PartitionState, ever: Mapping[tuple[int, int], LiveBroker]
    ) -> None:
        """The store goes from ``old`` to ``new``. ``ever``: all starts that were registered."""
        leader = (new.leader, new.leader_start)
        if leader == (old.leader, old.leader_start):
            opened = replace(old, leader_epoch=old.leader_epoch + 1, whole_since=new.whole_since)
            if new.leader_epoch != old.leader_epoch and new != opened:
                raise SimulationError(f"another epoch and the same leader: {old}, {new}")
            return
        if new.leader_epoch <= old.leader_epoch:
            raise SimulationError(f"another leader in epoch {new.leader_epoch}: {old}, {new}")
        if new.leader == NO_LEADER or self.unclean:
            return
        member = (new.leader, ever[leader].lineage)
        if member not in old.isr and (new.isr != (member,) or member not in old.elr):
            raise SimulationError(f"{member} is elected, out of sync: {old}, {new}")

    def ended(
        self, state: PartitionState, logs: Mapping[int, Sequence[SimBatch]], late: int
    ) -> None:
        """All faults have been over for long. ``late``: a value that was sent after them."""
        electable = [*state.isr, *state.elr]
        if state.leader == NO_LEADER:
            if self.durable or self.unclean:
                raise SimulationError(f"nobody leads in the end: {state}")
            return  # every copy may have been lost with a power cut, and nobody is asked to guess
        assert electable
        if len(state.isr) != len(state.replicas):
            raise SimulationError(f"not all are in sync in the end: {state}")
        leaders = logs[state.leader]
        for broker, log in logs.items():
            if list(log) != list(leaders):
                raise SimulationError(f"the logs of {state.leader} and {broker} differ in the end")
        for value in self._missing(self.alone, leaders) - self.lost_alone:
            raise SimulationError(f"{value}, acknowledged at acks=1, is lost, and no leader was")
        if not self.unclean:
            for value in self._missing(self.acknowledged, leaders):
                raise SimulationError(
                    f"{value}, acknowledged at {self.acknowledged[value]}, is lost"
                )
            if late not in self.acknowledged:
                raise SimulationError("nothing is acknowledged in the end")
