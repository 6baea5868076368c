"""What random histories of a subscription have in common: entries that are published, and what of
them was acknowledged."""

from __future__ import annotations

import random

from tests.unit.protocols.pulsar.harness import World


class History:
    """Of one subscription; its consumers are the concern of those who derive from it."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.acked: set[int] = set()
        self.published = 0
        self.sender = world.peer()

    async def begin(self) -> None:
        await self.sender.produce()
        await self.join()

    async def join(self) -> None:
        raise NotImplementedError

    async def step(self) -> None:
        raise NotImplementedError

    async def finish(self) -> None:
        raise NotImplementedError

    async def publish(self) -> None:
        count = self.random.randint(1, 40)
        self.sender.publish(count, first=self.published)
        self.published += count

    async def forget_memory(self) -> None:
        self.world.log().cached = not self.world.log().cached

    async def run(self, steps: int) -> None:
        await self.begin()
        for _ in range(steps):
            await self.step()
        await self.finish()
