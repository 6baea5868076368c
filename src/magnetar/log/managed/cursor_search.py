"""What the metadata store and the bookies have of a log's cursors: for who opens the log.

A log's last ledger and its cursors are read side by side (``CursorSearch``): each is several round
trips, and whoever opens the log has clients that wait. Rules:

* A cursor that is found here was read before the log's record is written (``wait_nodes``). So who
  has stored in it what was read there had the log before us: that the record could be written, as
  it was read before this began, says so, and nobody need be asked once more.
* Its node is written afterwards, as it was read here: who has stored in it since makes that fail.
* A former owner may make cursors, and delete them, until the record is written. They are listed
  again after that, and what is not found here is read then. A node that was deleted and made anew
  could have the version that was read here: if any was since, nothing that is found counts. (That
  is known by the stamp of the list, which is read before the nodes are.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from magnetar.env.metadata import ListStamps, MetadataStore
from magnetar.log.acknowledgements import AckImage
from magnetar.log.managed.cursor import stored_images
from magnetar.log.managed.ledgers import Ledgers
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import (
    CursorRecord,
    cursor_path,
    decode_cursor,
    decode_name,
    encode_cursor,
    log_path,
)
from magnetar.model.errors import MagnetarError, NoNodeError

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 32
"""Cursors of one log that are recovered side by side."""


class FoundCursor(NamedTuple):
    """A cursor's node, and what is stored beside it."""

    node: RecordNode[CursorRecord]
    images: Sequence[AckImage]


NONE_FOUND: Final[Mapping[str, FoundCursor]] = MappingProxyType({})


async def cursor_node(
    metadata: MetadataStore, log_name: str, name: str
) -> RecordNode[CursorRecord]:
    """The node of a cursor. Raises ``NoNodeError``."""
    return await RecordNode.load_or_create(
        metadata, cursor_path(log_name, name), encode_cursor, _decoder(log_name, name), None
    )


async def make_cursor_node(
    metadata: MetadataStore, log_name: str, name: str, initial: CursorRecord
) -> RecordNode[CursorRecord]:
    """The node of a cursor, made with ``initial``, as its owner's, unless there is one: not asked
    first, for there is none as a rule, and whoever subscribes waits."""
    return await RecordNode.create(
        metadata,
        cursor_path(log_name, name),
        encode_cursor,
        _decoder(log_name, name),
        initial,
        taken=True,
    )


def _decoder(log_name: str, name: str) -> Callable[[bytes], CursorRecord]:
    return lambda value: decode_cursor(f"{log_name}/{name}", value)


async def cursor_names(metadata: MetadataStore, log_name: str) -> list[str]:
    """Of all that have nodes."""
    try:
        return [decode_name(segment) for segment in await metadata.children(log_path(log_name))]
    except NoNodeError:
        return []


async def side_by_side(items: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """``work`` of each, ``AT_ONCE`` at a time. Raises the first error, when nothing is under way
    any more: whoever tries again must not meet what was left of the last time."""
    found: list[R] = []
    for start in range(0, len(items), AT_ONCE):
        some = items[start : start + AT_ONCE]
        outcomes = await asyncio.gather(*map(work, some), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            found.append(outcome)
    return found


async def find_cursors(
    metadata: MetadataStore, ledgers: Ledgers, log_name: str, names: Sequence[str]
) -> dict[str, FoundCursor]:
    """Those of ``names`` that are there: a former owner may still delete what it deletes already.
    Raises ``LogError``, ``LedgerError``, ``MetadataError``."""

    async def find(name: str) -> RecordNode[CursorRecord] | None:
        try:
            return await cursor_node(metadata, log_name, name)
        except NoNodeError:
            return None

    nodes = zip(names, await side_by_side(names, find), strict=True)
    named = [(name, node) for name, node in nodes if node is not None]
    images = await side_by_side(named, lambda item: _images(ledgers, log_name, *item))
    return {name: FoundCursor(node, each) for (name, node), each in zip(named, images, strict=True)}


async def _images(
    ledgers: Ledgers, log_name: str, name: str, node: RecordNode[CursorRecord]
) -> Sequence[AckImage]:
    if node.record.deleted:
        return ()  # and perhaps half gone
    return await stored_images(f"{log_name}/{name}", node.record, ledgers)


class CursorSearch:
    """See the module's text. What fails here is left out."""

    def __init__(self, metadata: MetadataStore, ledgers: Ledgers, log_name: str) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._log_name = log_name
        self._nodes_read = asyncio.Event()
        self._stamp: int | None = None

    async def wait_nodes(self) -> None:
        """Until what is found was read of the metadata store."""
        await self._nodes_read.wait()

    async def run(self) -> Mapping[str, FoundCursor]:
        """The cursors, fenced and read; once."""
        try:
            nodes = await self._nodes()
        finally:
            self._nodes_read.set()
        found = await side_by_side(list(nodes.items()), self._read)
        return {name: each for name, each in zip(nodes, found, strict=True) if each is not None}

    async def names_now(self) -> tuple[list[str], bool]:
        """The names of all; and whether none was made or deleted since the nodes were read, as far
        as is known. Raises ``MetadataError``."""
        names, stamp = await asyncio.gather(
            cursor_names(self._metadata, self._log_name), self._stamp_now()
        )
        return names, stamp is not None and stamp == self._stamp

    async def _stamp_now(self) -> int | None:
        if not isinstance(self._metadata, ListStamps):
            return None
        try:
            return await self._metadata.children_stamp(log_path(self._log_name))
        except MagnetarError:
            return None

    async def _nodes(self) -> dict[str, RecordNode[CursorRecord]]:
        try:
            names, self._stamp = await asyncio.gather(
                cursor_names(self._metadata, self._log_name), self._stamp_now()
            )
        except MagnetarError:
            return {}
        nodes = await side_by_side(names, self._node)
        return {name: node for name, node in zip(names, nodes, strict=True) if node is not None}

    async def _node(self, name: str) -> RecordNode[CursorRecord] | None:
        try:
            return await cursor_node(self._metadata, self._log_name, name)
        except MagnetarError:
            return None

    async def _read(self, item: tuple[str, RecordNode[CursorRecord]]) -> FoundCursor | None:
        name, node = item
        try:
            return FoundCursor(node, await _images(self._ledgers, self._log_name, name, node))
        except MagnetarError:
            return None
