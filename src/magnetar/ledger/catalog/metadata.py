"""``LedgerManager``: the metadata of ledgers in a metadata store, in BookKeeper's places.

Owns the nodes under its root: LAYOUT, INSTANCEID, the id counters and one node per ledger.
Changes to a ledger are compare-and-set on the version that came with it. When a connection to
the store breaks in mid-write the manager finds out what happened before it answers: a creator
token tells our own node from another's, and a value that is exactly ours one version on is our
own write.

Source: BookKeeper's ``AbstractZkLedgerManager``; docs/formats/metadata.md.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from typing import NamedTuple

from magnetar.env.metadata import ListStamps, MetadataStore
from magnetar.ledger.catalog.ledger_ids import LedgerIdGenerator
from magnetar.model.errors import (
    LedgerError,
    LedgerExistsError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
)
from magnetar.model.ids import LedgerId
from magnetar.model.ledger import LedgerMetadata
from magnetar.wire.bookie.metadata import decode_ledger_metadata, encode_ledger_metadata
from magnetar.wire.bookie.metadata_layout import (
    LONG_ID_END,
    Digits,
    LedgerLayout,
    decode_layout,
    encode_layout,
    id_ranges,
    ledger_path,
    level_digits,
)

DEFAULT_ROOT = "/ledgers"

_ATTEMPTS = 3  # of a write whose connection broke; the store itself waits for a new connection
NAMES_AT_ONCE = 1000
"""Nodes whose names are made out in one turn of the loop."""
_NEW_IDS = 3  # that may be taken already


def random_token() -> int:
    """A creator token: 63 random bits, never 0 (0 stands for "none")."""
    return secrets.randbelow(2**63 - 1) + 1


class LivingRange(NamedTuple):
    """Ids in [``first``, ``behind``). ``stamp``: as long as it is the same, so are the ledgers in
    the range; None: it cannot be told. ``path``: the directory of the store that has them; empty:
    there is none, so no ledger either."""

    first: int
    behind: int
    stamp: int | None
    store: MetadataStore
    path: str
    digits: Digits
    prefix: str

    async def ids(self) -> list[int]:
        """The ledgers that there are, ascending. Raises ``MetadataError``."""
        if not self.path:
            return []
        try:
            names = await self.store.children(self.path)
        except NoNodeError:
            return []  # pruned meanwhile
        found: list[int] = []
        depth = len(self.digits) - 1
        for start in range(0, len(names), NAMES_AT_ONCE):
            for name in names[start : start + NAMES_AT_ONCE]:
                last = level_digits(name, self.digits, depth)
                if (
                    last is not None
                    and self.first <= (one := int(self.prefix + last)) < self.behind
                ):
                    found.append(one)
            await asyncio.sleep(0)
        return found


class LedgerManager:
    """Ledgers under ``root``. ``await initialize()`` comes first."""

    def __init__(
        self,
        store: MetadataStore,
        root: str = DEFAULT_ROOT,
        new_token: Callable[[], int] = random_token,
        new_instance_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._store = store
        self.root = root
        self._new_token = new_token
        self._new_instance_id = new_instance_id
        self._layout = LedgerLayout.HIERARCHICAL
        self._ids = LedgerIdGenerator(store, root, self._layout)
        self.instance_id = ""
        self._deletion_watches: list[Callable[[], None]] = []

    # -- the cluster --------------------------------------------------------------------------

    async def initialize(self, create: bool = True) -> str:
        """Read LAYOUT and INSTANCEID, making what a new cluster lacks, and return the instance
        id. ``create`` False only reads, and raises ``NoNodeError`` when no cluster is there.
        Raises ``MetadataFormatError`` for a layout that we do not know."""
        try:
            layout = await self._store.get(f"{self.root}/LAYOUT")
        except NoNodeError as error:
            if not create:
                raise NoNodeError(
                    f"there is no cluster at {self.root} of the metadata store: {error}; start a "
                    f"bookie or a broker on it once, or correct the metadata URL"
                ) from error
            await self._create_cluster()
            layout = await self._store.get(f"{self.root}/LAYOUT")
        self._layout = decode_layout(layout.value)
        self._ids = LedgerIdGenerator(self._store, self.root, self._layout)
        self.instance_id = await self.stored_instance_id()
        return self.instance_id

    async def _create_cluster(self) -> None:
        """The nodes of a new cluster; LAYOUT last, because it says that the others are there.
        Another process may do the same at the same time: the first of each node stays."""
        nodes = {
            "available/readonly": b"",
            "cookies": b"",
            "INSTANCEID": self._new_instance_id().encode(),
            "LAYOUT": encode_layout(LedgerLayout.HIERARCHICAL),
        }
        for name, value in nodes.items():
            try:
                await self._store.create(f"{self.root}/{name}", value)
            except NodeExistsError:
                continue

    async def stored_instance_id(self) -> str:
        """The instance id that the store has now; empty in a cluster that an old BookKeeper made
        without one, and where there is no cluster. Raises ``MetadataError``."""
        try:
            found = await self._store.get(f"{self.root}/INSTANCEID")
        except NoNodeError:
            return ""
        return found.value.decode("utf-8", "replace").strip()

    @property
    def store(self) -> MetadataStore:
        """Where it all lies."""
        return self._store

    @property
    def layout(self) -> LedgerLayout:
        return self._layout

    # -- one ledger ---------------------------------------------------------------------------

    def path(self, ledger_id: int) -> str:
        """The node of a ledger."""
        return self.root + ledger_path(self._layout, ledger_id)

    async def new_ledger_id(self) -> int:
        """An id that no ledger had before, larger than every id given before it."""
        return await self._ids.next_id()

    async def create_new(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]:
        """As ``create``, under a new id in place of the one that ``metadata`` has; returns it as
        it is stored, with its version. Raises ``LedgerError``."""
        for _ in range(_NEW_IDS):
            metadata = replace(metadata, ledger_id=LedgerId(await self.new_ledger_id()))
            try:
                return metadata, await self.create(metadata)
            except LedgerExistsError:
                continue  # somebody created it by hand; take the next id
        raise LedgerError(
            f"{_NEW_IDS} new ledger ids in a row were taken; does another program give ids in the "
            "same metadata root?"
        )

    async def create(self, metadata: LedgerMetadata) -> int:
        """Store a new ledger; returns its version. Raises ``LedgerExistsError`` if the id is
        another's."""
        if metadata.format_version >= 3:
            metadata = replace(metadata, creator_token=self._new_token())
        outcomes = await asyncio.gather(
            self._create(metadata), self._ids.retire(), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        version = outcomes[0]
        assert isinstance(version, int)
        return version

    async def _create(self, metadata: LedgerMetadata) -> int:
        value = encode_ledger_metadata(metadata)
        for attempt in range(_ATTEMPTS):
            try:
                await self._store.create(self.path(metadata.ledger_id), value)
                return 0
            except NodeExistsError as error:
                return await self._own_version(metadata, error)
            except MetadataUnavailableError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _own_version(self, metadata: LedgerMetadata, error: NodeExistsError) -> int:
        """The version of the node that exists already, if it is the one that we made."""
        try:
            found, version = await self.read(metadata.ledger_id)
        except NoSuchLedgerError:
            found, version = None, 0  # made and removed meanwhile: the id is used up all the same
        if found is not None and 0 != metadata.creator_token == found.creator_token:
            return version
        raise LedgerExistsError(
            f"ledger {metadata.ledger_id} exists already at {self.path(metadata.ledger_id)} and "
            f"was created by somebody else; take a new id"
        ) from error

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """The metadata and the version to write against. Raises ``NoSuchLedgerError``,
        ``MetadataFormatError``."""
        if not 0 <= ledger_id < self._layout.id_end:
            raise self._no_such_ledger(ledger_id)  # clients send any number
        path = self.path(ledger_id)
        try:
            found = await self._store.get(path)
        except NoNodeError as error:
            raise self._no_such_ledger(ledger_id) from error
        try:
            return decode_ledger_metadata(ledger_id, found.value), found.version
        except MetadataFormatError as error:
            raise MetadataFormatError(
                f"{error} ({path} in the metadata store): put the node back from a copy of the "
                "store; without one its entries are lost, and it can be forgotten (magnetar ledger "
                f"delete {ledger_id} --force)"
            ) from error

    async def write(self, metadata: LedgerMetadata, version: int) -> int:
        """Compare-and-set; returns the new version. Raises ``BadVersionError`` when somebody
        else has changed the ledger since ``version``, ``NoSuchLedgerError``."""
        path, value = self.path(metadata.ledger_id), encode_ledger_metadata(metadata)
        for attempt in range(_ATTEMPTS):
            try:
                return await self._store.put(path, value, version)
            except NoNodeError as error:
                raise self._no_such_ledger(metadata.ledger_id) from error
            except MetadataUnavailableError:
                if attempt == _ATTEMPTS - 1:
                    raise
            if version >= 0 and await self._holds(path, value, version + 1):
                return version + 1
        raise AssertionError("the last attempt returns or raises")

    async def _holds(self, path: str, value: bytes, version: int) -> bool:
        try:
            return await self._store.get(path) == (value, version)
        except NoNodeError:
            return False  # the next put says so

    async def delete(self, ledger_id: int, version: int = -1) -> None:
        """Forget a ledger. Raises ``BadVersionError``, ``NoSuchLedgerError``."""
        path = self.path(ledger_id)
        for attempt in range(_ATTEMPTS):
            try:
                await self._store.delete(path, version)
                break
            except NoNodeError as error:
                if attempt == 0:
                    raise self._no_such_ledger(ledger_id) from error
                break  # the attempt whose answer was lost has removed it
            except MetadataUnavailableError:
                if attempt == _ATTEMPTS - 1:
                    raise
        for deleted in self._deletion_watches:
            deleted()
        await self._prune(path)

    def watch_deletions(self, deleted: Callable[[], None]) -> None:
        """Call ``deleted`` whenever a ledger was deleted by way of this manager: bookies of the
        same process need not wait for their next look."""
        self._deletion_watches.append(deleted)

    async def _prune(self, path: str) -> None:
        """Remove the directories that ``path`` has left empty, lowest first."""
        while (path := path.rpartition("/")[0]) != self.root:
            try:
                await self._store.delete(path)
            except MetadataError:
                return  # in use, or gone; an empty one left behind is no harm

    def watch(self, ledger_id: int, changed: Callable[[int], None]) -> Callable[[], None]:
        """Call ``changed(ledger_id)`` on the loop after each change of the ledger's metadata
        (changes may be merged). Returns the function that ends the watch."""
        return self._store.watch_value(self.path(ledger_id), lambda _path: changed(ledger_id))

    def _no_such_ledger(self, ledger_id: int) -> NoSuchLedgerError:
        has_place = 0 <= ledger_id < self._layout.id_end
        where = self.path(ledger_id) if has_place else f"{self.root}, no ledger has such an id"
        return NoSuchLedgerError(
            f"ledger {ledger_id} does not exist in the metadata store ({where}): it was deleted, "
            f"or never created under this root"
        )

    # -- all ledgers --------------------------------------------------------------------------

    async def ledger_ids(self) -> list[int]:
        """The ids of all ledgers, ascending."""
        return [ledger_id async for ledger_id in self.iterate()]

    async def living(self, instance_id: str) -> AsyncGenerator[int, None]:
        """The ids of all ledgers, ascending: those that there were at the call, and still are, for
        certain. What is not among them then was deleted, or is younger. Raises ``MetadataError``
        if the store cannot be asked or is not the one of the cluster ``instance_id``: then
        nothing follows from what it does not know."""
        await self._store.sync()
        await self._check_cluster(instance_id)
        async for ledger_id in self.iterate():
            yield ledger_id

    async def living_ranges(self, instance_id: str) -> AsyncGenerator[LivingRange, None]:
        """All ids there may be, in ranges, ascending: of each can be told which ledgers there are,
        as ``living`` tells. A range is a directory of the store, or what lies between two. Raises
        ``MetadataError`` as ``living``."""
        await self._store.sync()
        await self._check_cluster(instance_id)
        async for each in self.ranges():
            yield each

    async def _check_cluster(self, instance_id: str) -> None:
        """Is the store still the one of this cluster?"""
        found = await LedgerManager(self._store, self.root).initialize(create=False)
        if found != instance_id:
            raise MetadataError(
                f"the metadata store was replaced: its cluster is {found!r}, this process belongs "
                f"to {instance_id!r}; restore the store, or restart what belongs to it"
            )

    async def ranges(self) -> AsyncGenerator[LivingRange, None]:
        """As ``living_ranges``, of whatever store it is, as old as it may be."""
        behind = 0
        for digits, first, end in id_ranges(self._layout):
            async for path, prefix in self._leaves(self.root, digits, 0, ""):
                start = max(int(prefix + "0" * digits[-1]), first)
                if start > behind:
                    yield LivingRange(behind, start, None, self._store, "", digits, prefix)
                behind = min(int(prefix + "9" * digits[-1]) + 1, end)
                stamp = await self._stamp(path)
                yield LivingRange(start, behind, stamp, self._store, path, digits, prefix)
        if behind < LONG_ID_END:
            yield LivingRange(behind, LONG_ID_END, None, self._store, "", (), "")

    async def _stamp(self, path: str) -> int | None:
        if not isinstance(self._store, ListStamps):
            return None
        try:
            return await self._store.children_stamp(path)
        except NoNodeError:
            return None  # pruned meanwhile

    async def _leaves(
        self, path: str, digits: Digits, depth: int, prefix: str
    ) -> AsyncIterator[tuple[str, str]]:
        """(path, digits so far) of the directories that hold ledgers, ascending."""
        if depth == len(digits) - 1:
            yield path, prefix
            return
        for name in await self._children(path):
            found = level_digits(name, digits, depth)
            if found is not None:
                below = self._leaves(f"{path}/{name}", digits, depth + 1, prefix + found)
                async for each in below:
                    yield each

    async def iterate(self) -> AsyncIterator[int]:
        """The ids of all ledgers, ascending, one directory in memory at a time. Ledgers made or
        deleted meanwhile may or may not be among them."""
        for digits in self._layout.trees:
            async for path, prefix in self._leaves(self.root, digits, 0, ""):
                for name in await self._children(path):
                    last = level_digits(name, digits, len(digits) - 1)
                    if last is not None:
                        yield int(prefix + last)

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []  # pruned meanwhile
