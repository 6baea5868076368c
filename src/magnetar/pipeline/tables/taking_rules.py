"""Which ledgers of a log its table takes, and what a commit says of them. Pure.

Which ledgers are in a table is said by the table itself: a property for each partition of the
topic (``layout.TAKEN``) names the last one, and is written by the commit that adds the files. A
log's ledgers have growing ids and are taken in that order, so one number says it all.

Beside the number the property has what those ledgers hold that the log may not know of yet, so that
it can be told after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.log.seam import StoredAt, TakenLedger
from magnetar.model.errors import TableError
from magnetar.pipeline.losses import LedgerFacts
from magnetar.tables.layout import TAKEN, UNFIT

NOTHING: Final = -1
ROUND_BYTES: Final = 256 << 20
ROUND_LEDGERS: Final = 64
"""Of one commit."""


@dataclass(frozen=True)
class TakenUpTo:
    """Up to which ledger a log is in a table, and what the last ones hold. ``created_ms``: when
    that log was made (milliseconds since 1970), which tells it from that of a topic made anew; 0:
    not known."""

    ledger_id: int = NOTHING
    recent: tuple[TakenLedger, ...] = ()
    created_ms: int = 0

    def to_text(self) -> str:
        parts = {"ledger": self.ledger_id, "recent": [list(each) for each in self.recent]}
        return json.dumps(parts | ({"createdMs": self.created_ms} if self.created_ms else {}))

    @classmethod
    def from_text(cls, text: str) -> TakenUpTo:
        """Raises ``ValueError``, ``KeyError``, ``TypeError`` for what is none."""
        parts = json.loads(text)
        recent = tuple(TakenLedger(*each) for each in parts["recent"])
        found = cls(parts["ledger"], recent, parts.get("createdMs", 0))
        numbers = found.ledger_id, found.created_ms
        for number in (*numbers, *(part for each in found.recent for part in each)):
            if type(number) is not int:
                raise TypeError(f"{number!r} is no number")
        return found


def taken_up_to(properties: Mapping[str, str] | None, partition: str) -> TakenUpTo:
    """What a table's properties say; None: there is no table. Raises ``TableError``."""
    text = None if properties is None else properties.get(TAKEN + partition)
    if text is None:
        return TakenUpTo()
    try:
        return TakenUpTo.from_text(text)
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{partition}: property {TAKEN + partition} of its table says {text[:80]!r}, which "
            "names no ledgers; put back what it was, which older metadata of the table have, or "
            "run the release that wrote it"
        ) from error


class TableCommit(NamedTuple):
    """One commit to a table: it adds the files of these ledgers, and sets these properties."""

    ledger_ids: tuple[int, ...]
    properties: Mapping[str, str]


def made_anew(taken: TakenUpTo, created_ms: int) -> bool:
    """Whether a log that was made then is not the one that the table has taken."""
    return 0 not in (taken.created_ms, created_ms) and taken.created_ms != created_ms


def untold(taken: TakenUpTo, ledgers: Sequence[LedgerFacts]) -> list[TakenLedger]:
    """What the table has and the log's owner, who says ``ledgers``, does not know of."""
    waiting = {each.ledger_id for each in ledgers if each.closed and each.stored == StoredAt.LEDGER}
    return [each for each in taken.recent if each.ledger_id in waiting]


def forgotten(taken: TakenUpTo, ledgers: Sequence[LedgerFacts]) -> list[LedgerFacts]:
    """What the table has and the log's owner does not know of any more: the log was detached since
    it was told, or its record is older than that. The table does not say any more how much of
    these it has."""
    recent = {each.ledger_id for each in taken.recent}
    return [
        each
        for each in ledgers
        if each.closed
        and each.stored == StoredAt.LEDGER
        and each.ledger_id <= taken.ledger_id
        and each.ledger_id not in recent
    ]


def to_take(taken: TakenUpTo, ledgers: Sequence[LedgerFacts]) -> list[LedgerFacts]:
    """Closed ledgers that are not in the table, in order."""
    return [each for each in ledgers if each.closed and each.ledger_id > taken.ledger_id]


def rounds(ledgers: Sequence[LedgerFacts]) -> Iterator[list[LedgerFacts]]:
    """As many ledgers at a time as one commit takes."""
    found: list[LedgerFacts] = []
    for each in ledgers:
        found.append(each)
        if sum(one.stored_bytes for one in found) >= ROUND_BYTES or len(found) >= ROUND_LEDGERS:
            yield found
            found = []
    if found:
        yield found


def check_taken(partition: str, taken: TakenLedger, facts: LedgerFacts) -> None:
    """Raises ``TableError`` when what was read is not what the log's owner says."""
    if facts.messages and taken.messages != facts.messages:
        raise TableError(
            f"{partition}: the entries of ledger {facts.ledger_id} hold {taken.messages} messages, "
            f"and its log counts {facts.messages}; the ledger is not taken. Report it"
        )


def commit_of(
    partition: str,
    former: TakenUpTo,
    written: Sequence[TakenLedger],
    known: frozenset[int],
    unfit: Sequence[int] = (),
) -> TableCommit | None:
    """What puts ``written``, in order, into a table that has ``former``; None if all of it is in.
    ``known``: ledgers that the log's owner knows to be in it. ``unfit``: those of which something
    lies in the side table, for the commit to the main one: so that a side table that is gone is
    missed."""
    new = [each for each in written if each.ledger_id > former.ledger_id]
    if not new:
        return None
    recent = [each for each in former.recent if each.ledger_id not in known]
    now = TakenUpTo(new[-1].ledger_id, (*recent, *new), former.created_ms)
    properties = {TAKEN + partition: now.to_text()}
    if unfit:
        properties[UNFIT + partition] = TakenUpTo(unfit[-1]).to_text()
    return TableCommit(tuple(each.ledger_id for each in new), properties)
