"""Two services to hold the official client against: the broker over logs in memory (its faults
can be arranged), and a whole standalone process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx

from magnetar.admin.schemas import SchemaService
from magnetar.app.broker import Broker
from magnetar.cluster.topic_name import DEFAULT_NAMESPACE
from magnetar.config import BrokerConfig
from magnetar.env.network.connections import Connections
from tests.doubles.admin import topic_service
from tests.doubles.memory_log import MemoryLogStore
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues
from tests.standalone import Standalone

T = TypeVar("T")


class Service(Protocol):
    @property
    def url(self) -> str: ...

    def create_partitioned(self, topic: str, partitions: int) -> None: ...

    def subscriptions(self, topic: str) -> list[str]: ...

    def backlog(self, topic: str, subscription: str) -> int: ...

    def delayed(self, topic: str, subscription: str) -> int:
        """Messages that wait for their time."""
        ...

    def told(self, topic: str, subscription: str) -> str:
        """What the statistics say of it and its consumers, for whoever reads of a failure."""
        ...

    def schemas(self, topic: str) -> list[Any]:
        """The definitions of its schema's versions, from the oldest on."""
        ...

    def set_auto_update(self, allowed: bool) -> None: ...

    def close(self) -> None: ...


class MemoryService:
    """A broker in a thread of this process, over logs in memory with small ledgers."""

    def __init__(self, connections: Connections | None = None, **settings: Any) -> None:
        self.store = MemoryLogStore(ledger_entries=7)
        self._connections = connections
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker")
        self._thread.start()
        self.broker = self.run(self._start(replace(BrokerConfig(port=0), **settings)))

    async def _start(self, config: BrokerConfig) -> Broker:
        broker = Broker(
            config, self.store, MemoryMetadata(), MemoryValues(), connections=self._connections
        )
        await broker.start()
        self.admin = topic_service(broker)
        return broker

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` on the broker's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    @property
    def url(self) -> str:
        return self.broker.service_url

    def create_partitioned(self, topic: str, partitions: int) -> None:
        assert self.run(self.admin.create_partitioned(topic, partitions))

    def subscriptions(self, topic: str) -> list[str]:
        return self.run(self.admin.subscriptions(topic))

    def backlog(self, topic: str, subscription: str) -> int:
        stats = self.run(self.admin.stats(topic))
        return stats.subscriptions[subscription].msg_backlog

    def delayed(self, topic: str, subscription: str) -> int:
        return self.run(self.admin.stats(topic)).subscriptions[subscription].msg_delayed

    def told(self, topic: str, subscription: str) -> str:
        return repr(self.run(self.admin.stats(topic)).subscriptions[subscription])

    def schemas(self, topic: str) -> list[Any]:
        views = self.run(SchemaService(self.broker.control).versions(topic))
        return [json.loads(each.data) for each in views.get_schema_responses]

    def set_auto_update(self, allowed: bool) -> None:
        self.run(SchemaService(self.broker.control).set_auto_update(DEFAULT_NAMESPACE, allowed))

    def close(self) -> None:
        self.run(self.broker.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


class StandaloneService:
    """A platform process on a data directory of its own."""

    def __init__(self, data_dir: Path) -> None:
        self._process = Standalone(data_dir)
        self._process.start()

    @property
    def url(self) -> str:
        return self._process.service_url

    def create_partitioned(self, topic: str, partitions: int) -> None:
        httpx.put(
            self._topic_url(topic) + "/partitions", json=partitions, timeout=60
        ).raise_for_status()

    def subscriptions(self, topic: str) -> list[str]:
        names: list[str] = httpx.get(self._topic_url(topic) + "/subscriptions", timeout=60).json()
        return names

    def backlog(self, topic: str, subscription: str) -> int:
        stats = httpx.get(self._topic_url(topic) + "/stats", timeout=60).json()
        return int(stats["subscriptions"][subscription]["msgBacklog"])

    def delayed(self, topic: str, subscription: str) -> int:
        stats = httpx.get(self._topic_url(topic) + "/stats", timeout=60).json()
        return int(stats["subscriptions"][subscription]["msgDelayed"])

    def told(self, topic: str, subscription: str) -> str:
        stats = httpx.get(self._topic_url(topic) + "/stats", timeout=60).json()
        return json.dumps(stats["subscriptions"][subscription])

    def schemas(self, topic: str) -> list[Any]:
        path = topic.replace("persistent://", "schemas/")
        found = httpx.get(f"{self._process.http_url}/admin/v2/{path}/schemas", timeout=60).json()
        return [json.loads(each["data"]) for each in found["getSchemaResponses"]]

    def set_auto_update(self, allowed: bool) -> None:
        path = f"namespaces/{DEFAULT_NAMESPACE}/isAllowAutoUpdateSchema"
        url = f"{self._process.http_url}/admin/v2/{path}"
        httpx.post(url, json=allowed, timeout=60).raise_for_status()

    def _topic_url(self, topic: str) -> str:
        return f"{self._process.http_url}/admin/v2/{topic.replace('://', '/')}"

    def close(self) -> None:
        self._process.stop()
