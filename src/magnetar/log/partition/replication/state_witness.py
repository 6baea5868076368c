"""What the metadata store says of doomed partitions, asked for the newest there is.

Owns the order of the questions; ``log.partition.doom`` says what follows from the answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from magnetar.env.metadata import MetadataStore
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.doom import StoreAnswer
from magnetar.log.partition.replication.state_store import ROOT, StateStore
from magnetar.model.errors import NoNodeError


class Witness(Protocol):
    """Whoever knows what the metadata store has. Methods raise ``MetadataError``, and
    ``MetadataFormatError`` for a state that cannot be read."""

    async def ask(self, partition: Partition, held_id: str = "") -> StoreAnswer:
        """Of this moment. ``held_id``: whose the files are that it is asked for; empty: unknown."""
        ...

    async def listed(self) -> frozenset[Partition]:
        """Those that have a state, at some moment since the call."""
        ...


class StateWitness:
    """``cluster_id`` reads the id of the store's cluster; empty if there is none."""

    def __init__(self, metadata: MetadataStore, cluster_id: Callable[[], Awaitable[str]]) -> None:
        self._metadata = metadata
        self._states = StateStore(metadata)
        self._cluster_id = cluster_id

    async def ask(self, partition: Partition, held_id: str = "") -> StoreAnswer:
        # A server that lags would say of a state that it is not there yet.
        await self._metadata.sync()
        before = await self._cluster_id()
        topic_id: str | None
        try:
            topic_id = (await self._states.read(*partition)).state.topic_id
        except NoNodeError:
            topic_id = None
        try:
            await self._metadata.children(ROOT)
            rooted = True
        except NoNodeError:
            rooted = False
        noted = not held_id or await self._states.deletion_noted(held_id)
        # Once more behind it: a store that was emptied in between has no state either.
        after = await self._cluster_id()
        return StoreAnswer(after if before == after else "", rooted, topic_id, noted)

    async def listed(self) -> frozenset[Partition]:
        await self._metadata.sync()
        return frozenset(await self._states.partitions())
