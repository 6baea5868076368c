"""Ring 1: the deciding machines, with one rule broken each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from magnetar_sim.machines import ledger_run
from magnetar_sim.machines.clients import Parts
from tests.sim.mutants.broken_machines import (
    ConfirmsDuringAChange,
    ConfirmsOutOfOrder,
    CountsReplacedBookies,
    DoesNotRotate,
    DoesNotSendAgain,
    ForgetsWhatIsMissing,
    GoesOnFenced,
    KeepsAcknowledgements,
    KeepsTheLatestOnly,
    OneCopyIsEnough,
    OneNegativeIsEnough,
    StartsInAnEarlierFragment,
    TruncatesOnUnknown,
)
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 5000


def _with_parts(parts: Parts) -> AbstractContextManager[None]:
    return replaced((ledger_run, "Parts", lambda: parts))


def _mutant(name: str, known: str, parts: Parts) -> Mutant:
    return Mutant(name, 1, known, partial(_with_parts, parts), SEEDS_MAX)


MACHINES = (
    _mutant("confirms over a hole", "rule 3", Parts(quorum_write=ConfirmsOutOfOrder)),
    _mutant(
        "late answers of a replaced bookie count",
        "rule 3",
        Parts(quorum_write=CountsReplacedBookies),
    ),
    _mutant(
        "a replaced slot keeps its acknowledgements",
        "#4097, #4651, rule 3",
        Parts(quorum_write=KeepsAcknowledgements),
    ),
    _mutant(
        "confirms during an ensemble change", "rule 3", Parts(quorum_write=ConfirmsDuringAChange)
    ),
    _mutant("one copy is enough", "rule 3", Parts(quorum_write=OneCopyIsEnough)),
    _mutant("does not send again after a change", "rule 4", Parts(quorum_write=DoesNotSendAgain)),
    _mutant("recovery takes silence for absence", "rule 7", Parts(entry_vote=TruncatesOnUnknown)),
    _mutant(
        "recovery takes one negative for proof", "rule 7", Parts(entry_vote=OneNegativeIsEnough)
    ),
    _mutant(
        "recovery starts in an earlier fragment",
        "#2615, rule 7",
        Parts(lac_coverage=StartsInAnEarlierFragment),
    ),
    _mutant("only LAC reads fence", "#2614, rule 7", Parts(fencing_reads=False)),
    _mutant("what a bookie missed is forgotten", "", Parts(quorum_write=ForgetsWhatIsMissing)),
    _mutant(
        "only the latest of what a bookie is missing is kept",
        "",
        Parts(missing_entries=KeepsTheLatestOnly),
    ),
    _mutant("write sets do not rotate", "rule 1", Parts(quorum_write=DoesNotRotate)),
    _mutant("a fenced writer looks for other bookies", "rule 4", Parts(quorum_write=GoesOnFenced)),
)
