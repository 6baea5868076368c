"""Which leader wrote what: the first offset of each leader epoch in a replica's log.

Owns the rule by which two replicas find the last offset up to which they agree. Pure.

Rules:

* Epochs and their first offsets both grow strictly. An epoch that begins where a later one does
  wrote nothing, and is forgotten.
* ``end_of(epoch)`` answers "how far may a log agree with mine whose last batch is of ``epoch``":
  the largest epoch here that is not later, and where it ends here. A high watermark says less: it
  trails, so that cutting there loses what the next leader already has, and keeping what is above
  keeps what it has not (KIP-101; the chain of steps over epochs that one side lacks is KIP-279's).

File ``leader-epoch-checkpoint``: version ``0``, the number of lines, then ``epoch first-offset``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

NO_EPOCH: Final = -1


class EpochStart(NamedTuple):
    epoch: int
    first_offset: int


class EpochEnd(NamedTuple):
    """``end_offset`` is exclusive; (-1, -1): nothing of that epoch or before it is known."""

    epoch: int
    end_offset: int


UNKNOWN_END: Final = EpochEnd(NO_EPOCH, -1)


class LeaderEpochs:
    """Of one replica's log."""

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self._starts: list[EpochStart] = []
        for start in starts:
            self.assign(*start)

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        return tuple(self._starts)

    @property
    def last(self) -> int:
        """The last epoch; -1: none."""
        return self._starts[-1].epoch if self._starts else NO_EPOCH

    def assign(self, epoch: int, first_offset: int) -> bool:
        """``epoch`` begins at ``first_offset``. False if that was known, or is of an older leader
        than the last."""
        if epoch <= self.last or first_offset < 0:
            return False
        self.truncate(first_offset)
        self._starts.append(EpochStart(epoch, first_offset))
        return True

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """See the head; ``log_end`` is this log's end."""
        starts = self._starts[:]  # the log's lane may trim them now: places would be of others
        if epoch < 0 or not starts or epoch > starts[-1].epoch:
            return UNKNOWN_END
        after = bisect_right(starts, epoch, key=lambda start: start.epoch)
        end = starts[after].first_offset if after < len(starts) else log_end
        # Before all that is known: the log begins later, and nothing older can be compared.
        return EpochEnd(starts[after - 1].epoch if after else epoch, end)

    def epoch_at(self, offset: int) -> int:
        """Of the batch at ``offset``; -1: not known."""
        starts = self._starts[:]
        after = bisect_right(starts, offset, key=lambda start: start.first_offset)
        return starts[after - 1].epoch if after else NO_EPOCH

    def truncate(self, end_offset: int) -> None:
        """The log ends there now."""
        while self._starts and self._starts[-1].first_offset >= end_offset:
            self._starts.pop()

    def trim(self, first_offset: int) -> None:
        """The log begins there now. Who wrote what is left stays known."""
        after = bisect_right(self._starts, first_offset, key=lambda start: start.first_offset)
        if after:
            epoch = self._starts[after - 1].epoch
            self._starts[:after] = [EpochStart(epoch, first_offset)]
