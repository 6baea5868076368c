"""Ring 2 with auto-recovery: what such runs are to meet really happens, and all of it holds."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

from magnetar.metrics import Metrics
from magnetar.repair.marks import Lock, ShortageMarks
from magnetar_sim.cluster_run import run_cluster

MET = (
    "bookies lost", "ledgers marked", "fragments repaired", "ledgers declared whole",
    "auto-recoveries killed", "bad moments: a lock is taken", "bad moments: a ledger is marked",
    "bad moments: entries are added", "bad moments: the metadata of a ledger is written",
    "bookies that fall silent", "bookies told to leave", "looks that are out of date",
    "bookies chosen while they give up", "ledgers given up",
)  # fmt: skip


def test_everything_happens_and_every_invariant_holds() -> None:
    metrics, met = Metrics(), Counter[str]()
    for seed in range(40):
        outcome = run_cluster(seed, metrics, kind="repaired")
        assert outcome.failure is None, f"seed {seed}"
        met.update(outcome.happened)
    assert [what for what in MET if not met[what]] == []


def test_nothing_rests_on_locks() -> None:
    """They save work; a session may end while its holder goes on. (But for who takes marks away:
    these seeds do not meet the moment that the lock is for.)"""

    async def granted(self: ShortageMarks, ledger_id: int, holder: str) -> Lock:
        return Lock(ledger_id, holder, await self._sessions.session_id())

    metrics = Metrics()
    with patch.object(ShortageMarks, "lock", granted):
        for seed in range(100, 115):
            outcome = run_cluster(seed, metrics, kind="repaired")
            assert outcome.failure is None, f"seed {seed}"


def test_an_auditor_that_heard_nobody_asks_again() -> None:
    """It gave up each time before it had asked, and there was no other."""
    outcome = run_cluster(2_000_052, kind="repaired")
    assert outcome.failure is None


def test_what_a_bookie_holds_is_asked_when_it_is_back() -> None:
    """One that was down when all had healed was believed, and lacked an entry for a moment more."""
    outcome = run_cluster(20261123000117, kind="repaired")
    assert outcome.failure is None


def test_a_run_follows_from_its_seed() -> None:
    first, again = (run_cluster(7, kind="repaired").digest for _ in range(2))
    assert first == again
