"""Share sessions of one broker (KIP-932): which partitions a member fetches here, so that it does
not say them each time.

=========  ====================================================================================
epoch      what a request with it does
=========  ====================================================================================
0          begins a session, in place of one that the member has here
n          is the n-th after it; the next one has n + 1, and 1 follows the largest
-1         ends it
=========  ====================================================================================

A request of another epoch than the next one is refused, and so is one of a session that is not
there: its client begins anew. A session belongs to the connection that it was used by last, and
ends with it.

Pure. Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.share_fetch_messages import CLOSE_EPOCH

SESSIONS_MAX: Final = 2_000
"""Of one broker, as Kafka's ``group.share.max.share.sessions``."""
PARTITIONS_MAX: Final = 10_000
"""Of one session."""
EPOCH_MAX: Final = (1 << 31) - 1


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


@dataclass(slots=True)
class ShareSession:
    """``places`` in the order in which they are read; ``epoch``: of its next request."""

    key: SessionKey
    connection: Hashable
    epoch: int = 1
    places: dict[TopicIdPartition, None] = field(default_factory=dict)

    def change(self, more: Iterable[TopicIdPartition], fewer: Iterable[TopicIdPartition]) -> None:
        self.places.update(dict.fromkeys(more))
        for place in fewer:
            self.places.pop(place, None)

    def rotate(self) -> None:
        """The first one is the last to be read the next time."""
        first = next(iter(self.places), None)
        if first is not None:
            del self.places[first]
            self.places[first] = None


class ShareSessions:
    """See the module's text."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._most = sessions_max
        self._sessions: dict[SessionKey, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def used(self, key: SessionKey, epoch: int, connection: Hashable) -> ShareSession | ErrorCode:
        """The session that a request goes on with, or ends (epoch -1)."""
        found = self._sessions.get(key)
        if found is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == CLOSE_EPOCH:
            del self._sessions[key]
        elif epoch != found.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        else:
            found.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        found.connection = connection
        return found

    def opened(self, key: SessionKey, connection: Hashable) -> ShareSession | ErrorCode:
        """A new one. There must be none of ``key``."""
        assert key not in self._sessions, key
        if len(self._sessions) >= self._most:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        found = self._sessions[key] = ShareSession(key, connection)
        return found

    def end(self, key: SessionKey) -> ShareSession | None:
        """Returns it, if it was there."""
        return self._sessions.pop(key, None)

    def of_key(self, key: SessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def of(self, connection: Hashable) -> list[ShareSession]:
        return [each for each in self._sessions.values() if each.connection is connection]
