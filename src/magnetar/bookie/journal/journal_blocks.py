"""Stamped blocks: which 512-byte blocks of a commit were ever written, whatever they hold now.

Pure. A device writes whole sectors; of a write that power cut short any of them may be missing,
and a missing one still holds what it held before. So the first word of each block of a commit is
its *stamp*, the same in all of them, inverted in the last one, and other than in every earlier
life of the file. The words that the stamps displace go to a table that ends the commit::

    block    0                1               ...   n - 1
             stamp|508 bytes  stamp|508 bytes       ~stamp|...|table: n - 1 words

The first block's own word is not in the table, since it is always the same.

Invariants:

* A commit whose n blocks carry the stamp, the inverted one in the last, was written to its end.
  What is unreadable in it was damaged afterwards, not torn.
* Stamps differ between places in a file, between files, and between attempts at one place.
  Nothing of them is taken from the records, so damage to those cannot make a stamp.
"""

from __future__ import annotations

import struct
from array import array

BLOCK_BYTES = 512
WORD_BYTES = 4
ATTEMPTS = 16
"""So many writes at one place are told apart."""

_BLOCK_WORDS = BLOCK_BYTES // WORD_BYTES
_NET_BYTES = BLOCK_BYTES - WORD_BYTES
_WORD = struct.Struct(">I")
_MASK = (1 << 32) - 1
_PLACE_BITS = 28
_PLACE_MASK = (1 << _PLACE_BITS) - 1
_FACTOR = 0x9E3779B1  # odd, so multiplying by it can be undone
_INVERSE = pow(_FACTOR, -1, 1 << 32)


def blocks_of(content_bytes: int) -> int:
    """How many blocks a commit of so many bytes takes, its table included."""
    return max(1, -(-(content_bytes - WORD_BYTES) // _NET_BYTES))


def content_bytes_max(blocks: int) -> int:
    """Where the table of a commit of so many blocks begins."""
    return blocks * BLOCK_BYTES - (blocks - 1) * WORD_BYTES


def stamp_of(seed: int, block: int, attempt: int) -> int:
    """The stamp of a commit that begins at that block of the file with that seed."""
    place = attempt % ATTEMPTS << _PLACE_BITS | block & _PLACE_MASK
    return place * _FACTOR & _MASK ^ seed


def is_stamp(word: int, seed: int, block: int) -> bool:
    """Whether this is a stamp, not inverted, of a commit that begins at that block."""
    return (word ^ seed) * _INVERSE & _PLACE_MASK == block & _PLACE_MASK


def stamp(content: bytearray, seed: int, block: int, attempt: int) -> None:
    """Stamp a commit, in place: ``blocks_of`` blocks that end with room for the table."""
    value = stamp_of(seed, block, attempt)
    words = memoryview(content).cast("I")
    count = len(words) // _BLOCK_WORDS
    stamps = array("I", _WORD.pack(value)) * count
    stamps[-1] ^= _MASK
    if count > 1:
        words[1 - count :] = words[_BLOCK_WORDS::_BLOCK_WORDS]
        table = len(words) - count  # word ``table + j`` is that of block j
        for j in range(-(-(table + 1) // _BLOCK_WORDS), count):  # blocks that begin in the table
            words[table + j] = words[j * _BLOCK_WORDS]
    words[::_BLOCK_WORDS] = memoryview(stamps)


def restored(data: bytes, first: bytes) -> bytes:
    """The content of a stamped commit, with its table; ``first`` is the word it begins with."""
    content = bytearray(data)
    words = memoryview(content).cast("I")
    count = len(words) // _BLOCK_WORDS
    if count > 1:
        table = len(words) - count
        for j in range(count - 1, table // _BLOCK_WORDS, -1):
            words[j * _BLOCK_WORDS] = words[table + j]
        words[_BLOCK_WORDS::_BLOCK_WORDS] = words[1 - count :]
    content[:WORD_BYTES] = first
    return bytes(content)


def first_words(data: bytes) -> tuple[int, ...]:
    """The first word of each block."""
    words = memoryview(data).cast("I")[::_BLOCK_WORDS]
    return struct.unpack(f">{len(words)}I", words.tobytes())


def written_blocks(words: tuple[int, ...], seed: int, block: int) -> int:
    """How many blocks the commit has that begins at ``block``, if every one was written; else 0.
    ``words``: the first words of the blocks from there on."""
    value = words[0]
    if is_stamp(value ^ _MASK, seed, block):
        return 1
    if not is_stamp(value, seed, block):
        return 0
    for index, word in enumerate(words):
        if word != value:
            return index + 1 if word == value ^ _MASK else 0
    return 0


def begins_commit(word: int, seed: int, block: int) -> bool:
    """Whether a block with this first word was written as the first one of a commit."""
    return is_stamp(word, seed, block) or is_stamp(word ^ _MASK, seed, block)


def ends_commit(word: int, seed: int, block: int) -> bool:
    """Whether a block with this first word was written as the last one of a commit."""
    return 0 < ((word ^ _MASK ^ seed) * _INVERSE & _PLACE_MASK) <= block
