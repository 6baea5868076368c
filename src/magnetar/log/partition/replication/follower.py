"""A partition's follower: what it asks its leader for, and what an answer makes of its log.

Owns the way from "my log ends here" to "my log is a prefix of the leader's", for one leader epoch.
Pure.

Invariants:

* One fetch is under way at a time, and names the end of the log: an answer to another one (of an
  earlier epoch, from before a cut) changes nothing.
* A log is cut where it parts from the leader's, as leader epochs say, never because of a high
  watermark alone. What is cut was not committed, unless the leader was elected uncleanly: ``lost``
  counts that.
* It fetches on only when what it got is stored (``stored``): the offset of a fetch is its word that
  it has all before it.
* ``high_watermark`` is the leader's, as far as this log reaches.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.log.partition.leader_epochs import EpochEnd, LeaderEpochs
from magnetar.log.partition.replication.leader import FetchGrant, FetchRequest
from magnetar.log.partition.replication.partition_state import Member
from magnetar.model.errors import ProtocolError


class CutTo(NamedTuple):
    """The log is to end at ``end_offset``; then ``cut``."""

    end_offset: int


class AppendAnswer(NamedTuple):
    """The answer's batches are to be appended; then ``stored``."""


class RestartAt(NamedTuple):
    """The leader's log begins later than this one ends: nothing here is of use."""

    offset: int


Step = CutTo | AppendAnswer | RestartAt | None


class PartitionFollower:
    """For one leader epoch."""

    def __init__(
        self,
        me: Member,
        leader: int,
        leader_epoch: int,
        epochs: LeaderEpochs,
        *,
        log_end: int,
        high_watermark: int,
    ) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.log_end = log_end
        self.high_watermark = min(high_watermark, log_end)
        self.lost = 0
        """Offsets that were committed as far as was known here, and were cut."""
        self._me = me
        self._epochs = epochs
        # An epoch that this replica led and wrote nothing in: the leader's log may have older
        # batches at the same place.
        epochs.truncate(log_end)
        self._under_way: FetchRequest | None = None

    def next_fetch(self) -> FetchRequest:
        """What to ask the leader; whatever was asked before is void."""
        last = self._epochs.epoch_at(self.log_end - 1) if self.log_end > 0 else -1
        self._under_way = FetchRequest(self._me, self.leader_epoch, self.log_end, last)
        return self._under_way

    def answered(self, request: FetchRequest, grant: FetchGrant, has_batches: bool) -> Step:
        """The leader has answered ``request``. None: nothing to do, ask again. Raises
        ``ProtocolError``: it is no leader's answer."""
        if request is not self._under_way or grant.leader_epoch != self.leader_epoch:
            return None
        self._under_way = None
        if grant.diverging is not None:
            return CutTo(self._parting(grant.diverging))
        self._told(grant.high_watermark)
        return AppendAnswer() if has_batches else None

    def _parting(self, theirs: EpochEnd) -> int:
        """Where this log must be cut: at the end of the last epoch that both may have."""
        if theirs.end_offset < 0:
            raise ProtocolError(
                f"leader {self.leader} of epoch {self.leader_epoch} parts from this log "
                "at no offset"
            )
        ours = self._epochs.end_of(theirs.epoch, self.log_end)
        if ours.epoch == theirs.epoch:
            return min(ours.end_offset, theirs.end_offset, self.log_end)
        # We lack their epoch. What we have of it, and of anything after it, goes; the next fetch
        # compares the one before (KIP-279).
        return max(0, min(ours.end_offset if ours.end_offset >= 0 else 0, self.log_end))

    def out_of_range(self, request: FetchRequest, log_start: int, log_end: int) -> Step:
        """The leader does not hold the offset that was asked for."""
        if request is not self._under_way:
            return None
        self._under_way = None
        if self.log_end < log_start:
            return RestartAt(log_start)
        return CutTo(min(log_end, self.log_end))

    def stored(self, log_end: int, high_watermark: int) -> None:
        """What was to be appended is stored; ``high_watermark`` is the answer's."""
        assert log_end >= self.log_end
        self.log_end = log_end
        self._told(high_watermark)

    def cut(self, log_end: int) -> None:
        """The log ends there now, durably."""
        self.log_end = log_end
        if log_end < self.high_watermark:
            self.lost += self.high_watermark - log_end
            self.high_watermark = log_end

    def _told(self, high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log_end))
