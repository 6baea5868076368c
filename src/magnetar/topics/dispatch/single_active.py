"""Exclusive and failover subscriptions: everything goes to one consumer, the *active* one. Pure.

It is the first in order of (priority level, name, arrival); on a partition, the one at index
``partition mod n`` among the n of the best level, so that partitions spread. Who should be active
is asked again whenever somebody came or left (``elect``). When that is another than the one who is,
the latter gets nothing more and nobody is active until the *delay* is over: acknowledgements on
their way arrive, and the next begins after them. Never two at once.

The transitions are data: ``TRANSITIONS`` below, shown in docs/machines.md. What is out is not kept:
all that matters of it lies after the cursor's mark-delete position.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Generic, NamedTuple

from magnetar.model.entry import Description, Entry
from magnetar.model.transitions import Transition, next_states
from magnetar.topics.dispatch.redelivery import Key
from magnetar.topics.dispatch.seats import Owner, Placed, PlacedRun, Seat, Seats


class Turn(Enum):
    NOBODY = "nobody is active"
    ACTIVE = "one is active"
    SWITCHING = "nobody is active until the delay is over"


class Event(Enum):
    NAMES_NOBODY = "election: nobody is there"
    NAMES_ACTIVE = "election: the one who is active"
    NAMES_OTHER = "election: one who is not active"
    ACTIVE_LEFT = "the active one leaves"
    DELAY_OVER = "the delay is over"


TRANSITIONS: Final[tuple[Transition[Turn, Event], ...]] = (
    Transition(Turn.NOBODY, Event.NAMES_NOBODY, Turn.NOBODY, "nothing"),
    Transition(
        Turn.NOBODY, Event.NAMES_OTHER, Turn.ACTIVE,
        "it is told; dispatch begins after the mark-delete position",
    ),
    Transition(Turn.NOBODY, Event.DELAY_OVER, Turn.NOBODY, "nothing: it was of an earlier switch"),
    Transition(Turn.ACTIVE, Event.NAMES_ACTIVE, Turn.ACTIVE, "nothing"),
    Transition(
        Turn.ACTIVE, Event.NAMES_OTHER, Turn.SWITCHING,
        "the one who was active is told and gets nothing more; the delay begins",
    ),
    Transition(Turn.ACTIVE, Event.ACTIVE_LEFT, Turn.NOBODY, "an election follows"),
    Transition(Turn.ACTIVE, Event.DELAY_OVER, Turn.ACTIVE, "nothing: it was of an earlier switch"),
    Transition(Turn.SWITCHING, Event.NAMES_NOBODY, Turn.SWITCHING, "nothing yet"),
    Transition(Turn.SWITCHING, Event.NAMES_OTHER, Turn.SWITCHING, "nothing yet"),
    Transition(Turn.SWITCHING, Event.DELAY_OVER, Turn.NOBODY, "an election follows"),
)  # fmt: skip

_NEXT: Final = next_states(TRANSITIONS)


class Change(NamedTuple, Generic[Owner]):
    """Who is active no longer (the delay begins), and who is from now on."""

    deposed: Seat[Owner] | None
    activated: Seat[Owner] | None


class SingleActive(Seats[Owner]):
    """See the module's text. ``partition``: of the topic, or -1."""

    def __init__(self, partition: int = -1) -> None:
        super().__init__()
        self.turn = Turn.NOBODY
        self.active: Seat[Owner] | None = None
        self._partition = partition

    def add(self, seat: Seat[Owner]) -> None:
        """``elect`` is to be called once the consumer may become active."""
        self._seat(seat)
        self.seats.sort(key=_rank)

    def remove(self, seat: Seat[Owner]) -> list[Key]:
        self.seats.remove(seat)
        if self.active is seat:
            self._go(Event.ACTIVE_LEFT)
            self.active = None
        return []

    # -- who is active ------------------------------------------------------------------------

    @property
    def chosen(self) -> Seat[Owner] | None:
        """Who is active, or is to be when the delay is over."""
        return self._named() if self.turn is Turn.SWITCHING else self.active

    def elect(self) -> Change[Owner]:
        """Somebody came or left: who is active now?"""
        named, active = self._named(), self.active
        if named is None:
            event = Event.NAMES_NOBODY
        else:
            event = Event.NAMES_ACTIVE if named is active else Event.NAMES_OTHER
        self._go(event)
        if event is not Event.NAMES_OTHER or self.turn is Turn.SWITCHING:
            deposed = active if event is Event.NAMES_OTHER else None
            self.active = None if deposed is not None else active
            return Change(deposed, None)
        self.active = named
        return Change(None, named)

    def delay_over(self) -> Change[Owner]:
        """The delay of a switch has passed."""
        switching = self.turn is Turn.SWITCHING
        self._go(Event.DELAY_OVER)
        return self.elect() if switching else Change(None, None)

    def _go(self, event: Event) -> None:
        self.turn = _NEXT[self.turn, event]

    def _named(self) -> Seat[Owner] | None:
        """Who should be active."""
        if not self.seats:
            return None
        best = [seat for seat in self.seats if seat.priority == self.seats[0].priority]
        return best[self._partition % len(best)] if self._partition >= 0 else best[0]

    # -- who gets what ------------------------------------------------------------------------

    def settle(self, keys: Sequence[Key]) -> bool:
        return False

    def take_back(self, seat: Seat[Owner], keys: Sequence[Key]) -> list[Key]:
        return []

    def is_full(self, seat: Seat[Owner]) -> bool:
        return False

    def room(self) -> int:
        seat = self.active
        return 0 if seat is None or seat.blocked or seat.permits <= 0 else seat.permits

    def place(self, entries: Sequence[Entry], descriptions: Sequence[Description]) -> Placed[Owner]:
        seat, total = self.active, len(entries)
        if seat is None or seat.blocked:
            return Placed((), range(total))
        before = permits = seat.permits
        stop = 0
        for description in descriptions:
            if permits <= 0:
                break
            permits -= description.messages
            stop += 1
        seat.permits = permits
        runs = (PlacedRun(seat, 0, stop, before - permits),) if stop else ()
        return Placed(runs, range(stop, total))


def _rank(seat: Seat[Owner]) -> tuple[int, str, int]:
    return (seat.priority, seat.name, seat.order)
