"""The health checks of parts that ``app`` puts together (``env.health``)."""

from __future__ import annotations

from typing import Final

from magnetar.config import LedgerConfig
from magnetar.env.connections import Connections
from magnetar.env.descriptors import DescriptorPlan, open_descriptors
from magnetar.env.health import WELL, Check, PartHealth
from magnetar.env.metadata import MetadataStore
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.topics.registry import Topics

NAMED_MAX: Final = 5
"""Topics named in one answer; the log of the process names all."""


def metadata_check(metadata: MetadataStore) -> Check:
    """The store answers. Without it nothing is opened, created or rolled over."""

    async def check() -> PartHealth:
        await metadata.sync()  # all the way: a quorum of ZooKeeper, the thread of SQLite
        return WELL

    return check


def descriptors_check(plan: DescriptorPlan, connections: Connections) -> Check:
    """There are file descriptors for more connections, and for storage."""

    async def check() -> PartHealth:
        in_use = open_descriptors()
        files = in_use - connections.count
        if connections.count < plan.connections_max and files <= plan.reserved * 9 // 10:
            return WELL
        refused = connections.count >= plan.connections_max
        return PartHealth(
            False,
            f"{in_use} of {plan.limit} file descriptors are in use, {connections.count} by "
            f"connections (at most {plan.connections_max})"
            + ("; more connections are refused" if refused else ""),
            "raise the limit on open files (ulimit -n, LimitNOFILE) and start this process again, "
            "or have fewer connections",
        )

    return check


def topics_check(topics: Topics) -> Check:
    """The logs of the open topics take what is published."""

    async def check() -> PartHealth:
        failing = [str(topic.name) for topic in topics.loaded() if topic.cooling_down]
        if not failing:
            return WELL
        named = ", ".join(sorted(failing)[:NAMED_MAX])
        return PartHealth(
            False,
            f"{len(failing)} topics could not store messages a moment ago: {named}"
            + (", ..." if len(failing) > NAMED_MAX else ""),
            "see bookies and metadata here, and the log; producers try again by themselves",
        )

    return check


def bookies_check(registry: BookieRegistry, config: LedgerConfig) -> Check:
    """Enough bookies take new entries for a ledger to be made."""

    async def check() -> PartHealth:
        writable, refused = await registry.available(), await registry.refusals()
        if len(writable) >= config.ensemble_size:
            return WELL
        problem = (
            f"{len(writable)} registered bookies take new entries, and a ledger needs "
            f"{config.ensemble_size} (ledger.ensemble_size): nothing can be published to a new "
            "ledger"
        )
        if refused:
            listed = "; ".join(f"{each}: {told.reason}" for each, told in sorted(refused.items()))
            return PartHealth(
                False,
                f"{problem}; read-only: {listed}",
                "free space on the disks of the read-only bookies, or start more bookies",
            )
        return PartHealth(False, problem, "start bookies until there are enough")

    return check
