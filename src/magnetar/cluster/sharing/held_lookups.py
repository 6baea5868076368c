"""Lookups by those who will connect to what they are told: an owner that is gone is not named.

A broker that was killed owns its bundles, and leads logs, until its session ends. A client that is
told its address meanwhile is refused there, and waits longer after each try, so that it still waits
when its topics have long been served by others. So does one that is told that nobody leads a log
just now, and Java's and C++'s close the connection with all that is on it, whatever it was about.
The question is answered when it can be: the bundle has moved, the log has another leader, or the
owner is back. Not later than ``HELD_S``, which is less than clients wait for an answer; and no more
than ``HELD_MAX`` wait at a time. Past these it is told as it is.

A broker that is chosen to take a bundle and is gone is not named either: another one is chosen
(``sharing``, by ``Reach.gone``).

Why: docs/adr/0098-lookups-wait-for-an-owner.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeAlias

from magnetar.cluster.ownership import At, Owner, WhileHeld
from magnetar.cluster.topic_name import TopicName

HELD_S: Final = 15.0
HELD_MAX: Final = 20_000
"""A few kB each."""


LOOK_S: Final = 1.0
"""While nobody serves a topic it is looked this often: whoever is about to may have registered
since."""

Gone: TypeAlias = "asyncio.Future[None] | None"
Locate: TypeAlias = Callable[[TopicName, bool], Awaitable[Owner | None]]


class HeldLookups:
    """See the module's text. ``locate``: as ``Ownership.locate``; None: nobody serves it just now.
    ``place``: under what ``moved`` tells that it has another owner. ``find_gone``: as of
    ``Reach``."""

    def __init__(
        self,
        locate: Locate,
        place: Callable[[TopicName], Awaitable[Hashable]],
        find_gone: Callable[[str], Awaitable[Gone]],
    ) -> None:
        self._locate = locate
        self._place = place
        self._find_gone = find_gone
        self._moves: dict[Hashable, asyncio.Future[None]] = {}
        self._held = 0

    def moved(self, place: Hashable) -> None:
        """What is at ``place`` has, or may have, another owner."""
        move = self._moves.pop(place, None)
        if move is not None and not move.done():
            move.set_result(None)

    async def locate(
        self, name: TopicName, authoritative: bool, while_held: WhileHeld
    ) -> Owner | None:
        """Raises as ``Ownership.locate``. ``while_held`` is entered while the answer waits."""
        owner = await self._locate(name, authoritative)
        if owner is not None and await self._back(owner) is None:
            return owner
        if self._held >= HELD_MAX:
            return owner
        self._held += 1
        try:
            with while_held():
                return await self._locate_held(name, authoritative)
        finally:
            self._held -= 1
            if not self._held:
                self._moves.clear()  # nobody waits for any

    async def _back(self, owner: Owner) -> Gone:
        """Done when the owner takes connections again; None: it does."""
        return await self._find_gone(owner.service_url) if isinstance(owner, At) else None

    async def _locate_held(self, name: TopicName, authoritative: bool) -> Owner | None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + HELD_S
        while True:
            # Before the question: a change while it is answered must not be waited for.
            waited: list[asyncio.Future[None]] = [self._next_move(await self._place(name))]
            owner = await self._locate(name, authoritative)
            left_s = until_s - loop.time()
            if owner is None:
                pause_s = min(left_s, LOOK_S)
            elif (back := await self._back(owner)) is None:
                return owner
            else:
                waited.append(back)
                pause_s = left_s
            if left_s <= 0:
                return owner
            await asyncio.wait(waited, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)

    def _next_move(self, place: Hashable) -> asyncio.Future[None]:
        move = self._moves.get(place)
        if move is None:
            move = self._moves[place] = asyncio.get_running_loop().create_future()
        return move
