"""The coordinator: groups whose offsets this broker keeps, their members, and time.

``Coordinator`` finds the log of a group's offsets (``offset_log``) and the group (``group``)
beside it, gives each call to the machine, and each answer to whoever waits for it.

Rules:

* A group is served while the topic of its offsets is open here. When that closes, groups are
  forgotten; whoever waits is told ``NOT_COORDINATOR``, and goes on at the next one.
* Groups are in the log, members and all: those of the classic protocol by a record for each
  completed rebalance, written before its answers leave; those whose coordinator assigns as
  ``consumer_groups`` has it.
* One timer, set for the first classic group that has something to do.

Why: docs/adr/0107-offsets-of-groups.md, docs/adr/0191-members-of-classic-groups-are-stored.md.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import structlog

from magnetar.cluster.topic_name import KAFKA_GROUPS, TopicName
from magnetar.model.errors import (
    LogError,
    MagnetarError,
    MessageTooLargeError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.protocols.kafka.consumers.consumer_group import ConsumerGroup
from magnetar.protocols.kafka.consumers.consumer_records import ConsumerGroupKey
from magnetar.protocols.kafka.coordination.classic_records import (
    ClassicGroupKey,
    ClassicGroupRecord,
)
from magnetar.protocols.kafka.coordination.coordinator_state import Change
from magnetar.protocols.kafka.coordination.group import Answers, ClassicGroup
from magnetar.protocols.kafka.coordination.group_states import GroupState
from magnetar.protocols.kafka.coordination.live_groups import LiveConsumerGroup, LiveShareGroup
from magnetar.protocols.kafka.coordination.offset_log import OffsetLog
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.shares.share_group import ShareGroup
from magnetar.wire.kafka.errors import ErrorCode

log = structlog.get_logger(__name__)

NAMESPACE: Final = KAFKA_GROUPS
TENANT, NAMESPACE_PART = NAMESPACE.split("/")
KEEP_NOTHING: Final = {
    # Only the cursor holds what is needed; and nothing but it moves the cursor.
    "retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
    "message_ttl_in_seconds": 0,
    "subscription_expiration_time_minutes": 0,
}
EXPIRY_CHECK_S: Final = 60.0
EMPTY_KEPT_S: Final = 600.0
"""A group that had members and never committed is known for as long after the last one left: of
Kafka's brokers that is when they look (``offsets.retention.check.interval.ms``)."""
ID_CHARS_MAX: Final = 32_767
"""Of a group, or of transactions: what all versions of the requests have place for."""


class Since(NamedTuple):
    """When a transaction was begun, or its id used: as its record says, and by
    ``KafkaServices.steady_ms``."""

    date_ms: int
    steady_ms: int


class Shard:
    """An offset log that is open here, and its groups. Holds its topic open."""

    def __init__(self, offset_log: OffsetLog) -> None:
        self.log = offset_log
        self.groups: dict[str, ClassicGroup] = {}
        self.consumers: dict[str, LiveConsumerGroup] = {}
        self.shares: dict[str, LiveShareGroup] = {}
        self.open_since: dict[str, Since] = {}
        """Transactions, by their ids, as ``Transactions`` saw them last,"""
        self.used_since: dict[str, Since] = {}
        """and when the ids were used last."""
        self._held = ExitStack()
        self._held.enter_context(offset_log.topic.held())

    def consumer(self, group_id: str) -> LiveConsumerGroup | None:
        """The group, if its coordinator assigns, and it has ever had a member."""
        found = self.consumers.get(group_id)
        return found if found is not None and found.group.epoch else None

    def end(self) -> None:
        self.log.end()
        for live in self.consumers.values():
            live.end()
        for share in self.shares.values():
            share.end()
        self._held.close()


class Coordinator:
    """See the module's text."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        self._shards: dict[TopicName, Shard] = {}
        self._opening: dict[TopicName, asyncio.Lock] = {}
        self._waiting: dict[object, tuple[Shard, asyncio.Future[Any]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due: list[tuple[int, int, Shard, ClassicGroup]] = []  # a heap, by time
        self._planned: dict[ClassicGroup, int] = {}  # when each is looked at
        self._numbers = itertools.count()
        self._prepared = False
        self._watchers: list[Callable[[Shard], None]] = []

    def watch_opened(self, opened: Callable[[Shard], None]) -> None:
        """Call ``opened`` with each log that is opened here from now on."""
        self._watchers.append(opened)

    # -- where groups are ---------------------------------------------------------------------

    def topic_for(self, group_id: str) -> TopicName:
        """The topic that keeps the group's offsets."""
        return _topic(zlib.crc32(group_id.encode()) % self._services.config.offset_logs)

    async def prepare(self) -> None:
        """The namespace of those topics is there. Raises ``MetadataError``."""
        if not self._prepared:
            await self._services.control.namespaces.create_namespace(NAMESPACE, KEEP_NOTHING)
            self._prepared = True

    async def open_own(self) -> None:
        """Those logs that are there and nobody has asked for since the start are opened, if they
        are this broker's."""
        for number in range(self._services.config.offset_logs):
            name = _topic(number)
            try:
                if name not in self._shards and await self._services.topics.exists(name):
                    await self._shard(name)
            except MagnetarError as error:
                log.debug("offset log not opened here", topic=str(name), error=str(error))

    async def open_led(self) -> None:
        """Those that the cluster says this broker is to have are opened. Raises
        ``MetadataError``."""
        nodes = await self._services.nodes()
        for number in range(self._services.config.offset_logs):
            name = _topic(number)
            try:
                if name in self._shards or not await self._services.topics.exists(name):
                    continue
                if await self._services.leader_of(name, nodes) == self._services.node:
                    await self._shard(name)
            except MagnetarError as error:
                log.debug("coordinator log not opened here", topic=str(name), error=str(error))

    def open_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.log.usable]

    def open_shard(self, key: str) -> Shard | None:
        """The log of that group or transactional id, if it is open here."""
        found = self._shards.get(self.topic_for(key))
        return found if found is not None and found.log.usable else None

    async def shard_of(self, topic: TopicName) -> Shard:
        """The log with that name. Raises as ``shard``, and ``TopicNotFoundError``."""
        if topic not in map(_topic, range(self._services.config.offset_logs)):
            raise TopicNotFoundError(f"{topic} is no log of a coordinator")
        return await self._shard(topic)

    async def shard(self, group_id: str) -> Shard:
        """Raises ``ServiceNotReadyError`` if another broker has it, ``MessageTooLargeError`` for an
        id that is not kept, and as ``Topics.get``."""
        if len(group_id) > ID_CHARS_MAX:
            raise MessageTooLargeError(
                f"an id of {len(group_id)} characters, {group_id[:100]}...: {ID_CHARS_MAX} at most"
            )
        return await self._shard(self.topic_for(group_id))

    async def _shard(self, name: TopicName) -> Shard:
        found = self._shards.get(name)
        if found is not None and found.log.usable:
            return found
        async with self._opening.setdefault(name, asyncio.Lock()):
            found = self._shards.get(name)
            if found is not None and found.log.usable:
                return found
            if found is not None:
                self._lose(name, found)
            await self.prepare()
            topics = self._services.topics
            await topics.create(name)
            record_bytes_max = self._services.broker.message_bytes_max
            opened = OffsetLog(await topics.get(name, create=False), record_bytes_max)
            shard = Shard(opened)
            try:
                await opened.replay()
            except BaseException:
                shard.end()
                raise
            self._restore(shard)
            self._shards[name] = shard
            for group in shard.groups.values():
                self._schedule(shard, group)
            for opened_here in self._watchers:
                opened_here(shard)
            return shard

    def _restore(self, shard: Shard) -> None:
        """Groups as the log has them."""
        config, consumers = self._services.config, shard.log.state.consumers
        for group_id, record in consumers.groups.items():
            group = ConsumerGroup.restored(
                group_id,
                record,
                consumers.members(group_id),
                config.consumer_session_timeout_ms,
                config.consumer_members_max,
                self._services.steady_ms(),
            )
            shard.consumers[group_id] = LiveConsumerGroup(group)
        for group_id, share in shard.log.state.shares.groups.items():
            shard.shares[group_id] = LiveShareGroup(
                self.new_share_group(group_id, share.epoch), True
            )
        others = shard.consumers.keys() | shard.shares.keys()
        for group_id, classic in shard.log.state.classics.items():
            if group_id not in others:  # else what it was before that could not be taken away
                empty_ms = self._services.steady_of(classic.empty_since_ms)
                shard.groups[group_id] = ClassicGroup.restored(
                    group_id,
                    classic._replace(empty_since_ms=empty_ms),
                    config.rebalance_delay_ms,
                    self._services.steady_ms(),
                )
        for group_id in shard.log.offsets.groups:
            if group_id not in shard.consumers:
                self.group_in(shard, group_id)

    def has(self, shard: Shard) -> bool:
        """The log is still open here."""
        return self._shards.get(shard.log.topic.name) is shard and shard.log.usable

    def _lose(self, name: TopicName, shard: Shard) -> None:
        """The topic has closed here: groups are another broker's, or begin anew."""
        if self._shards.get(name) is shard:
            del self._shards[name]
        shard.end()
        lost = [ticket for ticket, (of, _) in self._waiting.items() if of is shard]
        for ticket in lost:
            _, future = self._waiting.pop(ticket)
            if not future.done():
                future.set_exception(ServiceNotReadyError("the group's coordinator has moved"))

    def lose_closed(self) -> None:
        for name, shard in list(self._shards.items()):
            if not shard.log.usable:
                self._lose(name, shard)

    async def group(self, group_id: str) -> tuple[Shard, ClassicGroup]:
        """The group, which is there by being asked for."""
        shard = await self.shard(group_id)
        return shard, self.group_in(shard, group_id)

    async def known_group(self, group_id: str) -> tuple[Shard, ClassicGroup]:
        """As ``group``; one that nobody has used is not kept: a request may ask for millions."""
        shard = await self.shard(group_id)
        return shard, shard.groups.get(group_id) or self._new_group(group_id)

    def _new_group(self, group_id: str) -> ClassicGroup:
        made = ClassicGroup(group_id, self._services.config.rebalance_delay_ms)
        made.empty_since_ms = self._services.steady_ms()
        return made

    def group_in(self, shard: Shard, group_id: str) -> ClassicGroup:
        """As ``group``, of a log that is open."""
        found = shard.groups.get(group_id)
        if found is None:
            found = shard.groups[group_id] = self._new_group(group_id)
        return found

    def is_there(self, shard: Shard, group: ClassicGroup) -> bool:
        """It is a group of the classic protocol that has members or offsets, or had members."""
        used = group.members or group.generation or shard.log.offsets.of(group.group_id)
        return bool(used) and shard.consumer(group.group_id) is None

    def classic_gone(self, shard: Shard, group_id: str) -> list[Change]:
        """What takes away what is stored of it as a classic group, but its offsets."""
        stored = group_id in shard.log.state.classics
        return [(ClassicGroupKey(group_id), None)] if stored else []

    def forgotten(self, shard: Shard, group_id: str) -> list[Change]:
        """What takes away all that is stored of it, but as a group of another kind."""
        group = shard.groups.get(group_id)
        gone: list[Change] = [*shard.log.offsets.forgotten(group_id)]
        if group is not None and group.generation:  # it may be on its way into the log
            return [*gone, (ClassicGroupKey(group_id), None)]
        return [*gone, *self.classic_gone(shard, group_id)]

    def forget_classic(self, shard: Shard, group_id: str) -> None:
        """One that has no offsets any more is none, if nobody has joined meanwhile."""
        found = shard.groups.get(group_id)
        unused = not shard.log.offsets.of(group_id)
        if found is not None and found.state is GroupState.EMPTY and unused:
            del shard.groups[group_id]

    def all_groups(self) -> list[ClassicGroup]:
        """Of the logs that are open here."""
        return [
            group
            for shard in self._shards.values()
            if shard.log.usable
            for group in shard.groups.values()
            if self.is_there(shard, group)
        ]

    def all_consumers(self) -> list[ConsumerGroup]:
        """As ``all_groups``, of those whose coordinator assigns."""
        return [
            live.group
            for shard in self.open_shards()
            for live in shard.consumers.values()
            if live.group.epoch
        ]

    def all_shares(self) -> list[ShareGroup]:
        """As ``all_groups``, of share groups."""
        return [live.group for shard in self.open_shards() for live in shard.shares.values()]

    def new_share_group(self, group_id: str, epoch: int = 0) -> ShareGroup:
        config = self._services.config
        session_ms, most = config.consumer_session_timeout_ms, config.share_members_max
        return ShareGroup(group_id, session_ms, most, self._services.steady_ms(), epoch)

    # -- answers ------------------------------------------------------------------------------

    def ticket(self, shard: Shard) -> tuple[object, asyncio.Future[Any]]:
        """What stands for a call whose answer may come later."""
        ticket = object()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = shard, future
        return ticket, future

    def tell(self, shard: Shard, group: ClassicGroup, answers: Answers) -> None:
        """After every call of a group: answers leave, what it has become is stored, if others wait
        for that, and the timer is set."""
        for ticket, response in answers:
            _, future = self._waiting.pop(ticket)
            if not future.done():
                future.set_result(response)
        taken = group.take_record()
        if taken is not None and not self._services.scope.closed:
            storing = self._store(shard, group, *taken)
            self._services.scope.spawn(storing, f"group {group.group_id}")
        self._schedule(shard, group)

    async def _store(
        self, shard: Shard, group: ClassicGroup, number: int, record: ClassicGroupRecord
    ) -> None:
        """One whose members are too many for a record is stored without them: it goes on here, and
        they join again at the next coordinator."""
        key, error_code = ClassicGroupKey(group.group_id), ErrorCode.NONE
        record = record._replace(empty_since_ms=self._services.date_of(record.empty_since_ms))
        bare = record.without_members(self._services.now_ms())
        try:
            await self.change(shard, [(key, record)], [(key, bare)])
        except MagnetarError as error:
            log.warning("group not stored", group=group.group_id, error=str(error))
            error_code = coordinator_error(error)
        if self._shards.get(shard.log.topic.name) is shard:  # else who waits has been told
            self.tell(shard, group, group.stored(number, error_code, self._services.steady_ms()))

    # -- time ---------------------------------------------------------------------------------

    def _schedule(self, shard: Shard, group: ClassicGroup) -> None:
        """Have the group looked at when it has something to do. One that is looked at too early (a
        member was heard of meanwhile) is put back, so heartbeats need not come here."""
        when = group.next_ms()
        planned = self._planned.get(group)
        if when is None or (planned is not None and planned <= when):
            return
        self._planned[group] = when
        heapq.heappush(self._due, (when, next(self._numbers), shard, group))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            wait_s = max(0.0, (self._due[0][0] - self._services.steady_ms()) / 1000)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.lose_closed()
        now_ms = self._services.steady_ms()
        while self._due and self._due[0][0] <= now_ms:
            when, _, shard, group = heapq.heappop(self._due)
            if self._planned.get(group) != when:
                continue  # it was planned for earlier since
            del self._planned[group]
            if shard.groups.get(group.group_id) is group and shard.log.usable:
                self.tell(shard, group, group.tick(now_ms))
        self._set_timer()

    async def run(self) -> None:
        """Looks now and then for offsets that have expired, and for topics that have closed."""
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            self.lose_closed()
            for shard in list(self._shards.values()):
                try:
                    await self._expire(shard)
                except MagnetarError as error:
                    log.warning("offsets not expired", error=str(error))

    async def _expire(self, shard: Shard) -> None:
        for group_id, group in list(shard.groups.items()):
            if group.state is not GroupState.EMPTY or group_id in shard.consumers:
                continue
            if self._is_over(shard, group_id, group.empty_since_ms):
                await self.change(shard, self.forgotten(shard, group_id))
                self.forget_classic(shard, group_id)
        for group_id, live in list(shard.consumers.items()):
            empty = not live.group.members and not live.looking_up.locked()
            if empty and self._is_over(shard, group_id, live.group.empty_since_ms):
                await self.forget(shard, live, self.forgotten(shard, group_id))
        for share in list(shard.shares.values()):
            empty = not share.group.members and not share.looking_up.locked()
            if empty and self._is_long_empty(share):
                await self.forget_share(shard, share)

    def _is_long_empty(self, share: LiveShareGroup) -> bool:
        """One that nobody has joined goes soon, the others when their offsets would."""
        silent_ms = self._services.steady_ms() - share.group.empty_since_ms
        kept_ms = self._services.config.offsets_retention_ms
        if not share.is_stored:
            return silent_ms > EXPIRY_CHECK_S * 1000
        return bool(kept_ms) and silent_ms > kept_ms

    def _is_over(self, shard: Shard, group_id: str, empty_since_ms: int) -> bool:
        """Nobody needs a group without members any more."""
        if shard.log.is_committing(group_id):  # or that would be forgotten behind it
            return False
        kept_ms = self._services.config.offsets_retention_ms
        committed_ms = shard.log.offsets.last_commit_ms(group_id)
        silent_ms = min(
            self._services.steady_ms() - empty_since_ms, self._services.now_ms() - committed_ms
        )
        if not shard.log.offsets.of(group_id):
            group = shard.groups.get(group_id)
            had_members = group is not None and group.generation > 0
            return silent_ms > (EMPTY_KEPT_S if had_members else EXPIRY_CHECK_S) * 1000
        return bool(kept_ms) and silent_ms > kept_ms

    async def forget(
        self, shard: Shard, live: LiveConsumerGroup, offsets: Sequence[Change] = ()
    ) -> None:
        """A group without members is none any more; ``offsets`` go with it. Raises as
        ``change``."""
        group = live.group
        async with live.writing:
            if shard.consumers.get(group.group_id) is not live or group.members:
                return
            del shard.consumers[group.group_id]
            live.end()
            gone: list[Change] = [(ConsumerGroupKey(group.group_id), None)] if group.epoch else []
            try:
                await self.change(shard, [*group.take_changes(), *gone, *offsets])
            except MagnetarError:
                self._lose(shard.log.topic.name, shard)  # its members may be in the log still
                raise

    async def forget_share(self, shard: Shard, live: LiveShareGroup) -> None:
        """As ``forget``, of a share group, with all that it has done. Raises as ``change``."""
        group_id = live.group.group_id
        async with live.changing:
            if shard.shares.get(group_id) is not live or live.group.members:
                return
            del shard.shares[group_id]
            live.end()
            if live.is_stored:
                shares = shard.log.state.shares
                try:
                    await self.change(shard, shares.forgotten(group_id))
                    # What was on its way before is known now; from then on nobody may write.
                    await self.change(shard, shares.states_forgotten(group_id))
                except MagnetarError:
                    self._lose(shard.log.topic.name, shard)
                    raise

    # -- offsets ------------------------------------------------------------------------------

    async def change(
        self, shard: Shard, changes: Sequence[Change], instead: Sequence[Change] = ()
    ) -> None:
        """Stored when it returns; ``instead``: as of ``OffsetLog.change``. Raises
        ``MessageTooLargeError``: nothing of it is stored; else it may be stored or not:
        ``LedgerError`` and its like, when there is no space or bookie now, ``LogError`` and its
        like, and the shard begins anew."""
        with self._losing(shard):
            await shard.log.change(changes, self._services.now_ms(), instead)

    async def settle(self, shard: Shard) -> None:
        """As of ``OffsetLog.settle``. Raises as ``change``."""
        with self._losing(shard):
            await shard.log.settle(self._services.now_ms())

    @contextmanager
    def _losing(self, shard: Shard) -> Iterator[None]:
        try:
            yield
        except LogError:
            self._lose(shard.log.topic.name, shard)
            raise

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for name, shard in list(self._shards.items()):
            self._lose(name, shard)


def _topic(number: int) -> TopicName:
    return TopicName(TENANT, NAMESPACE_PART, f"offsets-{number}", -1)


def coordinator_error(error: MagnetarError) -> ErrorCode:
    """What a client of a group is told: on all of them, but of what it may not ask for, it asks for
    the coordinator again."""
    if isinstance(error, MessageTooLargeError):
        return ErrorCode.INVALID_REQUEST
    moved = isinstance(error, ServiceNotReadyError)
    return ErrorCode.NOT_COORDINATOR if moved else ErrorCode.COORDINATOR_NOT_AVAILABLE
