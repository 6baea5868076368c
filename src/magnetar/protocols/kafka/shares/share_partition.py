"""One partition's records for one share group: which are in flight, with whom, and what has become
of them. A machine: fetches and acknowledgements in, acquired records out.

Records from ``start`` to before ``end`` are *in flight*: runs of offsets, without gaps. What lies
before is done with for ever; what lies behind was never delivered.

``TRANSITIONS`` says how a record goes on. Rules:

* A record is acquired by one member at a time, until it says what became of it, it closes its
  session, or the lock is over. Nobody else's word about it counts.
* Whole batches are acquired as far as that can be, so a few more than were asked for; the bound on
  records in flight (``locks_max``, from ``start`` on, whatever their state) is never passed.
* What was delivered ``count_max`` times and came back is archived, and not delivered again: but
  for a member that closes its session in order, which has not looked at what it had.
* What holds no record (a marker of a transaction, a hole that compaction has left) is archived when
  it is met.
* ``start`` only grows, over what is accepted or archived, and with the log's own begin.
* ``image`` is what another machine goes on from: what is acquired now is available there, as if it
  had not been delivered this time. So who acquires changes nothing that must be stored.

Time comes in with each call, in milliseconds; ``next_ms`` says when ``expire`` has something to do.

Pure. Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from magnetar.protocols.kafka.shares.share_records import RecordState, ShareImage, StoredRun
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.share_fetch_messages import AcknowledgeType


class RecordEvent(StrEnum):
    ACQUIRED = "a member has fetched it"
    ACCEPTED = "its member has accepted it"
    RELEASED = "its member gives it back, has gone, or was silent until the lock was over"
    GIVEN_UP = "as released, and it was delivered as often as it may be"
    REJECTED = "its member has rejected it"
    EMPTY = "there is no record of that offset"


class RecordTransition(NamedTuple):
    state: RecordState
    event: RecordEvent
    then: RecordState


_S, _E = RecordState, RecordEvent
TRANSITIONS: Final = (
    RecordTransition(_S.AVAILABLE, _E.ACQUIRED, _S.ACQUIRED),
    RecordTransition(_S.AVAILABLE, _E.EMPTY, _S.ARCHIVED),
    RecordTransition(_S.ACQUIRED, _E.ACCEPTED, _S.ACKNOWLEDGED),
    RecordTransition(_S.ACQUIRED, _E.RELEASED, _S.AVAILABLE),
    RecordTransition(_S.ACQUIRED, _E.GIVEN_UP, _S.ARCHIVED),
    RecordTransition(_S.ACQUIRED, _E.REJECTED, _S.ARCHIVED),
    RecordTransition(_S.ACQUIRED, _E.EMPTY, _S.ARCHIVED),
)
NEXT: Final[Mapping[tuple[RecordState, RecordEvent], RecordState]] = MappingProxyType(
    {(each.state, each.event): each.then for each in TRANSITIONS}
)
EVENTS: Final[Mapping[int, RecordEvent]] = MappingProxyType(
    {
        AcknowledgeType.GAP: _E.EMPTY,
        AcknowledgeType.ACCEPT: _E.ACCEPTED,
        AcknowledgeType.RELEASE: _E.RELEASED,
        AcknowledgeType.REJECT: _E.REJECTED,
    }
)
DONE: Final = (_S.ACKNOWLEDGED, _S.ARCHIVED)


class ShareLimits(NamedTuple):
    """``lock_ms``: how long a member has for what it acquires; ``locks_max``: records in flight;
    ``count_max``: deliveries of a record."""

    lock_ms: int
    locks_max: int
    count_max: int


class ReadBatch(NamedTuple):
    """A batch as it lies in the log, both offsets included. ``delivered``: it is for consumers: no
    marker, and not aborted."""

    first: int
    last: int
    delivered: bool = True


class Acquired(NamedTuple):
    first: int
    last: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """``types``: one for all offsets, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class InFlight(NamedTuple):
    """Records in flight that have fared alike. ``until_ms``: when the lock is over."""

    first: int
    last: int
    state: RecordState
    deliveries: int
    member: str = ""
    until_ms: int = 0

    @property
    def fate(self) -> tuple[RecordState, int, str, int]:
        return self.state, self.deliveries, self.member, self.until_ms


class SharePartition:
    """See the module's text. ``version`` grows with each change of ``image`` but for what
    ``acquire`` finds to be empty, which is found again after a crash."""

    def __init__(self, start: int, limits: ShareLimits) -> None:
        self.start = start
        self.end = start
        self.limits = limits
        self.version = 0
        self._log_start = 0
        self._runs: list[InFlight] = []

    @classmethod
    def restored(
        cls, image: ShareImage, limits: ShareLimits, log_start: int, log_end: int
    ) -> SharePartition:
        """From what was stored, over a log that has offsets from ``log_start`` to before
        ``log_end``: of an end that was lost nothing is known that comes in its place."""
        found = cls(min(image.start, log_end), limits)
        for run in image.runs:
            last = min(run.last, log_end - 1)
            if found.end <= last:
                found._append(InFlight(found.end, last, run.state, run.deliveries))
        found._advance()
        found.move_start(log_start)
        return found

    # -- what there is ------------------------------------------------------------------------

    @property
    def runs(self) -> Sequence[InFlight]:
        return tuple(self._runs)

    def next_offset(self) -> int | None:
        """Where the next member is to read from; None: nothing more may be in flight."""
        for run in self._runs:
            if run.state is RecordState.AVAILABLE:
                return run.first
        return self.end if self.end < self._limit else None

    def next_ms(self) -> int | None:
        held = [run.until_ms for run in self._runs if run.state is RecordState.ACQUIRED]
        return min(held, default=None)

    def image(self) -> ShareImage:
        found: list[StoredRun] = []
        for run in self._runs:
            state, count = run.state, run.deliveries
            if state is RecordState.ACQUIRED:
                state, count = RecordState.AVAILABLE, count - 1
            if found and found[-1][2:] == (state, count):
                found[-1] = found[-1]._replace(last=run.last)
            else:
                found.append(StoredRun(run.first, run.last, state, count))
        while found and found[-1][2:] == (RecordState.AVAILABLE, 0):
            found.pop()
        return ShareImage(self.start, tuple(found))

    @property
    def _limit(self) -> int:
        """The first offset that may not be in flight."""
        return self.start + self.limits.locks_max

    # -- fetching -----------------------------------------------------------------------------

    def acquire(
        self,
        member: str,
        at: int,
        batches: Iterable[ReadBatch],
        records_max: int,
        now_ms: int,
        batch_size: int = 0,
    ) -> list[Acquired]:
        """``batches``: what the log holds from offset ``at`` on, in order, one after another.
        ``batch_size``: how many records at most are told as one where batches allow it; 0: any
        number."""
        found: list[Acquired] = []
        left = records_max
        for batch in batches:
            if left <= 0 or at >= self._limit:
                break
            self._skip(at, batch.first - 1)
            first = max(batch.first, self.start)
            if not batch.delivered:
                self._skip(first, batch.last)
            else:
                for piece in self._take(member, first, batch.last, now_ms):
                    left -= piece.last - piece.first + 1
                    _told(found, piece, batch_size)
            at = max(at, batch.last + 1)
        self._advance()
        return found

    def _skip(self, first: int, last: int) -> None:
        """There is nothing to deliver."""
        last = min(last, self._limit - 1)
        if first > last:
            return
        for run in self._overlapping(first, last):
            if run.state is RecordState.AVAILABLE:
                self._put(run.first, run.last, lambda each: _after(each, RecordEvent.EMPTY))
        if self.end <= last:
            self._append(InFlight(self.end, last, RecordState.ARCHIVED, 0))

    def _take(self, member: str, first: int, last: int, now_ms: int) -> list[Acquired]:
        last = min(last, self._limit - 1)
        until_ms = now_ms + self.limits.lock_ms
        found: list[Acquired] = []

        def taken(run: InFlight) -> InFlight:
            then = NEXT[run.state, RecordEvent.ACQUIRED]
            return run._replace(
                state=then, deliveries=run.deliveries + 1, member=member, until_ms=until_ms
            )

        for run in self._overlapping(first, last):
            if run.state is RecordState.AVAILABLE:
                self._put(run.first, run.last, taken)
                found.append(Acquired(run.first, run.last, run.deliveries + 1))
        if self.end <= last:
            begin = self.end
            self._append(InFlight(begin, last, RecordState.ACQUIRED, 1, member, until_ms))
            found.append(Acquired(begin, last, 1))
        return found

    # -- what has become of them --------------------------------------------------------------

    def acknowledge(self, member: str, said: Sequence[Acknowledgement]) -> ErrorCode:
        """All of it counts, or nothing. What the log does not have any more is passed over, and so
        is the done with begin of what the member still holds the rest of. A batch that is done with
        as a whole is refused: another may have said so, and something else."""
        previous = -1
        for each in sorted(said, key=lambda one: one.first):
            error = self._check(member, each)
            if error is ErrorCode.NONE and each.first <= previous:
                error = ErrorCode.INVALID_REQUEST
            if error is not ErrorCode.NONE:
                return error
            previous = each.last
        for each in said:
            for first, last, kind in _typed(each, self.start):
                self._put(first, last, partial(self._said, event=EVENTS[kind]))
        if said:
            self.version += 1
            self._advance()
        return ErrorCode.NONE

    def _check(self, member: str, said: Acknowledgement) -> ErrorCode:
        first, last, types = said
        count = last - first + 1
        if first < 0 or count <= 0 or len(types) not in (1, count):
            return ErrorCode.INVALID_REQUEST
        if any(kind not in EVENTS for kind in types):
            return ErrorCode.INVALID_REQUEST
        if last < self._log_start:
            return ErrorCode.NONE
        first = max(first, self.start)
        if first > last or last >= self.end:
            return ErrorCode.INVALID_RECORD_STATE
        mine = (RecordState.ACQUIRED, member)
        if any((run.state, run.member) != mine for run in self._overlapping(first, last)):
            return ErrorCode.INVALID_RECORD_STATE
        return ErrorCode.NONE

    def _said(self, run: InFlight, event: RecordEvent) -> InFlight:
        if event is RecordEvent.RELEASED and run.deliveries >= self.limits.count_max:
            event = RecordEvent.GIVEN_UP
        return _after(run, event)

    def release(self, member: str, *, looked_at: bool) -> bool:
        """The member's session is over: what it holds is available. ``looked_at`` False: it has
        closed it in order, and the last delivery does not count. Returns whether it held
        something."""

        def back(run: InFlight) -> InFlight:
            if looked_at:
                return self._said(run, RecordEvent.RELEASED)
            return _after(run._replace(deliveries=run.deliveries - 1), RecordEvent.RELEASED)

        return self._back(lambda run: run.member == member, back)

    def expire(self, now_ms: int) -> bool:
        """Locks that are over are none any more. Returns whether there were such."""
        return self._back(
            lambda run: run.until_ms <= now_ms, lambda run: self._said(run, RecordEvent.RELEASED)
        )

    def _back(
        self, whose: Callable[[InFlight], bool], back: Callable[[InFlight], InFlight]
    ) -> bool:
        held = [run for run in self._runs if run.state is RecordState.ACQUIRED and whose(run)]
        for run in held:
            self._put(run.first, run.last, back)
        if held:
            self.version += 1
            self._advance()
        return bool(held)

    def move_start(self, log_start: int) -> None:
        """The log has nothing before that offset any more."""
        self._log_start = max(self._log_start, log_start)
        if log_start <= self.start:
            return
        self.version += 1
        self._runs = [
            run._replace(first=max(run.first, log_start))
            for run in self._runs
            if run.last >= log_start
        ]
        self.start, self.end = log_start, max(self.end, log_start)
        self._advance()

    # -- runs ---------------------------------------------------------------------------------

    def _overlapping(self, first: int, last: int) -> list[InFlight]:
        """Those parts of runs that lie in [first, last]."""
        found: list[InFlight] = []
        for run in self._runs[self._index(first) :]:
            if run.first > last:
                break
            found.append(run._replace(first=max(run.first, first), last=min(run.last, last)))
        return found

    def _index(self, offset: int) -> int:
        """The run that holds the offset, or the first one behind it."""
        return bisect_left(self._runs, offset, key=lambda run: run.last)

    def _put(self, first: int, last: int, change: Callable[[InFlight], InFlight]) -> None:
        """What lies in [first, last] becomes what ``change`` makes of it."""
        begin = self._index(first)
        pieces: list[InFlight] = []
        stop = begin
        while stop < len(self._runs) and self._runs[stop].first <= last:
            run = self._runs[stop]
            if run.first < first:
                pieces.append(run._replace(last=first - 1))
            inner = run._replace(first=max(run.first, first), last=min(run.last, last))
            pieces.append(change(inner))
            if run.last > last:
                pieces.append(run._replace(first=last + 1))
            stop += 1
        # With a neighbour at each side, which may have the same fate now.
        begin_with, stop_with = max(0, begin - 1), min(len(self._runs), stop + 1)
        around = [*self._runs[begin_with:begin], *pieces, *self._runs[stop:stop_with]]
        self._runs[begin_with:stop_with] = _merged(around)

    def _append(self, run: InFlight) -> None:
        assert run.first == self.end <= run.last, "runs have no gaps"
        self._runs[-1:] = _merged([*self._runs[-1:], run])
        self.end = run.last + 1

    def _advance(self) -> None:
        """``start`` goes over what is done with."""
        done = 0
        for run in self._runs:
            if run.state not in DONE:
                break
            done += 1
        if done:
            self.start = self._runs[done - 1].last + 1
            del self._runs[:done]


def _after(run: InFlight, event: RecordEvent) -> InFlight:
    return InFlight(run.first, run.last, NEXT[run.state, event], run.deliveries)


def _merged(runs: Iterable[InFlight]) -> list[InFlight]:
    found: list[InFlight] = []
    for run in runs:
        if found and found[-1].fate == run.fate:
            found[-1] = found[-1]._replace(last=run.last)
        else:
            found.append(run)
    return found


def _told(found: list[Acquired], piece: Acquired, batch_size: int) -> None:
    """Add it to the last one, if they go together."""
    if found:
        last = found[-1]
        size = piece.last - last.first + 1
        alike = last.deliveries == piece.deliveries and last.last + 1 == piece.first
        if alike and (batch_size <= 0 or size <= batch_size):
            found[-1] = last._replace(last=piece.last)
            return
    found.append(piece)


def _typed(said: Acknowledgement, start: int) -> Iterable[tuple[int, int, int]]:
    """``(first, last, type)`` of what lies at ``start`` or behind it, as few as possible."""
    first, last, types = said
    if len(types) == 1:
        if max(first, start) <= last:
            yield max(first, start), last, types[0]
        return
    begin = max(first, start)
    for offset in range(begin, last + 1):
        if offset == last or types[offset + 1 - first] != types[begin - first]:
            yield begin, offset, types[begin - first]
            begin = offset + 1
