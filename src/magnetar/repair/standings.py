"""Which bookies serve, are away, lost, silent, or to be emptied, as this process knows it.

Owns the watch of who is registered, and for how long somebody has not been (``lost_bookies``
decides). One of these is shared by all that a process repairs. Who is silent is found by whoever
asks bookies (``checking``); here it is only told on (``silences`` decides).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from magnetar.model.ids import BookieId
from magnetar.repair.copies import Standing
from magnetar.repair.lost_bookies import AbsentBookies
from magnetar.repair.silences import Silences


class Registered(Protocol):
    """Which bookies there are (``ledger.connections.registry.BookieRegistry``)."""

    async def all(self) -> Mapping[BookieId, tuple[str, int]]:
        """Raises ``MetadataError``."""
        ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]: ...


class Said(Protocol):
    """What operators say (``switches``). All methods may raise ``MetadataError``."""

    async def delay(self, default: int) -> int: ...

    async def leaving(self) -> Mapping[BookieId, None]: ...


class Standings:
    """``default_delay_s``: how long a bookie may be away, while no operator has said."""

    def __init__(
        self, registered: Registered, said: Said, silences: Silences, default_delay_s: int
    ) -> None:
        self._registered = registered
        self._said = said
        self._silences = silences
        self._default_delay_s = default_delay_s
        self._absent = AbsentBookies()
        self._serving: Collection[BookieId] = ()
        self._leaving: Collection[BookieId] = ()
        self.delay_s = float(default_delay_s)

    async def look(self, named: Iterable[BookieId] = ()) -> None:
        """Ask who is registered, and what operators say. ``named``: bookies that ledgers name;
        those that were never registered count as away from now on. Raises ``MetadataError``."""
        self._serving = await self._registered.all()
        self._leaving = await self._said.leaving()
        self.delay_s = float(await self._said.delay(self._default_delay_s))
        self._absent.named(named)
        self._absent.look(self._serving, _now_s())
        self._silences.look(self._serving)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` when others are registered. Returns what ends the watch."""
        return self._registered.watch(changed)

    def of(
        self, bookies: Iterable[BookieId], marked: Collection[str] = ()
    ) -> dict[BookieId, Standing]:
        """What each is, as of the last look. ``marked``: of the ledger's mark; whoever is named
        there, and is away for as long as this process knows, was away for the delay by the clock
        of who marked the ledger."""
        now_s = _now_s()
        lost = self._absent.lost(self.delay_s, now_s)
        return {bookie: self._of(bookie, lost, marked) for bookie in bookies}

    def _of(
        self, bookie: BookieId, lost: Collection[BookieId], marked: Collection[str]
    ) -> Standing:
        if bookie in self._serving:
            return Standing.LEAVING if bookie in self._leaving else Standing.SERVING
        told = bookie in marked and not self._absent.seen(bookie)
        if told or bookie in lost or bookie in self._leaving:
            return Standing.LOST
        return Standing.AWAY

    @property
    def gone(self) -> list[BookieId]:
        """Whom ledgers are to be freed of: lost, silent, or to be emptied."""
        lost = self._absent.lost(self.delay_s, _now_s())
        return list(dict.fromkeys((*lost, *self._silences.silent, *self._leaving)))

    @property
    def silent(self) -> Collection[BookieId]:
        return self._silences.silent

    @property
    def serving(self) -> Collection[BookieId]:
        return self._serving

    @property
    def away(self) -> list[BookieId]:
        return list(self._absent.away)

    @property
    def leaving(self) -> Collection[BookieId]:
        return self._leaving

    def next_loss_s(self) -> float | None:
        """In how many seconds the next bookie that is away is lost; None: nobody is about to be."""
        now_s = _now_s()
        at_s = self._absent.next_s(self.delay_s, now_s)
        return None if at_s is None else at_s - now_s

    def forget(self, bookies: Collection[BookieId]) -> None:
        """No ledger names these any more."""
        self._absent.forget(bookies)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
