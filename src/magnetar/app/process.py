"""A process that is being built: what all of its parts share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property

import structlog

from magnetar.app.fate import Fate
from magnetar.app.outside import Outside
from magnetar.app.securing import open_server_tls
from magnetar.config import Config
from magnetar.env.files.descriptors import DescriptorPlan, open_descriptors, plan_descriptors
from magnetar.env.health import Health
from magnetar.env.network.connections import Connections
from magnetar.env.network.tls import TlsFiles
from magnetar.metrics import Metrics
from magnetar.model.ids import BookieId
from magnetar.model.space import WaitingSpace

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Process:
    """Parts are started on ``stack`` and so ended in the reverse order; one that must not go on
    tells ``fate``."""

    config: Config
    outside: Outside
    stack: AsyncExitStack
    fate: Fate
    metrics: Metrics = field(default_factory=Metrics)
    health: Health = field(default_factory=Health)
    """Whoever starts a part that can fail adds its check."""
    waiting_spaces: dict[BookieId, Callable[[], WaitingSpace]] = field(default_factory=dict)
    """Of the bookies of this process; each adds and takes away its own."""

    @cached_property
    def connections(self) -> Connections:
        """What those that others make to any listener of this process share."""
        return Connections(
            self.config.connections.partial_frame_bytes_max,
            connections_max=self.descriptors.connections_max,
            unsent_bytes_max=self.config.connections.unsent_bytes_max,
        )

    @cached_property
    def descriptors(self) -> DescriptorPlan:
        """How many files and connections there may be."""
        wanted = self.config.connections.descriptors_reserved
        plan = plan_descriptors(self.outside.descriptors_max, wanted)
        if plan.connections_max < self.config.broker.connections_max or plan.reserved < wanted:
            log.warning(
                "file descriptors are short: raise the limit on open files (ulimit -n, "
                "LimitNOFILE)",
                limit=plan.limit,
                kept_for_storage=plan.reserved,
                connections_max=plan.connections_max,
                configured_connections_max=self.config.broker.connections_max,
            )
        return plan

    @cached_property
    def tls(self) -> TlsFiles | None:
        """For listeners; None: there is none. Raises ``ConfigError``."""
        config = self.config
        wanted = max(config.broker.tls_port, config.http.tls_port) >= 0
        return open_server_tls(config.tls) if wanted else None

    def fold_metrics(self) -> None:
        """Bring the metrics of what all parts share up to date; before they are read."""
        metrics, connections = self.metrics, self.connections
        metrics.connections.set(connections.count)
        metrics.connections_max.set(connections.connections_max)
        metrics.connections_refused.set(connections.refused)
        metrics.receive_bytes.set(connections.partial_frame_bytes)
        metrics.receive_bytes_max.set(connections.partial_frame_bytes_max)
        metrics.receive_waiting_connections.set(connections.waiting)
        metrics.unsent_bytes.set(connections.unread_bytes)
        metrics.unsent_bytes_max.set(connections.unsent_bytes_max)
        metrics.slow_connections.set(connections.slow)
        metrics.descriptors.set(open_descriptors())
        metrics.descriptors_max.set(self.descriptors.limit)
        metrics.descriptors_reserved.set(self.descriptors.reserved)
        waiting = [space() for space in self.waiting_spaces.values()]
        metrics.bookie_reclaimable_bytes.set(sum(each.byte_count for each in waiting))
        metrics.bookie_deleted_ledgers_held.set(sum(each.ledgers for each in waiting))
