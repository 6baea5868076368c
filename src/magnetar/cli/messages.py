"""What ``produce`` and ``consume`` share: the official client, quiet and with short timeouts.

The client's exceptions have names and no reasons: what a broker said in answer is in the client's
log alone. So that goes to a file of our own, and the last such reason is part of the error.
"""

from __future__ import annotations

import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from magnetar.cli.credentials import credential_options, shown
from magnetar.cli.rest import check_topic
from magnetar.model.errors import BrokerError, ConfigError
from magnetar.model.host_names import is_host_name

if TYPE_CHECKING:
    import pulsar

DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"
DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}
TLS_SCHEMES = ("pulsar+ssl://", "https://")
CONNECT_TIMEOUT_MS = 5_000
OPERATION_TIMEOUT_S = 10

SAID = re.compile(
    r"Received error response from server: \S+ \((.+)\) -- req_id"
    r"|Failed (?:lookup|partition-metadata lookup) req_id.* msg: (.+)"
    r"|Failed to create (?:producer|consumer): \S+ (.+)"
)
"""Where the client's log has a broker's reason."""

F = TypeVar("F", bound=Callable[..., Any])

_service_url = click.option(
    "--service-url",
    default=DEFAULT_SERVICE_URL,
    show_default=True,
    envvar="MAGNETAR_SERVICE_URL",
    show_envvar=True,
    help="The broker's address, or several: pulsar://HOST:PORT,HOST:PORT.",
)


def service_url_option(command: F) -> F:
    """``--service-url``, and what is shown there."""
    return _service_url(credential_options(command))


@contextmanager
def client(service_url: str, topic: str) -> Iterator[tuple[pulsar.Client, Callable[[], str]]]:
    """A connected-on-use client of the broker, closed at the end; and what gives the reason that a
    broker gave last, empty if none did.

    The client library's errors come out as ``BrokerError``, with what was tried.
    """
    import pulsar

    if service_url.partition("://")[0] not in DEFAULT_PORTS:
        raise ConfigError(
            f"--service-url {service_url!r} cannot be used; accepted: pulsar://HOST:PORT"
        )
    check_topic(topic)
    check_reachable(service_url)
    with tempfile.NamedTemporaryFile("r", prefix="magnetar-", errors="replace") as told:
        connection = pulsar.Client(
            service_url,
            operation_timeout_seconds=OPERATION_TIMEOUT_S,
            connection_timeout_ms=CONNECT_TIMEOUT_MS,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, told.name),
            **_shown(),
        )

        def said() -> str:
            return last_said(told)

        try:
            yield connection, said
        except pulsar.PulsarException as error:
            why = f": {said()}" if said() else _advice(error, service_url)
            raise BrokerError(f"{service_url}: {error}{why}") from error
        finally:
            connection.close()


def _shown() -> dict[str, Any]:
    """What the library is given of the command's credentials."""
    import pulsar

    credentials, given = shown(), {}
    if credentials.token:
        given["authentication"] = pulsar.AuthenticationToken(credentials.token)
    if credentials.trust:
        given["tls_trust_certs_file_path"] = credentials.trust
    return given


def last_said(told: IO[str]) -> str:
    """The last reason of a broker in what the client logged; empty if there is none."""
    told.seek(0)
    found = ""
    for line in told:
        reason = SAID.search(line)
        if reason is not None:
            found = next(group for group in reason.groups() if group)
    return found


def check_reachable(service_url: str) -> None:
    """Raise ``BrokerError`` if nobody listens at any of its addresses: the library would try again
    for a long time."""
    scheme, _, rest = service_url.partition("://")
    problems = []
    for place in rest.partition("/")[0].split(","):
        try:
            address = urlsplit(f"{scheme}://{place}")
            host, port = address.hostname or "", address.port or DEFAULT_PORTS[scheme]
            if not is_host_name(host):
                raise ValueError("that is no host's name; accepted: HOST:PORT")
            socket.create_connection((host, port), CONNECT_TIMEOUT_MS / 1000).close()
        except (OSError, ValueError) as error:
            problems.append(f"{place}: {error}")
        else:
            return
    raise BrokerError(
        f"{service_url}: {'; '.join(problems)}; is a platform running there? "
        "(`magnetar standalone`)"
    )


def _advice(error: Exception, service_url: str) -> str:
    """Somebody listens there: ``check_reachable`` has seen it."""
    name = type(error).__name__
    if name not in ("ConnectError", "Timeout", "RetryableError", "NotConnected"):
        return ""
    if service_url.startswith(TLS_SCHEMES):
        return (
            "; is it a port of TLS, and does --tls-trust name the authority that signed its "
            "certificate, which has not expired and has that host's name?"
        )
    return "; is it the port of Pulsar's protocol without TLS? (`magnetar standalone` tells it)"
