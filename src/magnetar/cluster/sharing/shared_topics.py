"""``SharedTopics``: the ownership of a cluster whose brokers share its topics, by bundles.

A broker owns a bundle when the ephemeral node of it is this start's own, made by create-if-absent:
the store gives it to one. It is taken on the first lookup of a topic of it, at the broker that
``placement`` chooses, and stays until it is released or its owner's session ends.

Invariants:

* A bundle is OURS here only between the answer to the creation of its node and the beginning of its
  release. Only then are logs opened (``check``, ``verify``).
* A release closes the bundle's topics first, then deletes the node, then tells the clients. So its
  next owner never meets a log that is open here, and clients come back when it can be had.
* A bundle that was given away goes to the broker that is chosen for it: who asks for it here
  without a lookup, as Kafka's clients do, is told so (``claim``).
* One step at a time per bundle: whoever asks while it is taken, cut or released waits for the
  outcome.
* A bundle is cut by its owner only, and one that has just been taken is looked up in the stored
  policies of its namespace: no broker owns a range that is none any more.
* What others own is answered from memory (``watched_nodes``): no read per lookup once warm. A log
  is opened after a read of the node itself: a process that was paused knows nothing of what it has
  lost meanwhile.
* When the session is lost so is everything; ``lost`` is told, and the process ends.

Why: docs/adr/0091-brokers-own-bundles.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.brokers.brokers import Brokers
from magnetar.cluster.brokers.reach import Connects, Reach, connects
from magnetar.cluster.brokers.reporting import Load, Owning, Reporting
from magnetar.cluster.brokers.reports import (
    BrokerReport,
    BundleOwner,
    decode_owner,
    owner_path,
)
from magnetar.cluster.bundles import Bundle, Layout, cut_in, layout_of
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import At, CloseTopics, Here, Owner, TellClients, WhileHeld
from magnetar.cluster.sharing.bundle_nodes import BundleNodes
from magnetar.cluster.sharing.candidates import Candidates
from magnetar.cluster.sharing.draining import release_in_turn
from magnetar.cluster.sharing.held_lookups import HeldLookups
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.cluster.topic_name import TopicName
from magnetar.env.metadata import MetadataStore
from magnetar.env.session_guard import SessionGuard
from magnetar.env.tasks import TaskScope, awaited, shared_result
from magnetar.model.errors import (
    MagnetarError,
    ServiceNotReadyError,
)

log = structlog.get_logger(__name__)

LOOKS_MAX: Final = 20
GIVEN_S: Final = 5.0
"""So long a bundle that was given away is not taken back from whoever is to have it next."""


class _State(Enum):
    TAKING = "taking"
    OURS = "ours"
    CUTTING = "cutting"
    RELEASING = "releasing"


SERVED: Final = (_State.OURS, _State.CUTTING)
"""Topics of such a bundle are served here."""


class _Share:
    """A bundle that is ours, or on its way."""

    __slots__ = ("end_watch", "state", "step")

    def __init__(self) -> None:
        self.state = _State.TAKING
        self.step: asyncio.Task[None] | None = None
        self.end_watch: Callable[[], None] = _nothing


class _Known(NamedTuple):
    """How a namespace is cut, and the bytes that say so."""

    value: bytes
    layout: Layout


class _SeenOwner(NamedTuple):
    owner: BundleOwner | None


class SharedTopics:
    """See the module's text. It shares nothing before ``begin``. ``connect``: whether a broker's
    address takes connections."""

    def __init__(
        self,
        metadata: MetadataStore,
        scope: TaskScope,
        namespaces: Namespaces,
        connect: Connects = connects,
    ) -> None:
        self.brokers = Brokers(metadata)
        self._metadata = metadata
        self._namespaces = namespaces
        self._scope = scope
        self._owners = WatchedNodes(metadata, _seen)
        reach = Reach(scope, connect)
        self._candidates = Candidates(self.brokers, reach)
        self.find_gone = reach.find_gone
        self._lookups = HeldLookups(self.locate, self._owner_path_of, reach.find_gone)
        self._owners.watch_changes(self._lookups.moved)
        self._nodes = BundleNodes(metadata)
        self._layouts: dict[str, _Known] = {}
        self._held: dict[Bundle, _Share] = {}
        self._given: dict[Bundle, float] = {}
        """Until when those that were given away are for others to take."""
        self._guard: SessionGuard | None = None
        self._close_topics: CloseTopics = _no_topics
        self._before_drain: Callable[[], Awaitable[None]] = _at_once
        self._draining = True
        self._read_only = False
        self._session_lost = False
        self._reporting = Reporting(metadata, self.brokers, self._owning)
        self._lost: Callable[[str], None] = _nothing_lost

    async def begin(
        self,
        report: BrokerReport,
        session_timeout_ms: int,
        close_topics: CloseTopics,
        lost: Callable[[str], None],
        before_drain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Register, and own what is asked for from now on; a read-only broker owns nothing. Raises
        ``MetadataError``."""
        self._close_topics, self._lost = close_topics, lost
        self._before_drain = before_drain or _at_once
        # Before the first node is made: one that goes with its session is told of.
        self._guard = SessionGuard(self._metadata, session_timeout_ms, self._all_lost)
        self._nodes.me = BundleOwner(
            report.broker_id, report.start, report.service_url, report.http_url
        )
        await self._reporting.begin(report, self._all_lost)
        self._draining = False
        self._read_only = report.read_only

    def _all_lost(self, why: str) -> None:
        """What others may have by now cannot be taken back bundle by bundle."""
        self._session_lost = True
        self._draining = True  # in this turn of the loop: nothing is taken in another session
        self._lost(why)

    @property
    def session_lost(self) -> bool:
        """For good: this broker must end."""
        return self._session_lost

    # -- questions ----------------------------------------------------------------------------

    async def layout(self, namespace: str) -> Layout:
        """How ``tenant/namespace`` is cut. Raises ``TopicNotFoundError``, ``MetadataError``."""
        value = await self._namespaces.value(namespace)
        known = self._layouts.get(namespace)
        if known is None or known.value is not value:  # the same object while it has not changed
            layout = layout_of(namespace, await self._namespaces.policies(namespace))
            known = self._layouts[namespace] = _Known(value, layout)
        return known.layout

    async def _bundle_of(self, name: TopicName) -> Bundle:
        return (await self.layout(name.namespace)).bundle_of(name)

    async def owner_of(self, name: TopicName) -> Owner | None:
        return await self.owner_of_bundle(await self._bundle_of(name))

    async def owner_of_bundle(self, bundle: Bundle) -> Owner | None:
        """None: nobody owns it. What is being taken is nobody's yet, what is released still its
        owner's."""
        held = self._held.get(bundle)
        if held is not None:
            return None if held.state is _State.TAKING else Here()
        owner = await self._read_owner(bundle)
        return None if owner is None or self._nodes.is_me(owner) else _at(owner)

    async def _read_owner(self, bundle: Bundle) -> BundleOwner | None:
        return (await self._owners.get(owner_path(bundle))).owner

    @property
    def broker_id(self) -> str:
        """Ours, after ``begin``."""
        assert self._nodes.me is not None, "it has not begun"
        return self._nodes.me.broker_id

    def owned(self) -> list[Bundle]:
        """The bundles that this broker owns, sorted."""
        return sorted(each for each, held in self._held.items() if held.state is _State.OURS)

    async def reports(self) -> Mapping[str, BrokerReport]:
        return await self.brokers.reports()

    # -- being asked for a topic --------------------------------------------------------------

    async def locate(self, name: TopicName, authoritative: bool = False) -> Owner:
        for _ in range(LOOKS_MAX):
            bundle = await self._bundle_of(name)
            if await self._settled(bundle):
                return Here()
            owner = await self._read_owner(bundle)
            if bundle in self._held:
                continue  # somebody else asked meanwhile
            if owner is not None and not self._nodes.is_me(owner):
                return _at(owner)
            chosen = None if owner is not None else await self._choose(bundle, authoritative)
            if chosen is not None:
                return chosen
            if not self._takes:
                raise self._no_broker(bundle)
            await self._take(bundle)
        raise ServiceNotReadyError(f"topic {name} changes its owner all the time; try again")

    async def locate_reachable(
        self,
        name: TopicName,
        authoritative: bool = False,
        while_held: WhileHeld = nullcontext,
    ) -> Owner:
        owner = await self._lookups.locate(name, authoritative, while_held)
        assert owner is not None, "somebody is chosen for each bundle"
        return owner

    async def _owner_path_of(self, name: TopicName) -> str:
        return owner_path(await self._bundle_of(name))

    async def claim(self, name: TopicName) -> None:
        for _ in range(LOOKS_MAX):
            bundle = await self._bundle_of(name)
            if await self._settled(bundle):
                return
            owner = await self._read_owner(bundle)
            if owner is not None and not self._nodes.is_me(owner):
                raise _not_ours(name, owner.service_url)
            if not self._takes or await self._goes_elsewhere(bundle):
                break
            if bundle not in self._held:
                await self._take(bundle)
        raise _not_ours(name, "another broker soon")

    async def _goes_elsewhere(self, bundle: Bundle) -> bool:
        """This broker gave it away a moment ago, and another one is to take it. Clients that look
        nothing up before they ask again (Kafka's) would else have it taken back at once."""
        if asyncio.get_running_loop().time() >= self._given.get(bundle, 0.0):
            self._given.pop(bundle, None)
            return False
        return await self._choose(bundle, authoritative=False) is not None

    async def _settled(self, bundle: Bundle) -> bool:
        """Wait until the bundle is neither being taken nor released; whether it is ours then."""
        while (held := self._held.get(bundle)) is not None:
            if held.state is _State.OURS:
                return True
            assert held.step is not None, "set in the turn of the loop in which it was begun"
            await asyncio.wait([held.step])
        return False

    def _check_open(self) -> None:
        """Who waited for the metadata store may come here when the broker has ended meanwhile."""
        if self._scope.closed:
            raise ServiceNotReadyError("this broker is ending; ask another")

    async def _choose(self, bundle: Bundle, authoritative: bool) -> At | None:
        """Another broker that is to take it; None: this one."""
        if authoritative and self._takes:
            return None
        me = self._nodes.me
        report = await self._candidates.choose(
            bundle, "" if me is None else me.broker_id, self._takes
        )
        if report is None:
            return None
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
            self._check_open()
            held = self._held[bundle] = _Share()
            taking = self._take_now(bundle, held)
            held.step = self._scope.spawn(taking, f"take {bundle}", awaited(by="_take"))
        assert held.step is not None
        await shared_result(held.step)

    async def _take_now(self, bundle: Bundle, held: _Share) -> None:
        made = False
        try:
            made = await self._nodes.make(bundle)
            # After the node is made, and from the store: whoever cut the bundle had it until then,
            # and had written that it is none any more.
            if made and await self._is_a_bundle(bundle) and self._takes:
                self._own(bundle, held)
                log.info("bundle is served here", bundle=str(bundle))
        finally:
            self._owners.forget(owner_path(bundle))
            if held.state is not _State.OURS:
                del self._held[bundle]
                if made or not self._takes:
                    await self._nodes.give_back(bundle)

    async def _is_a_bundle(self, bundle: Bundle) -> bool:
        policies = await self._namespaces.stored_policies(bundle.namespace)
        return layout_of(bundle.namespace, policies).holds(bundle)

    def _own(self, bundle: Bundle, held: _Share) -> None:
        held.state = _State.OURS
        look = self._scope.guarded(partial(self._look_after, bundle, held), f"look after {bundle}")
        held.end_watch = self._metadata.watch_value(owner_path(bundle), lambda _path: look())
        self._reporting.owning_changed()

    # -- the guard before logs ----------------------------------------------------------------

    def check(self, name: TopicName) -> None:
        known = self._layouts.get(name.namespace)
        held = None if known is None else self._held.get(known.layout.bundle_of(name))
        if held is None or held.state not in SERVED:
            raise _not_ours(name, "another broker")

    async def verify(self, name: TopicName) -> None:
        self.check(name)
        bundle = self._layouts[name.namespace].layout.bundle_of(name)
        held = self._held[bundle]
        ours = await self._nodes.is_ours(bundle)
        if self._held.get(bundle) is not held:
            await self.verify(name)  # it was cut meanwhile, or released
            return
        if not ours:
            self._lose(bundle, held)
            raise _not_ours(name, "another broker")  # also while it is cut, which goes on
        self.check(name)

    # -- losing -------------------------------------------------------------------------------

    def _look_after(self, bundle: Bundle, held: _Share) -> None:
        """The node of a bundle that is ours has changed."""
        if held.state is _State.OURS and self._held.get(bundle) is held:
            self._scope.spawn(self._look(bundle, held), f"look after {bundle}")

    async def _look(self, bundle: Bundle, held: _Share) -> None:
        try:
            ours = await self._nodes.is_ours(bundle)
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
        self._check_open()
        await shared_result(self._begin_release(bundle, self._held[bundle], ours=True))
        return True

    def _begin_release(self, bundle: Bundle, held: _Share, ours: bool) -> asyncio.Task[None]:
        held.state = _State.RELEASING  # in this turn of the loop: no log is opened from now on
        held.end_watch()
        held.step = self._scope.spawn(self._release_now(bundle, held, ours), f"release {bundle}")
        return held.step

    async def _release_now(self, bundle: Bundle, held: _Share, ours: bool) -> None:
        clock_s = asyncio.get_running_loop().time
        begun_s = clock_s()
        try:
            tell = await self._close_topics(bundle)
            closed_s = clock_s()
            # Side by side: clients wait for both.
            service_url, _ = await asyncio.gather(
                self._next_owner(bundle), self._give_back(bundle, ours)
            )
        finally:
            self._owners.forget(owner_path(bundle))
            del self._held[bundle]
        self._given = {each: at for each, at in self._given.items() if at > clock_s()}
        self._given[bundle] = clock_s() + GIVEN_S
        self._reporting.owning_changed()
        tell(service_url)
        log.info(
            "bundle is not served here any more",
            bundle=str(bundle),
            closing_ms=round((closed_s - begun_s) * 1000),
            giving_ms=round((clock_s() - closed_s) * 1000),
        )

    async def _give_back(self, bundle: Bundle, ours: bool) -> None:
        if ours:
            await self._nodes.give_back(bundle)

    async def _next_owner(self, bundle: Bundle) -> str:
        """Where clients may go without a lookup; empty: they look it up."""
        try:
            chosen = await self._choose(bundle, authoritative=False)
        except MagnetarError:
            return ""
        if chosen is not None:
            return chosen.service_url
        me = self._nodes.me  # unless nobody takes it: then a lookup says so
        return "" if me is None or not self._takes else me.service_url

    async def drain(self) -> None:
        """Own nothing from now on: hand all over. Serves lookups still."""
        self._draining = True
        await self._reporting.tell_draining()
        await self._before_drain()
        held = sorted(self._held)
        taken = bool(held) and bool(await self._next_owner(held[0]))
        await release_in_turn(lambda: sorted(self._held), self.release, taken)

    async def undrain(self) -> None:
        """Own what is asked for again."""
        self._draining = False
        await self._reporting.tell_draining()

    @property
    def _takes(self) -> bool:
        """Whether this broker takes bundles."""
        return not (self._draining or self._read_only)

    # -- cutting ------------------------------------------------------------------------------

    async def cut(self, bundle: Bundle, boundary: int) -> bool:
        """Have two bundles in place of one; False if it is not ours. Nobody is interrupted: both
        are ours, and their topics stay open. Raises ``NotAllowedError``, ``MetadataError``."""
        if not await self._settled(bundle):
            return False
        self._check_open()
        bundle.halves(boundary)  # raises, if it cannot be cut there
        held = self._held[bundle]
        held.state = _State.CUTTING
        cutting = self._cut_now(bundle, held, boundary)
        held.step = self._scope.spawn(cutting, f"cut {bundle}", awaited(by="cut"))
        await shared_result(held.step)
        return True

    async def _cut_now(self, bundle: Bundle, held: _Share, boundary: int) -> None:
        """The order: nodes of the halves, which nobody else can want yet; then how the namespace
        is cut; then the node of the whole. So each topic has one owner at any time, and whoever
        makes the node of the whole again finds that it is no bundle."""
        halves = bundle.halves(boundary)
        try:
            for half in halves:
                if not await self._nodes.make(half):
                    raise ServiceNotReadyError(f"bundle {half} has another owner; try again")
            await self._namespaces.change(bundle.namespace, partial(cut_in, bundle, boundary))
            await self.layout(bundle.namespace)  # what ``check`` goes by
        except BaseException as error:
            held.state = _State.OURS
            if isinstance(error, MagnetarError):
                await self._give_halves_back(bundle, halves)
                await self._look(bundle, held)  # what was told of the node meanwhile was not heard
            raise
        del self._held[bundle]
        held.end_watch()
        for half in halves:
            if half not in self._held:  # else somebody asked for a topic of it meanwhile
                self._own(half, self._held.setdefault(half, _Share()))
            self._owners.forget(owner_path(half))
        log.info("bundle is cut", bundle=str(bundle), at=f"0x{halves[1].low:08x}")
        await self._nodes.give_back(bundle)
        self._owners.forget(owner_path(bundle))

    async def _give_halves_back(self, bundle: Bundle, halves: tuple[Bundle, Bundle]) -> None:
        """It was not cut, or may have been: then they stay ours, and are taken on their use."""
        try:
            if await self._is_a_bundle(bundle):
                for half in halves:
                    await self._nodes.give_back(half)
        except MagnetarError as error:
            log.warning("not known whether a bundle is cut", bundle=str(bundle), error=str(error))

    # -- what others are told -----------------------------------------------------------------

    async def run(self, load: Callable[[], Load]) -> None:
        """Report, and meet the other brokers, until cancelled."""
        await asyncio.gather(self._reporting.run(load), self._candidates.run(self.broker_id))

    async def report(self, load: Load) -> None:
        """Tell others, if it is worth it. Raises ``MetadataError``."""
        await self._reporting.report(load)

    def _owning(self) -> Owning:
        return Owning(len(self.owned()), self._draining)

    async def end(self) -> None:
        """Hand everything over, and be seen no more. Idempotent; nothing is handed over that is
        lost already."""
        if self._session_lost or not self._reporting.begun:
            return
        await self.drain()
        await self._reporting.end()

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


async def _at_once() -> None:
    """There is nothing to do before."""


async def _no_topics(_bundle: Bundle) -> TellClients:
    return _nothing
