"""Lookups by those who will connect to what they are told: an owner that is gone is not named.

A broker that was killed owns its bundles until its session ends. A client that is told its address
meanwhile is refused there, and waits longer after each try, so that it still waits when its topics
have long been served by others. Its question is answered when it can be: the bundle has moved, or
its owner is back. Not later than ``HELD_S``, which is less than clients wait for an answer; and no
more than ``HELD_MAX`` wait at a time. Past these the owner is named as it is.

A broker that is chosen to take a bundle and is gone is not named either: another one is chosen
(``sharing``, by ``Reach.gone``).

Why: docs/adr/0098-lookups-wait-for-an-owner.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.cluster.brokers.reach import Reach
from magnetar.cluster.brokers.reports import owner_path
from magnetar.cluster.bundles import Bundle
from magnetar.cluster.ownership import At, Owner, WhileHeld
from magnetar.cluster.topic_name import TopicName

HELD_S: Final = 15.0
HELD_MAX: Final = 20_000
"""A few kB each."""


class HeldLookups:
    """See the module's text. ``locate``: as ``Ownership.locate``."""

    def __init__(
        self,
        locate: Callable[[TopicName, bool], Awaitable[Owner]],
        bundle_of: Callable[[TopicName], Awaitable[Bundle]],
        reach: Reach,
    ) -> None:
        self._locate = locate
        self._bundle_of = bundle_of
        self._reach = reach
        self._moves: dict[str, asyncio.Future[None]] = {}
        self._held = 0

    def owner_changed(self, path: str) -> None:
        """Of the owner's node at ``path``."""
        move = self._moves.pop(path, None)
        if move is not None and not move.done():
            move.set_result(None)

    async def locate(self, name: TopicName, authoritative: bool, while_held: WhileHeld) -> Owner:
        """Raises as ``Ownership.locate``. ``while_held`` is entered while the answer waits."""
        owner = await self._locate(name, authoritative)
        if not isinstance(owner, At) or await self._reach.find_gone(owner.service_url) is None:
            return owner
        if self._held >= HELD_MAX:
            return owner
        self._held += 1
        try:
            with while_held():
                return await self._locate_held(name, authoritative)
        finally:
            self._held -= 1

    async def _locate_held(self, name: TopicName, authoritative: bool) -> Owner:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + HELD_S
        while True:
            # Before the question: a change while it is answered must not be waited for.
            moved = self._next_move(owner_path(await self._bundle_of(name)))
            owner = await self._locate(name, authoritative)
            if not isinstance(owner, At):
                return owner
            back = await self._reach.find_gone(owner.service_url)
            left_s = until_s - loop.time()
            if back is None or left_s <= 0:
                return owner
            await asyncio.wait([moved, back], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def _next_move(self, path: str) -> asyncio.Future[None]:
        move = self._moves.get(path)
        if move is None:
            move = self._moves[path] = asyncio.get_running_loop().create_future()
        return move
