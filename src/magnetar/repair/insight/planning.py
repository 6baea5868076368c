"""Finds out what emptying bookies would take (``moves`` decides). Nothing is changed.

The metadata of every ledger is read, a few at a time. How long a ledger that is not closed has
become is asked of its bookies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from magnetar.ledger.bookies import BookiePool
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.ledger.placing.placement import Placement, RandomSource
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import DigestError, NoSuchLedgerError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.insight.moves import BookiesNow, Moved, Moves
from magnetar.wire.bookie.digest import EntryDigest

READ_AT_ONCE = 16


class PlacementSource(Protocol):
    """``ledger.placing.topology.Topology``."""

    async def placement(self, bookies: Sequence[BookieId]) -> Placement: ...


class MovePlanner:
    """``full_percent``: of a disk, at which a bookie takes nothing more; ``timeout_s``: a bookie's
    time to answer."""

    def __init__(
        self,
        manager: LedgerManager,
        registry: BookieRegistry,
        pool: BookiePool,
        topology: PlacementSource,
        random: RandomSource,
        full_percent: int,
        timeout_s: float,
    ) -> None:
        self._manager = manager
        self._registry = registry
        self._pool = pool
        self._topology = topology
        self._random = random
        self._full_percent = full_percent
        self._timeout_s = timeout_s

    async def plan(self, leaving: Sequence[BookieId], noted: Sequence[BookieId] = ()) -> Moves:
        """``noted``: bookies that are to be emptied already; they take nothing. Raises
        ``MetadataError``."""
        writable = await self._registry.available()
        registered = await self._registry.all()
        targets = [b for b in sorted(writable) if b not in leaving and b not in noted]
        told = await asyncio.gather(*(self._room(bookie) for bookie in targets))
        room = {b: free for b, free in zip(targets, told, strict=True) if free is not None}
        known = [*dict.fromkeys((*registered, *leaving))]
        placement = await self._topology.placement(known)
        cluster = BookiesNow([*leaving], targets, [*registered], room, placement)
        moves = Moves(cluster, self._random)
        async for metadata, entries, length in self._naming({*leaving}):
            moves.add(metadata, entries, length)
        return moves

    async def _room(self, bookie_id: BookieId) -> int | None:
        told = await reply(bookie_id, self._pool.client(bookie_id).disk_space(), self._timeout_s)
        if isinstance(told, Refusal):
            return None
        total, free = told
        return max(0, free - total * (100 - self._full_percent) // 100)

    async def _naming(
        self, leaving: set[BookieId]
    ) -> AsyncIterator[tuple[LedgerMetadata, int, int]]:
        """The ledgers that name any of them, how many entries each has, and how many bytes."""
        batch: list[int] = []
        async for ledger_id in self._manager.iterate():
            batch.append(ledger_id)
            if len(batch) == READ_AT_ONCE:
                for found in await self._read(batch, leaving):
                    yield found
                batch = []
        for found in await self._read(batch, leaving):
            yield found

    async def _read(
        self, ledger_ids: Sequence[int], leaving: set[BookieId]
    ) -> list[tuple[LedgerMetadata, int, int]]:
        found = await asyncio.gather(*(self._one(each, leaving) for each in ledger_ids))
        return [each for each in found if each is not None]

    async def _one(
        self, ledger_id: int, leaving: set[BookieId]
    ) -> tuple[LedgerMetadata, int, int] | None:
        try:
            metadata, _ = await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return None
        if not any(bookie in leaving for one in metadata.fragments for bookie in one.bookies):
            return None
        if metadata.closed:
            return metadata, metadata.last_entry_id + 1, metadata.length
        return metadata, *await self._extent(metadata)

    async def _extent(self, metadata: LedgerMetadata) -> tuple[int, int]:
        """Of an open ledger, as far as its bookies tell: entries, and their bytes."""
        digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        most = (metadata.fragments[-1].first_entry_id, 0)
        for bookie in metadata.fragments[-1].bookies:
            asking = self._pool.client(bookie).read_lac(metadata.ledger_id)
            told = await reply(bookie, asking, self._timeout_s)
            if isinstance(told, Refusal) or told.last_entry is None:
                continue
            try:
                _, length = digest.verify(told.last_entry, -1)
            except DigestError:
                continue
            entry_id = int.from_bytes(told.last_entry[8:16], "big")
            most = max(most, (entry_id + 1, length))
        return most


def plan_view(
    moves: Moves, bytes_per_s: int, workers: int, refusals: Sequence[str], waits: Sequence[str]
) -> dict[str, Any]:
    """As JSON has it. ``bytes_per_s``: of one worker, 0: not bounded; ``workers``: how many there
    are; ``refusals``: why it cannot begin; ``waits``: what it would wait for."""
    stuck = [
        {
            "ledgerId": each.ledger_id,
            "firstEntryId": each.first_entry_id,
            "bookieId": each.bookie_id,
            "why": each.why,
        }
        for each in moves.stuck
    ]
    seconds = moves.byte_count / (bytes_per_s * max(workers, 1)) if bytes_per_s else None
    return {
        "bookies": [*moves.cluster.leaving],
        "possible": not refusals and not moves.stuck_count,
        "refusals": [*refusals],
        "waits": [*waits],
        "ledgers": moves.ledgers,
        "openLedgers": moves.open_ledgers,
        "fragments": sum(each.fragments for each in moves.given.values()),
        "entries": sum(each.entries for each in moves.given.values()),
        "bytes": moves.byte_count,
        "from": _moved(moves.given),
        "to": _moved(moves.taken, moves.cluster.room_bytes),
        "stuckFragments": moves.stuck_count,
        "stuck": stuck,
        "belowWriteQuorumMeanwhile": 0,
        "belowAckQuorumMeanwhile": 0,
        "belowWriteQuorumAlready": moves.below_write_quorum,
        "belowAckQuorumAlready": moves.below_ack_count,
        "ledgersBelowAckQuorum": moves.below_ack_quorum,
        "workers": workers,
        "bytesPerSecond": bytes_per_s or None,
        "seconds": None if seconds is None else round(seconds, 1),
    }


def _moved(
    found: Mapping[BookieId, Moved], room: Mapping[BookieId, int] | None = None
) -> list[dict[str, Any]]:
    return [
        {
            "bookieId": bookie,
            "fragments": each.fragments,
            "entries": each.entries,
            "bytes": each.byte_count,
            **({} if room is None else {"roomBytes": room.get(bookie)}),
        }
        for bookie, each in sorted(found.items())
    ]
