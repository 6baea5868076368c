"""Stamps: put in and taken out again, and a block that was not written is seen."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.journal.journal_blocks import (
    ATTEMPTS,
    BLOCK_BYTES,
    begins_commit,
    blocks_of,
    content_bytes_max,
    first_words,
    restored,
    stamp,
    stamp_of,
    written_blocks,
)

SEED = 0x89ABCDEF
SIZES = [5, 511, 512, 513, 1016, 1020, 1021, 65_000, 1 << 20, 9 << 20]


def stamped(content: bytes, block: int = 1, attempt: int = 0) -> bytes:
    data = bytearray(content.ljust(blocks_of(len(content)) * BLOCK_BYTES, b"\0"))
    stamp(data, SEED, block, attempt)
    return bytes(data)


@pytest.mark.parametrize("size", SIZES)
def test_content_of_any_size_comes_back(size: int) -> None:
    content = random.Random(size).randbytes(size)
    data = stamped(content)
    assert len(data) == blocks_of(size) * BLOCK_BYTES
    assert size <= content_bytes_max(blocks_of(size)) <= len(data)
    assert restored(data, content[:4])[:size] == content


@given(st.binary(min_size=4, max_size=4000))
def test_content_comes_back_and_no_block_is_wasted(content: bytes) -> None:
    data = stamped(content)
    assert restored(data, content[:4])[: len(content)] == content
    blocks = len(data) // BLOCK_BYTES
    assert blocks == 1 or len(content) > content_bytes_max(blocks - 1)


@pytest.mark.parametrize("size", [5, 600, 5000])
def test_every_block_tells_that_it_is_there(size: int) -> None:
    data = stamped(b"x" * size, block=9)
    words = first_words(data + b"y" * 1024)
    blocks = len(data) // BLOCK_BYTES
    assert written_blocks(words, SEED, 9) == blocks
    for block in range(blocks):
        assert written_blocks((*words[:block], 0, *words[block + 1 :]), SEED, 9) == 0
    assert written_blocks(words[: blocks - 1] or (0,), SEED, 9) == 0


def test_stamps_differ_between_places_attempts_and_files() -> None:
    stamps = {
        stamp_of(seed, block, attempt)
        for seed in (SEED, SEED ^ 1)
        for block in range(2000)
        for attempt in range(ATTEMPTS)
    }
    assert len(stamps) == 2 * 2000 * ATTEMPTS
    word = stamp_of(SEED, 77, 5)
    assert begins_commit(word, SEED, 77)
    assert begins_commit(word ^ 0xFFFFFFFF, SEED, 77)
    assert not begins_commit(word, SEED, 78)
    assert not begins_commit(word, SEED ^ 1, 77)
