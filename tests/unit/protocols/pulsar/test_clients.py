"""Which clients fail one message and go on, which go where they are sent, which permits return."""

from __future__ import annotations

import pytest

from magnetar.protocols.pulsar.clients import (
    fails_one_send,
    follows_assigned_url,
    returns_skipped,
)


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


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("Pulsar-Java-v4.0.8", True),
        ("Pulsar-Java-v3.2.0", True),
        ("Pulsar-Java-v3.0.17", False),
        ("Pulsar-Java-v2.11.4", False),
        ("Pulsar-CPP-v4.2.0-Python-v3.13.0", True),
        ("Pulsar-CPP-v3.5.0", True),
        ("Pulsar-CPP-v3.4.2", False),
        ("Pulsar-CPP-v10.0.0", True),
        ("Pulsar-Go-v0.19.0", True),
        ("Pulsar Go v0.13.0", True),
        ("Pulsar Go v0.12.1", False),
        ("Pulsar-Go-version-unknown", False),
        ("Pulsar Go version unknown", False),
        ("a client of Pulsar-Java-v4.0.8", False),
        ("peer", False),
        ("", False),
    ],
)
def test_follows_assigned_url(version: str, expected: bool) -> None:
    assert follows_assigned_url(version) is expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("Pulsar-Java-v2.8.4", True),
        ("Pulsar-Java-v2.11.3", True),
        ("Pulsar-Java-v2.11.4", False),
        ("Pulsar-Java-v3.0.2", True),
        ("Pulsar-Java-v3.0.3", False),
        ("Pulsar-Java-v3.2.0", True),
        ("Pulsar-Java-v3.2.1", False),
        ("Pulsar-Java-v4.2.0", False),
        ("Pulsar-Java-v5.0.0-M1", False),
        ("Pulsar-CPP-v4.2.0-Python-v3.13.0", True),
        ("Pulsar-Go-v0.19.0", True),
        ("Pulsar Go v0.12.1", True),
        ("a client of another kind", False),
        ("", False),
    ],
)
def test_returns_skipped(version: str, expected: bool) -> None:
    assert returns_skipped(version) is expected
