"""Random histories of a failover subscription against what must hold of every one.

Consumers join, take, acknowledge (one by one and up to a place), start again, leave, vanish and
seek while entries are published; entries are in memory or have to be read. What a consumer gets is
in order, from the mark-delete position on, without holes but for what is acknowledged; nothing
comes to one who is not active. At the end, whoever is active has everything that is not
acknowledged.
"""

from __future__ import annotations

import asyncio

import pytest

from magnetar.topics.consuming.subscription import SWITCH_DELAY_S
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.protocols.pulsar.harness import FAILOVER, Peer, World, run
from tests.unit.topics.histories import History

STEPS = 120
WORST = 10_000


class Client:
    """One consumer: what it has of the entries since it became active, or started again."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.active = False
        self.got: list[int] = []


class FailoverHistory(History):
    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.clients: list[Client] = []

    # -- what can happen ----------------------------------------------------------------------

    async def join(self) -> None:
        if len(self.clients) < 4:
            peer = self.world.peer()
            await peer.heard()
            peer.tell(peer.subscribe_command(kind=FAILOVER, consumer_name=self.name()))
            self.clients.append(Client(peer))

    def name(self) -> str:
        return f"c{self.random.randint(0, 9)}"

    async def flow(self) -> None:
        if self.clients:
            self.random.choice(self.clients).peer.flow(self.random.randint(1, 60))

    async def acknowledge(self) -> None:
        client = self.some()
        if client is None:
            return
        mine = self.random.sample(client.got, self.random.randint(1, len(client.got)))
        if self.random.random() < 0.5:
            client.peer.acknowledge(*mine)
            self.acked.update(mine)
        else:
            client.peer.acknowledge(max(mine), cumulative=True)
            self.acked.update(range(max(mine) + 1))

    async def start_again(self) -> None:
        client = self.some()
        if client is not None and client.active:
            while await self.listen(client):
                pass  # what is under way, which would look like a part of the next run
            client.peer.redeliver()
            client.got.clear()

    async def leave(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            client.peer.lose()

    async def seek(self) -> None:
        client = self.some()
        if client is None:
            return
        place = self.random.choice(client.got)
        size = self.world.store._size
        command = BaseCommand(type=BaseCommand.SEEK)
        command.seek.consumer_id, command.seek.request_id = 1, 7
        command.seek.message_id.ledgerId = 1 + place // size
        command.seek.message_id.entryId = place % size
        client.peer.tell(command)
        kinds = [kind for peer in self.clients for kind in await peer.peer.kinds()]
        assert kinds.count("CLOSE_CONSUMER") == len(self.clients)
        assert kinds.count("SUCCESS") == 1
        self.acked = set(range(place))
        for old in self.clients:
            old.active, old.got = False, []
            old.peer.tell(old.peer.subscribe_command(kind=FAILOVER, consumer_name=self.name()))

    async def pause(self) -> None:
        await asyncio.sleep(self.random.choice([0.1, 2 * SWITCH_DELAY_S]))

    def some(self) -> Client | None:
        """A consumer that has something."""
        return next((c for c in self.random.sample(self.clients, len(self.clients)) if c.got), None)

    # -- what must hold -----------------------------------------------------------------------

    async def listen(self, client: Client) -> int:
        size, count = self.world.store._size, 0
        for command in await client.peer.heard():
            if command.type == BaseCommand.ACTIVE_CONSUMER_CHANGE:
                if command.active_consumer_change.is_active and not client.active:
                    client.got.clear()
                client.active = command.active_consumer_change.is_active
            elif command.type == BaseCommand.MESSAGE:
                data = command.message.message_id
                self.arrived(client, (data.ledgerId - 1) * size + data.entryId)
                count += 1
            else:
                assert command.type == BaseCommand.SUCCESS
        return count

    def arrived(self, client: Client, number: int) -> None:
        assert client.active
        low = client.got[-1] + 1 if client.got else 0
        assert number >= low, "it came before"
        missed = set(range(low, number)) - self.acked
        assert not missed, f"{sorted(missed)} was left out"
        client.got.append(number)

    async def listen_all(self) -> int:
        count = sum([await self.listen(client) for client in self.clients])
        assert sum(client.active for client in self.clients) <= 1
        return count

    async def step(self) -> None:
        actions = [self.join, self.publish, self.flow, self.acknowledge, self.start_again]
        weights = [3, 4, 8, 6, 1]
        if self.random.random() < 0.2:
            actions = [self.leave, self.forget_memory, self.seek, self.pause]
            weights = [3, 1, 1, 4]
        await self.random.choices(actions, weights)[0]()
        await self.listen_all()

    async def finish(self) -> None:
        await self.join()
        await asyncio.sleep(2 * SWITCH_DELAY_S)
        for client in self.clients:
            client.peer.flow(WORST)
        while await self.listen_all():
            pass
        [active] = [client for client in self.clients if client.active]
        assert set(active.got) | self.acked >= set(range(self.published))


@pytest.mark.parametrize("seed", range(30))
def test_random_histories(seed: int) -> None:
    async def scenario(world: World) -> None:
        await FailoverHistory(world, seed).run(STEPS)

    run(scenario, ledger_entries=13)
