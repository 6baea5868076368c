"""A follower's connection to the broker that leads: Kafka's Fetch, version 12, one under way.

A follower names itself as Kafka's do (``replica_id``), and its log directory's lineage in a tagged
field, which a server that does not know it passes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.env.asking import AskingConnection
from magnetar.env.connections import Connections
from magnetar.log.partition.replication.brokers import PeerBroker
from magnetar.model.errors import LeaderUnreachableError
from magnetar.wire.kafka.apis import ApiKey, encode_request, read_response
from magnetar.wire.kafka.fetch_messages import ClientFetchRequest, FetchResponse
from magnetar.wire.kafka.primitives import FieldReader

FETCH_VERSION: Final = 12
"""The newest that names topics by their names."""
ANSWER_BYTES_MAX: Final = 64 << 20
CONNECT_S: Final = 5.0
CLIENT_ID: Final = "magnetar-replica"


class LeaderLine(AskingConnection[FetchResponse]):
    """To one broker. ``ask_fetch`` raises ``LeaderUnreachableError``; it is of no use then."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(ANSWER_BYTES_MAX, connections, "leading broker", LeaderUnreachableError)
        self._number = 0

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        for start, end in bounds:
            # Its bytes are of use in this call only, and the batches in it are stored later.
            frame = memoryview(bytes(view[start:end]))
            number, answer = read_response(ApiKey.FETCH, FETCH_VERSION, FieldReader(frame))
            self.answered(number, answer)

    async def ask_fetch(self, request: ClientFetchRequest, within_s: float) -> FetchResponse:
        self._number = (self._number + 1) & 0x7FFFFFFF
        frame = encode_request(ApiKey.FETCH, FETCH_VERSION, self._number, CLIENT_ID, request)
        return await self.ask(frame, self._number, within_s)


async def connect(connections: Connections, broker: PeerBroker) -> LeaderLine:
    """Raises ``LeaderUnreachableError``."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, line = await loop.create_connection(
                lambda: LeaderLine(connections), broker.host, broker.port
            )
    except (OSError, TimeoutError) as error:
        raise LeaderUnreachableError(
            f"the broker at {broker.host}:{broker.port} is not reached ({error})"
        ) from error
    return line
