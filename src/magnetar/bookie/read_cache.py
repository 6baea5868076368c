"""The read cache: entries read from entry logs, ahead of their readers.

Bounded in bytes; the oldest insertion goes first, which suits readers that move forward. (An
``OrderedDict``: the first key of a plain one is found by walking over all that were deleted before
it.) Used on the loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

ENTRY_OVERHEAD_BYTES = 200


class ReadCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self.byte_count = 0

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        return self._entries.get((ledger_id, entry_id))

    def put(self, ledger_id: int, entries: Sequence[tuple[int, bytes]]) -> None:
        """Take (entry id, entry) pairs; older ones make room."""
        cache = self._entries
        for entry_id, data in entries:
            key = (ledger_id, entry_id)
            if key not in cache:
                cache[key] = data
                self.byte_count += len(data) + ENTRY_OVERHEAD_BYTES
        while self.byte_count > self._bytes_max and cache:
            self.byte_count -= len(cache.popitem(last=False)[1]) + ENTRY_OVERHEAD_BYTES

    def drop_entries(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """Forget entries that were added again: the newer bytes count."""
        cache = self._entries
        for entry_id in entry_ids:
            data = cache.pop((ledger_id, entry_id), None)
            if data is not None:
                self.byte_count -= len(data) + ENTRY_OVERHEAD_BYTES

    def drop_ledger(self, ledger_id: int) -> None:
        self.drop_entries(ledger_id, [key[1] for key in self._entries if key[0] == ledger_id])
