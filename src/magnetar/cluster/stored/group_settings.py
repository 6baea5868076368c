"""What is set for single groups of Kafka's consumers: texts by name, which all brokers see.

| path | value |
|---|---|
| ``/kafka-group-settings/<00 to 3f>`` | ``{group id: {name: value}}`` |

Groups that have settings share ``BUCKETS`` nodes, by a hash of their ids: so what holds for any
group is answered from memory (``watched_nodes``) once those are read, and a change is told of.

Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from magnetar.cluster.stored.shared_nodes import (
    Objects,
    change_node,
    decode_objects,
    encode_objects,
)
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.env.metadata import MetadataStore

ROOT: Final = "/kafka-group-settings"
BUCKETS: Final = 64
WHAT: Final = "settings of groups"

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

        def change(value: bytes | None) -> bytes:
            found = decode_objects(path, value, WHAT)
            mine = {**found.pop(group_id, {}), **changes}
            kept = {name: value for name, value in mine.items() if value is not None}
            if kept:
                found[group_id] = kept
            return encode_objects(found)

        path = _path(group_id)
        too_many = (
            f"so many groups have settings that there is no place for those of {group_id}; take "
            "some away"
        )
        await change_node(self._metadata, self._buckets, path, change, too_many)

    def close(self) -> None:
        self._buckets.close()


_PATHS: Final = tuple(f"{ROOT}/{number:02x}" for number in range(BUCKETS))


def _path(group_id: str) -> str:
    return _PATHS[zlib.crc32(group_id.encode()) % BUCKETS]


def _decode(path: str, value: bytes | None) -> Objects:
    return decode_objects(path, value, WHAT)
