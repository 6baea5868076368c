"""The quorum write machine: which entries of a ledger are confirmed, and what to send again.

It owns the count of one writer: ids pushed, acknowledgements of each *slot* (a place in the
ensemble), the last add confirmed (LAC), and whether an ensemble change is under way. It decides
only; ``writer`` sends, asks for replacements and writes metadata.

The transitions are data: ``TRANSITIONS`` below, shown in docs/machines.md.

Rules (BookKeeper's, see ADR 0040):

* Entry ``e`` goes to the slots ``(e + i) % E`` for ``i < Qw``. It is full with ``Qa``
  acknowledgements of bookies that are in the ensemble *now*; the LAC moves over full entries in
  order, without a gap.
* Nothing is confirmed between ``begin_change`` and its end, so that the new fragment starts
  exactly after the last confirmed entry: whatever is confirmed later is counted by bookies that
  the metadata names for it.
* Each slot has an *epoch*. A failure, a retry and a replacement begin another; answers carry the
  epoch of their request. Acknowledgements of a bookie that was replaced do not count; those of
  the current bookie do, however late: it holds the entry and the metadata names it. Failures of
  an older epoch are old news.
* Being fenced or refused never causes an ensemble change.

Cost: while every slot answers in order, a slot's acknowledgements are one number (its mark) and a
batch costs the same whatever its size. After an answer out of order, and with striping (E > Qw),
ids beyond the mark are kept in sets and the LAC is found entry by entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from magnetar.model.transitions import Transition, next_states


class WriteState(Enum):
    STEADY = "steady"
    CHANGING = "changing"
    STOPPED = "stopped"


class WriteEvent(Enum):
    PUSHED = "pushed"
    ACKNOWLEDGED = "acknowledged"
    FAILED_UNAVAILABLE = "failed (unavailable)"
    FAILED_FOR_GOOD = "failed (fenced, refused)"
    RETRIED = "retry"
    CHANGE_BEGUN = "begin_change"
    CHANGE_SUCCEEDED = "change_succeeded"
    CHANGE_ABANDONED = "change_abandoned"
    STOPPED = "stop"


_STOPPED_IN: Final = tuple[WriteEvent, ...](
    event for event in WriteEvent if event is not WriteEvent.CHANGE_BEGUN
)
"""What may still come in once the writer has stopped: a change that was begun ends, too."""

TRANSITIONS: Final[tuple[Transition[WriteState, WriteEvent], ...]] = (
    Transition(
        WriteState.STEADY, WriteEvent.PUSHED, WriteState.STEADY,
        "ids are given; sent to every slot that is up",
    ),
    Transition(
        WriteState.STEADY, WriteEvent.ACKNOWLEDGED, WriteState.STEADY,
        "counted; the LAC moves over the full prefix",
    ),
    Transition(
        WriteState.STEADY, WriteEvent.FAILED_UNAVAILABLE, WriteState.STEADY,
        "the slot goes down: replace its bookie, or try it again",
    ),
    Transition(
        WriteState.STEADY, WriteEvent.RETRIED, WriteState.STEADY,
        "the slot is up with the same bookie; what that has not acknowledged of the unconfirmed "
        "is sent again",
    ),
    Transition(
        WriteState.STEADY, WriteEvent.CHANGE_BEGUN, WriteState.CHANGING,
        "the new fragment begins at LAC + 1; confirming stops",
    ),
    Transition(
        WriteState.CHANGING, WriteEvent.PUSHED, WriteState.CHANGING,
        "ids are given; sent to every slot that is up",
    ),
    Transition(
        WriteState.CHANGING, WriteEvent.ACKNOWLEDGED, WriteState.CHANGING,
        "counted; nothing is confirmed",
    ),
    Transition(
        WriteState.CHANGING, WriteEvent.FAILED_UNAVAILABLE, WriteState.CHANGING,
        "the slot goes down: a matter for the next change",
    ),
    Transition(
        WriteState.CHANGING, WriteEvent.RETRIED, WriteState.CHANGING,
        "the slot is up with the same bookie, as when steady",
    ),
    Transition(
        WriteState.CHANGING, WriteEvent.CHANGE_SUCCEEDED, WriteState.STEADY,
        "acknowledgements of replaced slots are unset, all after the LAC is sent to them again, "
        "then the LAC moves",
    ),
    Transition(
        WriteState.CHANGING, WriteEvent.CHANGE_ABANDONED, WriteState.STEADY,
        "the store holds the old ensemble for certain; then the LAC moves",
    ),
    Transition(
        WriteState.STEADY, WriteEvent.CHANGE_ABANDONED, WriteState.STEADY,
        "nothing: no change was under way",
    ),
    *(
        Transition(state, event, WriteState.STOPPED, "nothing is confirmed any more")
        for state in (WriteState.STEADY, WriteState.CHANGING)
        for event in (WriteEvent.FAILED_FOR_GOOD, WriteEvent.STOPPED)
    ),
    *(
        Transition(WriteState.STOPPED, event, WriteState.STOPPED, "nothing is confirmed")
        for event in _STOPPED_IN
    ),
)  # fmt: skip
"""A change begins while steady only, and succeeds only when one was begun."""

_NEXT: Final = next_states(TRANSITIONS)


class FailureKind(Enum):
    UNAVAILABLE = "unavailable"  # the bookie failed; another may do
    FENCED = "fenced"  # a recovery has begun; this writer has lost the ledger
    REFUSED = "refused"  # every bookie would refuse: wrong key, bad request


class FailureVerdict(Enum):
    IGNORED = "ignored"  # of an older epoch, or the slot is down already
    CHANGE = "change"  # the slot is down: replace it or try it again
    STOP = "stop"  # every pending entry fails


class Resend(NamedTuple):
    """Send ``entry_ids`` to ``slot``; its answers belong to ``epoch``."""

    slot: int
    epoch: int
    entry_ids: Sequence[int]


class QuorumWrite:
    """One ledger's count of acknowledgements; see the module's text.

    ``last_add_confirmed`` and ``last_add_pushed`` are entry ids, -1 for none. ``first_lac`` is
    the LAC to start from: -1, or that of a ledger in recovery.
    """

    __slots__ = (
        "_ack_quorum",
        "_any_replaced",
        "_beyond",
        "_down",
        "_epochs",
        "_marks",
        "_scattered",
        "_since",
        "_size",
        "_uniform",
        "_write_quorum",
        "last_add_confirmed",
        "last_add_pushed",
        "state",
    )

    def __init__(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, first_lac: int = -1
    ) -> None:
        assert ensemble_size >= write_quorum >= ack_quorum >= 1
        self._size = ensemble_size
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self._uniform = ensemble_size == write_quorum
        self._marks = [first_lac] * ensemble_size  # all of its entries up to here are held
        self._beyond: list[set[int]] = [set() for _ in range(ensemble_size)]
        self._scattered = not self._uniform  # some slot has ids beyond its mark
        self._epochs = [0] * ensemble_size
        self._since = [0] * ensemble_size  # the epoch that the slot's bookie came with
        self._any_replaced = False  # whether ``_since`` says anything
        self._down = [False] * ensemble_size
        self.last_add_confirmed = first_lac
        self.last_add_pushed = first_lac
        self.state = WriteState.STEADY

    # -- events -------------------------------------------------------------------------------

    def pushed(self, count: int) -> int:
        """``count`` more entries; returns the id of the first."""
        first = self.last_add_pushed + 1
        self.last_add_pushed += count
        return first

    def acknowledged(self, slot: int, entry_ids: Sequence[int], epoch: int) -> int:
        """``slot`` holds ``entry_ids`` durably; returns the LAC, moved or not."""
        if not entry_ids or (self._any_replaced and epoch < self._since[slot]):
            return self.last_add_confirmed
        first, last = entry_ids[0], entry_ids[-1]
        assert last <= self.last_add_pushed
        marks = self._marks
        if (
            not self._scattered
            and first == marks[slot] + 1
            and (first == last or _consecutive(entry_ids))
        ):
            marks[slot] = last  # most answers by far come here: nothing else is touched
            if last > self.last_add_confirmed and self.state is WriteState.STEADY:
                self._advance_to_quorum()
            return self.last_add_confirmed
        self._record(slot, entry_ids)
        return self._advance()

    def failed(self, slot: int, epoch: int, kind: FailureKind) -> FailureVerdict:
        """An add to ``slot`` failed. The slot goes down as a whole, until it is tried again or
        replaced; further failures of the same epoch change nothing."""
        if self.state is WriteState.STOPPED:
            return FailureVerdict.IGNORED
        if kind is not FailureKind.UNAVAILABLE:
            self._enter(WriteEvent.FAILED_FOR_GOOD)
            return FailureVerdict.STOP
        if self._epochs[slot] != epoch or self._down[slot]:
            return FailureVerdict.IGNORED
        self._down[slot] = True
        self._epochs[slot] += 1
        return FailureVerdict.CHANGE

    def begin_change(self, slots: Iterable[int]) -> int:
        """Replacing the bookies of ``slots`` begins; returns the first entry id of the new
        fragment. Nothing is confirmed until the change has ended."""
        assert all(self._down[slot] for slot in slots), "only bookies that are down are replaced"
        self._enter(WriteEvent.CHANGE_BEGUN)
        return self.last_add_confirmed + 1

    def change_succeeded(self, slots: Iterable[int]) -> list[Resend]:
        """The metadata names other bookies for ``slots`` from LAC + 1 on; returns what to send
        to them. The LAC may have moved: look at ``last_add_confirmed``."""
        if self.state is WriteState.STOPPED:
            return []
        assert self.state is WriteState.CHANGING, "a change ends that was not begun"
        # Unset before confirming: what a replaced bookie acknowledged must not count for the
        # fragment whose metadata does not name it.
        resends = [self._replaced(slot) for slot in slots]
        self._enter(WriteEvent.CHANGE_SUCCEEDED)
        self._advance()
        return resends

    def change_abandoned(self) -> int:
        """The change did not happen, for certain. Returns the LAC, moved or not."""
        if self.state is WriteState.CHANGING:
            self._enter(WriteEvent.CHANGE_ABANDONED)
            self._advance()
        return self.last_add_confirmed

    def retry(self, slot: int) -> Resend:
        """Count on the same bookie in ``slot`` again; returns what it has not acknowledged of
        the unconfirmed entries. What it lacks below the LAC (ask ``lacking`` before) was confirmed
        without it and is no longer counted here."""
        assert self._down[slot]
        self._down[slot] = False
        self._epochs[slot] += 1
        mark = max(self._marks[slot], self.last_add_confirmed)
        self._marks[slot] = mark
        held = {entry_id for entry_id in self._beyond[slot] if entry_id > mark}
        self._beyond[slot] = held
        self._note_scattered()
        missing: Sequence[int] = self.stripe(slot, range(mark + 1, self.last_add_pushed + 1))
        if held:
            missing = [entry_id for entry_id in missing if entry_id not in held]
        return Resend(slot, self._epochs[slot], missing)

    def stop(self) -> None:
        """Nothing is confirmed any more. Idempotent."""
        self._enter(WriteEvent.STOPPED)

    def _enter(self, event: WriteEvent) -> None:
        """Take the next state from the table; events that change none do not pass here."""
        self.state = _NEXT[self.state, event]

    # -- questions ----------------------------------------------------------------------------

    def epoch(self, slot: int) -> int:
        return self._epochs[slot]

    def up(self, slot: int) -> bool:
        return not self._down[slot]

    def down_slots(self) -> list[int]:
        return [slot for slot, down in enumerate(self._down) if down]

    def mark(self, slot: int) -> int:
        """All entries of the slot up to this id are held (or confirmed without it)."""
        return self._marks[slot]

    def lacking(self, slot: int) -> range:
        """The confirmed entries that the slot's bookie is not known to hold, empty if there is
        none (else ids that are not its stripe, or that it acknowledged out of order, may be among
        them)."""
        unmarked = range(self._marks[slot] + 1, self.last_add_confirmed + 1)
        return unmarked if self._some_are_own(slot, unmarked) else range(0)

    def awaits(self, slot: int) -> bool:
        """Whether the slot has yet to acknowledge an entry that was pushed."""
        return self._some_are_own(slot, range(self._marks[slot] + 1, self.last_add_pushed + 1))

    def _some_are_own(self, slot: int, entry_ids: range) -> bool:
        """Whether the slot's stripe has some of them; a run of E ids has at least one."""
        return bool(self.stripe(slot, entry_ids[: self._size]))

    def stripe(self, slot: int, entry_ids: range) -> Sequence[int]:
        """Those of ``entry_ids`` whose write set has ``slot``."""
        if self._uniform:
            return entry_ids
        size, quorum = self._size, self._write_quorum
        return [entry_id for entry_id in entry_ids if (slot - entry_id) % size < quorum]

    # -- counting -----------------------------------------------------------------------------

    def _record(self, slot: int, entry_ids: Sequence[int]) -> None:
        """Count ids in any order; ids counted before change nothing."""
        mark, beyond, pushed = self._marks[slot], self._beyond[slot], self.last_add_pushed
        beyond.update(entry_id for entry_id in entry_ids if entry_id > mark)
        size, quorum = self._size, self._write_quorum
        following = mark + 1
        while following <= pushed:
            if following in beyond:
                beyond.remove(following)
            elif (slot - following) % size < quorum:
                break
            following += 1
        self._marks[slot] = following - 1
        self._note_scattered()

    def _note_scattered(self) -> None:
        self._scattered = not self._uniform or any(self._beyond)

    def _replaced(self, slot: int) -> Resend:
        self._marks[slot] = self.last_add_confirmed
        self._beyond[slot].clear()
        self._note_scattered()
        self._down[slot] = False
        self._epochs[slot] += 1
        self._since[slot] = self._epochs[slot]
        self._any_replaced = True
        unconfirmed = range(self.last_add_confirmed + 1, self.last_add_pushed + 1)
        return Resend(slot, self._epochs[slot], self.stripe(slot, unconfirmed))

    def _advance(self) -> int:
        """Move the LAC over the full prefix, unless an ensemble change is under way."""
        if self.state is WriteState.STEADY:
            if self._scattered:
                self._advance_by_entry()
            else:
                self._advance_to_quorum()
        return self.last_add_confirmed

    def _advance_to_quorum(self) -> None:
        full = sorted(self._marks)[-self._ack_quorum]
        if full > self.last_add_confirmed:
            self.last_add_confirmed = full

    def _advance_by_entry(self) -> None:
        entry_id = self.last_add_confirmed + 1
        while entry_id <= self.last_add_pushed and self._copies(entry_id) >= self._ack_quorum:
            entry_id += 1
        self.last_add_confirmed = entry_id - 1

    def _copies(self, entry_id: int) -> int:
        """How many current bookies are known to hold the entry."""
        copies = 0
        for i in range(self._write_quorum):
            slot = (entry_id + i) % self._size
            if entry_id <= self._marks[slot] or entry_id in self._beyond[slot]:
                copies += 1
        return copies


def _consecutive(entry_ids: Sequence[int]) -> bool:
    first, last = entry_ids[0], entry_ids[-1]
    if isinstance(entry_ids, range):
        return entry_ids.step == 1
    return list(entry_ids) == list(range(first, last + 1))
