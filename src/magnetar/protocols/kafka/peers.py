"""Asking another broker, by Kafka's own protocol: for what only the owner of a topic may do.

A connection per question: these are rare (a topic of many partitions is deleted).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from magnetar.env.asking import AskingConnection
from magnetar.env.connections import Connections
from magnetar.model.errors import ServiceNotReadyError
from magnetar.protocols.kafka.services import Node
from magnetar.wire.kafka.apis import ApiKey, encode_request, read_response
from magnetar.wire.kafka.primitives import FieldReader

ANSWER_BYTES_MAX: Final = 16 << 20
ANSWER_S: Final = 30.0
NUMBER: Final = 1


class PeerLine(AskingConnection[Any]):
    """A connection that asks one question, in one version of one API."""

    def __init__(self, connections: Connections, api_key: ApiKey, version: int) -> None:
        super().__init__(ANSWER_BYTES_MAX, connections, "broker", ServiceNotReadyError)
        self._asked = api_key, version

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        for start, end in bounds:
            # Its bytes are of use in this call only, and byte fields are views of them.
            frame = memoryview(bytes(view[start:end]))
            self.answered(*read_response(*self._asked, FieldReader(frame)))


async def ask_peer(
    connections: Connections, node: Node, api_key: ApiKey, version: int, request: Any
) -> Any:
    """The answer of the broker. Raises ``ServiceNotReadyError``."""
    loop = asyncio.get_running_loop()
    frame = encode_request(api_key, version, NUMBER, "magnetar", request)
    try:
        _, line = await loop.create_connection(
            lambda: PeerLine(connections, api_key, version), node.host, node.port
        )
    except OSError as error:
        raise ServiceNotReadyError(
            f"broker {node.host}:{node.port} is not reached ({error}); ask again"
        ) from error
    try:
        return await line.ask(frame, NUMBER, ANSWER_S)
    finally:
        line.close()
