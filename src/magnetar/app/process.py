"""A process that is being built: what all of its parts share."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from magnetar.app.fate import Fate
from magnetar.app.outside import Outside
from magnetar.config import Config
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
