"""Being a member of a share group (KIP-932): by heartbeats a member is told which partitions to
read. Members share partitions, so there is nothing to give up before another may begin.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.consumer_group_messages import JOIN_EPOCH, LEAVE_EPOCH
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.share_group_messages import ShareGroupHeartbeatRequest
from magnetar_sim.kafka.kafka_client import GROUP, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory
from magnetar_sim.kafka.membership import AGAIN, NoMemberError, ask_once

VERSION: Final = 1
PUT_OUT: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
REST_S: Final = 0.1


class ShareMembership:
    """``places``: what it reads. It keeps them while it is no member for a moment."""

    def __init__(
        self,
        client: KafkaClient,
        history: KafkaHistory,
        group: str,
        name: str,
        topics: tuple[str, ...],
    ) -> None:
        self.client = client
        self.name = name
        self.group = group
        self.topics = topics
        self.member_id = f"{name}'s id"
        self.epoch = JOIN_EPOCH
        self.places: frozenset[Place] = frozenset()
        self._history = history
        self._is_here = True
        self._turn = asyncio.Lock()

    async def beat(self) -> None:
        rest_s = 0.0
        while True:
            await asyncio.sleep(rest_s)
            rest_s = REST_S
            with suppress(NoMemberError):
                rest_s = await self._heartbeat()

    async def _heartbeat(self) -> float:
        """How long until the next one. Raises ``NoMemberError``."""
        async with self._turn:
            if not self._is_here:  # it may have gone while this waited
                return REST_S
            ids = await self.client.topic_ids(self.topics)
            names = [*self.topics] if self.epoch == JOIN_EPOCH else None
            request = ShareGroupHeartbeatRequest(
                self.group, self.member_id, self.epoch, names=names
            )
            answer = await self._ask(request)
            if answer.error_code != ErrorCode.NONE:
                await self._told(answer.error_code)
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                by_id = {topic_id: name for name, topic_id in ids.items()}
                self.places = frozenset(
                    (by_id[topic.topic_id], index)
                    for topic in answer.assignment.topics
                    for index in topic.partitions
                )
                self._history.count("assignments in share groups")
                self.client.note(f"{self.name} reads {sorted(self.places)}")
            return int(answer.heartbeat_interval_ms) / 1000

    async def _ask(self, request: ShareGroupHeartbeatRequest) -> Any:
        call = ApiKey.SHARE_GROUP_HEARTBEAT, VERSION, request
        return await ask_once(self.client, self.name, self.group, call)

    async def _told(self, code: int) -> None:
        self.client.note(f"{self.name} is there: {code}")
        if code in AGAIN:
            self.client.coordinator_moved(GROUP, self.group)
            await self.client.pause()
        elif code in PUT_OUT:
            self.epoch = JOIN_EPOCH
        else:
            self._history.broken(f"{self.name}: its heartbeat is answered {code}")
        raise NoMemberError

    async def leave(self) -> None:
        """Once; who is not heard falls silent."""
        async with self._turn:
            self._is_here = False
            if self.epoch != JOIN_EPOCH:
                request = ShareGroupHeartbeatRequest(self.group, self.member_id, LEAVE_EPOCH)
                with suppress(NoMemberError):
                    await self._ask(request)
            self.epoch, self.places = JOIN_EPOCH, frozenset()

    def comes_back(self) -> None:
        self._is_here = True
