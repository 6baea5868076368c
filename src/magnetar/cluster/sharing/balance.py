"""When a broker cuts a bundle that has grown, and gives one away because it has too much to do.

Each broker decides for itself, by what all report and what it knows of its own bundles. Looks come
at even intervals. So that nothing goes to and fro:

* A reason must hold for ``LOOKS`` looks in a row: a burst moves nothing.
* A bundle is given away only if the broker with the least to do has clearly less afterwards than
  this one had; and after one has gone nothing is decided until reports have come that know of it.
* A bundle that has just come stays for ``REST_LOOKS``.

A bundle is cut when it has too many topics or messages, never put together again.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.bundles import Bundle
from magnetar.cluster.sharing.placement import MESSAGES_PER_S_OF_A_BUNDLE, load_of

LOOKS: Final = 3
REST_LOOKS: Final = 6
OVER: Final = 1.25
"""Times the mean of all brokers: more is too much."""
BUNDLES_OF_A_NAMESPACE_MAX: Final = 128
"""None is cut by itself beyond that; as Pulsar has it."""


class BundleLoad(NamedTuple):
    """``messages_per_s``: in and out."""

    topics: int
    messages_per_s: float


class BundleLimits(NamedTuple):
    """More than this is cut."""

    topics_max: int
    messages_per_s_max: float


class Cut(NamedTuple):
    """It has outgrown the limits."""

    bundle: Bundle


class Give(NamedTuple):
    """Others have less to do."""

    bundle: Bundle


Decision: TypeAlias = Cut | Give


class Balance:
    """Of the broker ``me``."""

    def __init__(self, me: str, limits: BundleLimits) -> None:
        self._me = me
        self._limits = limits
        self._large: dict[Bundle, int] = {}
        """How many looks in a row each was over the limits."""
        self._since: dict[Bundle, int] = {}
        """The look at which each was first seen here."""
        self._over = 0
        """How many looks in a row this broker had too much to do."""
        self._look = 0
        self._resting_until = 0

    def look(
        self,
        bundles: Mapping[Bundle, BundleLoad],
        reports: Mapping[str, BrokerReport],
        cut_already: Mapping[str, int],
    ) -> Decision | None:
        """What to do now; None: nothing. ``bundles``: our own; ``cut_already``: by namespace, how
        many it has."""
        self._look += 1
        self._since = {each: self._since.get(each, self._look) for each in bundles}
        self._large = {
            bundle: self._large.get(bundle, 0) + 1
            for bundle, load in bundles.items()
            if self._outgrown(load)
        }
        target = self._target(reports)
        self._over = self._over + 1 if target is not None else 0
        for bundle, looks in self._large.items():
            if looks >= LOOKS and cut_already[bundle.namespace] < BUNDLES_OF_A_NAMESPACE_MAX:
                del self._large[bundle]
                return Cut(bundle)
        if target is None or self._over < LOOKS or self._look < self._resting_until:
            return None
        return self._give(bundles, reports, target)

    def _outgrown(self, load: BundleLoad) -> bool:
        limits = self._limits
        many = load.topics > limits.topics_max or load.messages_per_s > limits.messages_per_s_max
        return many and load.topics > 1  # one topic is in one bundle

    def _target(self, reports: Mapping[str, BrokerReport]) -> str | None:
        """Who has the least to do, if this broker has too much."""
        mine = reports.get(self._me)
        loads = {name: load_of(each) for name, each in reports.items() if each.takes_bundles}
        if mine is None or self._me not in loads or len(loads) < 2:
            return None
        mean = sum(loads.values()) / len(loads)
        if load_of(mine) <= OVER * mean:
            return None
        return min(loads, key=lambda name: (loads[name], name))

    def _give(
        self,
        bundles: Mapping[Bundle, BundleLoad],
        reports: Mapping[str, BrokerReport],
        target: str,
    ) -> Give | None:
        mine, theirs = load_of(reports[self._me]), load_of(reports[target])
        movable = {
            bundle: load_of_bundle(load)
            for bundle, load in bundles.items()
            if self._look - self._since[bundle] >= REST_LOOKS
        }
        # After it has gone the other has no more than this one keeps, give or take half of it.
        helping = {
            b: weight for b, weight in movable.items() if theirs + weight <= mine - weight / 2
        }
        if not helping:
            return None
        self._over = 0
        self._resting_until = self._look + LOOKS
        return Give(max(helping, key=lambda bundle: (helping[bundle], bundle)))


def load_of_bundle(load: BundleLoad) -> float:
    """As ``placement.load_of`` counts it."""
    return 1 + load.messages_per_s // MESSAGES_PER_S_OF_A_BUNDLE
