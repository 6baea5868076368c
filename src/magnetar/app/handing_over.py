"""A broker that gives everything away cuts large bundles first, and gives them away in parts.

The topics of a bundle are away together: until the last of them is closed nobody else may have the
first, and they are opened elsewhere all at once. So the larger a bundle, the longer each of its
topics is away. A cut interrupts nobody.

A namespace keeps the bundles that it was cut into; it is cut up to ``BUNDLES_LEAST_LEFT`` below the
most that it may have, so that what has grown can still be cut for its load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from magnetar.cluster.bundles import BUNDLES_MAX, Bundle
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import MagnetarError

log = structlog.get_logger(__name__)

TOPICS_MAX: Final = 64
"""Open topics of a bundle that is given away whole."""
BUNDLES_LEAST_LEFT: Final = BUNDLES_MAX // 2
NAMES_PER_TURN: Final = 500


async def cut_large_bundles(bundles: SharedTopics, open_topics: Sequence[TopicName]) -> None:
    """Cut those of our bundles that have many open topics. What cannot be cut stays whole."""
    by_bundle = await _by_bundle(bundles, open_topics)
    while by_bundle:
        bundle, names = by_bundle.popitem()
        if len(names) <= TOPICS_MAX:
            continue
        try:
            halves = await _cut(bundles, bundle, names)
        except MagnetarError as error:
            log.info("a bundle is given away whole", bundle=str(bundle), error=str(error))
            continue
        for half in halves:
            by_bundle[half] = [name for name in names if half.holds(name)]


async def _by_bundle(
    bundles: SharedTopics, names: Sequence[TopicName]
) -> dict[Bundle, list[TopicName]]:
    found: dict[Bundle, list[TopicName]] = {bundle: [] for bundle in bundles.owned()}
    for number, name in enumerate(names, 1):
        if number % NAMES_PER_TURN == 0:
            await asyncio.sleep(0)  # others have their turns
        try:
            bundle = (await bundles.layout(name.namespace)).bundle_of(name)
        except MagnetarError:
            continue  # its namespace is gone
        if bundle in found:
            found[bundle].append(name)
    return found


async def _cut(
    bundles: SharedTopics, bundle: Bundle, names: Sequence[TopicName]
) -> Sequence[Bundle]:
    """The halves; none if it is not cut. Raises ``MagnetarError``."""
    layout = await bundles.layout(bundle.namespace)
    if len(layout.bundles()) >= BUNDLES_MAX - BUNDLES_LEAST_LEFT:
        return ()
    boundary = bundle.median(names)
    if not await bundles.cut(bundle, boundary):
        return ()
    return bundle.halves(boundary)
