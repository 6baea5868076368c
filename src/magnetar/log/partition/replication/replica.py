"""One replica of a partition on one broker: whether it leads, follows or waits, as the stored state
says.

Owns the change from one part to another. What a part does: ``leader``, ``follower``. Pure.

Invariants:

* It takes part by the newest state that it has seen: one of an older version changes nothing.
* It leads only the epoch for which this very start of its broker was elected.
* Its high watermark is handed from part to part, and does not go back on the way.

Transitions: ``isr_states.ROLE_TRANSITIONS``.

Why: docs/adr/0110-replication-is-a-machine.md.
"""

from __future__ import annotations

from magnetar.log.partition.leader_epochs import LeaderEpochs
from magnetar.log.partition.replication.follower import PartitionFollower
from magnetar.log.partition.replication.isr_states import NEXT_ROLE, RoleEvent, RoleState
from magnetar.log.partition.replication.leader import PartitionLeader
from magnetar.log.partition.replication.partition_state import (
    NO_LEADER,
    NOT_KNOWN,
    Member,
    PartitionState,
)


class PartitionReplica:
    """``start``: of this broker's process, as it is registered."""

    def __init__(
        self,
        me: Member,
        start: int,
        *,
        high_watermark: int,
        lag_ms_max: int,
    ) -> None:
        self.me = me
        self.role = RoleState.IDLE
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None
        self._start = start
        self._version = -1
        self._epoch = -1
        self._lag_ms_max = lag_ms_max
        self._high_watermark = high_watermark

    @property
    def version(self) -> int:
        """Of the state that it takes part by; -1: it has seen none."""
        return self._version

    @property
    def high_watermark(self) -> int:
        part = self.leader or self.follower
        return self._high_watermark if part is None else part.high_watermark

    @property
    def whole_since(self) -> int:
        """What readers were given in that epoch, or in a later one, is there; of who leads."""
        known = NOT_KNOWN if self.leader is None else self.leader.state.whole_since
        return self._epoch if known == NOT_KNOWN else known

    def learnt(
        self,
        state: PartitionState,
        version: int,
        epochs: LeaderEpochs,
        *,
        log_start: int,
        log_end: int,
        stored_end: int,
        now_ms: int,
    ) -> bool:
        """The store holds ``state``. True if the part, or the epoch that it is played in, is
        another one now: ``epochs`` have changed then. Nothing may be under way for the log; what is
        not stored yet must be before a follower fetches."""
        if version <= self._version:
            return False
        self._version = version
        event = self._event(state)
        self.role = NEXT_ROLE[self.role, event]
        if event is RoleEvent.SAME_EPOCH:
            if self.leader is not None:
                self.leader.learnt(state)
            return False
        self._high_watermark = self.high_watermark
        self._epoch = state.leader_epoch
        self.leader = self.follower = None
        if self.role is RoleState.LEADING:
            self.leader = PartitionLeader(
                self.me,
                state,
                epochs,
                log_start=log_start,
                log_end=log_end,
                stored_end=stored_end,
                high_watermark=self._high_watermark,
                now_ms=now_ms,
                lag_ms_max=self._lag_ms_max,
            )
        elif self.role is RoleState.FOLLOWING:
            self.follower = PartitionFollower(
                self.me,
                state.leader,
                state.leader_epoch,
                epochs,
                log_end=log_end,
                high_watermark=self._high_watermark,
            )
        return True

    def _event(self, state: PartitionState) -> RoleEvent:
        if state.leader_epoch == self._epoch and self.role is not RoleState.IDLE:
            return RoleEvent.SAME_EPOCH
        if state.leader == NO_LEADER:
            return RoleEvent.NOBODY
        if state.leader != self.me.broker:
            return RoleEvent.ANOTHER
        elected = Member(self.me.broker, self.me.lineage) in state.isr
        return (
            RoleEvent.ELECTED if elected and state.leader_start == self._start else RoleEvent.NOBODY
        )
