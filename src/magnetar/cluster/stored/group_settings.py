"""What is set for single groups of Kafka's consumers: texts by name, which all brokers see.

| path | value |
|---|---|
| ``/kafka-group-settings/<00 to 3f>`` | ``{group id: {name: value}}`` |

Groups that have settings share ``BUCKETS`` nodes, by a hash of their ids: so what holds for any
group is answered from memory (``watched_nodes``) once those are read, and a change is told of.

Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Final

from magnetar.cluster.stored.counters import RACES_MAX
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    NodeExistsError,
    NoNodeError,
    NotAllowedError,
)

ROOT: Final = "/kafka-group-settings"
BUCKETS: Final = 64
BUCKET_BYTES_MAX: Final = 900_000
"""The metadata store's nodes have 1 MiB."""

Said = dict[str, dict[str, str]]
"""Group id -> what is set for it."""
NOTHING: Final[Mapping[str, str]] = {}


class GroupSettings:
    """See the module's text."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._buckets = WatchedNodes(metadata, _decode)

    async def of(self, group_id: str) -> Mapping[str, str]:
        """Raises ``MetadataError``."""
        return (await self._buckets.get(_path(group_id))).get(group_id, NOTHING)

    async def groups(self) -> list[str]:
        """Those for which something is set. Raises ``MetadataError``."""
        return [name for path in _PATHS for name in await self._buckets.get(path)]

    async def change(self, group_id: str, changes: Mapping[str, str | None]) -> None:
        """None: it is not set any more. Raises ``MetadataError``, and ``NotAllowedError`` when
        there is no place for more."""
        path = _path(group_id)
        try:
            for _ in range(RACES_MAX):
                if await self._change_once(path, group_id, changes):
                    return
        finally:
            self._buckets.forget(path)  # one that failed may have happened
        raise BrokerMetadataError(f"{path} is changed by many at once; try again")

    async def _change_once(
        self, path: str, group_id: str, changes: Mapping[str, str | None]
    ) -> bool:
        try:
            # From the store, not from memory: the version to compare with is read here.
            node = await self._metadata.get(path)
        except NoNodeError:
            node = None
        found = _decode(path, None if node is None else node.value)
        mine = {**found.pop(group_id, {}), **changes}
        kept = {name: value for name, value in mine.items() if value is not None}
        if kept:
            found[group_id] = kept
        value = json.dumps(found, sort_keys=True).encode()
        if len(value) > BUCKET_BYTES_MAX:
            raise NotAllowedError(
                f"so many groups have settings that there is no place for those of {group_id}; "
                "take some away"
            )
        try:
            if node is None:
                await self._metadata.create(path, value)
            else:
                await self._metadata.put(path, value, node.version)
        except (NodeExistsError, BadVersionError, NoNodeError):
            return False
        return True

    def close(self) -> None:
        self._buckets.close()


_PATHS: Final = tuple(f"{ROOT}/{number:02x}" for number in range(BUCKETS))


def _path(group_id: str) -> str:
    return _PATHS[zlib.crc32(group_id.encode()) % BUCKETS]


def _decode(path: str, value: bytes | None) -> Said:
    if value is None:
        return {}
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise BrokerMetadataError(f"{path} holds {value[:40]!r}, which are no settings of groups")
    return found
