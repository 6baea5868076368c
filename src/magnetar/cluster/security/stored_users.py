"""Users whose SCRAM credentials the metadata store has, for all brokers: Kafka's admins make them.

| path | value |
|---|---|
| ``/admin/scram-users/<00 to 0f>`` | as a file of users (``users``), by a hash of their names |

They share ``BUCKETS`` nodes, all of which stay in memory: asking for names that nobody has reads
nothing and keeps nothing. A change is seen by every broker when the store tells of it.

The store has what ``users`` has in files: keys that log nobody in, never a password.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from magnetar.cluster.security.users import ScramCredentials, Users, decode_users, encode_users
from magnetar.cluster.stored.shared_nodes import change_node
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import BrokerMetadataError, ConfigError

ROOT: Final = "/admin/scram-users"
BUCKETS: Final = 16
"""Of some thousand users each."""

Kinds: TypeAlias = Mapping[str, ScramCredentials]
"""Mechanism -> credentials, of one user."""


class StoredUsers:
    """See the module's text."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._buckets: WatchedNodes[Users] = WatchedNodes(metadata, _decoded)

    async def of(self, name: str) -> Kinds:
        """Empty: there is no such user. Raises ``MetadataError``."""
        return (await self._buckets.get(_path_of(name))).get(name, {})

    async def all(self) -> Users:
        """Raises ``MetadataError``."""
        found: dict[str, Kinds] = {}
        for number in range(BUCKETS):
            found.update(await self._buckets.get(_path(number)))
        return found

    async def change(self, name: str, changed: Callable[[Kinds], Kinds]) -> None:
        """The user's credentials become what ``changed`` makes of those that are stored; without
        any the user is gone. Raises what ``changed`` raises, ``NotAllowedError``: there is no place
        for more, and ``MetadataError``."""

        def change(value: bytes | None) -> bytes:
            users = dict(_decoded(path, value))
            users[name] = changed(users.get(name, {}))
            if not users[name]:
                del users[name]
            return encode_users(users)

        path = _path_of(name)
        too_many = f"there is no place for more users beside those of {path}"
        await change_node(self._metadata, self._buckets, path, change, too_many)

    def close(self) -> None:
        self._buckets.close()


def _path_of(name: str) -> str:
    return _path(zlib.crc32(name.encode()) % BUCKETS)


def _path(number: int) -> str:
    return f"{ROOT}/{number:02x}"


def _decoded(path: str, value: bytes | None) -> Users:
    try:
        return decode_users(value or b"", path)
    except ConfigError as error:
        raise BrokerMetadataError(f"node {path} holds no users: {error}") from None
