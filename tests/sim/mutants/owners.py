"""Ring 2, with brokers: who owns a topic, and how it goes from one to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from magnetar.cluster.brokers.reports import owner_path
from magnetar.cluster.bundles import Bundle, Layout
from magnetar.cluster.ownership import Here
from magnetar.cluster.sharing.bundle_nodes import BundleNodes
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.log.acknowledgements import AckState
from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.managed.cursors import ManagedCursors
from magnetar.log.managed.records import HandedCursor, LogRecord
from magnetar.model.errors import MagnetarError
from magnetar.topics.registry import Topics
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _two_owners() -> AbstractContextManager[None]:
    """A node that is there already is taken for an answer that was lost."""

    async def met(self: Any, path: str) -> bool:
        return True

    async def verify(self: Any, name: Any) -> None:
        self.check(name)

    return replaced((BundleNodes, "_met", met), (SharedTopics, "verify", verify))


def _questions_take() -> AbstractContextManager[None]:
    """Whoever is asked about a topic opens its log: nobody asks whose it is."""

    async def locate(self: Any, name: Any, authoritative: bool = False) -> object:
        return Here()

    async def nothing(self: Any, name: Any) -> None: ...

    def no_check(self: Any, name: Any) -> None: ...

    return replaced(
        (SharedTopics, "locate", locate),
        (SharedTopics, "claim", nothing),
        (SharedTopics, "verify", nothing),
        (SharedTopics, "check", no_check),
    )


def _stale_owners() -> AbstractContextManager[None]:
    """Who owns a bundle is read once and believed for ever."""
    forget = WatchedNodes.forget

    def keep(self: Any, path: str) -> None:
        if not path.startswith("/namespace/"):
            forget(self, path)

    return replaced((WatchedNodes, "forget", keep))


def _logs_stay_open() -> AbstractContextManager[None]:
    """A bundle is given away while the logs of its topics are open here."""

    async def hand_over(self: Any, belongs: Any) -> Callable[[str], None]:
        return lambda url: None

    return replaced((Topics, "hand_over", hand_over))


def _given_before_closed() -> AbstractContextManager[None]:
    """The node is deleted first, and the topics are closed then."""

    release_now = SharedTopics._release_now

    async def early(self: Any, bundle: Bundle, held: Any, ours: bool) -> None:
        if ours:
            await self._nodes.give_back(bundle)
        await release_now(self, bundle, held, ours)

    return replaced((SharedTopics, "_release_now", early))


def _nobody_is_told() -> AbstractContextManager[None]:
    """Topics are closed, and their clients wait for them here."""
    hand_over = Topics.hand_over

    async def silent(self: Any, belongs: Any) -> Callable[[str], None]:
        await hand_over(self, belongs)
        return lambda url: None

    return replaced((Topics, "hand_over", silent))


def _loads_are_left() -> AbstractContextManager[None]:
    """A release does not wait for topics that are being loaded, and they do not look again."""

    async def wait_over(self: Any, belongs: Any) -> None: ...

    def no_check(self: Any, name: Any) -> None: ...

    return replaced((Topics, "_wait_over", wait_over), (SharedTopics, "check", no_check))


def _anybodys_node_goes() -> AbstractContextManager[None]:
    """Who releases a bundle deletes its node, whoever has made it."""

    async def give_back(self: Any, bundle: Bundle) -> None:
        try:
            await self._metadata.delete(owner_path(bundle))
        except MagnetarError:
            return

    async def release_now(self: Any, bundle: Bundle, held: Any, ours: bool) -> None:
        await plain(self, bundle, held, True)

    plain = SharedTopics._release_now
    return replaced(
        (BundleNodes, "give_back", give_back), (SharedTopics, "_release_now", release_now)
    )


def _former_ranges_are_taken() -> AbstractContextManager[None]:
    """A bundle that was cut is taken again by who has not heard of it: how a namespace is cut is
    read once, but by who cuts, and not looked at when a node is made. (With what the store tells in
    order only a lookup that stood still in the middle could do it.)"""
    layout, cut_now = SharedTopics.layout, SharedTopics._cut_now
    who_cuts: list[int] = []  # once for each bundle: a broker may cut several at once

    async def believed(self: Any, namespace: str) -> Layout:
        known = self._layouts.get(namespace)
        if known is not None and id(self) not in who_cuts:
            return known.layout
        return await layout(self, namespace)

    async def cutting(self: Any, bundle: Bundle, held: Any, boundary: int) -> None:
        who_cuts.append(id(self))
        try:
            await cut_now(self, bundle, held, boundary)
        finally:
            who_cuts.remove(id(self))

    async def is_a_bundle(self: Any, bundle: Bundle) -> bool:
        return True

    return replaced(
        (SharedTopics, "_is_a_bundle", is_a_bundle),
        (SharedTopics, "layout", believed),
        (SharedTopics, "_cut_now", cutting),
    )


def _given_before_it_is_cut() -> AbstractContextManager[None]:
    """The node of the whole goes before the namespace is cut."""
    cut_now = SharedTopics._cut_now

    async def early(self: Any, bundle: Bundle, held: Any, boundary: int) -> None:
        held.end_watch()
        await self._nodes.give_back(bundle)
        await asyncio.sleep(0.01)
        await cut_now(self, bundle, held, boundary)

    return replaced((SharedTopics, "_cut_now", early))


def _halves_without_nodes() -> AbstractContextManager[None]:
    """Who cuts a bundle takes its parts for its own for ever, and nobody else knows. (That there
    are no nodes is seen at once else: by the watch on them, and before a log is opened.)"""
    make, is_ours, cut_now = BundleNodes.make, BundleNodes.is_ours, SharedTopics._cut_now

    def unmade(nodes: Any) -> set[Bundle]:
        found: set[Bundle] = vars(nodes).setdefault("unmade", set())
        return found

    async def cut_without(self: Any, bundle: Bundle, held: Any, boundary: int) -> None:
        unmade(self._nodes).update(bundle.halves(boundary))
        await cut_now(self, bundle, held, boundary)

    async def make_others(self: Any, bundle: Bundle) -> bool:
        return bundle in unmade(self) or await make(self, bundle)

    async def believed(self: Any, bundle: Bundle) -> bool:
        return bundle in unmade(self) or await is_ours(self, bundle)

    return replaced(
        (SharedTopics, "_cut_now", cut_without),
        (BundleNodes, "make", make_others),
        (BundleNodes, "is_ours", believed),
    )


def _handed_over_for_ever() -> AbstractContextManager[None]:
    """What an owner has handed over stays in the log's record, and is believed by whoever opens the
    log next, also after another has had it."""
    now = ChainStore._now

    def kept(self: Any, record: LogRecord, opened: Any = None) -> LogRecord:
        return replace(now(self, record, opened), handed_over=record.handed_over)

    return replaced((ChainStore, "_now", kept))


def _handed_over_unread() -> AbstractContextManager[None]:
    """Cursors are handed over as their nodes say, without what their ledgers have."""
    take = ManagedCursors.take_handed

    async def as_in_nodes(self: Any, handed: Sequence[HandedCursor]) -> None:
        reads = self._read

        async def read(item: Any) -> AckState:
            _, node = item
            return AckState(self._kind.chain, node.record.mark_delete, node.record.reset_epoch)

        self._read = read
        try:
            await take(self, handed)
        finally:
            self._read = reads

    return replaced((ManagedCursors, "take_handed", as_in_nodes))


def _never_ends() -> AbstractContextManager[None]:
    """A broker that has to end has given everything away, and hangs: no client misses it."""
    original = Topics.close

    async def close(self: Any) -> None:
        await original(self)
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    return replaced((Topics, "close", close))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, brokers=True)


OWNERS = (
    _mutant("a bundle has two owners", _two_owners),
    _mutant("a question about a topic takes it", _questions_take),
    _mutant("who owns a bundle is never looked up again", _stale_owners),
    _mutant("a bundle is given away with its logs open", _logs_stay_open),
    _mutant("a bundle is given away before its logs are closed", _given_before_closed),
    _mutant("clients are not told that their topic has moved", _nobody_is_told),
    _mutant("a topic that is being loaded survives its release", _loads_are_left),
    _mutant("a release deletes another owner's node", _anybodys_node_goes),
    _mutant("a bundle that was cut is taken again", _former_ranges_are_taken),
    _mutant("cursors that were handed over are believed for ever", _handed_over_for_ever),
    _mutant("cursors are handed over without what their ledgers have", _handed_over_unread),
    _mutant("a bundle is given away before it is cut", _given_before_it_is_cut),
    _mutant("the parts of a bundle have no nodes", _halves_without_nodes),
    _mutant("a broker that has to end hangs", _never_ends),
)
