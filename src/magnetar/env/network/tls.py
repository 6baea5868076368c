"""TLS: contexts made of files that are read again when they change, and a listener that bounds
handshakes.

Certificates are renewed under running servers: a context is made anew, for connections that come
from then on, when a file of it has changed (looked at when a client connects). Files that do not
fit, of which one has been written and the other not yet, leave the context that was, and are said
once.

``asyncio.create_server(ssl=...)`` would bound neither the number of handshakes under way nor what
is logged of those that fail, and keeps one context for ever. So connections are accepted here, and
each is given to asyncio with its handshake's time.

Why: docs/adr/0156-tls-listeners-beside-plain-ones.md; of verification:
docs/adr/0213-certificates-are-verified-alike.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope, fails
from magnetar.model.errors import ConfigError

log = structlog.get_logger(__name__)

LEAST: Final = ssl.TLSVersion.TLSv1_2
BACKLOG_CONNECTIONS: Final = 1024
ACCEPT_PAUSE_S: Final = 1.0
"""After an accept that failed for want of descriptors or memory."""
NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL")
"""OpenSSL's reasons when what comes is no TLS."""
CLIENT_MODES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

Stamps: TypeAlias = tuple[tuple[int, int, int] | None, ...]


class TlsFiles:
    """A context out of files; ``make`` may raise ``OSError``, ``ssl.SSLError``, ``ValueError``.
    The constructor calls it, and raises ``ConfigError``."""

    def __init__(self, paths: Sequence[Path], make: Callable[[], ssl.SSLContext]) -> None:
        self._paths = paths
        self._make = make
        self._stamps = self._look()
        self._context = self._made()

    def context(self) -> ssl.SSLContext:
        """Of the files as they are now, or were when they fitted last."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps  # before they are read: what does not fit is said once
            try:
                self._context = self._made()
                log.info("certificates read again", files=[str(path) for path in self._paths])
            except ConfigError as error:
                log.error("changed certificates are not used; those before count", why=str(error))
        return self._context

    def _made(self) -> ssl.SSLContext:
        try:
            return self._make()
        except (OSError, ssl.SSLError, ValueError) as error:
            # ``SSLError`` is an ``OSError``, and says which file only in words.
            names = ", ".join(str(path) for path in self._paths)
            raise ConfigError(
                f"TLS cannot be set up with {names}: {error}; accepted: certificate chain, its key "
                "without a password, and trusted certificates, all in PEM"
            ) from error

    def _look(self) -> Stamps:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def server_tls(
    certificate: Path, key: Path, trusted: Path | None = None, clients: str = "none"
) -> TlsFiles:
    """For listeners. ``trusted``: what clients' certificates are held against; ``clients``: none,
    optional or required. Raises ``ConfigError``."""

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = LEAST
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.load_cert_chain(certificate, key, password=_no_password)
        if trusted is not None and clients != "none":
            context.load_verify_locations(trusted)
            context.verify_mode = CLIENT_MODES[clients]
        return context

    files = [certificate, key, *([trusted] if trusted is not None else [])]
    return TlsFiles(files, make)


def trusting(authorities: str | None) -> ssl.SSLContext:
    """To connect with, names checked, the same with every Python. ``authorities``: a file of
    those who may have signed servers' certificates; None: the system's. Raises ``OSError``
    (``ssl.SSLError`` among them)."""
    context = ssl.create_default_context(cafile=authorities)
    context.minimum_version = LEAST
    # Python changed both with 3.13 (ADR 0213).
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def client_tls(
    trusted: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> TlsFiles:
    """To connect with, names checked. ``trusted``: what servers' certificates are held against,
    else the system's; ``certificate``: to show, if it is asked for. Raises ``ConfigError``."""

    def make() -> ssl.SSLContext:
        context = trusting(None if trusted is None else str(trusted))
        if certificate is not None and key is not None:
            context.load_cert_chain(certificate, key, password=_no_password)
        return context

    return TlsFiles([path for path in (trusted, certificate, key) if path is not None], make)


def _no_password() -> str:
    """Else OpenSSL asks the terminal."""
    raise ValueError("the key has a password")


class TlsListener:
    """Accepts on ``bound``, and makes ``factory``'s protocols of those who finish their handshake.

    At most ``handshakes_max`` are under way, and no more than there may be connections; who comes
    then is disconnected. Each has ``handshake_s``. What fails is said, one line now and then
    (``Connections.say_refused``).
    """

    def __init__(
        self,
        bound: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: TlsFiles,
        scope: TaskScope,
        connections: Connections,
        handshake_s: float,
        handshakes_max: int,
    ) -> None:
        self._bound = bound
        self._factory = factory
        self._tls = tls
        self._scope = scope
        self._connections = connections
        self._handshake_s = handshake_s
        self._handshakes_max = handshakes_max
        self._handshakes = 0
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._bound.listen(BACKLOG_CONNECTIONS)
        self._accepting = self._scope.spawn(self._accept(), "accept TLS")

    def close(self) -> None:
        """Take no more; connections that are there stay. Idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None
        self._bound.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                made, address = await loop.sock_accept(self._bound)
            except OSError as error:
                log.warning("a connection cannot be accepted", why=str(error))
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            peer = f"{address[0]}:{address[1]}"
            if self._handshakes >= self._handshakes_max:
                made.close()
                why = f"{self._handshakes} TLS handshakes are under way; raise tls.handshakes_max"
                self._connections.say_refused(peer, why)
                continue
            if not self._connections.begin_handshake(peer):
                made.close()
                continue
            self._handshakes += 1
            self._scope.spawn(self._shake(made, peer), f"TLS with {peer}", fails(_defect))

    async def _shake(self, made: socket.socket, peer: str) -> None:
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory,
                made,
                ssl=self._tls.context(),
                ssl_handshake_timeout=self._handshake_s,
            )
        except (OSError, TimeoutError) as error:  # ``ssl.SSLError`` among them
            made.close()
            self._connections.say_refused(peer, _why(error))
        finally:
            self._handshakes -= 1
            self._connections.end_handshake()


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).upper().replace(" ", "_")
        if reason in NOT_TLS:
            return "it does not speak TLS, and this port does: use pulsar+ssl:// or https://"
        return f"TLS handshake failed: {error.reason or error}"
    return f"TLS handshake failed: {str(error) or 'the client left, or was silent'}"


def _defect(task: str, error: BaseException) -> None:
    log.error("a connection failed by a fault of this program", task=task, error=repr(error))
