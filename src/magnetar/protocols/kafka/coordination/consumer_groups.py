"""Groups whose coordinator assigns (KIP-848), on the coordinator's logs: topics are looked up, the
machine decides (``consumers.consumer_group``), and what has changed is stored before it is told.

Rules:

* An answer leaves when all that the group has become until then is in the log: a coordinator that
  goes on elsewhere, from the log, gives nobody what this one has given somebody else. Changes of
  heartbeats that come together are written together.
* A group is of one kind. A member of the other kind is refused while the group has members; an
  empty group becomes what comes first. Offsets are the same in both.
* A share group stays one until it is deleted.
* A member of a group that is not known here is told that it is unknown, and joins again.
* Topics are looked up when somebody subscribes to what is not known, and every ``LOOK_UP_MS`` at a
  heartbeat, so that partitions and topics that are made are found; and then, too, what is set for
  the group.

Why: docs/adr/0162-groups-by-heartbeats.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import structlog

from magnetar.cluster.topic_name import DEFAULT_NAMESPACE
from magnetar.cluster.topic_patterns import TopicPattern
from magnetar.env.loop_turns import THINGS_PER_TURN, LoopTurns
from magnetar.model.errors import InvalidTopicNameError, MagnetarError, ServiceNotReadyError
from magnetar.protocols.kafka.consumers.consumer_group import (
    ConsumerGroup,
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from magnetar.protocols.kafka.consumers.id_partitions import TopicShape
from magnetar.protocols.kafka.coordination.coordinator import Coordinator, Shard
from magnetar.protocols.kafka.coordination.group_states import GroupState
from magnetar.protocols.kafka.coordination.group_times import learn_times
from magnetar.protocols.kafka.coordination.live_groups import LiveConsumerGroup, Reader
from magnetar.protocols.kafka.coordination.topic_shapes import topic_shapes
from magnetar.protocols.kafka.group_settings import CONSUMER
from magnetar.protocols.kafka.lookups import in_time
from magnetar.protocols.kafka.names import kafka_name
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.wire.kafka.consumer_group_messages import JOIN_EPOCH
from magnetar.wire.kafka.errors import ErrorCode

log = structlog.get_logger(__name__)

LOOK_UP_MS: Final = 5_000
MISSING_MS: Final = 1_000
"""While there is none of a name that members subscribe to."""
REST: Final = 20
"""So many times as long as a lookup took nothing is looked up again: of many names that nobody has,
or of many expressions and topics, each is much work."""
REST_MS_MAX: Final = 300_000
ROUNDS_MAX: Final = 3
NAMES_PER_TURN: Final = 1_000
"""Names that a regular expression is held against before others have their turn."""
PATTERNS_MAX: Final = 100
"""Different regular expressions in one group."""
GROUPS_PER_LOG_MAX: Final = 10_000


class ConsumerGroups:
    """See the module's text."""

    def __init__(self, services: KafkaServices, coordinator: Coordinator) -> None:
        self._services = services
        self._coordinator = coordinator
        self._usual_heartbeat_ms = services.config.consumer_heartbeat_interval_ms
        self._names: list[str] = []
        self._names_ms = 0
        self._listing = asyncio.Lock()
        coordinator.watch_opened(self._opened)

    def _opened(self, shard: Shard) -> None:
        for live in shard.consumers.values():
            self._plan(shard, live)

    # -- heartbeats ---------------------------------------------------------------------------

    async def heartbeat(
        self, group_id: str, said: ConsumerHeartbeat, reader: Reader | None = None
    ) -> HeartbeatAnswer:
        """``reader``: who the member is, which may not know of all topics; None: it may. Raises as
        ``Coordinator.shard``, and what lookups raise."""
        shard = await self._coordinator.shard(group_id)
        live = shard.consumers.get(group_id)
        if live is None or not live.group.members:
            refused = self._refused(shard, group_id, said)
            if refused is not None:
                return refused
        if live is None:
            live = shard.consumers[group_id] = LiveConsumerGroup(self._made(group_id))
        if said.epoch >= JOIN_EPOCH and self._must_look_up(live, said, reader):
            async with live.looking_up:
                others = await learn_times(self._services, live, CONSUMER)
                refused = await self._look_up(live, said, reader)
                self._check_present(shard, live)
                answer = refused or live.group.heartbeat(said, self._services.steady_ms())
                if others:
                    self._plan(shard, live)
        else:
            answer = live.group.heartbeat(said, self._services.steady_ms())
        await self._tell(shard, live)
        return answer._replace(heartbeat_ms=live.heartbeat_ms or self._usual_heartbeat_ms)

    def _made(self, group_id: str) -> ConsumerGroup:
        config = self._services.config
        return ConsumerGroup(
            group_id,
            config.consumer_session_timeout_ms,
            config.consumer_members_max,
            self._services.steady_ms(),
        )

    def _refused(
        self, shard: Shard, group_id: str, said: ConsumerHeartbeat
    ) -> HeartbeatAnswer | None:
        """Of a group that has no member of this kind."""
        if said.epoch != JOIN_EPOCH:
            why = f"there is no consumer group {group_id}: its member must join again"
            return HeartbeatAnswer(ErrorCode.UNKNOWN_MEMBER_ID, why)
        if group_id in shard.shares:
            why = f"group {group_id} is a share group: delete it first"
            return HeartbeatAnswer(ErrorCode.GROUP_ID_NOT_FOUND, why)
        classic = shard.groups.get(group_id)
        if classic is not None and classic.state is not GroupState.EMPTY:
            return HeartbeatAnswer(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"group {group_id} is no consumer group: its members have the classic protocol; "
                "have all of them leave first, or join with group.protocol=classic",
            )
        if group_id not in shard.consumers and len(shard.consumers) >= GROUPS_PER_LOG_MAX:
            why = f"{GROUPS_PER_LOG_MAX} consumer groups are there already: delete some of them"
            return HeartbeatAnswer(ErrorCode.POLICY_VIOLATION, why)
        return None

    def _check_present(self, shard: Shard, live: LiveConsumerGroup) -> None:
        """After what has taken time. Raises ``ServiceNotReadyError``."""
        group_id = live.group.group_id
        if not self._coordinator.has(shard) or shard.consumers.get(group_id) is not live:
            raise ServiceNotReadyError(f"the coordinator of group {group_id} has moved")

    # -- topics -------------------------------------------------------------------------------

    def _must_look_up(
        self, live: LiveConsumerGroup, said: ConsumerHeartbeat, reader: Reader | None
    ) -> bool:
        if reader is not None and live.group.pattern_of(said):
            known = live.readers.get(said.member_id)
            if known is None or known.who != reader.who:
                return True
        if self._says_what_is_new(live, said):
            return True
        due = self._services.steady_ms() >= live.look_up_ms
        return live.group.is_restored or (due and not live.looking_up.locked())

    @staticmethod
    def _says_what_is_new(live: LiveConsumerGroup, said: ConsumerHeartbeat) -> bool:
        names, patterns = live.group.looked_up
        new_pattern = bool(said.pattern) and said.pattern not in patterns
        return new_pattern or bool(set(said.names or ()) - names)

    async def _found(
        self,
        live: LiveConsumerGroup,
        names: frozenset[str],
        patterns: frozenset[str],
        said: ConsumerHeartbeat,
    ) -> tuple[dict[str, frozenset[str]], frozenset[str], dict[str, TopicShape]]:
        """What each of ``patterns`` matches, all names that count, and those topics that there are.
        Raises ``InvalidTopicNameError``, ``MetadataError``."""
        matched = await self._matched(live, patterns, said)
        wanted = names.union(*matched.values())
        return matched, wanted, await topic_shapes(self._services, wanted)

    async def _look_up(
        self, live: LiveConsumerGroup, said: ConsumerHeartbeat, reader: Reader | None
    ) -> HeartbeatAnswer | None:
        """What is refused of the subscription; None: the group knows its topics. Raises
        ``MetadataError`` while they cannot be known."""
        group, begun_ms = live.group, self._services.steady_ms()
        if reader is not None:
            here = group.members.keys() & live.readers.keys()
            live.readers = {name: live.readers[name] for name in here}
            live.readers[said.member_id or said.new_id] = reader
        for _ in range(ROUNDS_MAX):
            names, patterns = group.subscriptions()
            names |= set(said.names or ())
            patterns |= {said.pattern} if said.pattern else set()
            if len(patterns) > PATTERNS_MAX:
                return HeartbeatAnswer(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"group {group.group_id} has {PATTERNS_MAX} different regular expressions, "
                    "which is the most",
                )
            must_know = not group.knows_topics or self._says_what_is_new(live, said)
            found = self._found(live, names, patterns, said)
            try:
                matched, wanted, shapes = await (found if must_know else in_time(found))
            except InvalidTopicNameError as error:
                return HeartbeatAnswer(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error))
            except MagnetarError as error:
                if must_know:
                    raise
                log.debug("topics not looked up", group=group.group_id, error=str(error))
                live.look_up_ms = self._services.steady_ms() + MISSING_MS
                return None
            now_ms = self._services.steady_ms()
            usual_ms = LOOK_UP_MS if len(shapes) == len(wanted) else MISSING_MS
            rest_ms = min(REST_MS_MAX, REST * (now_ms - begun_ms))
            live.look_up_ms = now_ms + max(usual_ms, rest_ms)
            group.learn(names, shapes, matched, now_ms)
            more_names, more_patterns = group.subscriptions()
            if more_names <= names and more_patterns <= patterns:
                break
        return None

    async def _matched(
        self, live: LiveConsumerGroup, patterns: Collection[str], said: ConsumerHeartbeat
    ) -> dict[str, frozenset[str]]:
        """Each stands for what all who say it may know of, whoever has it looked up. Raises
        ``InvalidTopicNameError``, ``MetadataError``."""
        if not patterns:
            return {}
        names = await self._all_names()
        found: dict[str, frozenset[str]] = {}
        turns = LoopTurns(self._services.connections.line, None)
        for text in patterns:
            # Not kept: of all groups they might be any number, of up to a megabyte each.
            pattern = TopicPattern(text)
            mine: list[str] = []
            for start in range(0, len(names), NAMES_PER_TURN):
                mine += pattern.matching(names[start : start + NAMES_PER_TURN])
                await turns.next(THINGS_PER_TURN)
            for reader in self._readers(live, text, said):
                seen = []
                for name in mine:
                    await turns.next()
                    if await reader.sees(name):
                        seen.append(name)
                mine = seen
            found[text] = frozenset(mine)
        return found

    def _readers(
        self, live: LiveConsumerGroup, pattern: str, said: ConsumerHeartbeat
    ) -> Collection[Reader]:
        """Those who say ``pattern``, one of each client's that was heard of. (A member that was
        not, since the coordinator moved, has it looked up again before it is told anything.)"""
        members, asking = live.group.members, said.member_id or said.new_id
        found = {
            reader.who: reader
            for name, reader in live.readers.items()
            if name != asking and name in members and members[name].record.pattern == pattern
        }
        if asking in live.readers and live.group.pattern_of(said) == pattern:
            found[live.readers[asking].who] = live.readers[asking]
        return found.values()

    async def _all_names(self) -> list[str]:
        """Of the default namespace, as of ``LOOK_UP_MS`` ago at most. Raises ``MetadataError``."""
        async with self._listing:
            now_ms = self._services.steady_ms()
            if now_ms >= self._names_ms + LOOK_UP_MS:
                topics = await self._services.topics.names(DEFAULT_NAMESPACE)
                self._names = list(dict.fromkeys(map(kafka_name, topics)))
                self._names_ms = now_ms
            return self._names

    # -- what is stored -----------------------------------------------------------------------

    async def _tell(self, shard: Shard, live: LiveConsumerGroup) -> None:
        """After every call of a group: what it has become is stored, and the timer set. Raises as
        ``Coordinator.change``."""
        if live.group.has_changed:
            self._plan(shard, live)
        elif not live.writing.locked():
            return
        async with live.writing:
            self._check_present(shard, live)
            changes = live.group.take_changes()
            if changes:
                former = self._coordinator.classic_gone(shard, live.group.group_id)
                try:
                    await self._coordinator.change(shard, [*former, *changes])
                except MagnetarError:
                    live.group.not_stored(changes)
                    raise

    def _plan(self, shard: Shard, live: LiveConsumerGroup) -> None:
        """Have the group looked at when it has something to do. One that is looked at too early (a
        member was heard of meanwhile) is put back, so heartbeats need not come here."""
        when = live.group.next_ms()
        if when is None or (live.timer is not None and live.planned_ms <= when):
            return
        live.end()
        live.planned_ms = when
        wait_s = max(0, when - self._services.steady_ms()) / 1000
        loop = asyncio.get_running_loop()
        live.timer = loop.call_later(wait_s, self._tick, shard, live)

    def _tick(self, shard: Shard, live: LiveConsumerGroup) -> None:
        live.timer = None
        group_id = live.group.group_id
        if not self._coordinator.has(shard) or shard.consumers.get(group_id) is not live:
            return
        for why in live.group.tick(self._services.steady_ms()):
            log.info("a member is out", group=group_id, why=why)
        if live.group.has_changed:
            self._services.scope.spawn(self._tell_quietly(shard, live), f"group {group_id}")
        self._plan(shard, live)

    async def _tell_quietly(self, shard: Shard, live: LiveConsumerGroup) -> None:
        """Nobody waits: if it cannot be stored, the group begins anew with what is."""
        try:
            await self._tell(shard, live)
        except MagnetarError as error:
            log.warning("group not stored", group=live.group.group_id, error=str(error))

    # -- the other kind, and the end ----------------------------------------------------------

    async def make_way(self, group_id: str) -> ErrorCode:
        """For a member of the classic protocol: an empty group is none of this kind any more, in
        this turn of the loop. Raises as ``Coordinator.shard`` and ``.change``."""
        shard = await self._coordinator.shard(group_id)
        if group_id in shard.shares:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        # Again after each wait: members may come, and empty it once more.
        while (live := shard.consumers.get(group_id)) is not None:
            if live.group.members:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            await self._coordinator.forget(shard, live)
        return ErrorCode.NONE

    async def remove(
        self, group_id: str, member_id: str, instance_id: str | None
    ) -> ErrorCode | None:
        """An admin has a member out. None: it is no group of this kind. Raises as
        ``Coordinator.shard`` and ``.change``."""
        shard = await self._coordinator.shard(group_id)
        live = shard.consumer(group_id)
        if live is None or not live.group.members:
            return None
        error = live.group.remove(member_id, instance_id, self._services.steady_ms())
        await self._tell(shard, live)
        return error
