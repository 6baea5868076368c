"""``BookieRegistry``: which bookies are registered, and where they listen. The reader's side.

Bookies write ``available/<id>`` and ``available/readonly/<id>`` (``bookie/registration.py``).
What was read is kept until the store says that the set has changed, so that asking before every
ledger costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from magnetar.env.metadata import MetadataStore
from magnetar.ledger.bookies import ReadOnlyReason
from magnetar.model.errors import MetadataFormatError, NoNodeError
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.metadata_service import (
    LACKS_SPACE_PROPERTY,
    REFUSAL_PROPERTY,
    decode_service_info,
)

log = structlog.get_logger(__name__)


Addresses = dict[BookieId, tuple[str, int]]

_READ_ONLY_NODE = "readonly"


class BookieRegistry:
    """The bookies of one cluster. ``close`` ends its watches."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers", cached: bool = True) -> None:
        """``cached`` False reads the store every time, as a store without watches needs."""
        self._store = store
        self._writable = f"{root}/available"
        self._read_only = f"{root}/available/{_READ_ONLY_NODE}"
        self._cached = cached
        self._known: dict[str, Addresses] = {}
        self._properties: dict[BookieId, Mapping[str, str]] = {}
        self._http: dict[BookieId, tuple[str, int]] = {}
        self._changes = 0
        self._end_watches: dict[str, Callable[[], None]] = {}

    async def available(self) -> Addresses:
        """The bookies that take new entries, by id in ascending order. Raises ``MetadataError``."""
        return await self._addresses(self._writable)

    async def read_only(self) -> Addresses:
        """The bookies that only serve reads."""
        return await self._addresses(self._read_only)

    async def properties(self) -> dict[BookieId, Mapping[str, str]]:
        """What the available bookies say of themselves (``rack``, ``zone``). Raises
        ``MetadataError``."""
        available = await self.available()
        return {bookie_id: self._properties.get(bookie_id, {}) for bookie_id in available}

    def told(self, bookie_id: BookieId) -> Mapping[str, str]:
        """What a bookie said of itself when it was last read of; nothing if it never was. Asks
        nobody: whoever has connected to it has had it read."""
        return self._properties.get(bookie_id, {})

    def http_address(self, bookie_id: BookieId) -> tuple[str, int] | None:
        """Its HTTP server, as it said when it was last read of; None: it says of none."""
        return self._http.get(bookie_id)

    async def refusals(self) -> dict[BookieId, ReadOnlyReason]:
        """Why the bookies that only serve reads take no entries. Raises ``MetadataError``."""
        found = {}
        for bookie_id in await self.read_only():
            told = self._properties.get(bookie_id, {})
            reason = told.get(REFUSAL_PROPERTY, "it does not say why")
            found[bookie_id] = ReadOnlyReason(reason, told.get(LACKS_SPACE_PROPERTY) == "true")
        return found

    async def all(self) -> Addresses:
        """Every registered bookie; one that is changing sides is there once."""
        writable, read_only = await asyncio.gather(self.available(), self.read_only())
        return {**read_only, **writable}

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` on the loop after bookies came, went or changed sides (changes may be
        merged). Returns the function that ends the watch."""

        def told(path: str) -> None:
            self._forget(path)  # whichever watch is called first
            changed()

        ends = [self._store.watch(path, told) for path in (self._writable, self._read_only)]

        def end() -> None:
            for end_one in ends:
                end_one()

        return end

    def close(self) -> None:
        """End the registry's own watches."""
        for end in self._end_watches.values():
            end()
        self._end_watches.clear()
        self._known.clear()

    async def _addresses(self, path: str) -> Addresses:
        known = self._known.get(path)
        if known is not None:
            return dict(known)
        if not self._cached:
            return await self._read(path)
        if path not in self._end_watches:
            self._end_watches[path] = self._store.watch(path, self._forget)
        changes = self._changes
        found = await self._read(path)
        if self._changes == changes:  # else it may be old already: the next caller reads again
            self._known[path] = found
        return dict(found)

    def _forget(self, path: str) -> None:
        self._changes += 1
        self._known.pop(path, None)

    async def _read(self, path: str) -> Addresses:
        try:
            names = await self._store.children(path)
        except NoNodeError:
            return {}
        ids = [BookieId(name) for name in names if name != _READ_ONLY_NODE]
        found = await asyncio.gather(*(self._address(path, bookie_id) for bookie_id in ids))
        return {
            bookie_id: address
            for bookie_id, address in zip(ids, found, strict=True)
            if address is not None
        }

    async def _address(self, path: str, bookie_id: BookieId) -> tuple[str, int] | None:
        try:
            node = await self._store.get(f"{path}/{bookie_id}")
            info = decode_service_info(bookie_id, node.value)
        except NoNodeError:
            return None  # gone between the list and the node
        except MetadataFormatError as error:
            log.warning("bookie left out", bookie=bookie_id, error=str(error))
            return None
        address = info.address
        self._properties[bookie_id] = dict(info.properties)
        self._http.pop(bookie_id, None)
        if info.http_address is not None:
            self._http[bookie_id] = info.http_address
        if address is None:
            log.warning("bookie left out: it does not offer bookie-rpc", bookie=bookie_id)
        return address
