"""A platform of dictionaries behind REST's seams."""

from __future__ import annotations

from magnetar.admin.views import (
    BookieView,
    CursorView,
    EntryView,
    FragmentView,
    InternalStatsView,
    LedgerView,
    LookupView,
    SubscriptionView,
    TopicLedgerView,
    TopicStatsView,
)
from magnetar.model.errors import (
    BookieUnavailableError,
    NoSuchLedgerError,
    NotAllowedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)

BUSY = "persistent://public/default/busy"


class FakeTopics:
    cluster = "standalone"

    def __init__(self) -> None:
        self.tenant_names = ["public"]
        self.namespace_names = ["public/default"]
        self.partitioned: dict[str, int] = {}
        self.plain = ["persistent://public/default/a"]
        self.asked_to_create: list[str] = []
        self.subscription_names = ["s"]

    async def tenants(self) -> list[str]:
        return self.tenant_names

    async def namespaces(self, tenant: str) -> list[str]:
        if tenant not in self.tenant_names:
            raise TopicNotFoundError(f"there is no tenant {tenant}")
        return [name for name in self.namespace_names if name.startswith(f"{tenant}/")]

    async def create_tenant(self, tenant: str) -> None:
        self.tenant_names.append(tenant)

    async def create_namespace(self, namespace: str) -> None:
        self.namespace_names.append(namespace)

    async def topics(self, namespace: str) -> list[str]:
        return [t for t in self.plain if t.startswith(f"persistent://{namespace}/")]

    async def partitioned_topics(self, namespace: str) -> list[str]:
        return list(self.partitioned)

    async def lookup(self, topic: str) -> LookupView:
        url = "pulsar://127.0.0.1:1"
        return LookupView(broker_url=url, broker_url_tls="", http_url="http://h:2", native_url=url)

    async def partitions(self, topic: str, create: bool) -> int:
        if create:
            self.asked_to_create.append(topic)
        return self.partitioned.get(topic, 0)

    async def create_partitioned(self, topic: str, partitions: int) -> bool:
        if topic in self.partitioned:
            return False
        self.partitioned[topic] = partitions
        return True

    async def grow_partitions(self, topic: str, partitions: int) -> None:
        if partitions < self.partitioned[topic]:
            raise NotAllowedError(f"{topic} has {self.partitioned[topic]} partitions already")
        self.partitioned[topic] = partitions

    async def create(self, topic: str) -> bool:
        if topic in self.plain:
            return False
        self.plain.append(topic)
        return True

    async def delete(self, topic: str, force: bool) -> None:
        if topic == BUSY and not force:
            raise NotAllowedError(f"{topic} has producers connected")
        if topic in self.partitioned:
            del self.partitioned[topic]
        elif topic in self.plain:
            self.plain.remove(topic)
        elif topic != BUSY:
            raise TopicNotFoundError(f"there is no topic {topic}")

    async def stats(self, topic: str) -> TopicStatsView:
        if topic not in self.plain:
            raise TopicNotFoundError(f"there is no topic {topic}")
        subscription = SubscriptionView(
            type="Shared",
            durable=True,
            msg_backlog=3,
            unacked_messages=1,
            mark_delete_position="1:4",
            consumers=[],
        )
        return TopicStatsView(
            entries_in_counter=8,
            bytes_in_counter=800,
            msg_out_counter=5,
            bytes_out_counter=500,
            storage_size=900,
            publishers=[],
            subscriptions={"s": subscription},
        )

    async def internal_stats(self, topic: str) -> InternalStatsView:
        return InternalStatsView(
            number_of_entries=8,
            total_size=900,
            last_confirmed_entry="1:7",
            state="LedgerOpened",
            ledgers=[TopicLedgerView(ledger_id=1, entries=8, size=900, state="OPEN")],
            cursors={"s": CursorView(mark_delete_position="1:4")},
        )

    async def subscriptions(self, topic: str) -> list[str]:
        return self.subscription_names

    async def delete_subscription(self, topic: str, subscription: str, force: bool) -> None:
        if subscription not in self.subscription_names:
            raise SubscriptionNotFoundError(f"{topic} has no subscription {subscription}")
        self.subscription_names.remove(subscription)


class FakeLedgers:
    def __init__(self) -> None:
        self.unavailable = False

    async def ledgers(self, after: int, limit: int) -> list[LedgerView]:
        return [await self.ledger(n) for n in (1, 2, 3) if n > after][:limit]

    async def ledger(self, ledger_id: int) -> LedgerView:
        if ledger_id > 3:
            raise NoSuchLedgerError(f"there is no ledger {ledger_id}")
        return LedgerView(
            ledger_id=ledger_id,
            state="CLOSED",
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            digest="CRC32C",
            last_entry_id=9,
            length=100,
            created_ms=0,
            custom={"log": "a"},
            fragments=[FragmentView(first_entry_id=0, bookies=["b:1"])],
        )

    async def entries(self, ledger_id: int, first: int, count: int) -> list[EntryView]:
        if self.unavailable:
            raise BookieUnavailableError("bookie b:1 does not answer")
        await self.ledger(ledger_id)
        return [
            EntryView(
                ledger_id=ledger_id,
                entry_id=n,
                last_add_confirmed=n - 1,
                payload="aGVsbG8=",
                payload_bytes=5,
                message=None,
            )
            for n in range(first, min(first + count, 10))
        ]

    async def bookies(self) -> list[BookieView]:
        return [BookieView(bookie_id="b:1", available=True, local=True)]
