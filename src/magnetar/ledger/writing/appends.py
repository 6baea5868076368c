"""Appends under way: their entries are kept until they are confirmed, to be sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from magnetar.model.errors import MagnetarError

AppendDone: TypeAlias = Callable[[MagnetarError | None, int, int, int], None]
"""``done(error, ledger_id, first_entry_id, count)``, as in ``log.seam``: these payloads of the
append are confirmed under consecutive ids; with ``error`` set the rest of it failed and the ids
are -1."""

PIECE_BYTES = 1 << 20
"""Entries that are sent again go in pieces of about this size."""


class Append:
    """One append under way: ``entries[0]`` has the id ``base``, ``last`` is the id of the last;
    ids before ``first_open`` are confirmed. ``length``: payload bytes of the ledger with it."""

    __slots__ = ("base", "done", "entries", "first_open", "last", "length")

    def __init__(
        self, base: int, last: int, entries: list[bytes], length: int, done: AppendDone
    ) -> None:
        self.base = self.first_open = base
        self.last = last
        self.entries = entries
        self.length = length
        self.done = done


def pieces(
    entry_ids: Sequence[int], pending: Iterable[Append]
) -> Iterator[tuple[Sequence[int], Sequence[bytes]]]:
    """The entries of these ids, which ascend and are all pending, in pieces of about
    ``PIECE_BYTES``: a bookie that has no room for all takes a part."""
    entries = _picked(entry_ids, pending)
    start = byte_count = 0
    for end, entry in enumerate(entries, 1):
        byte_count += len(entry)
        if byte_count >= PIECE_BYTES or end == len(entries):
            yield entry_ids[start:end], entries[start:end]
            start, byte_count = end, 0


def _picked(entry_ids: Sequence[int], pending: Iterable[Append]) -> list[bytes]:
    wanted, found = iter(entry_ids), []
    entry_id = next(wanted, None)
    for append in pending:
        end = append.base + len(append.entries)
        while entry_id is not None and entry_id < end:
            found.append(append.entries[entry_id - append.base])
            entry_id = next(wanted, None)
    assert entry_id is None
    return found
