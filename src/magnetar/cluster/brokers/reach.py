"""Which brokers can be connected to: for lookups, which are about to name one.

A connection alone is asked for. A process that is paused takes it, too: its clients miss it by
their pings.

Rules:

* Only one that was connected to from here before is ever said to be gone: addresses that are meant
  for clients need not be reachable for brokers. So every broker is met when it registers.
* An answer counts for ``FRESH_S``, and one connection is tried at a time, however many ask.
* Who is gone is tried again until it answers, or was gone for so long that it is a stranger again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import structlog

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.env.tasks import TaskScope, awaited, shared_result

log = structlog.get_logger(__name__)

CONNECT_S: Final = 1.0
FRESH_S: Final = 1.0
"""A client that was refused asks again sooner; a broker that names another one all the time makes
one connection a second to it."""
AGAIN_S: Final = 0.25
GONE_S: Final = 120.0
"""Longer than any session lasts: then nobody names it any more."""
MEETINGS_MAX: Final = 3
"""Tries to meet a broker of which nothing is known yet."""

Connects: TypeAlias = Callable[[str], Awaitable[bool]]


async def connects(url: str) -> bool:
    """Whether something takes connections at ``pulsar://host:port``."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            transport, _ = await loop.create_connection(
                asyncio.Protocol, parts.hostname or "", parts.port or 0
            )
    except (OSError, TimeoutError):
        return False
    transport.close()
    return True


class _Met:
    """A broker that was connected to at ``at_s``. ``back``: it is gone; done when it is back."""

    __slots__ = ("asking", "at_s", "back")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.asking: asyncio.Task[bool] | None = None
        self.back: asyncio.Future[None] | None = None


class Reach:
    """See the module's text."""

    def __init__(self, scope: TaskScope, connect: Connects = connects) -> None:
        self._scope = scope
        self._connect = connect
        self._met: dict[str, _Met] = {}
        self._tries: dict[tuple[str, int], int] = {}

    async def meet(self, reports: Sequence[BrokerReport]) -> bool:
        """Of all that are registered now, connect to those that are not known yet. Whether none of
        them is to be tried again."""
        there = {(each.service_url, each.start): None for each in reports}
        self._tries = {each: tries for each, tries in self._tries.items() if each in there}
        for url, start in there:
            tries = self._tries.get((url, start), 0)
            if url in self._met or tries >= MEETINGS_MAX:
                continue
            self._tries[url, start] = tries + 1
            if await self._connect(url):
                self._met[url] = _Met(self._now_s())
        return all(
            url in self._met or self._tries[url, start] >= MEETINGS_MAX for url, start in there
        )

    def gone(self, url: str) -> asyncio.Future[None] | None:
        """Done when it is there again; None: for all that is known it is there."""
        met = self._met.get(url)
        return None if met is None else met.back

    async def find_gone(self, url: str) -> asyncio.Future[None] | None:
        """As ``gone``, known by a connection that was made, or was not, within ``FRESH_S``."""
        met = self._met.get(url)
        if met is None or met.back is not None or self._now_s() - met.at_s < FRESH_S:
            return self.gone(url)
        if met.asking is None:
            asking = self._ask(url, met)
            met.asking = self._scope.spawn(asking, f"connect to {url}", awaited(by="find_gone"))
        await shared_result(met.asking)
        return met.back

    async def _ask(self, url: str, met: _Met) -> bool:
        try:
            there = await self._connect(url)
        finally:
            met.asking = None
        if there:
            met.at_s = self._now_s()
        elif met.back is None:
            met.back = asyncio.get_running_loop().create_future()
            log.info("a broker takes no connections", url=url)
            self._scope.spawn(self._ask_again(url, met, met.back), f"wait for {url}")
        return there

    async def _ask_again(self, url: str, met: _Met, back: asyncio.Future[None]) -> None:
        since_s, there = self._now_s(), False
        while not there and self._now_s() - since_s < GONE_S:
            await asyncio.sleep(AGAIN_S)
            there = await self._connect(url)
        met.at_s, met.back = self._now_s(), None
        if not there:
            del self._met[url]
        back.set_result(None)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
