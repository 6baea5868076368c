"""A process that is being built: what all of its parts share."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property

from magnetar.app.fate import Fate
from magnetar.app.outside import Outside
from magnetar.config import Config
from magnetar.env.connections import Connections
from magnetar.metrics import Metrics


@dataclass(frozen=True)
class Process:
    """Parts are started on ``stack`` and so ended in the reverse order; one that must not go on
    tells ``fate``."""

    config: Config
    outside: Outside
    stack: AsyncExitStack
    fate: Fate
    metrics: Metrics = field(default_factory=Metrics)

    @cached_property
    def connections(self) -> Connections:
        """What those that others make to any listener of this process share."""
        return Connections(self.config.connections.partial_frame_bytes_max)
