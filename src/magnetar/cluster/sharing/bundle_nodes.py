"""The nodes by which a broker owns bundles: made, recognised as its own, given back.

A node is this start's own by what it says. One that an earlier start of the same broker has left is
taken over: that start cannot live, its address would be in use.
"""

from __future__ import annotations

import structlog

from magnetar.cluster.brokers.reports import BundleOwner, decode_owner, encode_owner, owner_path
from magnetar.cluster.bundles import Bundle
from magnetar.cluster.stored.counters import RACES_MAX
from magnetar.cluster.stored.shared_reads import shared_values
from magnetar.env.metadata import CreateMode, MetadataStore
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    MagnetarError,
    NodeExistsError,
    NoNodeError,
)

log = structlog.get_logger(__name__)


class BundleNodes:
    """``me``: what this start's nodes say; None before it is known."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.me: BundleOwner | None = None
        self._metadata = metadata
        self._reads = shared_values(metadata)

    def is_me(self, owner: BundleOwner) -> bool:
        """By its id: an earlier start of ours cannot live any more."""
        return self.me is not None and owner.broker_id == self.me.broker_id

    async def make(self, bundle: Bundle) -> bool:
        """Whether the bundle's node is ours now. Raises ``MetadataError``."""
        assert self.me is not None
        path, value = owner_path(bundle), encode_owner(self.me)
        for _ in range(RACES_MAX):
            try:
                await self._metadata.create(path, value, CreateMode.EPHEMERAL)
                return True
            except NodeExistsError:
                outcome = await self._met(path)
            if outcome is not None:
                return outcome
        raise BrokerMetadataError(f"{path} comes and goes all the time; try again")

    async def _met(self, path: str) -> bool | None:
        """There is a node: ours by an answer that was lost (True), another's (False), or gone by
        now, also because an earlier start of ours had left it (None)."""
        try:
            node = await self._metadata.get(path)
            owner = decode_owner(path, node.value)
            if not self.is_me(owner):
                return False
            if self.me is not None and owner.start == self.me.start:
                return True
            await self._metadata.delete(path, node.version)
        except (NoNodeError, BadVersionError):
            pass
        return None

    async def is_ours(self, bundle: Bundle) -> bool:
        """As the store says it, no earlier than now; reads are shared by all who ask meanwhile.
        Raises ``MetadataError``."""
        path = owner_path(bundle)
        return self._is_this_start(path, await self._reads.get(path))

    def _is_this_start(self, path: str, value: bytes | None) -> bool:
        if value is None or self.me is None:
            return False
        owner = decode_owner(path, value)
        return (owner.broker_id, owner.start) == (self.me.broker_id, self.me.start)

    async def give_back(self, bundle: Bundle) -> None:
        """If it is ours. One that stays is taken again by who asks here, or goes with us."""
        path = owner_path(bundle)
        try:
            node = await self._metadata.get(path)
            if self._is_this_start(path, node.value):
                await self._metadata.delete(path, node.version)
        except NoNodeError:
            return
        except MagnetarError as error:
            log.warning("bundle not given back", bundle=str(bundle), error=str(error))
