"""A connected and greeted socket to one broker: frames out, frames in, with a deadline.

Blocking: a task has one thing to do. Errors are ``BrokerError`` or ``ProtocolError`` and name the
address. A wait that ran out of time (``receive_within``) has lost nothing: what came of a frame
that is not whole stays, and the next call goes on with it.
"""

from __future__ import annotations

import socket
import time
from typing import NamedTuple
from urllib.parse import urlsplit

from magnetar.model.errors import (
    BrokerError,
    ConfigError,
    IncompatibleSchemaError,
    NotAllowedError,
    ProtocolError,
    TopicNotFoundError,
)
from magnetar.pipeline.brokers.access import TlsAddress, show, tls_of
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import PROTOCOL_VERSION, decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

FRAME_BYTES_MAX = 64 << 20
PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
"""By a service URL's scheme, where it names none."""
RECEIVE_BYTES = 256 * 1024


class ReceivedFrame(NamedTuple):
    """One frame: its command, and what follows it (a message's payload, else empty)."""

    command: BaseCommand
    payload: memoryview


class BrokerConnection:
    """A connected and greeted socket to one broker."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._buffer = bytearray()
        tls = tls_of(address)
        try:
            self._socket = socket.create_connection(address, timeout_s)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
        except OSError as error:
            raise BrokerError(
                f"cannot connect to the broker at {self}: {error}; is it running?"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._greet()

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def _greet(self) -> None:
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = "magnetar-pipeline"
        command.connect.protocol_version = PROTOCOL_VERSION
        show(command.connect)
        self.send(command)
        answer = self.receive().command
        if answer.type != BaseCommand.CONNECTED:
            code = int(answer.error.error)
            raise refused(code, f"{self} refused the connection: {answer.error.message}")
        self.greeting = answer.connected

    def send(self, command: BaseCommand) -> None:
        self.send_frame(encode_command(command))

    def send_frame(self, frame: bytes) -> None:
        """Waits while the broker takes nothing. Raises ``BrokerError``."""
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(frame)
        except OSError as error:
            raise BrokerError(f"connection to {self} broke: {error}") from error

    def receive(self) -> ReceivedFrame:
        """The next frame. Raises ``BrokerError`` when it does not come in time."""
        frame = self.receive_within(self._timeout_s)
        if frame is None:
            raise BrokerError(f"no answer from {self} in {self._timeout_s} s")
        return frame

    def receive_within(self, wait_s: float) -> ReceivedFrame | None:
        """The next frame, if a whole one comes in that time; pings are answered on the way."""
        deadline = time.monotonic() + wait_s
        while (body := self._frame(deadline)) is not None:
            view = memoryview(body)
            command = decode_command(view, 0, len(view))
            if command.type == BaseCommand.PING:
                self.send(_pong())
                continue
            size = int.from_bytes(view[:4], "big")
            return ReceivedFrame(command, view[4 + size :])
        return None

    def _frame(self, deadline: float) -> bytes | None:
        if not self._fill(4, deadline):
            return None
        size = int.from_bytes(self._buffer[:4], "big")
        if size > FRAME_BYTES_MAX:
            raise ProtocolError(
                f"{self} does not speak Pulsar's protocol (a frame of {size} bytes): give the port "
                "that brokers speak it on (6650, with TLS 6651), not that of REST or of Kafka"
            )
        if not self._fill(4 + size, deadline):
            return None
        body = bytes(memoryview(self._buffer)[4 : 4 + size])
        del self._buffer[: 4 + size]
        return body

    def _fill(self, count: int, deadline: float) -> bool:
        """Receive until the buffer holds so many bytes; False if they do not come in time."""
        while len(self._buffer) < count:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            try:
                self._socket.settimeout(left_s)
                chunk = self._socket.recv(max(RECEIVE_BYTES, count - len(self._buffer)))
            except TimeoutError:
                return False
            except OSError as error:
                raise BrokerError(f"connection to {self} broke: {error}") from error
            if not chunk:
                raise BrokerError(f"{self} closed the connection")
            self._buffer += chunk
        return True

    def call(self, command: BaseCommand) -> BaseCommand:
        """Send and wait for the next answer that is no message."""
        self.send(command)
        while True:
            answer = self.receive().command
            if answer.type == BaseCommand.ERROR:
                raise refused(answer.error.error, f"{self}: {answer.error.message}")
            if answer.type not in (BaseCommand.MESSAGE, BaseCommand.ACTIVE_CONSUMER_CHANGE):
                return answer

    def close(self) -> None:
        self._socket.close()


def _pong() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PONG)
    command.pong.SetInParent()
    return command


WORTH_ANOTHER_TRY = frozenset(
    {
        ServerError.UNKNOWN,
        ServerError.METADATA,
        ServerError.PERSISTENCE,
        ServerError.SERVICE_NOT_READY,
        ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,  # producers are to wait
        ServerError.TOO_MANY_REQUESTS,
    }
)


def refused(code: int, text: str) -> BrokerError:
    """A broker's refusal as an error."""
    if code == ServerError.TOPIC_NOT_FOUND:
        return TopicNotFoundError(text)
    if code == ServerError.INCOMPATIBLE_SCHEMA:
        return IncompatibleSchemaError(text)
    return BrokerError(text) if code in WORTH_ANOTHER_TRY else NotAllowedError(text)


def worth_another_try(error: BrokerError) -> bool:
    """Whether the same question may be answered a little later: the broker restarts, or the topic
    moves to another one."""
    return not isinstance(error, (TopicNotFoundError, NotAllowedError, IncompatibleSchemaError))


def parse_service_url(url: str) -> tuple[str, int]:
    """``pulsar://host:port`` -> (host, port); the first of several hosts."""
    return parse_service_urls(url)[0]


def parse_service_urls(url: str) -> list[tuple[str, int]]:
    """``pulsar://host:port,host:port``, or ``pulsar+ssl://...``, -> all of them."""
    scheme, _, hosts = url.partition("://")
    try:
        found = [urlsplit(f"{scheme}://{host}") for host in hosts.split(",")]
        addresses = [(parts.hostname or "", parts.port or PORTS[scheme]) for parts in found]
    except (ValueError, KeyError):  # a port that is none; another scheme
        addresses = []
    if scheme not in PORTS or not addresses or not all(host for host, _ in addresses):
        raise ConfigError(
            f"service url {url!r} is not of the form pulsar://host:port or pulsar+ssl://host:port"
        )
    return addresses if scheme == "pulsar" else [TlsAddress(each) for each in addresses]
