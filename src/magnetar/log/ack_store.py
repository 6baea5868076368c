"""Where a cursor's acknowledgements are kept: the seam below a cursor.

A cursor decides in memory (``acknowledgements.AckState``) and writes through an ``AckStore``, which
is made with that state and takes images of it when it is told that it changed. One cursor serves
all: with ``log.managed.CursorStore`` it is durable in a ledger, with ``NullAckStore`` a reader's,
and with a store that asks another process it is kept there.

Rules, for every implementation (``tests/unit/log/contract/test_ack_store.py``):

* What is reported as stored is found again, whatever happens after it.
* Images may arrive late, twice and out of order where they are kept: their reset epoch says which
  of them count (``AckState.merge``).
* ``stored_mark_delete`` lets the log delete entries: it moves back with a reset at once, not when
  that is stored.
"""

from __future__ import annotations

from typing import Protocol

from magnetar.log.acknowledgements import AckState
from magnetar.model.ids import Position


class AckStore(Protocol):
    """Keeps the state that it was made with."""

    durable: bool  # whether what is stored outlives the process

    @property
    def stored_mark_delete(self) -> Position:
        """Up to here (inclusive) everything is acknowledged both in memory and where it is kept:
        nobody will read it for this cursor again."""
        ...

    def mark_dirty(self) -> None:
        """The state changed: store it soon, without being asked again. Costs next to nothing; a
        cursor calls it with every batch of acknowledgements."""
        ...

    async def wait_stored(self) -> None:
        """Wait until all that changed before the call is stored. Raises what the attempt to store
        it failed with; it is tried again by itself."""
        ...

    async def mark_deleted(self) -> None:
        """Delete what is kept, for good when it returns: it is not found again, though something
        may be left of it (``finish_deletion``). When it raises the cursor goes on, and has
        something to store."""
        ...

    async def finish_deletion(self) -> None:
        """After ``mark_deleted``: take away what is left. May be repeated; raises if something
        is still left."""
        ...

    async def close(self) -> None:
        """Store what changed, then end. Raises what failed."""
        ...


class NullAckStore:
    """Implements ``AckStore`` by keeping nothing: memory is all there is, so it is never behind."""

    durable = False

    def __init__(self, state: AckState) -> None:
        self._state = state

    @property
    def stored_mark_delete(self) -> Position:
        return self._state.mark_delete

    def mark_dirty(self) -> None:
        return

    async def wait_stored(self) -> None:
        return

    async def mark_deleted(self) -> None:
        return

    async def finish_deletion(self) -> None:
        return

    async def close(self) -> None:
        return
