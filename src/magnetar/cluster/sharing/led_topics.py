"""Who serves topics whose logs brokers replicate: the broker that leads the log, whoever owns the
topic's bundle.

Owns that one difference; every other topic is its bundle's owner's. A new topic is too: its log is
made there, and is led from there until another replica is elected.

Rules:

* Lookups and loads go by what this broker knows of leaders; before a log is opened the metadata is
  asked itself (``verify``), so that a leader that is one no more opens nothing.
* While nobody leads, nobody serves: lookups are held until somebody does (``held_lookups``), as
  they are while the leader takes no connections; in the end clients are told to ask again.

Why: docs/adr/0115-topics-go-to-their-leader.md, and docs/adr/0098-lookups-wait-for-an-owner.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import nullcontext
from typing import Final, NamedTuple, Protocol

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.ownership import At, Here, Owner, Ownership, WhileHeld
from magnetar.cluster.sharing.held_lookups import Gone, HeldLookups
from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import ServiceNotReadyError

NOBODY: Final = -1


class LedBy(NamedTuple):
    """``node_id``: of the leading broker; ``NOBODY``: none. ``process``: which start of it."""

    node_id: int
    process: int


class Leaders(Protocol):
    """Who leads the logs that are replicated. ``me``: this broker."""

    @property
    def me(self) -> LedBy: ...

    def known(self, name: TopicName) -> LedBy | None:
        """As far as is known; None: its log is no such one."""
        ...

    async def stored_leader(self, name: TopicName) -> LedBy | None:
        """From the metadata itself. Raises ``MetadataError``."""
        ...

    def watch(self, changed: Callable[[Hashable], None]) -> None:
        """Tell of each log (its ``place``) of which something changes that is known."""
        ...

    def place(self, name: TopicName) -> Hashable: ...


class LedTopics:
    """``cluster.ownership.Ownership``, over that of bundles."""

    def __init__(
        self,
        bundles: Ownership,
        leaders: Leaders,
        reports: Callable[[], Awaitable[Mapping[str, BrokerReport]]],
        find_gone: Callable[[str], Awaitable[Gone]],
    ) -> None:
        self._bundles = bundles
        self._leaders = leaders
        self._reports = reports
        self._lookups = HeldLookups(self._look, self._place, find_gone)
        leaders.watch(self._lookups.moved)

    async def owner_of(self, name: TopicName) -> Owner | None:
        led = self._leaders.known(name)
        return await self._bundles.owner_of(name) if led is None else await self._at(led)

    async def _at(self, led: LedBy) -> Owner | None:
        if led == self._leaders.me:
            return Here()
        for report in (await self._reports()).values():
            if (report.node_id, report.process) == led:
                return At(report.service_url, report.http_url)
        return None  # its session has ended: another is elected soon

    async def locate(self, name: TopicName, authoritative: bool = False) -> Owner:
        return _somebody(name, await self._look(name, authoritative))

    async def _look(self, name: TopicName, authoritative: bool) -> Owner | None:
        """As ``locate``; None: nobody."""
        led = self._leaders.known(name)
        if led is None:
            return await self._bundles.locate(name, authoritative)
        return await self._at(led)

    async def _place(self, name: TopicName) -> Hashable:
        return self._leaders.place(name)

    async def locate_reachable(
        self,
        name: TopicName,
        authoritative: bool = False,
        while_held: WhileHeld = nullcontext,
    ) -> Owner:
        led = self._leaders.known(name)
        if led is None:
            return await self._bundles.locate_reachable(name, authoritative, while_held)
        return _somebody(name, await self._lookups.locate(name, authoritative, while_held))

    async def claim(self, name: TopicName) -> None:
        led = self._leaders.known(name)
        if led is None:
            await self._bundles.claim(name)
        else:
            self._require(name, led)

    def check(self, name: TopicName) -> None:
        led = self._leaders.known(name)
        if led is None:
            self._bundles.check(name)
        else:
            self._require(name, led)

    async def verify(self, name: TopicName) -> None:
        led = await self._leaders.stored_leader(name)
        if led is None:
            await self._bundles.verify(name)
        else:
            self._require(name, led)

    def _require(self, name: TopicName, led: LedBy) -> None:
        if led != self._leaders.me:
            raise ServiceNotReadyError(
                f"the log of {name} is led by broker {led.node_id}, not here; look it up again"
            )


def _somebody(name: TopicName, owner: Owner | None) -> Owner:
    if owner is None:
        raise ServiceNotReadyError(f"no broker leads the log of {name} just now; look it up again")
    return owner
