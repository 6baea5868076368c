"""A process that is being built: what all of its parts share."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property

import structlog

from magnetar.app.fate import Fate
from magnetar.app.outside import Outside
from magnetar.config import Config
from magnetar.env.connections import Connections
from magnetar.env.descriptors import DescriptorPlan, plan_descriptors
from magnetar.env.health import Health
from magnetar.metrics import Metrics

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
