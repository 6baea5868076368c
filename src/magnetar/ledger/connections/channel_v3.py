"""The version 3 channel: what must be matched by transaction id, and what only version 3 has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, repeat

from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope
from magnetar.ledger.bookies import AddDone
from magnetar.ledger.connections.channel import Channel, ConnectionOptions, Expired, Resolve
from magnetar.ledger.connections.channel_v2 import Call
from magnetar.model.errors import BookieUnavailableError
from magnetar.model.ids import BookieId
from magnetar.wire.bookie import v3
from magnetar.wire.bookie.status import v3_error


class AddBatch:
    """One call of ``add_entries``; it expires at ``deadline_s`` on the loop's clock."""

    __slots__ = ("deadline_s", "done", "ledger_id")

    def __init__(self, ledger_id: int, done: AddDone, deadline_s: float) -> None:
        self.ledger_id = ledger_id
        self.done = done
        self.deadline_s = deadline_s


class V3Channel(Channel):
    """See the module's text."""

    def __init__(
        self,
        bookie_id: BookieId,
        resolve: Resolve,
        options: ConnectionOptions,
        connections: Connections,
        scope: TaskScope,
    ) -> None:
        super().__init__(bookie_id, resolve, options, connections, scope)
        self._txn_id = 0
        self._calls: dict[int, Call[v3.Answer]] = {}
        self._adds: dict[int, tuple[AddBatch, int]] = {}  # oldest first

    @property
    def has_pending(self) -> bool:
        return bool(self._calls or self._adds)

    # -- requests -----------------------------------------------------------------------------

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None:
        """As ``BookieClient.add_entries``."""
        first_txn_id = self._txn_id + 1
        parts, byte_count = v3.encode_adds(
            first_txn_id, ledger_id, master_key, entry_ids, entries, flags
        )
        refusal = self.refusal(byte_count)
        if refusal is not None:
            self._loop.call_soon(done, refusal, tuple(entry_ids))
            return
        deadline_s = self._loop.time() + self.options.add_timeout_s
        batch = AddBatch(ledger_id, done, deadline_s)
        self._txn_id += len(entries)
        self._adds.update(zip(count(first_txn_id), zip(repeat(batch), entry_ids, strict=False)))
        self.send(parts, byte_count)

    async def call(
        self, encode: Callable[[int], bytes], what: str, timeout_s: float | None = None
    ) -> v3.Answer:
        """Send what ``encode`` makes of a transaction id and await the answer.

        ``what`` names the request in errors: the bookie's refusals raise as ``BookieError``, no
        answer in ``timeout_s`` (default: the read timeout) as ``BookieUnavailableError``.
        """
        self._txn_id += 1
        txn_id = self._txn_id
        frame = encode(txn_id)
        refusal = self.refusal(len(frame))
        if refusal is None and len(self._calls) >= self.options.calls_max:
            refusal = self.unavailable(f"{len(self._calls)} requests are unanswered already")
        if refusal is not None:
            raise refusal
        now_s = self._loop.time()
        deadline_s = now_s + (self.options.read_timeout_s if timeout_s is None else timeout_s)
        call: Call[v3.Answer] = Call(self._loop.create_future(), now_s, deadline_s)
        self._calls[txn_id] = call
        self.send((frame,), len(frame))
        answer = await call.answer
        error = v3_error(answer.code, f"bookie {self.bookie_id}, {what}")
        if error is not None:
            raise error
        return answer

    # -- answers ------------------------------------------------------------------------------

    def frames_received(
        self, view: memoryview, bounds: Sequence[tuple[int, int]], stays: bool
    ) -> None:
        for answer in v3.decode_answers(view, bounds):
            if isinstance(answer, v3.AddAnswers):
                self._added(answer.code, answer.txn_ids)
                continue
            call = self._calls.pop(answer.txn_id, None)
            if call is not None:
                call.resolve(answer)
            else:
                self._added(answer.code, (answer.txn_id,))

    def _added(self, code: int, txn_ids: Sequence[int]) -> None:
        """Tell each batch of its entries; those that nobody waits for (late) are left out."""
        groups: list[tuple[AddBatch, list[int]]] = []
        current: AddBatch | None = None
        for txn_id in txn_ids:
            add = self._adds.pop(txn_id, None)
            if add is None:
                continue
            batch, entry_id = add
            if batch is not current:
                current = batch
                groups.append((batch, []))
            groups[-1][1].append(entry_id)
        for batch, entry_ids in groups:
            what = f"bookie {self.bookie_id}, adds to ledger {batch.ledger_id}"
            batch.done(v3_error(code, what), entry_ids)

    # -- failures -----------------------------------------------------------------------------

    def fail_pending(self, error: BookieUnavailableError) -> None:
        calls, self._calls = self._calls, {}
        adds, self._adds = self._adds, {}
        for call in calls.values():
            call.fail(error)
        for batch, entry_id in adds.values():
            batch.done(error, (entry_id,))

    def expire(self, now_s: float) -> list[Expired]:
        expired: list[Expired] = []
        for txn_id, call in list(self._calls.items()):
            if call.deadline_s <= now_s:
                del self._calls[txn_id]
                waited_ms = (now_s - call.sent_at_s) * 1000
                error = self.unavailable(f"no answer to a request in {waited_ms:.0f} ms")
                expired.append(Expired(call.sent_at_s, partial(call.fail, error)))
        timeout_s = self.options.add_timeout_s
        error = self.unavailable(f"no answer to an add in {timeout_s * 1000:.0f} ms")
        for txn_id, (batch, entry_id) in list(self._adds.items()):
            if batch.deadline_s <= now_s:
                del self._adds[txn_id]
                fail = partial(batch.done, error, (entry_id,))
                expired.append(Expired(batch.deadline_s - timeout_s, fail))
        return expired
