"""Which broker serves a topic: one question, asked wherever the answer matters.

Asked by lookups (binary and HTTP), by admin requests for one topic, and before a topic's log is
opened: opening takes it from whoever has it, so nothing but the owner may do it. A cluster has one
broker (``SoleBroker``) or several that share its topics (``sharing.SharedTopics``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from magnetar.cluster.brokers.reporting import Load
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.bundles import Bundle, Layout, cut_in, layout_of
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import NotAllowedError, TopicNotFoundError


class Here(NamedTuple):
    """This broker serves the topic."""


class At(NamedTuple):
    """Another broker does: where clients (``pulsar://``) and admins (``http://``) find it.

    ``candidate``: it does not own the topic yet, and takes it when it is asked for it with
    ``authoritative``."""

    service_url: str
    http_url: str
    candidate: bool = False


Owner: TypeAlias = Here | At


WhileHeld: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Entered while an answer waits for something that may take seconds."""


class Ownership(Protocol):
    """Who owns which topic."""

    async def owner_of(self, name: TopicName) -> Owner | None:
        """None: nobody does. A question: nothing changes by it. Raises ``MetadataError``,
        ``TopicNotFoundError`` for an unknown namespace."""
        ...

    async def locate(self, name: TopicName, authoritative: bool = False) -> Owner:
        """Who owns it; if nobody does, who is to own it. ``authoritative``: another broker has
        chosen this one. Raises as ``owner_of``, and ``ServiceNotReadyError`` when no broker takes
        it now."""
        ...

    async def locate_reachable(
        self,
        name: TopicName,
        authoritative: bool = False,
        while_held: WhileHeld = nullcontext,
    ) -> Owner:
        """As ``locate``, for a client that will connect to it: waits for a while when it is a
        broker that is gone."""
        ...

    async def claim(self, name: TopicName) -> None:
        """Own it if nobody does. Raises as ``owner_of``, and ``ServiceNotReadyError``, on which
        clients look the topic up again, if another owns it."""
        ...

    def check(self, name: TopicName) -> None:
        """Raise ``ServiceNotReadyError`` unless this broker owns it, as far as it knows."""
        ...

    async def verify(self, name: TopicName) -> None:
        """As ``check``, from the metadata itself. Raises ``MetadataError``, too."""
        ...


class Bundles(Protocol):
    """What an ownership rests on, for those who look after a cluster."""

    async def layout(self, namespace: str) -> Layout:
        """How ``tenant/namespace`` is cut. Raises ``TopicNotFoundError``, ``MetadataError``."""
        ...

    async def owner_of_bundle(self, bundle: Bundle) -> Owner | None:
        """As ``owner_of``."""
        ...

    def owned(self) -> list[Bundle]:
        """What this broker owns, sorted."""
        ...

    async def release(self, bundle: Bundle) -> bool:
        """Close its topics, and let others have it; False if it is not ours."""
        ...

    async def cut(self, bundle: Bundle, boundary: int) -> bool:
        """Have two bundles in its place, the second from ``boundary`` on; False if it is not ours.
        Their topics stay here. Raises ``NotAllowedError``, ``MetadataError``."""
        ...

    async def reports(self) -> Mapping[str, BrokerReport]:
        """All brokers by their ids, sorted. Raises ``MetadataError``."""
        ...

    async def find_gone(self, url: str) -> asyncio.Future[None] | None:
        """Of a broker's address: done when it takes connections again; None: it does, as far as is
        known."""
        ...

    async def drain(self) -> None:
        """Own nothing from now on: hand all over. Raises ``NotAllowedError`` where nobody could
        take it."""
        ...

    async def undrain(self) -> None:
        """Own what is asked for again."""
        ...

    def close(self) -> None:
        """End every watch."""
        ...


TellClients: TypeAlias = Callable[[str], None]
"""Called when the topics may be had again; with the URL of the broker where, if that is known."""
CloseTopics: TypeAlias = Callable[[Bundle], Awaitable[TellClients]]


class SoleBroker:
    """The ownership of a cluster with one broker: everything is its own, without a node."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._report: BrokerReport | None = None
        self._close_topics: CloseTopics | None = None
        self._load: Callable[[], Load] | None = None

    def begin(
        self, report: BrokerReport, close_topics: CloseTopics, load: Callable[[], Load]
    ) -> None:
        """What is told of this broker, how its topics are closed, and what it has to do."""
        self._report, self._close_topics, self._load = report, close_topics, load

    async def all_bundles(self) -> list[Bundle]:
        """Those of every namespace. Raises ``MetadataError``."""
        found: list[Bundle] = []
        for namespace in await self._namespaces.everywhere():
            with suppress(TopicNotFoundError):  # deleted meanwhile
                found += (await self.layout(namespace)).bundles()
        return found

    async def shown(self) -> list[BrokerReport]:
        """The report as others would have it of a broker that shares. Raises ``MetadataError``."""
        if self._report is None or self._load is None:
            return []
        bundles, load = len(await self.all_bundles()), self._load()
        return [replace(self._report, bundles=bundles, **load._asdict())]

    async def owner_of(self, name: TopicName) -> Owner | None:
        return Here()

    async def locate(self, name: TopicName, authoritative: bool = False) -> Owner:
        return Here()

    async def locate_reachable(
        self,
        name: TopicName,
        authoritative: bool = False,
        while_held: WhileHeld = nullcontext,
    ) -> Owner:
        return await self.locate(name, authoritative)

    async def claim(self, name: TopicName) -> None:
        """It is its own."""

    def check(self, name: TopicName) -> None:
        """It is its own."""

    async def verify(self, name: TopicName) -> None:
        """It is its own."""

    async def layout(self, namespace: str) -> Layout:
        return layout_of(namespace, await self._namespaces.policies(namespace))

    async def owner_of_bundle(self, bundle: Bundle) -> Owner | None:
        return Here()

    def owned(self) -> list[Bundle]:
        """It owns everything, and keeps no list."""
        return []

    async def release(self, bundle: Bundle) -> bool:
        """Its topics are closed, and loaded again by their next use."""
        if self._close_topics is not None:
            (await self._close_topics(bundle))("")
        return True

    async def cut(self, bundle: Bundle, boundary: int) -> bool:
        await self._namespaces.change(bundle.namespace, partial(cut_in, bundle, boundary))
        return True

    async def reports(self) -> Mapping[str, BrokerReport]:
        return {} if self._report is None else {self._report.broker_id: self._report}

    async def find_gone(self, url: str) -> asyncio.Future[None] | None:
        return None

    async def drain(self) -> None:
        raise NotAllowedError("this cluster has one broker, which serves everything; stop it")

    async def undrain(self) -> None:
        """It serves everything."""

    def close(self) -> None:
        """It watches nothing."""
