"""What ``produce`` and ``consume`` share: the official client, quiet and with short timeouts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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


def _advice(error: Exception) -> str:
    name = type(error).__name__
    if name in ("ConnectError", "Timeout", "RetryableError", "NotConnected"):
        return "; is a platform running there? (`magnetar standalone`)"
    return ""
