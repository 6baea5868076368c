"""What this broker leads for share groups: the states of partitions, and the sessions of members.

A partition's state is read from the group's coordinator when a member first fetches it here, and
forgotten when no session has it any more, so that an admin may set it anew while a group is empty.
A session ends with its connection: what its member held is available at once, and not when the
locks are over.

Bounds: ``share_sessions``, and ``LED_MAX`` states.

Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Final

from magnetar.env.keyed_locks import KeyedLocks
from magnetar.model.errors import MagnetarError, NotAllowedError
from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition
from magnetar.protocols.kafka.coordination.share_states import ShareStates
from magnetar.protocols.kafka.handlers.led_share_partition import LedSharePartition
from magnetar.protocols.kafka.partitions.partition import Partition
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.protocols.kafka.shares.share_partition import SharePartition
from magnetar.protocols.kafka.shares.share_records import ShareImage, ShareStateKey
from magnetar.protocols.kafka.shares.share_sessions import (
    SessionKey,
    ShareSession,
    ShareSessions,
)
from magnetar.protocols.kafka.shares.share_settings import ShareSettings, settings_of
from magnetar.wire.kafka.errors import ErrorCode

LED_MAX: Final = 20_000


class StateRefusedError(MagnetarError):
    """The coordinator gives no state, and this is what a client is told."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class ShareLeader:
    """See the module's text."""

    def __init__(self, services: KafkaServices, states: ShareStates) -> None:
        self._services = services
        self._states = states
        self._led: dict[ShareStateKey, LedSharePartition] = {}
        self._users: dict[ShareStateKey, int] = {}
        self._loading: KeyedLocks[ShareStateKey] = KeyedLocks()
        self.sessions = ShareSessions()

    async def settings(self, group_id: str) -> ShareSettings:
        """Raises ``MetadataError``."""
        services = self._services
        return settings_of(services.config, await services.control.groups.of(group_id))

    # -- states -------------------------------------------------------------------------------

    def known(self, key: ShareStateKey) -> LedSharePartition | None:
        found = self._led.get(key)
        return found if found is not None and found.usable else None

    async def led(
        self, key: ShareStateKey, partition: Partition, settings: ShareSettings
    ) -> LedSharePartition:
        """The state, read if need be. Raises ``StateRefusedError``, ``NotAllowedError``, and as
        ``ShareStates.read`` and ``.write``."""
        found = self.known(key)
        if found is None or found.partition is not partition:
            async with self._loading.held(key):
                found = self.known(key)
                if found is None or found.partition is not partition:
                    found = await self._read(key, partition, settings)
        found.let(settings)
        return found

    async def _read(
        self, key: ShareStateKey, partition: Partition, settings: ShareSettings
    ) -> LedSharePartition:
        former = self._led.pop(key, None)
        if former is not None:
            former.lose()
        if len(self._led) >= LED_MAX:
            raise NotAllowedError(f"this broker leads {LED_MAX} partitions for share groups")
        kept = await self._states.read(key, partition.log.epoch)
        record = kept.record
        if record is None:
            raise StateRefusedError(kept.error, kept.why)
        begin = partition.start_offset()
        # What cannot be read yet was there before, and members may have had it of a former leader.
        end = max(partition.positions.end_offset, partition.log.opening.end_offset)
        is_new = record.image.start < 0
        if is_new:
            record = record._replace(image=ShareImage(begin if settings.earliest else end))
        machine = SharePartition.restored(record.image, settings.limits, begin, end)
        found = LedSharePartition(
            self._services, self._states, key, partition, record, machine, settings
        )
        if is_new:
            # Before anybody reads: what is produced from now on is this group's, also after a
            # crash.
            machine.version += 1
            await found.store()
        if key in self._users:
            self._led[key] = found
        return found

    def _forget_unused(self) -> None:
        for key, led in list(self._led.items()):
            if not led.usable or (key not in self._users and led.is_idle):
                del self._led[key]
                led.lose()

    # -- sessions -----------------------------------------------------------------------------

    def begun(self, key: SessionKey, connection: KafkaSession) -> ShareSession | ErrorCode:
        """A new session, in place of the one that the member has here. What it has acquired stays
        with the member: it may be at work on it."""
        former = self.sessions.end(key)
        if former is not None:
            self._leave(former)
        found = self.sessions.opened(key, connection)
        if isinstance(found, ShareSession):
            self._follow(connection)
        return found

    def used(
        self, key: SessionKey, epoch: int, connection: KafkaSession
    ) -> ShareSession | ErrorCode:
        """The session that a request goes on with, or ends."""
        found = self.sessions.used(key, epoch, connection)
        if isinstance(found, ShareSession):
            self._follow(connection)
        return found

    def _follow(self, connection: KafkaSession) -> None:
        connection.at_end(self, lambda: self._disconnected(connection))

    def change(
        self,
        session: ShareSession,
        more: Iterable[TopicIdPartition],
        fewer: Iterable[TopicIdPartition],
    ) -> None:
        before = set(session.places)
        session.change(more, fewer)
        group_id, after = session.key.group_id, session.places
        for place in after:
            if place not in before:
                self._count(ShareStateKey(group_id, place), 1)
        for place in before:
            if place not in after:
                self._count(ShareStateKey(group_id, place), -1)

    def _count(self, key: ShareStateKey, more: int) -> None:
        self._users[key] = self._users.get(key, 0) + more
        if self._users[key] <= 0:
            del self._users[key]

    def _leave(self, session: ShareSession) -> None:
        for place in session.places:
            self._count(ShareStateKey(session.key.group_id, place), -1)
        session.places.clear()

    async def end(self, session: ShareSession, *, looked_at: bool) -> None:
        """The session is over: all that its member holds here is available. ``looked_at``: as of
        ``SharePartition.release``."""
        if self.sessions.of_key(session.key) is session:
            self.sessions.end(session.key)
        self._leave(session)
        group_id, member_id = session.key
        held = [led for key, led in self._led.items() if key.group == group_id]
        await asyncio.gather(*(led.release(member_id, looked_at=looked_at) for led in held))
        self._forget_unused()

    def _disconnected(self, connection: Hashable) -> None:
        if self._services.scope.closed:
            return  # the broker ends, and with it all that is known here
        for session in self.sessions.of(connection):
            self.sessions.end(session.key)
            ending = self.end(session, looked_at=True)
            self._services.scope.spawn(ending, f"share session of {session.key.member_id}")
