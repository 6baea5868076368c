"""Random histories of a shared subscription against what must hold of every one.

Consumers join, take, acknowledge, refuse, leave and vanish while entries are published; entries
are in memory or have to be read. At every step an entry is out at one consumer at most and nothing
acknowledged comes again (an acknowledgement is effective when the broker has read it). At the end,
whoever is left gets everything that is not acknowledged, once.
"""

from __future__ import annotations

import pytest

from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.protocols.pulsar.harness import Peer, World, run
from tests.unit.topics.histories import History

STEPS = 150
WORST = 10_000


class SharedHistory(History):
    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.peers: list[Peer] = []
        self.out: dict[int, Peer] = {}

    # -- what can happen ----------------------------------------------------------------------

    async def join(self) -> None:
        if len(self.peers) < 5:
            peer = self.world.peer()
            answer = await peer.subscribe()
            assert answer.type == BaseCommand.SUCCESS
            self.peers.append(peer)

    async def flow(self) -> None:
        if self.peers:
            self.random.choice(self.peers).flow(self.random.randint(1, 60))

    async def acknowledge(self) -> None:
        peer, mine = self.some()
        if peer is not None:
            peer.acknowledge(*mine)
            self.acked.update(mine)
            self.forget(mine)

    async def refuse(self) -> None:
        peer, mine = self.some()
        if peer is not None:
            everything = self.random.random() < 0.2
            mine = [n for n, p in self.out.items() if p is peer] if everything else mine
            self.forget(mine)
            peer.redeliver(*([] if everything else mine))

    async def leave(self) -> None:
        if self.peers:
            peer = self.peers.pop(self.random.randrange(len(self.peers)))
            await self.listen(peer)
            self.forget([n for n, p in self.out.items() if p is peer])
            peer.lose()

    def some(self) -> tuple[Peer | None, list[int]]:
        """A consumer that has something, and some of it."""
        if not self.out:
            return None, []
        peer = self.random.choice(list(self.out.values()))
        mine = [number for number, holder in self.out.items() if holder is peer]
        return peer, self.random.sample(mine, self.random.randint(1, len(mine)))

    def forget(self, numbers: list[int]) -> None:
        for number in numbers:
            del self.out[number]

    # -- what must hold -----------------------------------------------------------------------

    async def listen(self, peer: Peer) -> int:
        entries = await peer.entries()
        for number in entries:
            assert number not in self.out, f"{number} is out at two consumers"
            assert number not in self.acked, f"{number} was acknowledged"
            self.out[number] = peer
        return len(entries)

    async def listen_all(self) -> int:
        return sum([await self.listen(peer) for peer in self.peers])

    async def step(self) -> None:
        actions = [self.join, self.publish, self.flow, self.acknowledge, self.refuse]
        weights = [2, 4, 8, 8, 4]
        if self.random.random() < 0.05:
            actions, weights = [self.leave, self.forget_memory], [2, 1]
        await self.random.choices(actions, weights)[0]()
        await self.listen_all()

    async def finish(self) -> None:
        await self.join()
        for peer in self.peers:
            peer.flow(WORST)
        while await self.listen_all():
            pass
        everything = set(range(self.published))
        assert set(self.out) | self.acked == everything
        held = {number for peer in self.peers for number in self.pending(peer)}
        assert held == set(self.out), "the broker thinks that something else is out"
        redelivery = self.world.topic().subscriptions["s"].dispatcher.feed.redelivery
        assert len(redelivery) == 0
        counted = {self.number(key) for key in redelivery.counts}
        assert counted <= set(self.out), "counts of acknowledged entries are kept"

    def pending(self, peer: Peer) -> list[int]:
        return [self.number(key) for key in peer.session.consumers[1].consumer.seat.out]

    def number(self, key: tuple[int, int]) -> int:
        return (key[0] - 1) * self.world.store._size + key[1]


@pytest.mark.parametrize("seed", range(40))
def test_random_histories(seed: int) -> None:
    async def scenario(world: World) -> None:
        await SharedHistory(world, seed).run(STEPS)

    run(scenario, ledger_entries=13, unacknowledged_per_consumer_max=200 if seed % 2 else 50_000)
