"""Ring 1: seeded runs of the ledger's machines hold every invariant, and planted bugs are found.

Each planted bug is a real one of the field, or the obvious way to get a rule wrong. A simulation
that does not find it would be no evidence.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from click.testing import CliRunner

from magnetar.ledger.writing.quorum_write import QuorumWrite, Resend
from magnetar_sim.__main__ import main
from magnetar_sim.machines.clients import Appender, Parts, Rewriter
from magnetar_sim.machines.ledger_run import run
from tests.sim.mutants.broken_machines import (
    ConfirmsDuringAChange,
    ConfirmsOutOfOrder,
    CountsReplacedBookies,
    DoesNotSendAgain,
    ForgetsWhatIsMissing,
    KeepsAcknowledgements,
    KeepsTheLatestOnly,
    OneCopyIsEnough,
    OneNegativeIsEnough,
    StartsInAnEarlierFragment,
    TruncatesOnUnknown,
)

SEEDS = 3000
PLANTED_SEEDS = 3000


def first_failure(parts: Parts, seeds: Iterable[int]) -> str | None:
    for seed in seeds:
        outcome = run(seed, parts)
        if outcome.failure is not None:
            return outcome.failure
    return None


def test_every_invariant_holds() -> None:
    outcomes = [run(seed) for seed in range(SEEDS)]
    failures = [f"seed {o.seed}: {o.failure}" for o in outcomes if o.failure is not None]
    assert not failures, failures[:3]
    # The runs are of some use: entries confirmed, ledgers recovered, ensembles changed.
    assert sum(o.confirmed for o in outcomes) > 10 * SEEDS
    assert sum(o.recoveries for o in outcomes) > SEEDS
    assert sum(o.fragments > 1 for o in outcomes) > SEEDS / 20


def test_a_recovery_that_dies_after_replacing_a_bookie_misleads_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rewrites went to a replacement that no metadata names. Had they told the LAC that it
    confirmed there, the next recovery would have begun behind them."""
    assert run(52452).failure is None
    monkeypatch.setattr(Rewriter, "lac_to_tell", Appender.lac_to_tell)
    assert "entry 10 is part of the closed ledger" in (run(52452).failure or "")


def test_a_seed_repeats_its_run_exactly() -> None:
    for seed in range(50):
        assert run(seed, tracing=True) == run(seed, tracing=True)
    assert run(1, tracing=True).trace != run(2, tracing=True).trace


PLANTED = {
    "confirms out of order": Parts(quorum_write=ConfirmsOutOfOrder),
    "counts replaced bookies": Parts(quorum_write=CountsReplacedBookies),
    "keeps acknowledgements": Parts(quorum_write=KeepsAcknowledgements),
    "confirms during a change": Parts(quorum_write=ConfirmsDuringAChange),
    "one copy is enough": Parts(quorum_write=OneCopyIsEnough),
    "does not send again": Parts(quorum_write=DoesNotSendAgain),
    "truncates on unknown": Parts(entry_vote=TruncatesOnUnknown),
    "one negative is enough": Parts(entry_vote=OneNegativeIsEnough),
    "starts in an earlier fragment": Parts(lac_coverage=StartsInAnEarlierFragment),
    "recovery reads do not fence": Parts(fencing_reads=False),
    "forgets what is missing": Parts(quorum_write=ForgetsWhatIsMissing),
    "keeps the latest only": Parts(missing_entries=KeepsTheLatestOnly),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    assert first_failure(PLANTED[name], range(PLANTED_SEEDS)) is not None


def test_what_a_machine_raises_fails_the_seed() -> None:
    class Broken(QuorumWrite):
        def change_succeeded(self, slots: Iterable[int]) -> list[Resend]:
            raise KeyError("a bug")

    assert first_failure(Parts(quorum_write=Broken), range(200)) == "KeyError: 'a bug'"


def test_the_command_tells_rates_and_repeats_a_seed() -> None:
    many = CliRunner().invoke(main, ["--first", "0", "--seeds", "20"])
    assert many.exit_code == 0
    assert "20 seeds from 0 held every invariant" in many.output
    assert "seeds/s" in many.output
    one = CliRunner().invoke(main, ["--seed", "7"])
    assert one.exit_code == 0
    assert "opens the ledger" in one.output
    assert one.output.endswith("fragments\n")


def test_the_command_names_a_failing_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = PLANTED["one copy is enough"]
    monkeypatch.setattr(
        "magnetar_sim.__main__.run", lambda seed, tracing: run(seed, broken, tracing)
    )
    told = CliRunner().invoke(main, ["--first", "0", "--seeds", "500"])
    assert told.exit_code == 1
    assert "repeat it with: make sim RING=1 SEED=" in told.output
