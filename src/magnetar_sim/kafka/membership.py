"""Being a member of a classic group, as the official clients are: find the coordinator, join, be
told or say who gets what, send heartbeats; whoever is told that it is none any more joins anew.

The member that leads gives each partition to one of those who asked for its topic.

A static member has a name (``StaticInstance``): whoever comes by it takes the place of who had it
before, in the same generation, and that one is told that it is replaced. It goes without a word.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import (
    HeartbeatRequest,
    JoinedMember,
    JoinGroupRequest,
    JoinProtocol,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
)
from magnetar_sim.kafka.committed_offsets import fetch_committed
from magnetar_sim.kafka.group_history import GroupHistory
from magnetar_sim.kafka.kafka_client import GROUP, REQUEST_S, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory
from magnetar_sim.kafka.kafka_link import LinkError

JOIN_VERSION: Final = 9
SYNC_VERSION: Final = 5
HEARTBEAT_VERSION: Final = 4
LEAVE_VERSION: Final = 5
COMMIT_VERSION: Final = 8
PROTOCOL: Final = "sim"
CONSUMER: Final = "consumer"
MEMBER_GONE: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
AGAIN: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
STEPS: Final = 5
"""Heartbeats in one session."""


class NoMemberError(Exception):
    """It must join (again)."""


class ReplacedError(Exception):
    """Another has its name as a static member: it is none any more."""


class StaticInstance:
    """A name that members of a group have, one after the other or side by side."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._asked = 0
        self._lost = 0
        self._open: set[int] = set()
        self._raced: set[int] = set()

    def asks(self) -> int:
        """Somebody asks for the place; returns the number of that."""
        self._asked += 1
        if self._open:
            self._raced.add(self._asked)
        self._open.add(self._asked)
        return self._asked

    def answered(self, number: int) -> None:
        self._open.discard(number)

    def lost(self, number: int) -> None:
        """What became of that is not known: it may count at any time."""
        self._open.discard(number)
        self._lost += 1

    def may_be_replaced(self, number: int) -> bool:
        """Who asked for the place with that number: others have asked later, or then, and may have
        been heard later."""
        return self._asked > number or number in self._raced or self._lost > 0


@dataclass(frozen=True)
class MemberPlan:
    """``places``: of the topics that its group reads."""

    group: str
    places: tuple[Place, ...]
    session_ms: int
    rebalance_ms: int


class AnyMembership(Protocol):
    """What a consumer has of its place in a group, of whichever kind. ``generation`` -1: it is no
    member; ``must_join``: it is to ``join`` (again), and until then may commit what it has."""

    instance: StaticInstance | None
    commit_version: int
    member_id: str
    generation: int
    places: Sequence[Place]
    must_join: bool

    @property
    def instance_id(self) -> str | None: ...

    def reset(self) -> None: ...

    def check_replaced(self) -> None: ...

    async def told(self, code: int, what: str) -> None: ...

    async def join(self) -> None: ...

    async def beat(self) -> None: ...

    async def leave(self) -> None: ...

    async def be_removed(self) -> None: ...

    async def committed(self, places: Sequence[Place], stable: bool) -> dict[Place, int]: ...


async def ask_once(
    client: KafkaClient,
    name: str,
    group: str,
    call: tuple[ApiKey, int, Any],
    within_s: float = REQUEST_S,
) -> Any:
    """What the group's coordinator answers. Raises ``NoMemberError``: it has no answer."""
    try:
        return await client.ask_coordinator(GROUP, group, *call, within_s)
    except LinkError as error:
        client.note(f"{name} {call[0].name}: {error}")
        await client.pause()
        raise NoMemberError from None


class GroupMembership:
    """``name``: for people. ``generation`` -1: it is no member. ``instance``: of a static one."""

    def __init__(
        self,
        client: KafkaClient,
        history: KafkaHistory,
        group: GroupHistory,
        name: str,
        plan: MemberPlan,
        instance: StaticInstance | None = None,
    ) -> None:
        self.client = client
        self.name = name
        self.plan = plan
        self.group = group
        self.instance = instance
        self.commit_version = COMMIT_VERSION
        self.replaced = False
        self._number = 0
        self.member_id = ""
        self.generation = -1
        self.places: Sequence[Place] = ()
        self.must_join = True
        """It is told to join again; until then it may commit."""
        self.silent = False
        """Its application has not asked for records for long: it sends no heartbeats."""
        self._history = history

    @property
    def instance_id(self) -> str | None:
        return None if self.instance is None else self.instance.name

    def reset(self) -> None:
        """It is no member any more."""
        self.member_id, self.generation, self.must_join = "", -1, True
        self.replaced = False
        self.places = ()

    async def _once(self, api: ApiKey, version: int, request: Any, within_s: float) -> Any:
        """Raises ``NoMemberError``."""
        call = api, version, request
        return await ask_once(self.client, self.name, self.plan.group, call, within_s)

    def check_replaced(self) -> None:
        """Raises ``ReplacedError``."""
        if self.replaced:
            raise ReplacedError

    async def told(self, code: int, what: str) -> None:
        """An answer that is no success. Raises ``NoMemberError``, ``ReplacedError``."""
        self.client.note(f"{self.name} {what}: {code}")
        self.must_join = True
        if code == ErrorCode.FENCED_INSTANCE_ID and self.instance is not None:
            if not self.instance.may_be_replaced(self._number):
                self._history.broken(f"{self.name} is replaced by nobody: {what}")
            self.replaced = True
            self._history.count("static members that were replaced")
            raise ReplacedError
        if code in AGAIN:
            self.client.coordinator_moved(GROUP, self.plan.group)
            await self.client.pause()
        elif code in MEMBER_GONE:
            self.reset()
        elif code != ErrorCode.REBALANCE_IN_PROGRESS:
            self._history.broken(f"{self.name}: {what} is answered {code}")
        raise NoMemberError

    # -- joining ------------------------------------------------------------------------------

    async def join(self) -> None:
        """As often as it takes. Raises ``ReplacedError``."""
        while True:
            try:
                await self._join()
                return
            except NoMemberError:
                continue

    async def _join(self) -> None:
        plan, instance = self.plan, self.instance
        protocols = [JoinProtocol(PROTOCOL, (self.instance_id or self.name).encode())]
        request = JoinGroupRequest(
            plan.group, plan.session_ms, plan.rebalance_ms, self.member_id, self.instance_id,
            CONSUMER, protocols,
        )  # fmt: skip
        within_s = REQUEST_S + plan.rebalance_ms / 1000
        if instance is not None and not self.member_id:
            self._number = instance.asks()
        try:
            answer = await self._once(ApiKey.JOIN_GROUP, JOIN_VERSION, request, within_s)
        except NoMemberError:
            if instance is not None and not self.member_id:
                instance.lost(self._number)
            raise
        if instance is not None:
            instance.answered(self._number)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            raise NoMemberError
        if answer.error_code != ErrorCode.NONE:
            await self.told(answer.error_code, "joins")
        self.member_id = answer.member_id
        self.generation = answer.generation
        assignments = []
        if answer.leader == self.member_id and not answer.skip_assignment:
            assignments = self._assign(answer.members)
        sync = SyncGroupRequest(
            plan.group, self.generation, self.member_id, self.instance_id, CONSUMER, PROTOCOL,
            assignments,
        )  # fmt: skip
        synced = await self._once(ApiKey.SYNC_GROUP, SYNC_VERSION, sync, within_s)
        if synced.error_code != ErrorCode.NONE:
            await self.told(synced.error_code, "syncs")
        given = json.loads(synced.assignment or b"[]")
        self.places = [(topic, index) for topic, index in given]
        self.must_join = False
        self.client.note(f"{self.name}, generation {self.generation}, has {self.places}")
        whose = self.instance_id or self.member_id
        self.group.hand(self.generation, whose, self.places, self.name)

    def _assign(self, members: Sequence[JoinedMember]) -> list[MemberAssignment]:
        """In turn, by their names: ids differ from run to run."""
        in_order = sorted(members, key=lambda each: bytes(each.metadata))
        given: list[list[Place]] = [[] for _ in in_order]
        for number, place in enumerate(self.plan.places):
            given[(number + self.generation) % len(in_order)].append(place)
        return [
            MemberAssignment(each.member_id, json.dumps(places).encode())
            for each, places in zip(in_order, given, strict=True)
        ]

    # -- staying, and leaving -----------------------------------------------------------------

    async def beat(self) -> None:
        """Heartbeats, for as long as it is a member of a generation."""
        while True:
            await asyncio.sleep(self.plan.session_ms / 1000 / STEPS)
            if self.must_join or self.silent:
                continue
            had = generation, member_id = self.generation, self.member_id
            request = HeartbeatRequest(self.plan.group, generation, member_id, self.instance_id)
            try:
                answer = await self._once(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, request, REQUEST_S)
                now = self.generation, self.member_id  # a static member is back in the same one
                if answer.error_code != ErrorCode.NONE and had == now:
                    await self.told_softly(answer.error_code)
            except (NoMemberError, ReplacedError):
                continue

    async def told_softly(self, code: int) -> None:
        """By a heartbeat. A coordinator that has moved is looked for, and no more."""
        if code in AGAIN:
            self.client.coordinator_moved(GROUP, self.plan.group)
        else:
            await self.told(code, "is there")

    async def leave(self) -> None:
        """Once; who is not heard falls silent, and so does a static member."""
        if self.member_id and self.instance is None:
            await self._remove(LeavingMember(self.member_id))
        self.reset()

    async def be_removed(self) -> None:
        """As ``leave``; an operator removes it by its name."""
        if self.instance is not None:
            await self._remove(LeavingMember("", self.instance.name))
        self.reset()

    async def _remove(self, member: LeavingMember) -> None:
        request = LeaveGroupRequest(self.plan.group, members=[member])
        with suppress(NoMemberError):
            await self._once(ApiKey.LEAVE_GROUP, LEAVE_VERSION, request, REQUEST_S)

    # -- what is committed --------------------------------------------------------------------

    async def committed(self, places: Sequence[Place], stable: bool) -> dict[Place, int]:
        """As ``fetch_committed``."""
        return await fetch_committed(self.client, self.group, self.name, places, stable)
