"""What the whole broker has moved since its metrics were last read."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.metrics import Metrics


@dataclass(slots=True)
class Traffic:
    """Entries in and out; topics and subscriptions count here besides their own counts."""

    entries_in: int = 0
    entries_out: int = 0

    def fold(self, metrics: Metrics) -> None:
        """Move the counts into ``metrics`` (at scrape time)."""
        metrics.broker_published_entries_total.inc(self.entries_in)
        metrics.broker_dispatched_entries_total.inc(self.entries_out)
        self.entries_in = self.entries_out = 0
