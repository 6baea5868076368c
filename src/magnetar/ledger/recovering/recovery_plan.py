"""What a recovery may conclude from the answers of bookies: where to start, where the ledger ends.

Decides only; ``recovery`` asks the bookies and writes entries again.

Rules (BookKeeper's, see ADR 0041). An entry that was acknowledged is on at least ``Qa`` of its
``Qw`` bookies, so among any ``(Qw - Qa) + 1`` of them one holds it.

* Fencing is enough, and the highest last add confirmed is known, once every write set has
  ``(Qw - Qa) + 1`` answers (``LacCoverage``): no entry can reach its ack quorum any more without
  passing a fenced bookie.
* Reading starts after max(LACs told, first id of the last fragment - 1): everything before the
  last fragment was confirmed before it was begun, even if its own bookies know of nothing yet.
* One copy of an entry is enough to keep it. Only ``(Qw - Qa) + 1`` explicit negatives ("I hold
  no such entry, and am fenced") prove that it was never acknowledged. Silence, a disk error and a
  corrupt copy are "unknown": they prove nothing, and a scan that has only them stops without
  truncating (``EntryVote``).
* The ledger ends before the first entry proven absent (``RecoveryScan``); entries beyond a hole
  were never acknowledged and are dropped.
* Many entries are voted on at once (``VotingWindow``), and a bookie answers for a run of them, but
  a run says "no" of its first entry only: each of the others is asked for again.

How an entry's vote is decided is data: ``VOTE_RULES`` below, shown in docs/machines.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from magnetar.model.ids import NO_ENTRY, BookieId
from magnetar.model.ledger import LedgerMetadata

T = TypeVar("T")


class Decision(Enum):
    PENDING = "pending"
    FOUND = "found"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Tally(NamedTuple):
    """The answers to an entry's vote so far."""

    copies: int
    negatives: int
    answers: int
    negatives_needed: int
    write_quorum: int


class VoteRule(NamedTuple):
    """``decision`` stands when ``holds``; of several rules the first counts."""

    when: str
    holds: Callable[[Tally], bool]
    decision: Decision


VOTE_RULES: Final = (
    VoteRule("a sound copy", lambda tally: tally.copies > 0, Decision.FOUND),
    VoteRule(
        "no copy, (Qw - Qa) + 1 negatives",
        lambda tally: tally.negatives >= tally.negatives_needed,
        Decision.ABSENT,
    ),
    VoteRule(
        "no copy, too few negatives, all Qw bookies answered or failed",
        lambda tally: tally.answers == tally.write_quorum,
        Decision.UNKNOWN,
    ),
    VoteRule("otherwise", lambda _: True, Decision.PENDING),
)
"""One copy decides at once. An entry is never called absent for lack of answers: a bookie that is
silent may be the one that holds it."""


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """The answers out of a write set that surely include a holder of an acknowledged entry."""
    return write_quorum - ack_quorum + 1


class LacCoverage:
    """Collects the answers of the last fragment's bookies to a (fencing) LAC read."""

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._size = ensemble_size
        self._write_quorum = write_quorum
        self._needed = negatives_needed(write_quorum, ack_quorum)
        self._answered: list[bool | None] = [None] * ensemble_size
        self.last_add_confirmed = NO_ENTRY

    def answered(self, slot: int, last_add_confirmed: int = NO_ENTRY) -> None:
        """The bookie in ``slot`` told its LAC, or that it holds nothing of the ledger (-1)."""
        self._answered[slot] = True
        self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)

    def unknown(self, slot: int) -> None:
        """The bookie in ``slot`` did not answer, or not soundly."""
        self._answered[slot] = False

    @property
    def covered(self) -> bool:
        """Whether every write set has answered enough."""
        return self._every_write_set(lambda answer: answer is True)

    @property
    def possible(self) -> bool:
        """Whether the answers still to come may cover every write set."""
        return self._every_write_set(lambda answer: answer is not False)

    def start_after(self, last_fragment_first_entry_id: int) -> int:
        """The entry id after which to read: known to be confirmed, or -1."""
        return max(self.last_add_confirmed, last_fragment_first_entry_id - 1)

    def _every_write_set(self, counts: Callable[[bool | None], bool]) -> bool:
        good = [counts(answer) for answer in self._answered]
        return all(
            sum(good[(first + i) % self._size] for i in range(self._write_quorum)) >= self._needed
            for first in range(self._size)
        )


class EntryVote(Generic[T]):
    """The answers of one entry's write set to a fencing read; ``copy`` is the first one found."""

    __slots__ = ("_answers", "_needed", "_negatives", "_write_quorum", "copy", "decision")

    def __init__(self, write_quorum: int, ack_quorum: int) -> None:
        self._write_quorum = write_quorum
        self._needed = negatives_needed(write_quorum, ack_quorum)
        self._negatives = 0
        self._answers = 0
        self.copy: T | None = None
        self.decision = Decision.PENDING

    def found(self, copy: T) -> Decision:
        """A bookie holds a sound copy."""
        if self.decision is Decision.PENDING:
            self.copy = copy
        return self._answered()

    def negative(self) -> Decision:
        """A bookie is certain that it holds no such entry; it is fenced, so it never will."""
        self._negatives += 1
        return self._answered()

    def unknown(self) -> Decision:
        """A bookie did not answer, or not soundly."""
        return self._answered()

    def _answered(self) -> Decision:
        self._answers += 1
        if self.decision is Decision.PENDING:
            self.decision = self._conclude()
        return self.decision

    def _conclude(self) -> Decision:
        copies = 0 if self.copy is None else 1
        tally = Tally(copies, self._negatives, self._answers, self._needed, self._write_quorum)
        return next(rule.decision for rule in VOTE_RULES if rule.holds(tally))


class RecoveryScan(Generic[T]):
    """Takes the decisions of entries read ahead in the order of the ledger.

    ``next_entry_id`` is the first entry without its turn yet. ``end`` is the last entry of the
    ledger once known. ``blocked_at`` is the entry whose fate cannot be known now: the recovery
    must stop without closing.
    """

    def __init__(self, start_after: int) -> None:
        self.next_entry_id = start_after + 1
        self.end: int | None = None
        self.blocked_at: int | None = None

    @property
    def finished(self) -> bool:
        return self.end is not None or self.blocked_at is not None

    def decided(self, votes: Iterable[EntryVote[T]]) -> list[T]:
        """``votes`` are those of the entries from ``next_entry_id`` on. Returns the copies, in
        order, whose turn has come and which are to be written again: up to the first entry that
        is pending, or that ends the scan."""
        copies: list[T] = []
        for vote in votes:
            if self.finished or vote.decision is Decision.PENDING:
                break
            self._take_turn(vote, copies)
        return copies

    def _take_turn(self, vote: EntryVote[T], copies: list[T]) -> None:
        if vote.decision is Decision.FOUND:
            assert vote.copy is not None
            copies.append(vote.copy)
            self.next_entry_id += 1
        elif vote.decision is Decision.ABSENT:
            self.end = self.next_entry_id - 1
        else:
            self.blocked_at = self.next_entry_id


class VotingWindow(Generic[T]):
    """The next entries of a scan, voted on at once: bookies answer in runs, in any order.

    ``entry_ids`` are the entries; the window is ``finished`` when each has had its turn, or the
    scan needs none of them any more.
    """

    def __init__(
        self, scan: RecoveryScan[T], count: int, write_quorum: int, ack_quorum: int
    ) -> None:
        first = scan.next_entry_id
        self.entry_ids = range(first, first + count)
        self._scan = scan
        self._votes: list[EntryVote[T]] = [
            EntryVote(write_quorum, ack_quorum) for _ in self.entry_ids
        ]

    @property
    def finished(self) -> bool:
        return self._scan.finished or self._scan.next_entry_id == self.entry_ids.stop

    def vote(self, entry_id: int) -> EntryVote[T]:
        return self._votes[entry_id - self.entry_ids.start]

    def first_pending(self, entry_ids: range) -> int:
        """The first of ``entry_ids`` (of the window) that is not decided; their end if all are."""
        for entry_id in entry_ids:
            if self.vote(entry_id).decision is Decision.PENDING:
                return entry_id
        return entry_ids.stop

    def take_turns(self) -> list[T]:
        """Hand the scan what is decided; returns the copies whose turn has come."""
        begin = self._scan.next_entry_id - self.entry_ids.start
        return self._scan.decided(islice(self._votes, begin, None))


def runs_of(metadata: LedgerMetadata, entry_ids: range) -> dict[BookieId, list[range]]:
    """Whom to ask for which of ``entry_ids``: of each bookie the runs of consecutive ids that it
    was to get. Where every bookie gets every entry that is one run."""
    found: dict[BookieId, list[range]] = {}
    for entry_id in entry_ids:
        for bookie_id in metadata.write_set(entry_id):
            runs = found.setdefault(bookie_id, [])
            if runs and runs[-1].stop == entry_id:
                runs[-1] = range(runs[-1].start, entry_id + 1)
            else:
                runs.append(range(entry_id, entry_id + 1))
    return found
