"""Asks replicas one after the other until one gives a sound answer; the first answer wins.

The next replica is asked when one refuses, or when ``HedgeBound.bound_s`` has passed without an
answer: then both are under way. Losers are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from magnetar.env.tasks import TaskScope, awaited
from magnetar.ledger.reading.read_order import ReadPolicy
from magnetar.ledger.replies import Refusal
from magnetar.model.errors import NoEntryError, NoLedgerError
from magnetar.model.ids import BookieId

T = TypeVar("T")


async def first_answer(
    replicas: Sequence[BookieId],
    ask: Callable[[BookieId], Awaitable[T | Refusal]],
    policy: ReadPolicy,
) -> T | list[Refusal]:
    """The first answer that is no refusal; all refusals if there is none. ``replicas``: best
    first. What was seen of each goes to ``policy``."""
    if len(replicas) == 1:  # nobody to race with: no task
        only = await ask(replicas[0])
        return [only] if isinstance(only, Refusal) else only
    race = _Race(replicas, ask, policy)
    try:
        return await race.run()
    finally:
        await race.scope.close()


class _Race(Generic[T]):
    """One read, at one replica or several at once."""

    def __init__(
        self,
        replicas: Sequence[BookieId],
        ask: Callable[[BookieId], Awaitable[T | Refusal]],
        policy: ReadPolicy,
    ) -> None:
        self.scope = TaskScope("read", awaited(by="first_answer"))
        self._left = list(replicas)
        self._ask = ask
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Task[T | Refusal], tuple[BookieId, float]] = {}

    async def run(self) -> T | list[Refusal]:
        refusals: list[Refusal] = []
        self._begin_next()
        while self._waiting:
            bound_s = self._policy.hedge.bound_s if self._left else None
            done, _ = await asyncio.wait(
                self._waiting, timeout=bound_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in self._waiting if task in done]:
                answer = self._ended(task)
                if not isinstance(answer, Refusal):
                    self._lost()
                    return answer
                refusals.append(answer)
            if not done or not self._waiting:
                self._begin_next()
        return refusals

    def _begin_next(self) -> None:
        if not self._left:
            return
        bookie_id = self._left.pop(0)

        async def ask() -> T | Refusal:
            return await self._ask(bookie_id)

        task = self.scope.spawn(ask(), bookie_id)
        self._waiting[task] = (bookie_id, self._loop.time())

    def _ended(self, task: asyncio.Task[T | Refusal]) -> T | Refusal:
        bookie_id, since_s = self._waiting.pop(task)
        answer = task.result()
        policy, now_s = self._policy, self._loop.time()
        if not isinstance(answer, Refusal):
            policy.hedge.answered(now_s - since_s)
            policy.order.answered(bookie_id)
        elif not isinstance(answer.error, NoEntryError | NoLedgerError):
            policy.order.failed(bookie_id, now_s)
        return answer

    def _lost(self) -> None:
        """Somebody asked later, or at the same time, has won over those that still wait."""
        now_s = self._loop.time()
        for bookie_id, since_s in self._waiting.values():
            if now_s - since_s >= self._policy.hedge.bound_s:
                self._policy.hedge.answered(now_s - since_s)
                self._policy.order.failed(bookie_id, now_s)
