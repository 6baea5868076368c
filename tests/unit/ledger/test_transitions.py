"""The tables of the machines say what the machines do: random walks against each table."""

from __future__ import annotations

import random
from collections.abc import Callable

from magnetar.ledger.recovering.recovery_plan import VOTE_RULES, Decision, EntryVote, Tally
from magnetar.ledger.writing.quorum_write import (
    TRANSITIONS,
    FailureKind,
    QuorumWrite,
    WriteEvent,
    WriteState,
)

STEPS = 20_000


class Walker:
    """Gives a quorum write machine events that its callers may give it."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.machine = QuorumWrite(3, 3, 2)
        self.changing: list[int] = []

    def _slot(self) -> int:
        return self.random.randrange(3)

    def _failed(self, kind: FailureKind) -> None:
        slot = self._slot()
        self.machine.failed(slot, self.machine.epoch(slot), kind)

    def _acknowledged(self) -> None:
        machine, slot = self.machine, self._slot()
        last = machine.last_add_pushed
        machine.acknowledged(slot, range(machine.mark(slot) + 1, last + 1), machine.epoch(slot))

    def _retried(self) -> bool:
        down = [slot for slot in self.machine.down_slots() if slot not in self.changing]
        if down:
            self.machine.retry(down[0])
        return bool(down)

    def _begin(self) -> bool:
        down = self.machine.down_slots()
        if self.machine.state is not WriteState.STEADY or not down:
            return False
        self.changing = down
        self.machine.begin_change(down)
        return True

    def _succeed(self) -> bool:
        if not self.changing:
            return False
        self.machine.change_succeeded(self.changing)
        self.changing = []
        return True

    def _abandon(self) -> None:
        self.machine.change_abandoned()
        self.changing = []

    def step(self) -> WriteEvent | None:
        """One random event; None if it was not possible now."""
        event = self.random.choice(list(WriteEvent))
        if event in (WriteEvent.STOPPED, WriteEvent.FAILED_FOR_GOOD) and self.random.random() < 0.8:
            return None  # else most walks end before they began
        steps: dict[WriteEvent, Callable[[], object]] = {
            WriteEvent.PUSHED: lambda: self.machine.pushed(1),
            WriteEvent.ACKNOWLEDGED: self._acknowledged,
            WriteEvent.FAILED_UNAVAILABLE: lambda: self._failed(FailureKind.UNAVAILABLE),
            WriteEvent.FAILED_FOR_GOOD: lambda: self._failed(FailureKind.FENCED),
            WriteEvent.RETRIED: self._retried,
            WriteEvent.CHANGE_BEGUN: self._begin,
            WriteEvent.CHANGE_SUCCEEDED: self._succeed,
            WriteEvent.CHANGE_ABANDONED: self._abandon,
            WriteEvent.STOPPED: self.machine.stop,
        }
        return None if steps[event]() is False else event


def test_a_quorum_write_does_what_its_table_says() -> None:
    random_ = random.Random(7)
    met: set[tuple[WriteState, WriteEvent, WriteState]] = set()
    walker = Walker(random_)
    for number in range(STEPS):
        if number % 60 == 0:
            walker = Walker(random_)
        before, confirmed = walker.machine.state, walker.machine.last_add_confirmed
        event = walker.step()
        if event is not None:
            met.add((before, event, walker.machine.state))
        if before is not WriteState.STEADY and walker.machine.state is before:
            assert walker.machine.last_add_confirmed == confirmed, "confirmed while not steady"
    assert met == {(line.state, line.event, line.following) for line in TRANSITIONS}


def _give(vote: EntryVote[str], kind: str) -> Decision:
    if kind == "copy":
        return vote.found("it")
    return vote.negative() if kind == "negative" else vote.unknown()


def test_votes_are_decided_as_the_rules_say() -> None:
    random_ = random.Random(11)
    met: set[Decision] = set()
    for _ in range(2_000):
        write_quorum = random_.randint(1, 5)
        ack_quorum = random_.randint(1, write_quorum)
        vote: EntryVote[str] = EntryVote(write_quorum, ack_quorum)
        copies = negatives = 0
        decided = Decision.PENDING
        for answers in range(1, write_quorum + 1):
            kind = random_.choice(("copy", "negative", "unknown"))
            copies += kind == "copy"
            negatives += kind == "negative"
            told = _give(vote, kind)
            if decided is Decision.PENDING:
                needed = write_quorum - ack_quorum + 1
                tally = Tally(copies, negatives, answers, needed, write_quorum)
                decided = next(rule.decision for rule in VOTE_RULES if rule.holds(tally))
            assert told is decided
            met.add(told)
    assert met == set(Decision)
