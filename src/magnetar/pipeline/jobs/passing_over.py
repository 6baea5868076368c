"""Jobs that go on past what is lost, as they are told, and say what they passed over.

A job that reads ends at the first loss: an entry of which no sound copy is left, what retention
deleted before it was read. With ``--fail-on-data-loss false``, the word of Spark's sources, it goes
on; its report has every loss (how much, of which topic, where), and is not ``ok``: somebody must
look at it, once. What could come back, as a bookie that has it is away, is no loss, and never
passed over.

Why: docs/adr/0211-jobs-pass-over-what-is-lost.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.pipeline.jobs.job import Report, option

LISTED_MAX: Final = 10_000


def loss_option() -> Any:
    """What every job has that reads messages."""
    return option(
        "Whether what is lost ends the job. With false it goes on behind that; the report says "
        "what was passed over, and the exit code is 1.",
        default=True,
    )


@dataclass
class PassedOver:
    """A loss: from which entry on, up to which where that is known. -1, 0: not known."""

    topic: str
    ledger_id: int = -1
    entry_id: int = -1
    last_entry_id: int = -1
    entries: int = 0
    messages: int = 0
    why: str = ""

    def __str__(self) -> str:
        where = self.topic
        if self.ledger_id >= 0:
            where += f" from {self.ledger_id}:{self.entry_id}"
        if self.last_entry_id > self.entry_id:
            where += f" to {self.ledger_id}:{self.last_entry_id}"
        count = f" ({self.messages:,} messages)" if self.messages else ""
        if not count and self.entries:
            count = f" (at least {self.entries:,} entries)"
        return f"{where}{count}: {self.why}"


@dataclass
class LossyReport(Report):
    """``losses``: that were passed over, ``lost_entries`` and ``lost_messages`` of them as far as
    they could be counted; ``passed``: which, the first of them."""

    losses: int = 0
    lost_entries: int = 0
    lost_messages: int = 0
    passed: list[PassedOver] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.losses

    def pass_over(self, found: PassedOver) -> None:
        self.losses += 1
        self.lost_entries += found.entries
        self.lost_messages += found.messages
        if len(self.passed) < LISTED_MAX:
            self.passed.append(found)

    def take_losses(self, other: LossyReport) -> None:
        """Those that another report has."""
        self.losses, self.passed = other.losses, other.passed
        self.lost_entries, self.lost_messages = other.lost_entries, other.lost_messages

    def loss_lines(self) -> Iterator[str]:
        for each in self.passed:
            yield f"LOST: {each}"
        if self.losses > len(self.passed):
            yield f"LOST: {self.losses - len(self.passed):,} more"
        if self.losses:
            yield (
                f"passed over: {self.losses:,} losses, {self.lost_entries:,} entries and "
                f"{self.lost_messages:,} messages as far as they could be counted"
            )


def of_row(row: Mapping[str, Any]) -> PassedOver:
    """What a row of the source's tells (``columns.lost_rows``), with its topic."""

    def number(name: str, absent: int) -> int:
        found = row.get(name)
        return absent if found is None else int(found)

    return PassedOver(
        row["topic"] or "",
        number("ledger_id", -1),
        number("entry_id", -1),
        -1,
        number("entries", 0),
        number("messages", 0),
        row["why"] or "",
    )
