"""``magnetar ledger verify``: what is run, and what an end before the end says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.cli.copies import _Verifying
from magnetar.cli.main import run
from magnetar.model.errors import MetadataError
from magnetar.model.ids import BookieId
from magnetar.repair.insight.faults import Fault, Finding
from magnetar.repair.insight.verifying import Mended, Verified

METADATA = ("--metadata", "zk://127.0.0.1:1/none")


class Insight:
    """Ledger 7 lacks a copy; ``fails_at`` raises; at most so many are verified at a time."""

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at
        self.order: list[int] = []
        self.at_once = 0
        self.most_at_once = 0
        self.mended: list[int] = []

    def verifier(self, bytes_per_s: int, told: Callable[[int, int], None]) -> Insight:
        return self

    def copier(self, bytes_per_s: int) -> object:
        return object()

    async def mark(self, ledger_id: int, bookies: Any) -> None:
        raise AssertionError("the verifier is a double")

    async def verify(self, ledger_id: int) -> Verified:
        self.order.append(ledger_id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if ledger_id == self.fails_at:
            raise MetadataError("the store is away")
        found = Verified(ledger_id, entries=10, copies=30, byte_count=300)
        if ledger_id == 7:
            why = "it does not list it"
            found.findings.append(Finding(range(4, 6), BookieId("b1"), Fault.MISSING, why))
        return found

    async def mend(self, found: Verified, copier: Any, mark: Any) -> Mended:
        self.mended.append(found.ledger_id)
        return Mended(0, (BookieId("b1"),), ())


def verified(insight: Insight, ledgers: int, repair: bool = False) -> dict[str, Any]:
    return asyncio.run(_Verifying(insight, range(ledgers), 3, 0, repair, True).run())


def test_so_many_at_a_time_in_order_and_all_is_summed_up() -> None:
    insight = Insight()
    told = verified(insight, 20)
    assert insight.order == [*range(20)]
    assert insight.most_at_once == 3
    assert (told["ledgers"], told["copies"], told["sound"]) == (20, 600, False)
    assert [(e["ledgerId"], e["firstEntryId"], e["lastEntryId"]) for e in told["findings"]] == [
        (7, 4, 5)
    ]
    assert insight.mended == []


def test_with_repair_what_was_found_is_mended() -> None:
    insight = Insight()
    told = verified(insight, 20, repair=True)
    assert insight.mended == [7]
    assert told["marked"] == [{"ledgerId": 7, "bookies": ["b1"]}]


def test_one_that_ends_early_says_where_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MetadataError):
        verified(Insight(fails_at=12), 20)
    assert "go on with --from 12" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give the ids of ledgers, or --all"),
        (("1", "--all"), "give the ids of ledgers, or --all"),
        (("1", "--rate", "fast"), "as 20MiB"),
        (("1", "--rate", "-5"), "as 20MiB"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ledger", "verify", *arguments, *METADATA]) == 2
    assert words in capsys.readouterr().err
