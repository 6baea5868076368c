"""The narrow seams between REST and the platform.

``api`` knows these two and nothing else, so that its tests need no broker and a process serves
what it has: a broker both. Errors are those of ``model.errors``; ``api`` gives each its status.
"""

from __future__ import annotations

from typing import Protocol

from magnetar.admin.views import (
    BookieView,
    EntryView,
    InternalStatsView,
    LedgerView,
    LookupView,
    TopicStatsView,
)

TopicName = str
"""A full name, ``persistent://tenant/namespace/topic``, of a topic or of one partition."""


class TopicQueries(Protocol):
    """What a broker can be asked, and told, about topics."""

    cluster: str

    async def tenants(self) -> list[str]: ...

    async def namespaces(self, tenant: str) -> list[str]:
        """``tenant/namespace`` names. Raises ``TopicNotFoundError`` for an unknown tenant."""
        ...

    async def create_tenant(self, tenant: str) -> None:
        """No error when it exists."""
        ...

    async def create_namespace(self, namespace: str) -> None:
        """``tenant/namespace``; no error when it exists."""
        ...

    async def topics(self, namespace: str) -> list[TopicName]:
        """All topics of ``tenant/namespace``, each partition by itself, sorted."""
        ...

    async def partitioned_topics(self, namespace: str) -> list[TopicName]: ...

    async def lookup(self, topic: TopicName) -> LookupView: ...

    async def partitions(self, topic: TopicName, create: bool) -> int:
        """0 when the topic is not partitioned (or not there). ``create``: make it first, if the
        broker makes topics on their first use."""
        ...

    async def create_partitioned(self, topic: TopicName, partitions: int) -> bool:
        """False when the topic exists already, partitioned or not."""
        ...

    async def grow_partitions(self, topic: TopicName, partitions: int) -> None:
        """Raises ``NotAllowedError`` when that would be fewer than now."""
        ...

    async def create(self, topic: TopicName) -> bool:
        """False when the topic exists already."""
        ...

    async def delete(self, topic: TopicName, force: bool) -> None:
        """Delete a topic, or a partitioned topic with its partitions. With ``force`` connected
        clients are sent away; without, they are an error. Raises ``TopicNotFoundError``."""
        ...

    async def stats(self, topic: TopicName) -> TopicStatsView: ...

    async def internal_stats(self, topic: TopicName) -> InternalStatsView: ...

    async def subscriptions(self, topic: TopicName) -> list[str]: ...

    async def delete_subscription(
        self, topic: TopicName, subscription: str, force: bool
    ) -> None: ...


class LedgerQueries(Protocol):
    """What is stored, below topics."""

    async def ledgers(self, after: int, limit: int) -> list[LedgerView]:
        """At most ``limit`` ledgers with ids above ``after``, in order of their ids."""
        ...

    async def ledger(self, ledger_id: int) -> LedgerView:
        """Raises ``NoSuchLedgerError``."""
        ...

    async def entries(self, ledger_id: int, first: int, count: int) -> list[EntryView]:
        """Entries as bookies hold them, read without fencing the ledger. At most ``count``,
        fewer at the ledger's end. Raises ``NoSuchLedgerError``, ``BookieError``."""
        ...

    async def bookies(self) -> list[BookieView]: ...
