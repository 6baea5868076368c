"""Which clients fail one message and go on."""

from __future__ import annotations

import pytest

from magnetar.protocols.pulsar.clients import fails_one_send


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("Pulsar-Java-v4.0.8", True),
        ("Pulsar-Java-v3.0.0", True),
        ("Pulsar-Java-v2.4.1", False),  # closed its connection, and came back
        ("Pulsar-CPP-v4.2.0", False),
        ("Pulsar Go 0.21.0", False),
        ("", False),
    ],
)
def test_fails_one_send(version: str, expected: bool) -> None:
    assert fails_one_send(version) is expected
