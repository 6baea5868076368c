"""Asks brokers for what staged writes need of the metadata store, on an event loop: STAGED_WRITE.

Readers have blocking connections of their own (``connection``); here many requests are
under way on one, which is made anew when it breaks. Rules, those of a metadata store:

* A request waits for a connection for ``patience_s``, at whichever address of the service URL
  answers; the last good one comes first.
* One that only reads is asked again when the connection breaks. Of one that writes nobody knows
  then whether it was done: ``MetadataUnavailableError``, and whoever asked looks before it writes
  again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, TypeAlias

from magnetar.env.network.asking import AskingConnection
from magnetar.env.network.connections import Connections
from magnetar.model.errors import (
    MetadataError,
    MetadataUnavailableError,
    NotAllowedError,
)
from magnetar.pipeline.brokers.access import show, tls_of
from magnetar.pipeline.brokers.connection import FRAME_BYTES_MAX, WORTH_ANOTHER_TRY
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import (
    PONG_FRAME,
    PROTOCOL_VERSION,
    decode_command,
    encode_command,
)
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandConnected,
    CommandStagedWrite,
    CommandStagedWriteResponse,
)

Address: TypeAlias = tuple[str, int]
Reply: TypeAlias = CommandStagedWriteResponse

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
"""A broker that needs longer is taken for gone."""
PAUSE_S, PAUSE_S_MAX = 0.05, 1.0
CLIENT_VERSION: Final = "magnetar-pipeline"
GREETING: Final = 0
"""The id of what CONNECTED answers; requests have others."""


class _GoneError(Exception):
    """There is no connection, or it broke; the text says why."""


class _Line(AskingConnection[BaseCommand]):
    """One connection, and who waits for what on it."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(FRAME_BYTES_MAX, connections, "broker", _GoneError)

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        for start, end in bounds:
            command = decode_command(view, start, end)
            if command.type == BaseCommand.PING:
                self.write(PONG_FRAME)
            elif command.type == BaseCommand.STAGED_WRITE_RESPONSE:
                self.answered(command.staged_write_response.request_id, command)
            elif command.type in (BaseCommand.CONNECTED, BaseCommand.ERROR):
                self.answered(GREETING, command)


class BrokerLink:
    """Asks brokers; see the module's text. For use on one event loop."""

    def __init__(self, addresses: Sequence[Address], patience_s: float) -> None:
        self._addresses = list(addresses)
        self._patience_s = patience_s
        self._connections = Connections()
        self._line: _Line | None = None
        self._connecting = asyncio.Lock()
        self._request_ids = itertools.count(GREETING + 1)

    async def ask(self, request: CommandStagedWrite, *, reads: bool, wait_s: float = 0.0) -> Reply:
        """The answer to ``request``, which gets an id here. ``reads``: it changes nothing.
        ``wait_s``: how long the broker may take its time. Raises ``MetadataUnavailableError``,
        ``MetadataError``, ``NotAllowedError``."""
        loop = asyncio.get_running_loop()
        until_s, pause_s = loop.time() + self._patience_s, PAUSE_S
        while True:
            sent = False
            try:
                line = await self._connected()
                sent = True
                return await self._ask(line, request, ANSWER_S + wait_s)
            except _GoneError as error:
                why = str(error)
            if sent and not reads:
                action = CommandStagedWrite.Action.Name(request.action)
                raise MetadataUnavailableError(
                    f"the answer to {action} is lost, it may have been done or not: {why}"
                )
            if loop.time() + pause_s > until_s:
                raise MetadataUnavailableError(
                    f"no broker answers at {self._told()}: {why}; is one running?"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _ask(self, line: _Line, request: CommandStagedWrite, within_s: float) -> Reply:
        command = BaseCommand(type=BaseCommand.STAGED_WRITE, staged_write=request)
        request_id = command.staged_write.request_id = next(self._request_ids)
        reply = (
            await line.ask(encode_command(command), request_id, within_s)
        ).staged_write_response
        if not reply.HasField("error"):
            return reply
        code = ServerError(reply.error)
        if code is ServerError.SERVICE_NOT_READY:  # its metadata store is away, or it is closing
            raise _GoneError(reply.message)
        kind = MetadataError if code in WORTH_ANOTHER_TRY else NotAllowedError
        raise kind(f"the broker at {line.peer} refuses: {reply.message}")

    async def _connected(self) -> _Line:
        async with self._connecting:
            if self._line is None or self._line.why:
                self._line = await self._connect()
            return self._line

    async def _connect(self) -> _Line:
        whys = []
        for address in list(self._addresses):
            try:
                line = await self._open(address)
            except _GoneError as error:
                whys.append(str(error))
                continue
            self._addresses.remove(address)
            self._addresses.insert(0, address)
            return line
        raise _GoneError("; ".join(whys))

    async def _open(self, address: Address) -> _Line:
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = CLIENT_VERSION
        command.connect.protocol_version = PROTOCOL_VERSION
        show(command.connect)
        loop, host, port, tls = asyncio.get_running_loop(), *address, tls_of(address)
        try:
            async with asyncio.timeout(CONNECT_S):
                _, line = await loop.create_connection(
                    lambda: _Line(self._connections), host, port, ssl=tls
                )
        except (OSError, TimeoutError) as error:
            raise _GoneError(f"{error or f'no connection to {host}:{port}'}") from error
        try:
            answer = await line.ask(encode_command(command), GREETING, CONNECT_S)
            check_greeting(answer, f"{host}:{port}")
        except BaseException:
            line.abort()
            raise
        return line

    def _told(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self._addresses)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()


def check_greeting(answer: BaseCommand, peer: str) -> None:
    """Raises ``NotAllowedError`` unless the broker serves staged writes."""
    if answer.type != BaseCommand.CONNECTED:
        raise NotAllowedError(f"{peer} refused the connection: {answer.error.message}")
    check_serves(answer.connected, peer)


def check_serves(connected: CommandConnected, peer: str) -> None:
    """Raises ``NotAllowedError`` unless the broker serves staged writes."""
    if not connected.feature_flags.supports_staged_writes:
        raise NotAllowedError(
            f"the broker at {peer} ({connected.server_version}) does not serve staged writes, so "
            "rows cannot be written exactly once through it: give the option 'metadata.url', or "
            "'deliveryGuarantee' = 'at-least-once'"
        )
