"""What is known of bookies: racks, zones, free space. For placement, and for who is read from.

Racks and zones come from a file (it wins) or from what bookies say of themselves when they
register (properties ``rack`` and ``zone``). Free space is asked of the bookies when a rule needs
it, at most every ``SPACE_S``; a bookie that does not tell is neither preferred nor passed over.

The file is TOML, read once::

    [bookies."bookie-1"]
    rack = "r1"
    zone = "z1"
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from magnetar.config import LedgerConfig
from magnetar.ledger.bookies import BookiePool, ReadOnlyReason
from magnetar.ledger.placing.placement import ANYWHERE, BookieTraits, Placement
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import ConfigError
from magnetar.model.ids import BookieId

SPACE_S = 60.0
SPACE_ANSWER_S = 0.5
"""A bookie that needs longer to tell is one that does not: ledgers are not kept waiting for it."""
RACK_PROPERTY = "rack"
ZONE_PROPERTY = "zone"

Properties: TypeAlias = Mapping[BookieId, Mapping[str, str]]


def read_topology_file(path: Path) -> dict[BookieId, BookieTraits]:
    """Racks and zones by bookie. Raises ``ConfigError``."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"ledger.topology_file {path} cannot be read: {error}") from error
    bookies = content.get("bookies", {})
    if not isinstance(bookies, dict):
        raise ConfigError(f"ledger.topology_file {path}: 'bookies' is no table")
    return {BookieId(name): _traits(path, name, value) for name, value in bookies.items()}


def _traits(path: Path, name: str, value: object) -> BookieTraits:
    known = isinstance(value, dict) and set(value) <= {RACK_PROPERTY, ZONE_PROPERTY}
    if not known or not all(isinstance(text, str) for text in value.values()):  # type: ignore[attr-defined]
        raise ConfigError(
            f"ledger.topology_file {path}: bookie {name} has {value!r}; accepted: rack and zone, "
            "both texts"
        )
    assert isinstance(value, dict)
    return BookieTraits(value.get(RACK_PROPERTY, ""), value.get(ZONE_PROPERTY, ""))


class Topology:
    """Makes the ``Placement`` of each choice. ``properties`` gives what bookies registered with;
    None if nobody knows; ``refusals`` why bookies that are registered take no entries; ``told``
    what a bookie registered with, as far as that is known without a question. ``zone`` is where
    this client stands. Raises ``ConfigError`` for a file that cannot be used."""

    def __init__(
        self,
        config: LedgerConfig,
        pool: BookiePool,
        properties: Callable[[], Awaitable[Properties]] | None = None,
        refusals: Callable[[], Awaitable[Mapping[BookieId, ReadOnlyReason]]] | None = None,
        told: Callable[[BookieId], Mapping[str, str]] | None = None,
        zone: str = "",
    ) -> None:
        self._config = config
        self._pool = pool
        self._properties = properties
        self._refusals = refusals
        self._told = told
        self._zone = zone
        file = config.topology_file
        self._file = read_topology_file(Path(file)) if file else {}
        self._space: dict[BookieId, int | None] = {}
        self._space_until_s = 0.0

    def is_near(self, bookie_id: BookieId) -> bool:
        """Whether the bookie is known to stand in this client's zone."""
        if not self._zone:
            return False
        place = self._file.get(bookie_id)
        if place is not None:
            return place.zone == self._zone
        told = {} if self._told is None else self._told(bookie_id)
        return told.get(ZONE_PROPERTY) == self._zone

    async def placement(self, bookies: Sequence[BookieId]) -> Placement:
        """The rules, with what is known of ``bookies``. Raises ``MetadataError``."""
        config = self._config
        by_space = config.placement_weighted or config.placement_free_bytes_least > 0
        if not config.placement_domain and not by_space:
            return ANYWHERE
        free = await self._free(bookies) if by_space else {}
        registered = await self._registered() if config.placement_domain else {}
        traits = {}
        for bookie in bookies:
            told = registered.get(bookie, {})
            place = self._file.get(bookie) or BookieTraits(
                told.get(RACK_PROPERTY, ""), told.get(ZONE_PROPERTY, "")
            )
            traits[bookie] = place._replace(free_bytes=free.get(bookie))
        return Placement(
            config.placement_domain,
            config.placement_domains_least,
            config.placement_enforced,
            config.placement_weighted,
            config.placement_free_bytes_least,
            traits,
        )

    async def refusals(self) -> Mapping[BookieId, ReadOnlyReason]:
        """Why bookies that are registered take no entries. Raises ``MetadataError``."""
        return {} if self._refusals is None else await self._refusals()

    async def _registered(self) -> Properties:
        return {} if self._properties is None else await self._properties()

    async def _free(self, bookies: Sequence[BookieId]) -> Mapping[BookieId, int | None]:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._space_until_s:
            self._space_until_s = now_s + SPACE_S
            self._space = {}
        unknown = [bookie for bookie in bookies if bookie not in self._space]
        told = await asyncio.gather(*(self._ask(bookie) for bookie in unknown))
        self._space.update(zip(unknown, told, strict=True))
        return self._space

    async def _ask(self, bookie_id: BookieId) -> int | None:
        space = self._pool.client(bookie_id).disk_space()
        told = await reply(bookie_id, space, SPACE_ANSWER_S)
        return None if isinstance(told, Refusal) else told[1]
