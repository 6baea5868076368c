"""A partition's leader: who has which part of its log, what is committed, and who is in sync.

Owns the high watermark and the in-sync set as the leader sees it, from one election to the next. It
is told what happens (an append, a sync, a fetch, a look at the clock, an answer of the metadata
store) and asked what follows. Pure.

Invariants:

* ``high_watermark`` never goes back, and never passes what is *stored* on every replica that
  counts: a follower's end is what it fetches from, since it syncs before it fetches on; the
  leader's own end counts when it is synced (``stored``), or at once where the sync policy says that
  nobody waits for it.
* Who counts: the in-sync set as it is stored, and, while a change of it is under way, as it would
  be. A shrink that is not stored leaves the old set to be elected from; a growth that is stored,
  and not known to be, has one more to be elected from. Either way nobody may be elected who lacks
  something.
* With fewer in sync than ``min_isr`` (by what is known to be stored) nothing is committed.
* One change of the in-sync set at a time. While the outcome is in doubt both sets count.
* A fetch of an older or newer leader epoch counts for nothing.

A replica that has caught up with the high watermark and with the beginning of this epoch may join:
below those it could be elected and miss something. One leaves when it has not been at the log's end
for ``lag_ms_max``, be it slow or silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from magnetar.log.partition.leader_epochs import EpochEnd, LeaderEpochs
from magnetar.log.partition.replication.election import with_isr
from magnetar.log.partition.replication.isr_states import NEXT_ISR, IsrEvent, IsrState
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.model.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)

NEVER_MS = -(1 << 62)


class FetchRequest(NamedTuple):
    """A follower asks for what comes at ``offset``; ``last_epoch`` is that of the batch before it,
    -1 when its log is empty."""

    follower: Member
    leader_epoch: int
    offset: int
    last_epoch: int


class FetchGrant(NamedTuple):
    """The batches from the request's offset up to ``end_offset`` may be sent. With ``diverging``
    none: the follower's log and this one part there at the latest (KIP-595's form of KIP-320)."""

    leader_epoch: int
    high_watermark: int
    log_start: int
    end_offset: int
    diverging: EpochEnd | None = None


class AppendOutcome(Enum):
    """What becomes of an append that waits for all in-sync replicas."""

    WAITS = "waits"
    COMMITTED = "committed"
    TOO_FEW = "appended, and too few are in sync"


@dataclass(slots=True)
class _Progress:
    """Of a follower. ``end_offset`` -1: it has not fetched in this epoch."""

    end_offset: int
    caught_up_ms: int
    leader_end: int = -1  # at its last fetch,
    fetched_ms: int = NEVER_MS  # which was then


class PartitionLeader:
    """For one leader epoch."""

    def __init__(
        self,
        me: Member,
        state: PartitionState,
        epochs: LeaderEpochs,
        *,
        log_start: int,
        log_end: int,
        stored_end: int,
        high_watermark: int,
        now_ms: int,
        lag_ms_max: int,
    ) -> None:
        assert stored_end <= log_end, "what was cut is not stored"
        self.state = state
        self.log_start = log_start
        self.log_end = log_end
        self.high_watermark = min(high_watermark, log_end)
        self.epoch_start = log_end
        self.pending: tuple[Member, ...] | None = None
        self.isr_state = IsrState.STORED
        self._me = me
        self._absent: set[Member] = set()
        """They do not join before the next look at the clock."""
        self._epochs = epochs
        self._stored_end = stored_end
        self._lag_ms_max = lag_ms_max
        self._followers = {member: _Progress(-1, now_ms) for member in state.isr if member != me}
        # Before the first fetch is answered: a follower's batches of an epoch between our last one
        # and this would otherwise be of an epoch that we know nothing about, and it could not cut
        # them.
        epochs.assign(state.leader_epoch, log_end)
        self._advance()

    @property
    def epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def readable_end(self) -> int:
        """Consumers are given what is before it; followers all that there is."""
        return self.high_watermark

    # -- appends ------------------------------------------------------------------------------

    def check_append(self) -> None:
        """Before an append that waits for all. Raises ``NotEnoughReplicasError``. One that waits
        for the leader alone is taken however few there are, as in Kafka: see ``stored_here``."""
        if self.state.too_few:
            raise NotEnoughReplicasError(
                f"{len(self.state.isr)} of {len(self.state.replicas)} replicas are in sync; "
                f"{self.state.least_in_sync} are needed. Nothing was appended; try again when "
                "followers have caught up"
            )

    def appended(self, log_end: int) -> None:
        self.log_end = log_end

    def stored(self, end_offset: int) -> None:
        """Up to there the leader's own log counts."""
        assert end_offset <= self.log_end
        self._stored_end = max(self._stored_end, end_offset)
        self._advance()

    def outcome(self, last_offset: int) -> AppendOutcome:
        """Of an append that ends with ``last_offset``."""
        if last_offset >= self.high_watermark:
            return AppendOutcome.WAITS
        return AppendOutcome.TOO_FEW if self.state.too_few else AppendOutcome.COMMITTED

    def stored_here(self, last_offset: int) -> bool:
        """Of an append that waits for the leader's own log alone: it has it, as its sync policy
        says. Such an append is lost if another is elected that has not fetched it."""
        return last_offset < self._stored_end

    def trimmed(self, log_start: int) -> None:
        self.log_start = log_start

    # -- followers ----------------------------------------------------------------------------

    def fetched(self, request: FetchRequest, now_ms: int) -> FetchGrant:
        """A follower asks. Raises ``FencedLeaderEpochError``, ``UnknownLeaderEpochError``,
        ``OffsetOutOfRangeError``: it counts for nothing then."""
        self._check_epoch(request.leader_epoch)
        if (diverging := self._divergence(request)) is not None:
            return self._grant(request.offset, diverging)
        if not self.log_start <= request.offset <= self.log_end:
            raise OffsetOutOfRangeError(
                f"the leader holds offsets {self.log_start} to {self.log_end - 1}, not "
                f"{request.offset}"
            )
        if request.follower.broker in self.state.replicas:
            self._count(request.follower, request.offset, now_ms)
        return self._grant(self.log_end, None)

    def _check_epoch(self, leader_epoch: int) -> None:
        if leader_epoch < self.epoch:
            raise FencedLeaderEpochError(f"epoch {leader_epoch} is over: it is {self.epoch}")
        if leader_epoch > self.epoch:
            raise UnknownLeaderEpochError(f"epoch {leader_epoch} is not known here yet")

    def _divergence(self, request: FetchRequest) -> EpochEnd | None:
        if request.last_epoch < 0:
            return None
        end = self._epochs.end_of(request.last_epoch, self.log_end)
        if end.epoch < request.last_epoch or end.end_offset < request.offset:
            return end
        return None

    def _grant(self, end_offset: int, diverging: EpochEnd | None) -> FetchGrant:
        return FetchGrant(self.epoch, self.high_watermark, self.log_start, end_offset, diverging)

    def _count(self, follower: Member, offset: int, now_ms: int) -> None:
        """It has everything before ``offset``, stored."""
        progress = self._progress(follower)
        if offset >= self.log_end:
            progress.caught_up_ms = max(progress.caught_up_ms, now_ms)
        elif 0 <= progress.leader_end <= offset:
            # It has what there was when it fetched last: it was at the end then.
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
        progress.end_offset = offset
        progress.leader_end, progress.fetched_ms = self.log_end, now_ms
        if follower not in self.state.isr:
            self._join(follower, progress, now_ms)
        self._advance()

    def _progress(self, follower: Member) -> _Progress:
        """Of one that fetches; what it was before it lost its disk is forgotten, but for the
        set."""
        if follower not in self._followers:
            for other in [each for each in self._followers if each.broker == follower.broker]:
                if other not in self.state.isr:
                    del self._followers[other]
            self._followers[follower] = _Progress(-1, NEVER_MS)
        return self._followers[follower]

    def _join(self, follower: Member, progress: _Progress, now_ms: int) -> None:
        caught_up = progress.end_offset >= max(self.high_watermark, self.epoch_start)
        if caught_up and self.pending is None and follower not in self._absent:
            # The time that it may be behind begins now. It has all that is committed and not all
            # there is, and perhaps never had: by its past it would leave again at the next look
            # at the clock, and appends be refused, which go on as soon as it has joined.
            progress.caught_up_ms = max(progress.caught_up_ms, now_ms)
            others = [each for each in self.state.isr if each.broker != follower.broker]
            self._change((*others, follower), IsrEvent.CAUGHT_UP)

    def tick(self, now_ms: int) -> None:
        """Time has passed: who has fallen behind leaves."""
        self._absent.clear()
        if self.pending is not None:
            return
        staying = tuple(each for each in self.state.isr if not self._behind(each, now_ms))
        if len(staying) < len(self.state.isr):
            self._change(staying, IsrEvent.FELL_BEHIND)

    def _behind(self, member: Member, now_ms: int) -> bool:
        if member == self._me:
            return False
        progress = self._followers.get(member)
        if progress is None:
            progress = self._followers[member] = _Progress(-1, now_ms)
        return (
            progress.end_offset != self.log_end
            and now_ms - progress.caught_up_ms > self._lag_ms_max
        )

    # -- the in-sync set ----------------------------------------------------------------------

    def _change(self, isr: tuple[Member, ...], event: IsrEvent) -> None:
        self._move(event)
        self.pending = isr

    def proposal(self) -> PartitionState | None:
        """What is to be stored now, if the stored state is still ``state``."""
        return None if self.pending is None else with_isr(self.state, self.pending)

    def withdraw(self) -> None:
        """What is proposed is not to be, and was not asked of the store: who would join is not
        there. (A fetch that is held back counts again as soon as it looks again.)"""
        self._absent.update(each for each in self.pending or () if each not in self.state.isr)
        self.learnt(self.state)

    def learnt(self, state: PartitionState) -> None:
        """``state`` is stored, with this leader and epoch: by us or by the controller."""
        assert state.leader_epoch == self.epoch
        self._move(IsrEvent.LEARNT)
        self.state, self.pending = state, None
        self._advance()

    def in_doubt(self) -> None:
        """The store has not taken the proposal, or has not answered: read it, and say what it
        holds."""
        self._move(IsrEvent.IN_DOUBT)

    def _move(self, event: IsrEvent) -> None:
        self.isr_state = NEXT_ISR[self.isr_state, event]

    def _counted(self) -> tuple[Member, ...]:
        """Without whom nothing is committed."""
        pending = self.pending or ()
        return (*self.state.isr, *(each for each in pending if each not in self.state.isr))

    def _advance(self) -> None:
        if self.state.too_few:
            return
        ends = [self._stored_end]
        for member in self._counted():
            if member != self._me:
                progress = self._followers.get(member)
                ends.append(-1 if progress is None else progress.end_offset)
        self.high_watermark = max(self.high_watermark, min(ends))
