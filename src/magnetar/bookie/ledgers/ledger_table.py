"""Which ledgers the bookie knows, and where each has its place.

A ledger's directory is ``ledger id % directories`` and its journal ``ledger id % journals``. A
ledger is looked up in the index when it is first touched (one point lookup, mostly answered by a
bloom filter in memory, in a thread of its directory) and kept until it is clean and many others
have come.

Invariants:

* A ledger that is not in memory is clean: its record in the index is the present one. It is
  created only by who has looked it up, and whoever asks meanwhile shares the lookup. So nothing of
  it changes while it is looked up.
* From the moment it was looked up until whoever asked has gone on, it is held: what is in memory of
  it stays there, and if nothing is, it was never heard of.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import TypeAlias

from magnetar.bookie.journal.journal import Journal
from magnetar.bookie.ledgers.ledger_state import HeldLedger
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.model.errors import BookieIOError

LOOKED_AT_ONCE = 2000
"""Ledgers in one turn of the loop: a millisecond or two."""
LOOKUP_MS_MAX = 5_000
"""Whoever waits longer for a lookup is told that the disk does not answer."""

Told: TypeAlias = Callable[[BookieIOError | None], None]


class LedgerTable:
    """``kept_max``: ledgers in memory past which clean ones are forgotten."""

    def __init__(
        self, storages: Sequence[LedgerStorage], journals: Sequence[Journal], kept_max: int
    ) -> None:
        self._kept_max = kept_max
        self.storages = storages
        self.journals = journals
        self._states: dict[int, HeldLedger] = {}
        self.get_loaded = self._states.get
        """The ledger's state if it is in memory; no lookup."""
        self._lookups: dict[int, list[Told]] = {}
        """Ledgers that are being looked up, and who waits for them."""
        self._holds: dict[int, int] = {}
        self.new_from = 1 << 63
        """Ledgers with this id and above were made after the bookie's last loss; 2^63: none is
        known to be."""

    def storage_of(self, ledger_id: int) -> LedgerStorage:
        return self.storages[ledger_id % len(self.storages)]

    def journal_of(self, ledger_id: int) -> Journal:
        return self.journals[ledger_id % len(self.journals)]

    def find_blocking(self, ledger_id: int) -> HeldLedger | None:
        """The ledger's state, from memory or the index; None: never heard of. For the replay, in
        its thread: nobody else may wait for a disk like this."""
        state = self._states.get(ledger_id)
        if state is not None or ledger_id < 0:
            return state
        record = self.storage_of(ledger_id).location_index.ledger(ledger_id)
        return None if record is None else self._restore(ledger_id, record)

    async def load(self, ledger_id: int) -> HeldLedger | None:
        """The ledger's state, from memory or the index; None: never heard of. True until the caller
        waits for something. Raises ``BookieIOError``."""
        state = self.get_loaded(ledger_id)
        if state is not None or self.is_absent(ledger_id):
            return state
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        self.look_up(ledger_id, partial(self._answer, answer, ledger_id))
        too_late = loop.call_later(LOOKUP_MS_MAX / 1000, _give_up, answer, ledger_id)
        try:
            await answer
            return self.get_loaded(ledger_id)
        finally:
            too_late.cancel()
            self._answered(answer, ledger_id)

    @asynccontextmanager
    async def loaded(self, ledger_ids: Sequence[int]) -> AsyncIterator[None]:
        """Within it, all of them that are not in memory were never heard of, and the others stay
        there. Raises ``BookieIOError``."""
        loop = asyncio.get_running_loop()
        answers: dict[asyncio.Future[None], int] = {}
        try:
            for ledger_id in ledger_ids:
                answer = loop.create_future()
                answers[answer] = ledger_id
                if self.get_loaded(ledger_id) is not None or self.is_absent(ledger_id):
                    self._answer(answer, ledger_id, None)
                else:
                    self.look_up(ledger_id, partial(self._answer, answer, ledger_id))
            if not all(answer.done() for answer in answers):
                late = (await asyncio.wait(answers, timeout=LOOKUP_MS_MAX / 1000))[1]
                for answer in late:
                    _give_up(answer, answers[answer])
            for answer in answers:
                answer.result()
            yield
        finally:
            for answer, ledger_id in answers.items():
                self._answered(answer, ledger_id)

    def _answer(
        self, answer: asyncio.Future[None], ledger_id: int, error: BookieIOError | None
    ) -> None:
        """Unless nobody waits any more."""
        if answer.done():
            return
        if error is None:
            self.hold(ledger_id)
            answer.set_result(None)
        else:
            answer.set_exception(error)

    def _answered(self, answer: asyncio.Future[None], ledger_id: int) -> None:
        """Whoever waited has gone on, or gives up."""
        if not answer.cancel() and not answer.cancelled() and answer.exception() is None:
            self.release(ledger_id)

    def look_up(self, ledger_id: int, told: Told) -> None:
        """Of a ledger that is not in memory: bring it there if the index has it. ``told(error)`` is
        called on the loop, later, once, behind those who asked before. In that turn the ledger is
        held if there is no error. Raises ``BookieIOError`` if its directory is closed."""
        waiting = self._lookups.get(ledger_id)
        if waiting is None:
            found = partial(self._looked_up, ledger_id)
            self.storage_of(ledger_id).look_up(ledger_id, found)
            waiting = self._lookups[ledger_id] = []
        waiting.append(told)

    def _looked_up(self, ledger_id: int, record: bytes | None, error: BookieIOError | None) -> None:
        if record is not None and ledger_id not in self._states:
            try:
                self._restore(ledger_id, record)
            except BookieIOError as damaged:
                error = damaged
        waiting = self._lookups.pop(ledger_id)
        if error is None:
            self.hold(ledger_id)
        try:
            for told in waiting:
                told(error)
        finally:
            if error is None:
                self.release(ledger_id)

    def is_absent(self, ledger_id: int) -> bool:
        """Of one that is not in memory: whether it is certain that it was never heard of. Else it
        has to be looked up."""
        return ledger_id in self._holds or ledger_id < 0

    def hold(self, ledger_id: int) -> None:
        """Until it is let go as often, the ledger is not forgotten. It is in memory, or
        ``is_absent``."""
        self._holds[ledger_id] = self._holds.get(ledger_id, 0) + 1

    def release(self, ledger_id: int) -> None:
        left = self._holds[ledger_id] - 1
        if left:
            self._holds[ledger_id] = left
        else:
            del self._holds[ledger_id]

    def _restore(self, ledger_id: int, record: bytes) -> HeldLedger:
        state = self._new(ledger_id, b"")
        state.restore(record)
        self._states[ledger_id] = state
        return state

    def create(self, ledger_id: int, master_key: bytes) -> HeldLedger:
        """A ledger never heard of, as its lookup has just told; dirty until the next flush."""
        state = self._states[ledger_id] = self._new(ledger_id, master_key)
        state.storage.dirty[ledger_id] = state
        return state

    def _new(self, ledger_id: int, master_key: bytes) -> HeldLedger:
        storage, journal = self.storage_of(ledger_id), self.journal_of(ledger_id)
        return HeldLedger(ledger_id, master_key, storage, journal)

    async def shrink(self) -> None:
        """Forget clean ledgers when too many are in memory, some in each turn of the loop. Call
        after a flush."""
        excess = len(self._states) - self._kept_max // 2
        if len(self._states) <= self._kept_max:
            return
        ids = list(self._states)
        for start in range(0, len(ids), LOOKED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            idle = filter(self._is_idle, ids[start : start + LOOKED_AT_ONCE])
            for ledger_id in list(islice(idle, excess)):
                del self._states[ledger_id]
                excess -= 1
            if excess <= 0:
                return

    def _is_idle(self, ledger_id: int) -> bool:
        """Whether all that is known of it is in the index, now, and nobody counts on it to stay in
        memory."""
        if ledger_id in self._holds or ledger_id in self._lookups:
            return False
        state = self._states.get(ledger_id)
        if state is None or (state.fenced and not state.fence_durable):
            return False
        return not state.storage.is_unwritten(ledger_id)


def slow_lookup(ledger_id: int) -> BookieIOError:
    return BookieIOError(
        f"ledger {ledger_id}: the location index has not answered for {LOOKUP_MS_MAX} ms; its disk "
        "hangs or is overloaded"
    )


def _give_up(answer: asyncio.Future[None], ledger_id: int) -> None:
    if not answer.done():
        answer.set_exception(slow_lookup(ledger_id))
