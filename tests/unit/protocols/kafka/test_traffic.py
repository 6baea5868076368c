"""Kafka's requests in the broker's metrics."""

from __future__ import annotations

from magnetar.metrics import Metrics
from magnetar.protocols.kafka.traffic import KafkaTraffic
from magnetar.wire.kafka.apis import ApiKey


def test_counts_move_into_metrics_once() -> None:
    metrics, traffic = Metrics(), KafkaTraffic()
    traffic.requests[ApiKey.FETCH] += 3
    traffic.fetched_bytes, traffic.refused = 70, 1
    traffic.failed_authentications = 2
    traffic.fold(metrics, 2)
    traffic.fold(metrics, 5)
    read = metrics.registry.get_sample_value
    assert read("magnetar_kafka_requests_total", {"api": "fetch"}) == 3
    assert read("magnetar_kafka_fetched_bytes_total") == 70
    assert read("magnetar_kafka_refused_requests_total") == 1
    assert read("magnetar_kafka_failed_authentications_total") == 2
    assert read("magnetar_kafka_connections") == 5
