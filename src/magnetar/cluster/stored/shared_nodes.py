"""Nodes that many share: groups, topics, users, each of which has a part of the value, by its name.

Owns the loop of a change, compare and set: the node is read from the store, not from memory, since
the version to compare with is of what is changed; it is written, or made, and all that again if
another was faster.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from magnetar.cluster.stored.counters import RACES_MAX
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.env.metadata import MetadataStore, PairedWrites
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    NodeExistsError,
    NoNodeError,
    NotAllowedError,
)

NODE_BYTES_MAX: Final = 900_000
"""The metadata store's have 1 MiB."""

Objects: TypeAlias = dict[str, dict[str, Any]]
"""By the name of whose they are."""


async def change_node(
    metadata: MetadataStore,
    known: WatchedNodes[Any],
    path: str,
    change: Callable[[bytes | None], bytes],
    too_many: str,
    confirm: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """``change`` makes the node's next value of the one that it has (None: there is no such node);
    it may be called again. ``known`` forgets the node. ``confirm`` raises if it is not to be
    changed: it is asked after the node is read, so that whatever is written there later than it
    looks is noticed. Raises ``MetadataError``, what ``change`` and ``confirm`` raise, and
    ``NotAllowedError`` with ``too_many`` when there is no place for more."""
    try:
        for _ in range(RACES_MAX):
            if await _change_once(metadata, path, change, too_many, confirm):
                return
    finally:
        known.forget(path)  # one that failed may have happened
    raise BrokerMetadataError(f"{path} is changed by many at once; try again")


async def make_beside(
    metadata: MetadataStore,
    known: WatchedNodes[Any],
    path: str,
    change: Callable[[bytes | None], bytes],
    too_many: str,
    made: tuple[str, bytes],
) -> None:
    """As ``change_node``, and a node is made in the same write: ``made``, its path and value. Both
    or neither. Raises likewise, and ``NodeExistsError``: that one is there."""
    assert isinstance(metadata, PairedWrites), "a store of another package"
    try:
        for _ in range(RACES_MAX):
            try:
                node = await metadata.get(path)
            except NoNodeError:
                with suppress(NodeExistsError):  # what is there can be compared with
                    await metadata.create(path, encode_objects({}))
                continue
            value = _fitting(change(node.value), too_many)
            with suppress(BadVersionError, NoNodeError):
                await metadata.create_and_put(*made, path, value, node.version)
                return
    finally:
        known.forget(path)  # one that failed may have happened
    raise BrokerMetadataError(f"{path} is changed by many at once; try again")


def _fitting(value: bytes, too_many: str) -> bytes:
    if len(value) > NODE_BYTES_MAX:
        raise NotAllowedError(too_many)
    return value


async def _change_once(
    metadata: MetadataStore,
    path: str,
    change: Callable[[bytes | None], bytes],
    too_many: str,
    confirm: Callable[[], Awaitable[None]] | None,
) -> bool:
    try:
        node = await metadata.get(path)
    except NoNodeError:
        node = None
    if confirm is not None:
        await confirm()
    value = _fitting(change(None if node is None else node.value), too_many)
    try:
        if node is None:
            await metadata.create(path, value)
        else:
            await metadata.put(path, value, node.version)
    except (NodeExistsError, BadVersionError, NoNodeError):
        return False
    return True


def decode_objects(path: str, value: bytes | None, what: str) -> Objects:
    """JSON: ``{name: object}``. Raises ``BrokerMetadataError``, which says that the node at
    ``path`` holds no ``what``."""
    if value is None:
        return {}
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise BrokerMetadataError(f"{path} holds {value[:40]!r}, which are no {what}")
    return found


def encode_objects(objects: Objects) -> bytes:
    return json.dumps(objects, sort_keys=True).encode()
