"""Which files of a table are rewritten into one. Pure.

A ledger of a quiet topic is a small file for each day that it has messages of. Small files of one
span of time (a day) become one as soon as they are ``files_min``: so there are never many, and a
message is rewritten only when so many new files came, or until its file is not small any more, or
full: files are cut by their rows, and rows that compress well make small files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

SMALL_BYTES: Final = 64 << 20
FILES_MIN: Final = 4
"""So many small files of a day are worth rewriting."""
REWRITE_BYTES: Final = 128 << 20
"""Of files that are rewritten together."""


class SizedFile(NamedTuple):
    """``number``: the caller's; ``span``: of which day it is; ``full``: it has as many rows as
    files have."""

    number: int
    span: str
    byte_count: int
    full: bool = False


@dataclass(frozen=True)
class SmallFilesRule:
    """See the module's text."""

    small_bytes: int = SMALL_BYTES
    files_min: int = FILES_MIN
    rewrite_bytes: int = REWRITE_BYTES

    def groups(self, files: Sequence[SizedFile]) -> Iterator[list[SizedFile]]:
        """The files that become one, group by group."""
        by_span: dict[str, list[SizedFile]] = {}
        for each in files:
            if each.byte_count < self.small_bytes and not each.full:
                by_span.setdefault(each.span, []).append(each)
        for small in by_span.values():
            if len(small) >= self.files_min:
                yield from self._cut(small)

    def _cut(self, small: Sequence[SizedFile]) -> Iterator[list[SizedFile]]:
        group: list[SizedFile] = []
        for each in small:
            group.append(each)
            if sum(one.byte_count for one in group) >= self.rewrite_bytes:
                yield group
                group = []
        if len(group) > 1:  # one alone would be written again for nothing
            yield group
