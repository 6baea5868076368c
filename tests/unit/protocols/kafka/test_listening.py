"""What people are told of where Kafka's clients are served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from magnetar.protocols.kafka.server import KafkaServer
from magnetar.protocols.kafka.services import Node


def test_an_address_of_ipv6_is_told_as_clients_are_given_it() -> None:
    """Without brackets its port is a part of it."""
    server = cast(Any, object.__new__(KafkaServer))
    server.services = SimpleNamespace(node=Node(0, "::1", 9092, 9093))
    assert server.listening == "kafka [::1]:9092  kafka+tls [::1]:9093"
    server.services = SimpleNamespace(node=Node(0, "one", 9092))
    assert server.listening == "kafka one:9092"
