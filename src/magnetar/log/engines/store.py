"""All logs of a process, whatever engine they are on. Implements ``log.seam.LogStore``.

A log's record says which engine it is on, for as long as the log exists. Logs on ledgers are opened
without asking: an engine that is asked for the other's log says so (``OtherEngineError``), and only
then the other is asked.

Why: docs/adr/0111-partitions-behind-the-seam.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from functools import partial

from magnetar.log.engines.partition_store import PartitionLogStore
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.policy import Engine, LogPolicy
from magnetar.log.seam import FollowedReadableLog, KnownLog, WritableLog
from magnetar.model.errors import MagnetarError, NotAllowedError, OtherEngineError

NO_PARTITIONS = (
    "this broker keeps no partitions (partition.directory is not set); use a broker that does, or "
    "the engine 'ledger'"
)


class LogStores:
    """``partitions`` None: this process keeps none."""

    def __init__(self, ledgers: ManagedLogStore, partitions: PartitionLogStore | None) -> None:
        self._ledgers = ledgers
        self._partitions = partitions

    @property
    def policy(self) -> LogPolicy:
        return self._ledgers.policy

    async def open(
        self,
        name: str,
        policy: LogPolicy | None = None,
        *,
        create: bool = True,
        guard: Callable[[], Awaitable[None]] | None = None,
        permit: Callable[[], Awaitable[None]] | None = None,
    ) -> WritableLog:
        """See the seam."""
        wanted = policy or self.policy
        on_ledgers = partial(
            self._ledgers.open, name, policy, create=create, guard=guard, permit=permit
        )
        if not create or wanted.engine is Engine.LEDGER:
            try:
                return await on_ledgers()
            except OtherEngineError:
                pass
        partitions = self._partitions
        if partitions is None:
            raise NotAllowedError(f"log {name} is on partitions, and {NO_PARTITIONS}")
        try:
            return await partitions.open(name, wanted, create=create, guard=guard, permit=permit)
        except OtherEngineError:  # one that was there before the policy, or was deleted just now
            return await on_ledgers()

    async def follow(self, name: str) -> FollowedReadableLog:
        """See the seam. Raises ``NotAllowedError`` for a log on partitions."""
        try:
            return await self._ledgers.follow(name)
        except OtherEngineError as error:
            raise NotAllowedError(
                f"{error}, which read-only brokers do not serve; read it at its owner"
            ) from error

    async def exists(self, name: str) -> bool:
        return await self._ledgers.exists(name)

    async def stored(self, name: str) -> KnownLog:
        return await self._ledgers.stored(name)

    async def ledger_bytes(self, name: str) -> int | None:
        return await self._ledgers.ledger_bytes(name)

    async def delete(self, name: str) -> None:
        """See the seam."""
        if self._partitions is not None and await self._partitions.has(name):
            await self._partitions.delete(name)
        else:
            await self._ledgers.delete(name)

    async def check_space(self, name: str) -> None:
        """See the seam."""
        await self._ledgers.check_space(name)
        if self._partitions is not None:
            await self._partitions.check_space(name)

    async def names(self, prefix: str, known: Container[str] = ()) -> list[str]:
        return await self._ledgers.names(prefix, known)

    def watch_names(self, prefix: str, changed: Callable[[], None]) -> Callable[[], None]:
        """See ``WatchedNames``: logs on partitions have their nodes among the others."""
        return self._ledgers.watch_names(prefix, changed)

    async def forget_prefix(self, prefix: str) -> None:
        """See ``ForgottenPrefixes``."""
        await self._ledgers.forget_prefix(prefix)

    async def close(self) -> None:
        """Raises the first that could not be closed cleanly, after all."""
        errors: list[MagnetarError] = []
        for each in (self._partitions, self._ledgers):  # cursors of both lie in ledgers
            if each is None:
                continue
            try:
                await each.close()
            except MagnetarError as error:
                errors.append(error)
        if errors:
            raise errors[0]
