"""Brokers that show one another who they are, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from magnetar.env.network.connections import Connections
from magnetar.model.errors import LeaderUnreachableError, ServiceNotReadyError
from magnetar.protocols.kafka import lines as kafka_lines
from magnetar.protocols.kafka.lines import BrokerWay, LeaderLine, connect_line
from magnetar.protocols.kafka.peers import PeerLines
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import ClientFetchRequest
from magnetar.wire.kafka.partition_messages import ElectLeadersRequest
from tests.unit.cluster.security.files import token
from tests.unit.protocols.kafka.secured import CLOCK_S, ROOT, SecuredWorld


def run(directory: Path, scenario: Callable[[SecuredWorld], Awaitable[None]]) -> None:
    """On real time: connections are."""

    async def main() -> None:
        world = SecuredWorld(directory)
        await world.start()
        try:
            await asyncio.wait_for(scenario(world), 60)
        finally:
            await world.broker.close()

    asyncio.run(main())


async def elected(lines: PeerLines, world: SecuredWorld) -> int:
    """What a request that is for super-users is answered with."""
    node = world.services.node
    request = ElectLeadersRequest()
    answer = await lines.ask(node.host, node.port, ApiKey.ELECT_LEADERS, 2, request)
    return int(answer.error_code)


def test_a_broker_is_who_its_token_says(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        for role, error in ((ROOT, 0), ("carol", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)):
            shown = token(role)
            lines = PeerLines(Connections(), BrokerWay(lambda shown=shown: shown))
            assert await elected(lines, world) == error
            lines.close()

    run(tmp_path, scenario)


def test_a_broker_without_a_token_that_counts_is_told_nothing(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        lines = PeerLines(Connections(), BrokerWay(lambda: token(ROOT, exp=1)))
        with pytest.raises(ServiceNotReadyError, match="own_token_file"):
            await elected(lines, world)
        with pytest.raises(ServiceNotReadyError):
            await elected(PeerLines(Connections()), world)
        assert not [each for each in world.services.sessions if each.is_known]

    run(tmp_path, scenario)


def test_a_token_is_shown_again_when_it_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_lines, "RENEWED_AT", 0.0)  # it always is

    async def scenario(world: SecuredWorld) -> None:
        shown = []

        def read() -> str:
            shown.append(token(ROOT, exp=CLOCK_S + 1_000_000))
            return shown[-1]

        lines = PeerLines(Connections(), BrokerWay(read))
        for _ in range(3):
            assert await elected(lines, world) == 0
        assert len(shown) == 3, "each time by another connection"
        lines.close()
        node = world.services.node
        way = BrokerWay(read)
        leader = await connect_line(LeaderLine, Connections(), way, node.host, node.port)
        for _ in range(3):
            answer = await leader.ask_fetch(ClientFetchRequest(replica_id=-1), 30)
            assert answer.topics == []
        assert len(shown) == 3 + 1 + 3, "each time on the same connection"
        leader.end("it is done")

    run(tmp_path, scenario)


def test_a_follower_that_is_refused_hears_why(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        node = world.services.node
        way = BrokerWay(lambda: token(ROOT, secret=b"x" * 32))
        with pytest.raises(LeaderUnreachableError, match="own_token_file"):
            await connect_line(LeaderLine, Connections(), way, node.host, node.port)

    run(tmp_path, scenario)
