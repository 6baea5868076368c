"""Share groups on the coordinator's logs: topics are looked up, the machine decides
(``shares.share_group``), and that there is such a group is stored.

Rules:

* A group is a share group from the first heartbeat of a member on, until it is deleted, or has had
  no members for ``kafka.offsets_retention_ms``. A group of another kind that has members or offsets
  is none, and members of the other kinds are refused in one.
* A member is answered when the log says that there is the group: what its records have become is
  kept for it from then on (``share_states``).
* Topics are looked up as for groups whose coordinator assigns (``consumer_groups``).

Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from magnetar.model.errors import MagnetarError, ServiceNotReadyError
from magnetar.protocols.kafka.coordination.consumer_groups import LOOK_UP_MS, MISSING_MS
from magnetar.protocols.kafka.coordination.coordinator import Coordinator, Shard
from magnetar.protocols.kafka.coordination.group_times import learn_times
from magnetar.protocols.kafka.coordination.live_groups import LiveShareGroup
from magnetar.protocols.kafka.coordination.topic_shapes import topic_shapes
from magnetar.protocols.kafka.group_settings import SHARE
from magnetar.protocols.kafka.lookups import in_time
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.shares.share_group import ShareAnswer, ShareHeartbeat
from magnetar.protocols.kafka.shares.share_records import ShareGroupKey, ShareGroupRecord
from magnetar.wire.kafka.consumer_group_messages import JOIN_EPOCH
from magnetar.wire.kafka.errors import ErrorCode

log = structlog.get_logger(__name__)

GROUPS_PER_LOG_MAX: Final = 10_000


class ShareGroups:
    """See the module's text."""

    def __init__(self, services: KafkaServices, coordinator: Coordinator) -> None:
        self._services = services
        self._coordinator = coordinator

    async def heartbeat(self, group_id: str, said: ShareHeartbeat) -> ShareAnswer:
        """Raises as ``Coordinator.shard`` and ``.change``, and what lookups raise."""
        shard = await self._coordinator.shard(group_id)
        live = shard.shares.get(group_id)
        if live is None:
            refused = self._refused(shard, group_id, said)
            if refused is not None:
                return refused
            made = LiveShareGroup(self._coordinator.new_share_group(group_id), False)
            live = shard.shares[group_id] = made
        if said.epoch >= JOIN_EPOCH and self._must_look_up(live, said):
            # Held over the heartbeat: who looks topics up next looks for this member's, too.
            async with live.looking_up:
                await self._look_up(live, said)
                self._check_present(shard, live)
                answer = live.group.heartbeat(said, self._services.steady_ms())
        else:
            answer = live.group.heartbeat(said, self._services.steady_ms())
        self._plan(shard, live)
        if answer.error is ErrorCode.NONE and not live.is_stored:
            await self._store(shard, live)
        usual_ms = self._services.config.consumer_heartbeat_interval_ms
        return answer._replace(heartbeat_ms=live.heartbeat_ms or usual_ms)

    def _refused(self, shard: Shard, group_id: str, said: ShareHeartbeat) -> ShareAnswer | None:
        """Of a group that is no share group."""
        if said.epoch != JOIN_EPOCH:
            why = f"there is no share group {group_id}: its member must join again"
            return ShareAnswer(ErrorCode.UNKNOWN_MEMBER_ID, why)
        classic, consumers = shard.groups.get(group_id), shard.consumers.get(group_id)
        members = (classic and classic.members) or (consumers and consumers.group.members)
        if members or shard.log.offsets.of(group_id):
            return ShareAnswer(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"group {group_id} is no share group: it has members, or offsets, of consumers; "
                "take another name, or delete it",
            )
        if len(shard.shares) >= GROUPS_PER_LOG_MAX:
            why = f"{GROUPS_PER_LOG_MAX} share groups are there already: delete some of them"
            return ShareAnswer(ErrorCode.POLICY_VIOLATION, why)
        return None

    def _check_present(self, shard: Shard, live: LiveShareGroup) -> None:
        """After what has taken time. Raises ``ServiceNotReadyError``."""
        group_id = live.group.group_id
        if not self._coordinator.has(shard) or shard.shares.get(group_id) is not live:
            raise ServiceNotReadyError(f"the coordinator of group {group_id} has moved")

    # -- topics -------------------------------------------------------------------------------

    def _must_look_up(self, live: LiveShareGroup, said: ShareHeartbeat) -> bool:
        if set(said.names or ()) - live.group.looked_up:
            return True
        return self._services.steady_ms() >= live.look_up_ms and not live.looking_up.locked()

    async def _look_up(self, live: LiveShareGroup, said: ShareHeartbeat) -> None:
        """Raises ``MetadataError`` while what ``said`` subscribes to cannot be known."""
        await learn_times(self._services, live, SHARE)
        names = live.group.names() | set(said.names or ())
        must_know = not names <= live.group.looked_up
        shapes_of = topic_shapes(self._services, names)
        try:
            shapes = await (shapes_of if must_know else in_time(shapes_of))
        except MagnetarError as error:
            if must_know:
                raise
            log.debug("topics not looked up", group=live.group.group_id, error=str(error))
            live.look_up_ms = self._services.steady_ms() + MISSING_MS
            return
        usual_ms = LOOK_UP_MS if len(shapes) == len(names) else MISSING_MS
        live.look_up_ms = self._services.steady_ms() + usual_ms
        live.group.learn(frozenset(names), shapes)

    # -- what is stored, and time -------------------------------------------------------------

    async def _store(self, shard: Shard, live: LiveShareGroup) -> None:
        async with live.changing:
            self._check_present(shard, live)
            if not live.is_stored:
                key = ShareGroupKey(live.group.group_id)
                former = self._coordinator.classic_gone(shard, live.group.group_id)
                made = (key, ShareGroupRecord(live.group.epoch))
                await self._coordinator.change(shard, [*former, made])
                live.is_stored = True

    def _plan(self, shard: Shard, live: LiveShareGroup) -> None:
        """As ``ConsumerGroups._plan``."""
        when = live.group.next_ms()
        if when is None or (live.timer is not None and live.planned_ms <= when):
            return
        live.end()
        live.planned_ms = when
        wait_s = max(0, when - self._services.steady_ms()) / 1000
        loop = asyncio.get_running_loop()
        live.timer = loop.call_later(wait_s, self._tick, shard, live)

    def _tick(self, shard: Shard, live: LiveShareGroup) -> None:
        live.timer = None
        group_id = live.group.group_id
        if not self._coordinator.has(shard) or shard.shares.get(group_id) is not live:
            return
        for why in live.group.tick(self._services.steady_ms()):
            log.info("a member is out", group=group_id, why=why)
        self._plan(shard, live)
