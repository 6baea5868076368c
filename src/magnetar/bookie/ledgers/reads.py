"""The bookie's reads from entry logs: shared, cached, paced.

Rules:

* Readers of the same entry share one read, and what follows it is kept for a while.
* What is kept is never older than what the write cache has or had: an entry that was added again
  leaves the cache (``drop_entries``), and a read that was under way then is not kept.
* A reader that goes forward rests while entries are being added (``storage.read_pace``). Reads of
  high priority do not: a recovery, and what is read to be appended, are waited for themselves.
* At most ``READS_MAX`` reads are under way.
* What fails is told (``read_failures.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from magnetar.bookie.ledgers.ledger_state import HeldLedger
from magnetar.bookie.ledgers.read_failures import ReadFailures
from magnetar.bookie.storage.entry_runs import RecordRun
from magnetar.bookie.storage.read_cache import ReadCache
from magnetar.bookie.storage.read_pace import ReadPace
from magnetar.config import BookieConfig
from magnetar.model.errors import BookieIOError, TooManyRequestsError

READS_MAX = 1024
PIECE_BYTES = 64 << 10
"""Of a read while entries are being added: they wait for no more than one piece."""


class EntryReads:
    """``appended_bytes``: what adds have brought so far, of all journals. Used on the loop."""

    def __init__(
        self, config: BookieConfig, appended_bytes: Callable[[], int], failures: ReadFailures
    ) -> None:
        self._config = config
        self._failures = failures
        self._appended_bytes = appended_bytes
        self._cache = ReadCache(config.read_cache_bytes)
        self._pace = ReadPace()
        self._under_way: dict[tuple[int, int], asyncio.Future[RecordRun]] = {}
        self._outdated: set[tuple[int, int]] = set()  # of those: what they read may be old

    @property
    def byte_count(self) -> int:
        """Bytes kept."""
        return self._cache.byte_count

    @property
    def cut(self) -> bool:
        """Entries are being added: reads come in pieces of ``PIECE_BYTES``, with rests between."""
        return self._pace.adding(self._appended_bytes(), _now_s())

    def cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry if it is kept here."""
        return self._cache.get(ledger_id, entry_id)

    def not_flushed(self, ledger: HeldLedger, entry_id: int, count: int) -> Sequence[bytes]:
        """As ``at_hand``, of what is in the journal and in no entry log yet: it is read nowhere
        else."""
        return ledger.storage.cache.run(ledger.ledger_id, entry_id, count)

    def at_hand(self, ledger: HeldLedger, entry_id: int, count: int) -> Sequence[bytes]:
        """The entry and what follows it, as far as memory has them in a row; empty: ask
        ``fetch``."""
        written = self.not_flushed(ledger, entry_id, count)
        return written or self._cache.run(ledger.ledger_id, entry_id, count)

    def drop_entries(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """These entries are being added again."""
        self._outdate(ledger_id)
        self._cache.drop_entries(ledger_id, entry_ids)
        self._failures.sound(ledger_id, entry_ids)

    def drop_ledger(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        self._outdate(ledger_id)
        self._cache.drop_ledger(ledger_id)
        self._failures.deleted(ledger_id)

    def _outdate(self, ledger_id: int) -> None:
        self._outdated.update(key for key in self._under_way if key[0] == ledger_id)

    async def fetch(
        self, ledger: HeldLedger, entry_id: int, count: int, bytes_max: int, *, urgent: bool = False
    ) -> Sequence[bytes]:
        """Read from the entry log: ``count`` entries from ``entry_id`` on, if they lie there one
        behind the other and within ``bytes_max`` bytes; a reader of one gets those that follow
        read ahead. Empty: the index has no such entry. ``urgent``: it does not yield to adds.
        Raises ``BookieIOError``, ``TooManyRequestsError``."""
        key = (ledger.ledger_id, entry_id)
        while True:
            if not urgent:
                await self._rest(key)
            shared = self._under_way.get(key)
            begun = shared or self._begin(ledger, entry_id, count, bytes_max, urgent)
            found = await asyncio.shield(begun)
            if found or shared is None:
                break
            # Another's read, which may have looked before the entry came: read once more. First
            # the loop takes its turn: a read that has just ended is listed as under way until then.
            await asyncio.sleep(0)
        kept = _older(ledger, entry_id, found)
        return kept if kept or not found else self.at_hand(ledger, entry_id, count)

    async def _rest(self, key: tuple[int, int]) -> None:
        """Until a reader that goes forward may read again, or somebody else reads the same."""
        while key not in self._under_way:
            rest_s = self._pace.rest_s(*key, self._appended_bytes(), _now_s())
            if not rest_s:
                return
            await asyncio.sleep(rest_s)

    def _begin(
        self, ledger: HeldLedger, entry_id: int, count: int, bytes_max: int, urgent: bool
    ) -> asyncio.Future[RecordRun]:
        ledger_id, config = ledger.ledger_id, self._config
        key = (ledger_id, entry_id)
        if len(self._under_way) >= READS_MAX:
            raise TooManyRequestsError(
                f"read of entry {ledger_id}:{entry_id}: {READS_MAX} reads are under way; "
                "try again later"
            )
        ahead = count == 1
        count = config.read_ahead_entries if ahead else count
        bytes_max = min(bytes_max, config.read_ahead_bytes if ahead else config.batch_read_bytes)
        if not urgent and self.cut:
            bytes_max = min(bytes_max, PIECE_BYTES)
        future = ledger.storage.read(ledger_id, entry_id, count, bytes_max, ahead)
        self._under_way[key] = future
        self._pace.begun(ledger_id, entry_id + count)
        begun_s = _now_s()

        def ended(future: asyncio.Future[RecordRun]) -> None:
            del self._under_way[key]
            outdated = key in self._outdated
            self._outdated.discard(key)
            if future.cancelled() or ledger.deleted:
                return
            error = future.exception()
            if error is not None:
                if isinstance(error, BookieIOError):
                    self._failures.failed(ledger_id, entry_id, error, _now_s())
                return
            found = future.result()
            if found:
                self._failures.sound(ledger_id, range(entry_id, entry_id + len(found)))
                self._pace.ended(ledger_id, entry_id + len(found), begun_s, _now_s())
            if not outdated:
                self._cache.put(ledger_id, entry_id, _older(ledger, entry_id, found))

        future.add_done_callback(ended)
        return future


def _older(ledger: HeldLedger, entry_id: int, found: RecordRun) -> RecordRun:
    """``found`` up to the first entry of which the write cache has newer bytes."""
    cache = ledger.storage.cache
    if not cache.has_ledger(ledger.ledger_id):
        return found
    newer = cache.first_of(ledger.ledger_id, range(entry_id, entry_id + len(found)))
    return found if newer is None else found[: newer - entry_id]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
