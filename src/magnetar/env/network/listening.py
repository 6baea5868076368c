"""Listening sockets, bound before anything else so that a port in use is found out at once."""

from __future__ import annotations

import errno
import socket

from magnetar.model.errors import StartError

ANY_ADDRESS = ("0.0.0.0", "::", "")


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A bound TCP socket, not listening yet; port 0 takes a free one.

    ``setting`` is what the port comes from. Raises ``StartError`` when the port is taken or not
    ours to use.
    """
    if port < 0:
        raise StartError(f"{setting} = {port} is no port to listen on; accepted: 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        _refuse_if_served(bound, port)
    except OSError as error:
        bound.close()
        raise cannot_listen(host, port, setting, error) from error
    bound.setblocking(False)
    return bound


def check_free(*places: tuple[str, int, str]) -> None:
    """``bind``'s arguments, of ports that are listened on later: before a start writes what one
    that fails leaves behind. Raises ``StartError``."""
    for host, port, setting in places:
        if port > 0:
            bind(host, port, setting).close()


def _refuse_if_served(bound: socket.socket, port: int) -> None:
    """Two sockets may be bound to a port as long as neither listens; the second to listen fails.
    Listening now makes that failure come here."""
    if port:
        bound.listen()


def cannot_listen(host: str, port: int, setting: str, error: OSError) -> StartError:
    """The error for people."""
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"{setting} = {port}: another process listens on {host_port(host, port)}; stop it, or "
            "choose another port (0 takes a free one)"
        )
    where = host_port(host, port)
    return StartError(f"{setting} = {port}: cannot listen on {where}: {error.strerror}")


def host_port(host: str, port: int) -> str:
    """``host:port`` as it stands in URLs: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_of(bound: socket.socket) -> int:
    port = bound.getsockname()[1]
    assert isinstance(port, int)
    return port


def advertised_host(host: str, advertised: str) -> str:
    """The name that others are told: as configured, else the listen address, else (for an
    address that stands for all) this machine's name. Without the brackets of URLs."""
    if advertised:
        return advertised.removeprefix("[").removesuffix("]") if ":" in advertised else advertised
    return socket.gethostname() if host in ANY_ADDRESS else host
