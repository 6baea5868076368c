"""``SharedTopics``: the ownership of a cluster whose brokers share its topics, by bundles.

A broker owns a bundle when the ephemeral node of it is this start's own, made by create-if-absent:
the store gives it to one. It is taken on the first lookup of a topic of it, at the broker that
``placement`` chooses, and stays until it is released or its owner's session ends.

Invariants:

* A bundle is OURS here only between the answer to the creation of its node and the beginning of its
  release. Only then are logs opened (``check``, ``verify``).
* A release closes the bundle's topics first, then deletes the node, then tells the clients. So its
  next owner never meets a log that is open here, and clients come back when it can be had.
* One step at a time per bundle: whoever asks while it is taken or released waits for the outcome.
* What others own is answered from memory (``watched_nodes``): no read per lookup once warm. A log
  is opened after a read of the node itself: a process that was paused knows nothing of what it has
  lost meanwhile.
* When the session is lost so is everything; ``lost`` is told, and the process ends.

Why: docs/adr/0091-brokers-own-bundles.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.brokers import Brokers, Registration
from magnetar.cluster.bundles import Bundle, Layout, layout_of
from magnetar.cluster.counters import RACES_MAX
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import At, CloseTopics, Here, Owner, TellClients
from magnetar.cluster.placement import BundlePlacement
from magnetar.cluster.reports import (
    BrokerReport,
    BundleOwner,
    decode_owner,
    encode_owner,
    owner_path,
    worth_telling,
)
from magnetar.cluster.shared_reads import SharedReads
from magnetar.cluster.topic_name import TopicName
from magnetar.cluster.watched_nodes import WatchedNodes
from magnetar.env.metadata import CreateMode, MetadataStore
from magnetar.env.session_guard import SessionGuard
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    MagnetarError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    ServiceNotReadyError,
)

log = structlog.get_logger(__name__)

RELEASES_AT_ONCE: Final = 2
"""Bundles; each closes its topics side by side. Few, so that each is without an owner shortly."""
REPORT_INTERVAL_S: Final = 1.0
REPORT_SOON_S: Final = 0.02
"""After a change of what is owned: others choose by it who gets the next bundle."""
LOOKS_MAX: Final = 20


class Load(NamedTuple):
    """What this broker has to do."""

    topics: int
    messages_in_per_s: float
    messages_out_per_s: float


class _State(Enum):
    TAKING = "taking"
    OURS = "ours"
    RELEASING = "releasing"


class _Share:
    """A bundle that is ours, or on its way."""

    __slots__ = ("end_watch", "state", "step")

    def __init__(self) -> None:
        self.state = _State.TAKING
        self.step: asyncio.Task[None] | None = None
        self.end_watch: Callable[[], None] = _nothing


class _SeenOwner(NamedTuple):
    owner: BundleOwner | None


class SharedTopics:
    """See the module's text. It shares nothing before ``begin``."""

    def __init__(self, metadata: MetadataStore, scope: TaskScope, namespaces: Namespaces) -> None:
        self.brokers = Brokers(metadata)
        self._metadata = metadata
        self._namespaces = namespaces
        self._scope = scope
        self._placement = BundlePlacement()
        self._owners = WatchedNodes(metadata, _seen)
        self._reads = SharedReads(metadata)
        self._layouts: dict[str, Layout] = {}
        self._held: dict[Bundle, _Share] = {}
        self._me: BundleOwner | None = None
        self._registration: Registration | None = None
        self._guard: SessionGuard | None = None
        self._close_topics: CloseTopics = _no_topics
        self._draining = True
        self._read_only = False
        self._session_lost = False
        self._changed = asyncio.Event()
        self._lost: Callable[[str], None] = _nothing_lost

    async def begin(
        self,
        report: BrokerReport,
        session_timeout_ms: int,
        close_topics: CloseTopics,
        lost: Callable[[str], None],
    ) -> None:
        """Register, and own what is asked for from now on; a read-only broker owns nothing. Raises
        ``MetadataError``."""
        self._close_topics, self._lost = close_topics, lost
        # Before the first node is made: one that goes with its session is told of.
        self._guard = SessionGuard(self._metadata, session_timeout_ms, self._all_lost)
        self._me = BundleOwner(report.broker_id, report.start, report.service_url, report.http_url)
        self._registration = Registration(self._metadata, report, self._all_lost)
        await self._registration.begin()
        self.brokers.forget(report.broker_id)
        self._draining = False
        self._read_only = report.read_only

    def _all_lost(self, why: str) -> None:
        """What others may have by now cannot be taken back bundle by bundle."""
        self._session_lost = True
        self._draining = True  # in this turn of the loop: nothing is taken in another session
        self._lost(why)

    # -- questions ----------------------------------------------------------------------------

    async def layout(self, namespace: str) -> Layout:
        """How ``tenant/namespace`` is cut. Raises ``TopicNotFoundError``, ``MetadataError``."""
        found = layout_of(namespace, await self._namespaces.policies(namespace))
        return self._layouts.setdefault(namespace, found)

    async def owner_of(self, name: TopicName) -> Owner | None:
        return await self.owner_of_bundle((await self.layout(name.namespace)).bundle_of(name))

    async def owner_of_bundle(self, bundle: Bundle) -> Owner | None:
        """None: nobody owns it. What is being taken is nobody's yet, what is released still its
        owner's."""
        held = self._held.get(bundle)
        if held is not None:
            return None if held.state is _State.TAKING else Here()
        owner = await self._read_owner(bundle)
        return None if owner is None or self._is_me(owner) else _at(owner)

    async def _read_owner(self, bundle: Bundle) -> BundleOwner | None:
        return (await self._owners.get(owner_path(bundle))).owner

    def _is_me(self, owner: BundleOwner) -> bool:
        """By its id: an earlier start of ours cannot live any more."""
        return self._me is not None and owner.broker_id == self._me.broker_id

    def owned(self) -> list[Bundle]:
        """The bundles that this broker owns, sorted."""
        return sorted(each for each, held in self._held.items() if held.state is _State.OURS)

    async def reports(self) -> Mapping[str, BrokerReport]:
        return await self.brokers.reports()

    # -- being asked for a topic --------------------------------------------------------------

    async def locate(self, name: TopicName, authoritative: bool = False) -> Owner:
        bundle = (await self.layout(name.namespace)).bundle_of(name)
        for _ in range(LOOKS_MAX):
            if await self._settled(bundle):
                return Here()
            owner = await self._read_owner(bundle)
            if bundle in self._held:
                continue  # somebody else asked meanwhile
            if owner is not None and not self._is_me(owner):
                return _at(owner)
            chosen = None if owner is not None else await self._choose(bundle, authoritative)
            if chosen is not None:
                return chosen
            if not self._takes:
                raise self._no_broker(bundle)
            await self._take(bundle)
        raise ServiceNotReadyError(f"bundle {bundle} changes its owner all the time; try again")

    async def claim(self, name: TopicName) -> None:
        bundle = (await self.layout(name.namespace)).bundle_of(name)
        for _ in range(LOOKS_MAX):
            if await self._settled(bundle):
                return
            owner = await self._read_owner(bundle)
            if owner is not None and not self._is_me(owner):
                raise _not_ours(name, owner.service_url)
            if not self._takes:
                break
            if bundle not in self._held:
                await self._take(bundle)
        raise _not_ours(name, "another broker soon")

    async def _settled(self, bundle: Bundle) -> bool:
        """Wait until the bundle is neither being taken nor released; whether it is ours then."""
        while (held := self._held.get(bundle)) is not None:
            if held.state is _State.OURS:
                return True
            assert held.step is not None, "set in the turn of the loop in which it was begun"
            await asyncio.wait([held.step])
        return False

    async def _choose(self, bundle: Bundle, authoritative: bool) -> At | None:
        """Another broker that is to take it; None: this one."""
        if authoritative and self._takes:
            return None
        reports = dict(await self.brokers.reports())
        me = self._me
        if me is not None and not self._takes:
            reports.pop(me.broker_id, None)
        chosen = self._placement.choose(bundle, reports)
        if chosen is None or (me is not None and chosen == me.broker_id):
            return None
        report = reports[chosen]
        return At(report.service_url, report.http_url, candidate=True)

    def _no_broker(self, bundle: Bundle) -> ServiceNotReadyError:
        return ServiceNotReadyError(
            f"bundle {bundle} has no owner, and no broker takes bundles now; try again"
        )

    # -- taking -------------------------------------------------------------------------------

    async def _take(self, bundle: Bundle) -> None:
        """Own it, unless another is quicker. Raises ``MetadataError``."""
        held = self._held.get(bundle)
        if held is None:
            held = self._held[bundle] = _Share()
            taking = self._take_now(bundle, held)
            held.step = self._scope.spawn(taking, f"take {bundle}", awaited(by="_take"))
        assert held.step is not None
        await asyncio.shield(held.step)

    async def _take_now(self, bundle: Bundle, held: _Share) -> None:
        try:
            if await self._make_node(bundle) and self._takes:
                held.state = _State.OURS
                look = self._scope.guarded(
                    partial(self._look_after, bundle, held), f"look after {bundle}"
                )
                held.end_watch = self._metadata.watch(owner_path(bundle), lambda _path: look())
                self._changed.set()
                log.info("bundle is served here", bundle=str(bundle))
        finally:
            self._owners.forget(owner_path(bundle))
            if held.state is not _State.OURS:
                del self._held[bundle]
                if not self._takes:
                    await self._delete_node(bundle)

    async def _make_node(self, bundle: Bundle) -> bool:
        """Whether the bundle's node is ours now."""
        assert self._me is not None
        path, value = owner_path(bundle), encode_owner(self._me)
        for _ in range(RACES_MAX):
            try:
                await self._metadata.create(path, value, CreateMode.EPHEMERAL)
                return True
            except NodeExistsError:
                outcome = await self._met(path)
            if outcome is not None:
                return outcome
        raise BrokerMetadataError(f"{path} comes and goes all the time; try again")

    async def _met(self, path: str) -> bool | None:
        """There is a node: ours by an answer that was lost (True), another's (False), or gone by
        now, also because an earlier start of ours had left it (None)."""
        try:
            node = await self._metadata.get(path)
            owner = decode_owner(path, node.value)
            if not self._is_me(owner):
                return False
            if self._me is not None and owner.start == self._me.start:
                return True
            await self._metadata.delete(path, node.version)
        except (NoNodeError, BadVersionError):
            pass
        return None

    # -- the guard before logs ----------------------------------------------------------------

    def check(self, name: TopicName) -> None:
        layout = self._layouts.get(name.namespace)
        held = None if layout is None else self._held.get(layout.bundle_of(name))
        if held is None or held.state is not _State.OURS:
            raise _not_ours(name, "another broker")

    async def verify(self, name: TopicName) -> None:
        self.check(name)
        bundle = self._layouts[name.namespace].bundle_of(name)
        held = self._held[bundle]
        value = await self._reads.get(owner_path(bundle))
        if not self._is_this_start(owner_path(bundle), value):
            self._lose(bundle, held)
        self.check(name)

    def _is_this_start(self, path: str, value: bytes | None) -> bool:
        if value is None or self._me is None:
            return False
        owner = decode_owner(path, value)
        return (owner.broker_id, owner.start) == (self._me.broker_id, self._me.start)

    # -- losing -------------------------------------------------------------------------------

    def _look_after(self, bundle: Bundle, held: _Share) -> None:
        """The node of a bundle that is ours has changed."""
        if held.state is _State.OURS and self._held.get(bundle) is held:
            self._scope.spawn(self._look(bundle, held), f"look after {bundle}")

    async def _look(self, bundle: Bundle, held: _Share) -> None:
        path = owner_path(bundle)
        try:
            ours = self._is_this_start(path, await self._reads.get(path))
        except MagnetarError as error:  # told again when the store is back; the session's end too
            log.warning("bundle not looked after", bundle=str(bundle), error=str(error))
            return
        if not ours:
            self._lose(bundle, held)

    def _lose(self, bundle: Bundle, held: _Share) -> None:
        """Somebody has deleted the node, or has it: close the topics, leave the node alone."""
        if held.state is _State.OURS and self._held.get(bundle) is held:
            log.warning("bundle was taken from here", bundle=str(bundle))
            self._begin_release(bundle, held, ours=False)

    # -- releasing ----------------------------------------------------------------------------

    async def release(self, bundle: Bundle) -> bool:
        """Close its topics and let others have it; False if it is not ours."""
        if not await self._settled(bundle):
            return False
        await asyncio.shield(self._begin_release(bundle, self._held[bundle], ours=True))
        return True

    def _begin_release(self, bundle: Bundle, held: _Share, ours: bool) -> asyncio.Task[None]:
        held.state = _State.RELEASING  # in this turn of the loop: no log is opened from now on
        held.end_watch()
        held.step = self._scope.spawn(self._release_now(bundle, held, ours), f"release {bundle}")
        return held.step

    async def _release_now(self, bundle: Bundle, held: _Share, ours: bool) -> None:
        try:
            tell = await self._close_topics(bundle)
            if ours:
                await self._delete_node(bundle)
        finally:
            self._owners.forget(owner_path(bundle))
            del self._held[bundle]
        self._changed.set()
        tell(await self._next_owner(bundle))
        log.info("bundle is not served here any more", bundle=str(bundle))

    async def _delete_node(self, bundle: Bundle) -> None:
        """If it is ours. One that stays is taken again by who asks here, or goes with us."""
        path = owner_path(bundle)
        try:
            node = await self._metadata.get(path)
            if self._is_this_start(path, node.value):
                await self._metadata.delete(path, node.version)
        except NoNodeError:
            return
        except MagnetarError as error:
            log.warning("bundle not given back", bundle=str(bundle), error=str(error))

    async def _next_owner(self, bundle: Bundle) -> str:
        """Where clients may go without a lookup; empty: they look it up."""
        try:
            chosen = await self._choose(bundle, authoritative=False)
        except MagnetarError:
            return ""
        return "" if chosen is None else chosen.service_url

    async def drain(self) -> None:
        """Own nothing from now on: hand all over, a few bundles at a time. Serves lookups still."""
        self._draining = True
        if self._registration is not None:
            await self._tell_report(self._registration)
        waiting = sorted(self._held)

        async def work() -> None:
            while waiting:
                await self.release(waiting.pop())

        await asyncio.gather(*(work() for _ in range(RELEASES_AT_ONCE)))

    async def undrain(self) -> None:
        """Own what is asked for again."""
        self._draining = False
        if self._registration is not None:
            await self._tell_report(self._registration)

    @property
    def _takes(self) -> bool:
        """Whether this broker takes bundles."""
        return not (self._draining or self._read_only)

    # -- what others are told -----------------------------------------------------------------

    async def run(self, load: Callable[[], Load]) -> None:
        """Report, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(REPORT_SOON_S)  # what is taken at once is told at once
            self._changed.clear()
            try:
                await self.report(load())
            except MetadataError as error:
                log.warning("load not reported", error=str(error))

    async def report(self, load: Load) -> None:
        """Tell others, if it is worth it. Raises ``MetadataError``."""
        registration = self._registration
        if registration is None:
            return
        report = replace(
            registration.report,
            draining=self._draining,
            bundles=len(self.owned()),
            topics=load.topics,
            messages_in_per_s=round(load.messages_in_per_s, 1),
            messages_out_per_s=round(load.messages_out_per_s, 1),
        )
        if worth_telling(registration.report, report):
            await registration.tell(report)
            self.brokers.forget(report.broker_id)

    async def _tell_report(self, registration: Registration) -> None:
        try:
            await registration.tell(replace(registration.report, draining=self._draining))
            self.brokers.forget(registration.report.broker_id)
        except MetadataError as error:
            log.warning("draining not told to other brokers", error=str(error))

    async def end(self) -> None:
        """Hand everything over, and be seen no more. Idempotent; nothing is handed over that is
        lost already."""
        registration = self._registration
        if registration is None or self._session_lost:
            return
        await self.drain()
        self._registration = None
        await registration.end()

    def close(self) -> None:
        """End every watch."""
        if self._guard is not None:
            self._guard.close()
        for held in self._held.values():
            held.end_watch()
        self._owners.close()
        self.brokers.close()


def _at(owner: BundleOwner) -> At:
    return At(owner.service_url, owner.http_url)


def _not_ours(name: TopicName, where: str) -> ServiceNotReadyError:
    return ServiceNotReadyError(f"topic {name} is served by {where}; look it up")


def _seen(path: str, value: bytes | None) -> _SeenOwner:
    return _SeenOwner(None if value is None else decode_owner(path, value))


def _nothing(*_: object) -> None:
    """There is nothing to do."""


def _nothing_lost(_why: str) -> None:
    """Nothing is registered yet."""


async def _no_topics(_bundle: Bundle) -> TellClients:
    return _nothing
