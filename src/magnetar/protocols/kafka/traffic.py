"""What Kafka's clients have asked for since the broker's metrics were last read.

Requests are counted one by one: each carries many records. Metrics are touched when they are read.
"""

from __future__ import annotations

from collections import Counter

from magnetar.metrics import Metrics
from magnetar.wire.kafka.apis import ApiKey


class KafkaTraffic:
    """Counts in plain attributes, folded into ``Metrics``."""

    def __init__(self) -> None:
        self.requests: Counter[ApiKey] = Counter()
        self.refused = 0
        """Requests that ended their connection: not served, or failed."""
        self.failed_authentications = 0
        self.fetched_bytes = 0

    def fold(self, metrics: Metrics, connections: int) -> None:
        """Move the counts into ``metrics``; ``connections``: how many there are now."""
        metrics.kafka_connections.set(connections)
        for api, count in self.requests.items():
            metrics.kafka_requests_total.labels(api.name.lower()).inc(count)
        metrics.kafka_refused_requests_total.inc(self.refused)
        metrics.kafka_failed_authentications_total.inc(self.failed_authentications)
        metrics.kafka_fetched_bytes_total.inc(self.fetched_bytes)
        self.requests.clear()
        self.refused = self.failed_authentications = self.fetched_bytes = 0
