"""What ``produce`` and ``consume`` share: the official client, quiet and with short timeouts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from magnetar.model.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    import pulsar

DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"
CONNECT_TIMEOUT_MS = 5_000
OPERATION_TIMEOUT_S = 10

service_url_option = click.option(
    "--service-url",
    default=DEFAULT_SERVICE_URL,
    show_default=True,
    envvar="MAGNETAR_SERVICE_URL",
    show_envvar=True,
    help="The broker's address.",
)


@contextmanager
def client(service_url: str) -> Iterator[pulsar.Client]:
    """A connected-on-use client of the broker; closed at the end.

    The client library's errors come out as ``BrokerError``, with what was tried.
    """
    import pulsar

    if not service_url.startswith(("pulsar://", "pulsar+ssl://", "http://", "https://")):
        raise ConfigError(
            f"--service-url {service_url!r} cannot be used; accepted: pulsar://HOST:PORT"
        )
    check_reachable(service_url)
    connection = pulsar.Client(
        service_url,
        operation_timeout_seconds=OPERATION_TIMEOUT_S,
        connection_timeout_ms=CONNECT_TIMEOUT_MS,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    try:
        yield connection
    except pulsar.PulsarException as error:
        raise BrokerError(f"{service_url}: {error}{_advice(error)}") from error
    finally:
        connection.close()


def check_reachable(service_url: str) -> None:
    """Raise ``BrokerError`` if nobody listens: the library would try again for a long time."""
    address = urlsplit(service_url)
    try:
        host, port = address.hostname or "", address.port or 6650
        socket.create_connection((host, port), CONNECT_TIMEOUT_MS / 1000).close()
    except (OSError, ValueError) as error:
        raise BrokerError(
            f"{service_url}: {error}; is a platform running there? (`magnetar standalone`)"
        ) from error


def _advice(error: Exception) -> str:
    name = type(error).__name__
    if name in ("ConnectError", "Timeout", "RetryableError", "NotConnected"):
        return "; is a platform running there? (`magnetar standalone`)"
    return ""
