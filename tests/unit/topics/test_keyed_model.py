"""Random histories of a Key_Shared subscription against what must hold of every one.

As those of shared ones (``test_shared_model``), with keys: what is out of a key is out at one
consumer, and where nobody refuses anything each key's entries come in the order of the log, however
consumers come, leave and vanish. At the end, whoever is left gets everything that is not
acknowledged, once.
"""

from __future__ import annotations

import pytest

from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandSubscribe, MessageMetadata
from tests.interop.pulsar.wire import checked, send_frame
from tests.unit.protocols.pulsar.harness import Peer, World, run
from tests.unit.topics.histories import History

STEPS = 150
WORST = 10_000
KEYS = 12


def keyed_message(key: str, number: int) -> bytes:
    meta = MessageMetadata(producer_name="peer", sequence_id=number, publish_time=1)
    meta.partition_key = key
    head = meta.SerializeToString()
    return checked(len(head).to_bytes(4, "big") + head + b"x")


class KeyedHistory(History):
    def __init__(self, world: World, seed: int, refuses: bool) -> None:
        super().__init__(world, seed)
        self.refuses = refuses
        self.peers: list[Peer] = []
        self.names = 0
        self.out: dict[int, Peer] = {}
        self.keys: list[str] = []
        self.returned: set[int] = set()
        """What came, was not acknowledged, and may come again."""
        self.last: dict[str, int] = {}

    async def join(self) -> None:
        if len(self.peers) < 5:
            peer = self.world.peer()
            self.names += 1
            answer = await peer.subscribe(
                kind=CommandSubscribe.Key_Shared, consumer_name=f"name-{self.names % 7}"
            )
            assert answer.type == BaseCommand.SUCCESS
            self.peers.append(peer)

    async def publish(self) -> None:
        count = self.random.randint(1, 40)
        frames = []
        for number in range(self.published, self.published + count):
            self.keys.append(f"key-{self.random.randrange(KEYS)}")
            frames.append(send_frame(1, number, keyed_message(self.keys[-1], number)))
        self.sender.feed(b"".join(frames))
        self.published += count

    async def flow(self) -> None:
        if self.peers:
            self.random.choice(self.peers).flow(self.random.randint(1, 60))

    async def acknowledge(self) -> None:
        if self.out:
            peer = self.random.choice(list(self.out.values()))
            mine = [number for number, holder in self.out.items() if holder is peer]
            mine = self.random.sample(mine, self.random.randint(1, len(mine)))
            peer.acknowledge(*mine)
            self.acked.update(mine)
            self.forget(mine)

    async def refuse(self) -> None:
        if self.out and self.refuses:
            peer = self.random.choice(list(self.out.values()))
            mine = [number for number, holder in self.out.items() if holder is peer]
            everything = self.random.random() < 0.2
            mine = mine if everything else self.random.sample(mine, 1)
            self.forget(mine)
            peer.redeliver(*([] if everything else mine))

    async def leave(self) -> None:
        if self.peers:
            peer = self.peers.pop(self.random.randrange(len(self.peers)))
            await self.listen(peer)
            mine = [n for n, p in self.out.items() if p is peer]
            self.forget(mine)
            self.returned.update(mine)
            peer.lose()

    def forget(self, numbers: list[int]) -> None:
        for number in numbers:
            del self.out[number]

    async def listen(self, peer: Peer) -> int:
        entries = await peer.entries()
        for number in entries:
            assert number not in self.out, f"{number} is out at two consumers"
            assert number not in self.acked, f"{number} was acknowledged"
            key = self.keys[number]
            holders = {holder for n, holder in self.out.items() if self.keys[n] == key}
            assert holders <= {peer}, f"{key} is out at another one"
            if not self.refuses:
                if number not in self.returned:
                    assert number > self.last.get(key, -1), f"{number} of {key} is late"
                behind = [n for n in self.out if self.keys[n] == key and n > number]
                assert not behind, f"{number} of {key} comes after {behind}"
                self.last[key] = max(number, self.last.get(key, -1))
            self.out[number] = peer
        return len(entries)

    async def listen_all(self) -> int:
        return sum([await self.listen(peer) for peer in self.peers])

    async def step(self) -> None:
        actions = [self.join, self.publish, self.flow, self.acknowledge, self.refuse]
        weights = [2, 4, 8, 8, 4]
        if self.random.random() < 0.1:
            actions, weights = [self.leave, self.forget_memory], [3, 1]
        await self.random.choices(actions, weights)[0]()
        await self.listen_all()

    async def finish(self) -> None:
        await self.join()
        for _ in range(1000):
            for peer in self.peers:
                peer.flow(WORST)
            if not await self.listen_all() and not self.out:
                break
            for peer in self.peers:
                mine = [number for number, holder in self.out.items() if holder is peer]
                if mine:
                    peer.acknowledge(*mine)
                    self.acked.update(mine)
                    self.forget(mine)
        assert self.acked == set(range(self.published))
        subscription = self.world.topic().subscriptions["s"]
        keyed = subscription.keyed
        assert keyed is not None
        assert len(keyed.waiting) == 0
        assert keyed._held == keyed._out == keyed.waiting.counts == {}
        assert subscription._limits.look_ahead.used == 0


@pytest.mark.parametrize("seed", range(30))
def test_random_histories(seed: int) -> None:
    async def scenario(world: World) -> None:
        await KeyedHistory(world, seed, refuses=seed % 3 == 0).run(STEPS)

    run(
        scenario,
        ledger_entries=13,
        unacknowledged_per_consumer_max=100 if seed % 2 else 50_000,
        key_shared_waiting_per_consumer_max=10 if seed % 5 == 0 else 2000,
    )
