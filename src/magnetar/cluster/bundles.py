"""Bundles: a namespace's topics in parts, each a range of the hash of their names. Brokers own
bundles, not topics: a node per topic would be more than a metadata store bears.

The hash, the ranges and their names (``0x40000000_0x80000000``) are Pulsar's, so that its admin
tools show them. A range holds its low end and not its high one, but for the last. Ranges change in
one way: the owner of a bundle cuts it in two (``sharing``).

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import BrokerMetadataError, NotAllowedError

HASHES: Final = 1 << 32
LAST: Final = HASHES - 1
BUNDLES_DEFAULT: Final = 4
"""Of a namespace that says nothing. No setting: two brokers must never disagree on it."""
BUNDLES_MAX: Final = 4096
POLICY: Final = "bundles"
"""The field of a namespace's policies that says how it is cut."""


class Bundle(NamedTuple):
    """The topics of ``namespace`` whose hash is in the range."""

    namespace: str
    low: int
    high: int

    @property
    def range_name(self) -> str:
        """As it is named within its namespace."""
        return f"0x{self.low:08x}_0x{self.high:08x}"

    def holds(self, name: TopicName) -> bool:
        if name.namespace != self.namespace:
            return False
        position = hash_of(name)
        return self.low <= position < self.high or position == self.high == LAST

    def halves(self, boundary: int) -> tuple[Bundle, Bundle]:
        """It in two parts; the second begins at ``boundary``. Raises ``NotAllowedError``."""
        if not self.low < boundary < self.high:
            raise NotAllowedError(f"bundle {self} cannot be cut at 0x{boundary:08x}")
        return Bundle(self.namespace, self.low, boundary), Bundle(
            self.namespace, boundary, self.high
        )

    def middle(self) -> int:
        """Where it is cut into ranges of one size."""
        return self.low + (self.high - self.low) // 2

    def median(self, names: Iterable[TopicName]) -> int:
        """Where it is cut so that each part has as many of those topics as the other, as near as
        their hashes allow; its middle if they leave no choice."""
        hashes = sorted(hash_of(name) for name in names if self.holds(name))
        for boundary in hashes[len(hashes) // 2 :]:
            if hashes[0] < boundary < self.high:
                return boundary
        return self.middle()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range_name}"


def hash_of(name: TopicName) -> int:
    """Of the full name, a partition's own: partitions of a topic are spread."""
    return crc32(str(name).encode())


class Layout(NamedTuple):
    """How a namespace is cut."""

    namespace: str
    boundaries: tuple[int, ...]
    """Rising, from 0 to ``LAST``."""

    def bundles(self) -> list[Bundle]:
        pairs = zip(self.boundaries, self.boundaries[1:], strict=False)
        return [Bundle(self.namespace, low, high) for low, high in pairs]

    def bundle_of(self, name: TopicName) -> Bundle:
        index = bisect_right(self.boundaries, hash_of(name), hi=len(self.boundaries) - 1) - 1
        return Bundle(self.namespace, self.boundaries[index], self.boundaries[index + 1])

    def named(self, range_name: str) -> Bundle | None:
        """The bundle of that range, if it is one."""
        return next((each for each in self.bundles() if each.range_name == range_name), None)

    def holds(self, bundle: Bundle) -> bool:
        """Whether it is one of this layout's."""
        return bundle in self.bundles()

    def cut(self, bundle: Bundle, boundary: int) -> Layout:
        """With ``bundle`` in two parts. Raises ``NotAllowedError``."""
        if not self.holds(bundle):
            raise NotAllowedError(f"namespace {self.namespace} has no bundle {bundle} any more")
        if len(self.boundaries) > BUNDLES_MAX:
            raise NotAllowedError(
                f"namespace {self.namespace} has {BUNDLES_MAX} bundles, the most allowed"
            )
        _, second = bundle.halves(boundary)
        return Layout(self.namespace, tuple(sorted({*self.boundaries, second.low})))


def even_boundaries(count: int) -> tuple[int, ...]:
    """``count`` ranges of the same size. Raises ``NotAllowedError``."""
    if not 1 <= count <= BUNDLES_MAX:
        raise NotAllowedError(
            f"{count} bundles; a namespace has between 1 and {BUNDLES_MAX} (numBundles)"
        )
    size = HASHES // count
    return (*(index * size for index in range(count)), LAST)


def layout_of(namespace: str, policies: Mapping[str, Any]) -> Layout:
    """Raises ``BrokerMetadataError`` for policies that say what is no layout."""
    said = policies.get(POLICY)
    if said is None:
        return Layout(namespace, even_boundaries(BUNDLES_DEFAULT))
    try:
        boundaries = said.get("boundaries") or ()
        cut = tuple(int(each, 16) for each in boundaries)
        cut = cut or even_boundaries(int(said["numBundles"]))
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        NotAllowedError,
        TypeError,
        ValueError,
    ) as error:
        raise _no_layout(namespace, said) from error
    if len(cut) < 2 or cut[0] != 0 or cut[-1] != LAST or list(cut) != sorted(set(cut)):
        raise _no_layout(namespace, said)
    return Layout(namespace, cut)


def policy_of(boundaries: tuple[int, ...]) -> Mapping[str, object]:
    """What the policies of a namespace say that is cut so."""
    return {
        "boundaries": [f"0x{each:08x}" for each in boundaries],
        "numBundles": len(boundaries) - 1,
    }


def cut_in(bundle: Bundle, boundary: int, policies: Mapping[str, Any]) -> Mapping[str, object]:
    """The policies of a namespace in which the bundle is cut; the same if it is already, as after
    an attempt whose answer was lost. Raises ``NotAllowedError``, ``BrokerMetadataError``."""
    layout = layout_of(bundle.namespace, policies)
    if not all(layout.holds(half) for half in bundle.halves(boundary)):
        layout = layout.cut(bundle, boundary)
    return {**policies, POLICY: policy_of(layout.boundaries)}


def _no_layout(namespace: str, said: object) -> BrokerMetadataError:
    return BrokerMetadataError(
        f"the policies of namespace {namespace} say {str(said)[:100]!r} of its bundles, which is "
        "no way to cut it; boundaries rise from 0x00000000 to 0xffffffff"
    )
