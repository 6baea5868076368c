"""Questions between brokers: one connection to each, kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magnetar.env.network.connections import Connections
from magnetar.model.errors import ServiceNotReadyError
from magnetar.protocols.kafka import peers
from magnetar.protocols.kafka.peers import PeerLines
from magnetar.wire.kafka.apis import ApiKey, encode_response, read_head, read_request
from magnetar.wire.kafka.primitives import FieldReader
from magnetar.wire.kafka.transaction_messages import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)


class Answering:
    """A broker that answers DescribeTransactions, and counts who comes."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0
        self.hurry = asyncio.Event()
        self.hurry.set()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        while head := await reader.read(4):
            frame = FieldReader(memoryview(await reader.readexactly(int.from_bytes(head, "big"))))
            asked = read_head(frame)
            request = read_request(asked, frame)
            await self.hurry.wait()
            said = [DescribedTransaction(0, name) for name in request.transactional_ids]
            answer = DescribeTransactionsResponse(transactions=said)
            parts, _ = encode_response(asked.api_key, asked.version, asked.correlation_id, answer)
            writer.writelines(parts)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def answering() -> AsyncIterator[Answering]:
    found = Answering()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        found.hang_up()
        server.close()


async def ask(lines: PeerLines, broker: Answering, name: str) -> str:
    request = DescribeTransactionsRequest([name])
    answer = await lines.ask("127.0.0.1", broker.port, ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
    told: str = answer.transactions[0].transactional_id
    return told


def test_one_connection_is_kept_for_all_questions() -> None:
    async def scenario() -> None:
        async with answering() as broker:
            lines = PeerLines(Connections())
            names = [f"n{number}" for number in range(20)]
            found = await asyncio.gather(*(ask(lines, broker, name) for name in names))
            assert found == names, "each has its own answer"
            assert await ask(lines, broker, "later") == "later"
            assert broker.connections == 1
            broker.hang_up()
            await asyncio.sleep(0.05)
            assert await ask(lines, broker, "again") == "again"
            assert broker.connections == 2
            lines.close()
            with pytest.raises(ServiceNotReadyError, match="is ending"):
                await ask(lines, broker, "late")

    asyncio.run(scenario())


def test_connections_are_bounded_and_those_that_wait_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "LINES_MAX", 1)

    async def scenario() -> None:
        async with answering() as one, answering() as other:
            lines = PeerLines(Connections())
            one.hurry.clear()
            slow = asyncio.create_task(ask(lines, one, "slow"))
            await asyncio.sleep(0.05)
            assert await ask(lines, other, "x") == "x"
            one.hurry.set()
            assert await slow == "slow", "it was not cut off"
            await ask(lines, one, "x")
            await ask(lines, other, "y")
            await ask(lines, one, "z")
            assert one.connections + other.connections > 2, "one was closed for the other"
            lines.close()

    asyncio.run(scenario())


def test_who_is_not_reached_is_named() -> None:
    async def scenario() -> None:
        async with answering() as broker:
            port = broker.port
        lines = PeerLines(Connections())
        with pytest.raises(ServiceNotReadyError, match=f"127.0.0.1:{port} is not reached"):
            await ask(lines, broker, "x")
        lines.close()

    asyncio.run(scenario())


def test_who_comes_while_the_second_connects_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's lock went with it, though somebody waited: a third made a connection of its
    own, and one of both was in no list, and not ended with the broker."""

    async def scenario() -> None:
        connect, tries = peers.connect_line, 0

        async def slow(*said: Any) -> Any:
            nonlocal tries
            tries += 1
            first = tries == 1
            await asyncio.sleep(0.05)
            if first:
                raise ServiceNotReadyError("not yet")
            return await connect(*said)

        monkeypatch.setattr(peers, "connect_line", slow)
        async with answering() as broker:
            lines = PeerLines(Connections())
            first, second = (asyncio.create_task(ask(lines, broker, each)) for each in "ab")
            with pytest.raises(ServiceNotReadyError, match="not yet"):
                await first
            assert await ask(lines, broker, "c") == "c"
            assert await second == "b"
            assert (tries, broker.connections) == (2, 1)
            lines.close()

    asyncio.run(scenario())
