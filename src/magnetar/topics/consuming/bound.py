"""A subscription that another broker serves, as its owner knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from magnetar.log.seam import Binding
from magnetar.model.ids import Position

GIVEN_BACK_S: Final = 5.0


class SeatsTaken(NamedTuple):
    """Who is connected to a subscription where it is served. ``kind``: a ``subscription.Kind``;
    ``taken_by``: the first of them."""

    kind: int
    consumers: int
    taken_by: str = ""


class BoundBroker(Protocol):
    """A connection of the broker that serves the subscription. What is told to one that is gone
    is lost; it is told all when it speaks again."""

    @property
    def connected(self) -> bool: ...

    def tell_ended(self, binding: Binding) -> None:
        """The binding is over."""
        ...

    def tell_wanted(self, binding: Binding) -> None:
        """It is to be given back, in order."""
        ...

    def tell_asked(self, binding: Binding) -> None:
        """It is to say whether it serves the subscription by this binding."""
        ...

    def tell_moved(self, binding: Binding, mark_delete: Position, reset_epoch: int) -> None:
        """Everything up to there is acknowledged, by what was done here, after so many resets: one
        that it has made since takes it back."""
        ...

    def tell_closed(self, service_url: str = "") -> None:
        """The topic closes here; what is to be said is said to its next owner."""
        ...


class BoundSubscription:
    """``now_s``: a clock that does not jump."""

    def __init__(self, binding: Binding, now_s: Callable[[], float]) -> None:
        self.binding = binding
        self.over = asyncio.Event()
        """The binding has ended, or another one has taken its place."""
        self._client: BoundBroker | None = None
        self._now_s = now_s
        self._heard_s = now_s()
        self._ask_seats: list[asyncio.Future[SeatsTaken]] = []
        self._news = asyncio.Event()
        """It has spoken, or it is over."""

    @property
    def client(self) -> BoundBroker | None:
        """By what it has spoken last; None: by nothing that is there."""
        client = self._client
        return client if client is not None and client.connected else None

    @property
    def silent_s(self) -> float:
        """Since when it has not spoken."""
        return self._now_s() - self._heard_s

    def heard(self, client: BoundBroker | None) -> None:
        """It has spoken, by that connection; None: it wants to hear no more."""
        self._client = client
        self._heard_s = self._now_s()
        self._news.set()

    def end(self) -> None:
        """The binding is over."""
        self.over.set()
        self._news.set()

    async def give_back(self) -> None:
        """Have it given back: until it is over, or has not been for ``GIVEN_BACK_S``; then whoever
        wants it takes it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVEN_BACK_S):
                await self._wait_given_back()

    async def _wait_given_back(self) -> None:
        """A broker whose connection broke just now serves on, and will be back: it is asked by each
        connection that it speaks by."""
        asked: BoundBroker | None = None
        while not self.over.is_set():
            self._news.clear()
            client = self.client
            if client is not None and client is not asked:
                client.tell_wanted(self.binding)
                asked = client
            await self._news.wait()

    def ask(self) -> None:
        """Have it say whether it serves the subscription."""
        if self.client is not None:
            self.client.tell_asked(self.binding)

    async def seats(self, within_s: float) -> SeatsTaken | None:
        """Who is connected there, as the broker says now; None if it says nothing in that time."""
        if self.client is None:
            return None
        told: asyncio.Future[SeatsTaken] = asyncio.get_running_loop().create_future()
        self._ask_seats.append(told)
        self.ask()
        try:
            async with asyncio.timeout(within_s):
                return await told
        except TimeoutError:
            self._ask_seats = [each for each in self._ask_seats if each is not told]
            return None

    def heard_seats(self, seats: SeatsTaken) -> None:
        """The broker has answered."""
        asked, self._ask_seats = self._ask_seats, []
        for told in asked:
            if not told.done():
                told.set_result(seats)

    def lost(self) -> bool:
        """Whether its connection is gone since somebody asked last."""
        if self._client is None or self._client.connected:
            return False
        self._client = None
        return True
