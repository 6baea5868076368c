"""Cursors over a followed log: readers', and those that the log's owner lends.

Rule: a lent cursor begins only when the follower has seen the log as far as anything of it is
acknowledged. A state knows the entries of its chain alone: what is acknowledged of others would be
dropped, and delivered again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from magnetar.log.ack_store import AckStore
from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.log.managed.chain import Chain
from magnetar.log.managed.cursor import ManagedCursor
from magnetar.log.managed.cursors import readers_cursor
from magnetar.log.seam import Cursor
from magnetar.model.ids import Position


class CursorsOfFollowed:
    """Implements ``log.seam.FollowedCursors``. ``wait_seen`` waits until the log is seen up to a
    position."""

    def __init__(self, chain: Chain, wait_seen: Callable[[Position], Awaitable[None]]) -> None:
        self._chain = chain
        self._wait_seen = wait_seen

    def reader(self, name: str, start: Position) -> Cursor:
        return readers_cursor(self._chain, name, start)

    async def lent(
        self,
        name: str,
        image: AckImage,
        properties: Mapping[str, str],
        keep: Callable[[AckState], AckStore],
    ) -> Cursor:
        await self._wait_seen(image.last)
        state = AckState(self._chain, image.mark_delete, image.reset_epoch)
        state.merge(image)
        return ManagedCursor(name, self._chain, state, properties, keep(state))
