"""The deciding machines with one rule broken each: what the simulator must find."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.ledger.mending.missing_entries import MissingEntries
from magnetar.ledger.recovering.recovery_plan import Decision, EntryVote, LacCoverage
from magnetar.ledger.writing.quorum_write import (
    FailureKind,
    FailureVerdict,
    QuorumWrite,
    Resend,
    WriteState,
)
from magnetar.model.ids import BookieId
from magnetar_sim.machines.bookies import Stored


class ConfirmsOutOfOrder(QuorumWrite):
    """The LAC jumps to any full entry, over holes before it."""

    def _advance_by_entry(self) -> None:
        for entry_id in range(self.last_add_confirmed + 1, self.last_add_pushed + 1):
            if self._copies(entry_id) >= self._ack_quorum:
                self.last_add_confirmed = entry_id


class CountsReplacedBookies(QuorumWrite):
    """Late answers of a bookie that was replaced count for the new one."""

    def acknowledged(self, slot: int, entry_ids: Sequence[int], epoch: int) -> int:
        return super().acknowledged(slot, entry_ids, self._epochs[slot])


class KeepsAcknowledgements(QuorumWrite):
    """A replaced slot keeps what its old bookie had acknowledged (BookKeeper #4097, #4651)."""

    def _replaced(self, slot: int) -> Resend:
        mark, beyond = self._marks[slot], set(self._beyond[slot])
        resend = super()._replaced(slot)
        self._marks[slot], self._beyond[slot] = max(mark, self.last_add_confirmed), beyond
        return resend


class ConfirmsDuringAChange(QuorumWrite):
    """The new fragment then begins at or below an entry confirmed by the old ensemble."""

    def _advance(self) -> int:
        if self.state is WriteState.CHANGING:
            self._advance_by_entry()
            return self.last_add_confirmed
        return super()._advance()


class OneCopyIsEnough(QuorumWrite):
    def __init__(self, size: int, write_quorum: int, ack_quorum: int, first_lac: int = -1) -> None:
        super().__init__(size, write_quorum, 1, first_lac)


class DoesNotRotate(QuorumWrite):
    """Every entry goes to the first bookies of an ensemble."""

    def stripe(self, slot: int, entry_ids: range) -> Sequence[int]:
        return entry_ids if slot < self._write_quorum else ()

    def _copies(self, entry_id: int) -> int:
        slots = range(self._write_quorum)
        return sum(entry_id <= self._marks[s] or entry_id in self._beyond[s] for s in slots)


class DoesNotSendAgain(QuorumWrite):
    def _replaced(self, slot: int) -> Resend:
        return super()._replaced(slot)._replace(entry_ids=())


class TruncatesOnUnknown(EntryVote[Stored]):
    """Silence is taken for "no such entry"."""

    def _conclude(self) -> Decision:
        decision = super()._conclude()
        return Decision.ABSENT if decision is Decision.UNKNOWN else decision


class OneNegativeIsEnough(EntryVote[Stored]):
    def __init__(self, write_quorum: int, ack_quorum: int) -> None:
        super().__init__(write_quorum, ack_quorum)
        self._needed = 1


class StartsInAnEarlierFragment(LacCoverage):
    """A fresh last fragment knows no LAC; recovery starts before it (BookKeeper #2615)."""

    def start_after(self, last_fragment_first_entry_id: int) -> int:
        return self.last_add_confirmed


class GoesOnFenced(QuorumWrite):
    """A bookie that is fenced is taken for one that is gone."""

    def failed(self, slot: int, epoch: int, kind: FailureKind) -> FailureVerdict:
        return super().failed(slot, epoch, FailureKind.UNAVAILABLE)


class ForgetsWhatIsMissing(QuorumWrite):
    """What was confirmed without a bookie is forgotten once it is tried again."""

    def lacking(self, slot: int) -> range:
        return range(0) if self._down[slot] else super().lacking(slot)


class KeepsTheLatestOnly(MissingEntries):
    """What a bookie is missing takes the place of what was noted before."""

    def add(self, bookie_id: BookieId, ledger_id: int, entry_ids: range) -> None:
        if entry_ids:
            self.copied(bookie_id, ledger_id, range(1 << 30))
        super().add(bookie_id, ledger_id, entry_ids)
