"""The taking of a partition, over a catalog and a broker in memory: ended at every step, and begun
again by another job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from magnetar.log.seam import StoredAt, TakenLedger
from magnetar.model.errors import TableError
from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.tables.partition_taking import at_once, take_partition
from magnetar.pipeline.tables.taking_rules import (
    TableCommit,
    TakenUpTo,
    commit_of,
    made_anew,
    rounds,
    taken_up_to,
)
from magnetar.tables.layout import TAKEN, UNFIT

PARTITION = "persistent://public/default/flights"
UNFIT_LEDGERS = (4, 6)
"""Something of them lies in the side table."""


class WrittenHere(NamedTuple):
    taken: TakenLedger
    side: Sequence[int]


@dataclass
class MemoryTable:
    properties: dict[str, str] = field(default_factory=dict)
    ledgers: list[int] = field(default_factory=list)


@dataclass
class Everything:
    """The broker, the catalog, and how many steps are left until the job ends."""

    ledgers: list[LedgerFacts]
    main: MemoryTable = field(default_factory=MemoryTable)
    side: MemoryTable = field(default_factory=MemoryTable)
    attached: bool = False
    told: dict[int, TakenLedger] = field(default_factory=dict)
    steps: int = 1000

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise TableError("the job ends here")


class MemoryPort:
    """Implements ``TakingPort``: what is done is done, and then the job may end."""

    def __init__(self, world: Everything) -> None:
        self._world = world

    async def tell(self, taken: Sequence[TakenLedger], *, attach: bool = False) -> None:
        world = self._world
        world.attached |= attach
        for each in taken:
            assert each.ledger_id in world.main.ledgers, "told before it is in the table"
            world.told[each.ledger_id] = each
        world.ledgers = [
            each._replace(stored=StoredAt.BOTH) if each.ledger_id in world.told else each
            for each in world.ledgers
        ]
        world.step()

    async def ask(self) -> Sequence[LedgerFacts]:
        assert self._world.attached
        return list(self._world.ledgers)

    async def write(self, ledgers: Sequence[LedgerFacts]) -> Sequence[WrittenHere]:
        return [
            WrittenHere(
                TakenLedger(each.ledger_id, each.entries, each.messages),
                [each.ledger_id] if each.ledger_id in UNFIT_LEDGERS else [],
            )
            for each in ledgers
        ]

    async def taken(self, *, side: bool) -> TakenUpTo:
        table = self._world.side if side else self._world.main
        return taken_up_to(table.properties, PARTITION)

    async def commit(
        self, commit: TableCommit, written: Sequence[WrittenHere], *, side: bool
    ) -> None:
        table = self._world.side if side else self._world.main
        table.properties.update(commit.properties)
        having = {each.taken.ledger_id for each in written if each.side or not side}
        table.ledgers += [each for each in commit.ledger_ids if each in having]
        self._world.step()

    async def check_has(self, ledger: LedgerFacts) -> None:
        if ledger.ledger_id not in self._world.main.ledgers:
            raise TableError(f"ledger {ledger.ledger_id} is of another log")

    async def look(self) -> None:
        self._world.step()


def facts(ledger_id: int, closed: bool = True, messages: int = 5) -> LedgerFacts:
    return LedgerFacts(ledger_id, 3, 100, closed, messages=messages)


def world() -> Everything:
    return Everything([facts(2), facts(4), facts(6), facts(7), facts(9, closed=False)])


def take(everything: Everything) -> list[int]:
    took: list[int] = []

    def note(written: Sequence[WrittenHere]) -> None:
        took.extend(each.taken.ledger_id for each in written)

    at_once(take_partition(MemoryPort(everything), PARTITION, lambda: False, note))
    return took


def test_closed_ledgers_are_taken_and_told_in_order() -> None:
    everything = world()
    assert take(everything) == [2, 4, 6, 7]
    assert everything.main.ledgers == [2, 4, 6, 7]
    assert everything.side.ledgers == [4, 6]
    assert [*everything.told] == [2, 4, 6, 7]
    assert taken_up_to(everything.main.properties, PARTITION).ledger_id == 7
    assert TakenUpTo.from_text(everything.main.properties[UNFIT + PARTITION]).ledger_id == 6
    assert take(everything) == []


def test_what_an_owner_has_forgotten_is_told_again() -> None:
    """It was detached: all but the last ledgers waited for ever for a table that had them."""
    everything = world()
    take(everything)
    everything.ledgers = world().ledgers
    everything.told = {}
    assert take(everything) == []
    assert sorted(everything.told) == [2, 4, 6, 7]


def test_ledgers_of_another_log_are_not_told() -> None:
    """Those of a cluster that was made anew have the ids of the former one's."""
    everything = world()
    take(everything)
    everything.ledgers = [facts(1), *world().ledgers]
    everything.told = {}
    with pytest.raises(TableError, match="ledger 1 is of another log"):
        take(everything)
    assert not everything.told


@pytest.mark.parametrize("ledgers_of_a_round", [1, 2, 64])
def test_a_job_that_ends_anywhere_takes_nothing_twice(
    ledgers_of_a_round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.pipeline.tables.taking_rules.ROUND_LEDGERS", ledgers_of_a_round)
    ends = 0
    for steps in range(100):
        everything = world()
        everything.steps = steps
        try:
            take(everything)
        except TableError:
            ends += 1
        else:
            break
        everything.steps = 1000
        everything.ledgers.append(facts(11))
        take(everything)
        assert everything.main.ledgers == [2, 4, 6, 7, 11]
        assert everything.side.ledgers == [4, 6]
        assert sorted(everything.told) == [2, 4, 6, 7, 11]
    assert ends >= 5


def test_what_owners_do_not_know_stays_named_until_they_do() -> None:
    former = TakenUpTo(4, (TakenLedger(2, 3, 5), TakenLedger(4, 3, 5)))
    commit = commit_of(PARTITION, former, [TakenLedger(6, 3, 5)], frozenset((2,)))
    assert commit is not None
    now = TakenUpTo.from_text(commit.properties[TAKEN + PARTITION])
    assert (now.ledger_id, [each.ledger_id for each in now.recent]) == (6, [4, 6])
    assert commit_of(PARTITION, now, [TakenLedger(6, 3, 5)], frozenset()) is None


@pytest.mark.parametrize("messages", [4, 40])
def test_a_ledger_that_does_not_agree_with_its_log_is_not_taken(messages: int) -> None:
    everything = world()

    class Other(MemoryPort):
        async def write(self, ledgers: Sequence[LedgerFacts]) -> Sequence[WrittenHere]:
            found = await super().write(ledgers)
            return [each._replace(taken=each.taken._replace(messages=messages)) for each in found]

    with pytest.raises(TableError, match=f"hold {messages} messages"):
        at_once(take_partition(Other(everything), PARTITION, lambda: False, lambda _: None))
    assert everything.main.ledgers == []


def test_a_log_is_another_only_where_both_say_when_it_was_made() -> None:
    """Tables of before that was kept say nothing of it, and go on."""
    taken = TakenUpTo(4, (), created_ms=7)
    assert [made_anew(taken, created_ms) for created_ms in (7, 8, 0)] == [False, True, False]
    assert not made_anew(TakenUpTo(4), 8)


def test_rounds_are_bounded() -> None:
    large = [facts(each)._replace(stored_bytes=200 << 20) for each in range(5)]
    assert [len(each) for each in rounds(large)] == [2, 2, 1]
    assert [len(each) for each in rounds([facts(each) for each in range(130)])] == [64, 64, 2]
    assert [*rounds([])] == []


def test_a_port_of_a_job_waits_for_no_loop() -> None:
    async def waits() -> Mapping[str, str]:
        await asyncio.sleep(0)
        return {}

    with pytest.raises(AssertionError, match="waits for nothing"):
        at_once(waits())
