"""What survives in a journal file: records, and the damage between them.

Pure. Reads the layout of ``docs/formats/journal.md``, and that of version 1, whose blocks are not
stamped.

Rules:

* A record is taken if its checksum says so, in whatever surroundings.
* Damage is *torn*, and so of no consequence, only where a commit may have been cut short: no whole
  commit follows it in the file (one is written after the one before it is durable), and its
  blocks do not all carry its stamp (``journal_blocks``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from crc32c import crc32c

from magnetar.bookie.journal.journal_blocks import (
    BLOCK_BYTES,
    WORD_BYTES,
    begins_commit,
    blocks_of,
    content_bytes_max,
    first_words,
    restored,
    written_blocks,
)
from magnetar.bookie.journal.journal_format import (
    COMMIT_BYTES,
    COMMIT_WORD,
    KINDS,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    UNSTAMPED_COMMIT_WORD,
    seed_of,
)

_RECORD = struct.Struct(">II")
_WORD = struct.Struct(">I")
_COMMIT = struct.Struct(">QII")


class Record(NamedTuple):
    """``offset`` is the file's."""

    kind: int
    payload: bytes
    offset: int


class Damage(NamedTuple):
    """Bytes ``[start, end)`` of a journal file that hold no readable record. ``torn``: the tail
    of a crash, nothing in it was ever acknowledged."""

    file_id: int
    start: int
    end: int
    torn: bool


class _Commit(NamedTuple):
    """Offsets count from the scan's beginning. ``content``: as before it was stamped, up to where
    its records end; ``headed``: its COMMIT record is whole; ``written``: every block is."""

    start: int
    end: int
    content: bytes
    headed: bool
    written: bool


class FileScan:
    """What survives in ``data``, a journal file's bytes from ``base`` (a multiple of 512, at
    least 512) to its end. Iterate ``records()`` once; ``end`` and ``damages`` count after it.
    """

    def __init__(self, data: bytes, base: int, file_id: int) -> None:
        self._cut = len(data) % BLOCK_BYTES != 0  # then the last block was not written
        self._data = data + bytes(-len(data) % BLOCK_BYTES)
        self._base = base
        self._first_block = base // BLOCK_BYTES
        self._file_id = file_id
        self._seed = seed_of(file_id)
        self._commit_crcs = tuple(
            crc32c(word, self._seed) for word in (COMMIT_WORD, UNSTAMPED_COMMIT_WORD)
        )
        self.end = base
        """Offset after the last commit that was found."""
        self.damages: list[Damage] = []

    @cached_property
    def _words(self) -> tuple[int, ...]:
        words = first_words(self._data)
        return (*words[:-1], 0) if self._cut else words

    def records(self) -> Iterator[Record]:
        """Every whole record, in order. COMMIT records are left out."""
        unpack, base, seed = _RECORD.unpack_from, self._base, self._seed
        last_word = word_crc = -1
        for commit in self._commits():
            content, begin, pos = commit.content, base + commit.start, COMMIT_BYTES
            limit = len(content)
            while pos + RECORD_HEADER_BYTES <= limit:
                word, crc = unpack(content, pos)
                start = pos + RECORD_HEADER_BYTES
                stop = start + (word & PAYLOAD_BYTES_MAX)
                if word != last_word:
                    last_word, word_crc = word, crc32c(_WORD.pack(word), seed)
                payload = content[start:stop]
                if stop <= limit and word >> 28 in KINDS and crc32c(payload, word_crc) == crc:
                    yield Record(word >> 28, payload, begin + pos)
                    pos = stop
                else:
                    pos = self._after_gap(commit, pos)
            self.end = base + commit.end

    def _commits(self) -> Iterator[_Commit]:
        pos, size = 0, len(self._data)
        while pos < size:
            commit = self._headed_commit(pos) or self._headless_commit(pos)
            if commit is None:
                return
            yield commit
            pos = commit.end

    # -- one commit ---------------------------------------------------------------------------

    def _headed_commit(self, pos: int) -> _Commit | None:
        """The commit at ``pos`` if its COMMIT record is whole; the rest of it need not be."""
        data = self._data
        crc, body = data[pos + WORD_BYTES : pos + 8], data[pos + 8 : pos + COMMIT_BYTES]
        stamped, plain = (_WORD.pack(crc32c(body, start)) == crc for start in self._commit_crcs)
        if not stamped and not (plain and data.startswith(UNSTAMPED_COMMIT_WORD, pos)):
            return None
        size = COMMIT_BYTES + _COMMIT.unpack(body)[1]
        count = blocks_of(size) if stamped else -(-size // BLOCK_BYTES)
        end = pos + count * BLOCK_BYTES
        if not stamped:
            content = data[pos : min(pos + size, end)].ljust(size, b"\0")
            return _Commit(pos, min(end, len(data)), content, True, written=False)
        return self._stamped_commit(pos, end, size, headed=True)

    def _headless_commit(self, pos: int) -> _Commit | None:
        """The commit at ``pos`` if its COMMIT record is not whole, but its blocks or the commit
        after it tell where it ends. None: nothing can be made of what is there."""
        block = pos // BLOCK_BYTES
        count = written_blocks(self._words[block:], self._seed, self._first_block + block)
        end = pos + count * BLOCK_BYTES
        if not count:
            following = self._next_commit(pos + BLOCK_BYTES)
            if following is None:
                if self._begins(self._words[block], block):
                    self._note_damage(pos, pos + BLOCK_BYTES, torn=True)
                return None
            end = following
        size = content_bytes_max((end - pos) // BLOCK_BYTES)
        self._note_damage(pos, pos + COMMIT_BYTES, torn=False)
        return self._stamped_commit(pos, end, size, headed=False)

    def _stamped_commit(self, pos: int, end: int, size: int, headed: bool) -> _Commit:
        data = self._data[pos:end].ljust(end - pos, b"\0")
        first, last = pos // BLOCK_BYTES, end // BLOCK_BYTES
        words, place = self._words[first:last], self._first_block + first
        written = written_blocks(words, self._seed, place) == last - first
        content = restored(data, COMMIT_WORD)[:size]
        return _Commit(pos, min(end, len(self._data)), content, headed, written)

    # -- damage -------------------------------------------------------------------------------

    def _after_gap(self, commit: _Commit, pos: int) -> int:
        """Where to go on in a commit after the bytes at ``pos``, which are no record."""
        content, limit = commit.content, len(commit.content)
        if not commit.headed and not any(content[pos:]):
            return limit  # padding: its length is not known
        word = _RECORD.unpack_from(content, pos)[0]
        following: int = pos + RECORD_HEADER_BYTES + (word & PAYLOAD_BYTES_MAX)
        if following != limit and not self._whole_at(content, following):
            following = limit
        torn = not commit.written and self._next_commit(commit.end) is None
        self._note_damage(commit.start + pos, commit.start + following, torn)
        return following

    def _note_damage(self, start: int, end: int, torn: bool) -> None:
        base = self._base
        self.damages.append(Damage(self._file_id, base + start, base + end, torn))

    def _whole_at(self, content: bytes, pos: int) -> bool:
        if pos + RECORD_HEADER_BYTES > len(content):
            return False
        word, crc = _RECORD.unpack_from(content, pos)
        stop = pos + RECORD_HEADER_BYTES + (word & PAYLOAD_BYTES_MAX)
        if word >> 28 not in KINDS or stop > len(content):
            return False
        payload = content[pos + RECORD_HEADER_BYTES : stop]
        return bool(crc32c(payload, crc32c(_WORD.pack(word), self._seed)) == crc)

    def _next_commit(self, pos: int) -> int | None:
        """The first commit with a whole COMMIT record at or after ``pos``, a block's start."""
        first, plain = pos // BLOCK_BYTES, _WORD.unpack(UNSTAMPED_COMMIT_WORD)[0]
        for block, word in enumerate(self._words[first:], first):
            begins = word and (word == plain or self._begins(word, block))
            if begins and self._headed_commit(block * BLOCK_BYTES) is not None:
                return block * BLOCK_BYTES
        return None

    def _begins(self, word: int, block: int) -> bool:
        return begins_commit(word, self._seed, self._first_block + block)
