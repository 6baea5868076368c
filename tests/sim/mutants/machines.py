"""Ring 1: the deciding machines, with one rule broken each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

from magnetar.ledger.quorum_write import QuorumWrite, Resend, WriteState
from magnetar.ledger.recovery_plan import Decision, EntryVote, LacCoverage
from magnetar.sim import ledger_run
from magnetar.sim.bookies import Stored
from magnetar.sim.clients import Parts
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 5000


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
    """A replaced slot keeps what its old bookie had acknowledged."""

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
    """A fresh last fragment knows no LAC; recovery starts before it."""

    def start_after(self, last_fragment_first_entry_id: int) -> int:
        return self.last_add_confirmed


def _with_parts(parts: Parts) -> AbstractContextManager[None]:
    return replaced((ledger_run, "Parts", lambda: parts))


def _mutant(name: str, known: str, parts: Parts) -> Mutant:
    return Mutant(name, 1, known, partial(_with_parts, parts), SEEDS_MAX)


MACHINES = (
    _mutant("confirms over a hole", "", Parts(quorum_write=ConfirmsOutOfOrder)),
    _mutant(
        "late answers of a replaced bookie count", "", Parts(quorum_write=CountsReplacedBookies)
    ),
    _mutant(
        "a replaced slot keeps its acknowledgements",
        "#4097, #4651",
        Parts(quorum_write=KeepsAcknowledgements),
    ),
    _mutant("confirms during an ensemble change", "", Parts(quorum_write=ConfirmsDuringAChange)),
    _mutant("one copy is enough", "", Parts(quorum_write=OneCopyIsEnough)),
    _mutant("does not send again after a change", "", Parts(quorum_write=DoesNotSendAgain)),
    _mutant("recovery takes silence for absence", "", Parts(entry_vote=TruncatesOnUnknown)),
    _mutant("recovery takes one negative for proof", "", Parts(entry_vote=OneNegativeIsEnough)),
    _mutant(
        "recovery starts in an earlier fragment",
        "#2615",
        Parts(lac_coverage=StartsInAnEarlierFragment),
    ),
    _mutant("only LAC reads fence", "#2614", Parts(fencing_reads=False)),
)
