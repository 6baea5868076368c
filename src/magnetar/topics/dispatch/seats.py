"""What all machines of dispatch share: seats, runs, and the face that a subscription sees. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from magnetar.model.entry import Description, Entry
from magnetar.topics.dispatch.key_policy import KeyPolicy
from magnetar.topics.dispatch.redelivery import Key

Owner = TypeVar("Owner")


class Seat(Generic[Owner]):
    """A consumer as dispatch sees it. Only the machine at which it sits writes it.

    ``order`` is its arrival number there; ``blocked`` says that its connection takes no more now.
    ``out`` has what was placed and is not acknowledged (entry -> messages; shared subscriptions
    only) and ``unacked`` the sum of its messages. ``key_policy``: of a Key_Shared one.
    """

    __slots__ = (
        "blocked", "key_policy", "name", "order", "out", "owner", "permits", "priority", "unacked"
    )  # fmt: skip

    def __init__(
        self, owner: Owner, name: str, priority: int, key_policy: KeyPolicy | None = None
    ) -> None:
        self.owner = owner
        self.name = name
        self.priority = priority
        self.key_policy = key_policy
        self.order = 0
        self.permits = 0
        self.unacked = 0
        self.blocked = False
        self.out: dict[Key, int] = {}

    def leave(self) -> None:
        """It has left its machine for good: its owner, which has it, is not kept by it."""
        del self.owner


class PlacedRun(NamedTuple, Generic[Owner]):
    """Entries ``[start, stop)`` of what was to be placed, of ``messages`` together, go to
    ``seat``."""

    seat: Seat[Owner]
    start: int
    stop: int
    messages: int


class Placed(NamedTuple, Generic[Owner]):
    """Who gets what, in order, and the indexes of what nobody gets now, in order. ``grouped``: the
    entries that runs are of, where that is not what was to be placed."""

    runs: Sequence[PlacedRun[Owner]]
    left: Sequence[int]
    grouped: Sequence[Entry] | None = None


class Machine(Protocol[Owner]):
    """What subscriptions know of every machine."""

    @property
    def seats(self) -> Sequence[Seat[Owner]]: ...

    def add(self, seat: Seat[Owner]) -> None:
        """A consumer comes, after all that came before it."""
        ...

    def remove(self, seat: Seat[Owner]) -> list[Key]:
        """A consumer leaves; gives what was out at it."""
        ...

    def flow(self, seat: Seat[Owner], permits: int) -> None:
        """It takes ``permits`` more messages."""
        ...

    def set_blocked(self, seat: Seat[Owner], blocked: bool) -> None:
        """Its connection takes no more, or takes more again."""
        ...

    def settle(self, keys: Sequence[Key]) -> bool:
        """``keys`` are acknowledged, by whomever. True if a seat had no room for that reason and
        has some now."""
        ...

    def take_back(self, seat: Seat[Owner], keys: Sequence[Key]) -> list[Key]:
        """The consumer gives ``keys`` back, or all that is out at it if that is empty. Gives those
        that were out at it."""
        ...

    def is_full(self, seat: Seat[Owner]) -> bool:
        """Whether the consumer gets nothing until it acknowledges something."""
        ...

    def room(self) -> int:
        """How many messages could be placed now, counted up to ``ROOM_ENOUGH``."""
        ...

    def place(self, entries: Sequence[Entry], descriptions: Sequence[Description]) -> Placed[Owner]:
        """Who gets ``entries``, which are out at nobody; charges the seats."""
        ...


class Seats(Generic[Owner]):
    """The part of a machine that keeps seats."""

    def __init__(self) -> None:
        self.seats: list[Seat[Owner]] = []
        self._arrivals = 0

    def _seat(self, seat: Seat[Owner]) -> None:
        self._arrivals += 1
        seat.order = self._arrivals
        self.seats.append(seat)

    def flow(self, seat: Seat[Owner], permits: int) -> None:
        seat.permits += permits

    def set_blocked(self, seat: Seat[Owner], blocked: bool) -> None:
        seat.blocked = blocked
