"""Adds copies of confirmed entries to a bookie, and waits for it: what mending and repair share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.ledger.bookies import AddFlag, BookieClient
from magnetar.model.entry import Entry
from magnetar.model.errors import BookieUnavailableError, MagnetarError


async def add_copies(
    client: BookieClient,
    ledger_id: int,
    master_key: bytes,
    entries: Sequence[Entry],
    flags: AddFlag,
    timeout_s: float,
) -> None:
    """Returns when the bookie has all of ``entries``, durably. Raises what it refuses one with
    (``BookieError``), ``BookieUnavailableError``."""
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(entries)

    def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        nonlocal left
        left -= len(entry_ids)
        if finished.done():
            return
        if error is not None:
            finished.set_exception(error)
        elif left == 0:
            finished.set_result(None)

    ids = [entry.entry_id for entry in entries]
    data = [bytes(entry.data) for entry in entries]
    client.add_entries(ledger_id, master_key, ids, data, flags, done)
    try:
        async with asyncio.timeout(timeout_s):
            await finished
    except TimeoutError as error:
        raise BookieUnavailableError(f"{client.bookie_id} did not answer an add in time") from error
