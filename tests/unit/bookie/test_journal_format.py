"""The journal's bytes: what is written is found again, and nothing else ever is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.journal_format import (
    BLOCK_BYTES,
    ENTRY,
    LAC,
    LEDGER,
    FileHeader,
    FileScan,
    commit_bytes,
    decode_delete,
    decode_file_header,
    decode_lac,
    decode_ledger,
    encode_commit,
    encode_delete,
    encode_file_header,
    encode_lac,
    encode_ledger,
    seed_of,
)

FILE_ID = 7
COMMITS = [[b"a" * 40, b"bb" * 300], [b"ccc" * 5], [b"d" * 2000, b"", b"e" * 9]]


def file_of(commits: list[list[bytes]], file_id: int = FILE_ID) -> bytes:
    """The bytes after the header block."""
    return b"".join(
        b"".join(encode_commit([(ENTRY, payloads)], number, seed_of(file_id))[0])
        for number, payloads in enumerate(commits)
    )


def scan(data: bytes, file_id: int = FILE_ID) -> tuple[list[bytes], FileScan]:
    found = FileScan(data, BLOCK_BYTES, file_id)
    return [record.payload for record in found.records()], found


def flat(commits: list[list[bytes]]) -> list[bytes]:
    return [payload for commit in commits for payload in commit]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=700), min_size=1, max_size=6), max_size=6))
def test_commits_round_trip(commits: list[list[bytes]]) -> None:
    data = file_of(commits)
    payloads, found = scan(data + bytes(4096))
    assert payloads == flat(commits)
    assert found.damages == []
    assert found.end == BLOCK_BYTES + len(data)
    assert len(data) == sum(commit_bytes(len(one), sum(map(len, one))) for one in commits)


def test_kinds_of_one_commit_keep_their_order() -> None:
    parts, size = encode_commit(
        [(LEDGER, [b"l" * 29]), (ENTRY, [b"e" * 50] * 2), (LAC, [b"c" * 20])], 0, seed_of(1)
    )
    assert sum(map(len, parts)) == size
    assert size % BLOCK_BYTES == 0
    kinds = [record.kind for record in FileScan(b"".join(parts), 512, 1).records()]
    assert kinds == [LEDGER, ENTRY, ENTRY, LAC]


def test_payloads_round_trip() -> None:
    assert decode_ledger(encode_ledger(2**62, b"k" * 20, True)) == (2**62, b"k" * 20, True)
    assert decode_ledger(encode_ledger(0, b"q" * 20, False)) == (0, b"q" * 20, False)
    assert decode_lac(encode_lac(3, -1, b"body")) == (3, -1, b"body")
    assert decode_delete(encode_delete(9)) == 9


def test_file_header_is_of_its_file_only() -> None:
    block = encode_file_header(FileHeader(FILE_ID, 6, 4096))
    assert len(block) == BLOCK_BYTES
    assert decode_file_header(block, FILE_ID) == FileHeader(FILE_ID, 6, 4096)
    assert decode_file_header(block, FILE_ID + 1) is None
    assert decode_file_header(bytes(BLOCK_BYTES), FILE_ID) is None
    assert decode_file_header(block[:100], FILE_ID) is None
    for offset in range(36):
        broken = bytearray(block)
        broken[offset] ^= 1
        assert decode_file_header(bytes(broken), FILE_ID) is None


def test_a_cut_anywhere_is_a_torn_tail_and_gives_the_prefix() -> None:
    data = file_of(COMMITS)
    whole = flat(COMMITS)
    for length in range(0, len(data), 7):
        payloads, found = scan(data[:length])
        assert payloads == whole[: len(payloads)]
        assert all(damage.torn for damage in found.damages)


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"r"])
def test_an_overwritten_last_commit_is_torn(fill: bytes) -> None:
    data = file_of(COMMITS)
    start = len(file_of(COMMITS[:2]))
    for keep in range(0, len(data) - start - 512, 100):
        torn = data[: start + keep]
        payloads, found = scan(torn + fill * (len(data) - len(torn)))
        assert payloads[:3] == flat(COMMITS[:2])
        assert all(damage.torn for damage in found.damages)
        assert set(payloads) <= set(flat(COMMITS))


def test_a_flipped_bit_costs_its_record_only_and_is_corruption() -> None:
    data = file_of(COMMITS)
    whole = flat(COMMITS)
    last_commit = len(file_of(COMMITS[:2]))
    padding_hits = 0
    for offset in range(last_commit):
        broken = bytearray(data)
        broken[offset] ^= 0x04
        payloads, found = scan(bytes(broken))
        lost = [payload for payload in whole if payload not in payloads]
        assert all(payload in whole for payload in payloads)
        assert payloads[-3:] == COMMITS[2]
        assert len(lost) <= 2
        if lost:
            assert found.damages
        if not found.damages:
            padding_hits += 1
        assert not any(damage.torn for damage in found.damages)
    assert padding_hits == 0


def test_a_flipped_bit_in_a_body_leaves_its_neighbours() -> None:
    data = bytearray(file_of([[b"one", b"two!", b"three"], [b"four"]]))
    data[data.index(b"two!")] ^= 1
    payloads, found = scan(bytes(data))
    assert payloads == [b"one", b"three", b"four"]
    assert [damage.torn for damage in found.damages] == [False]


def test_a_damaged_commit_header_leaves_its_records() -> None:
    data = bytearray(file_of([[b"one", b"two"]]))
    for offset in range(24):
        broken = bytearray(data)
        broken[offset] ^= 0x40
        payloads, found = scan(bytes(broken))
        assert payloads == [b"one", b"two"]
        assert len(found.damages) == 1


def test_records_of_an_earlier_life_of_the_file_never_come_back() -> None:
    old = file_of([[b"old" * 100] for _ in range(20)], file_id=3)
    new = file_of([[b"new"]])
    payloads, found = scan(new + old[len(new) :])
    assert payloads == [b"new"]
    assert found.damages == []
    assert scan(old)[0] == []


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=3000))
def test_garbage_is_never_a_record(data: bytes) -> None:
    assert scan(data)[0] == []


def test_random_damage_never_invents_a_record() -> None:
    rng = random.Random(5)
    data, whole = file_of(COMMITS * 4), set(flat(COMMITS))
    for _ in range(500):
        broken = bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            start = rng.randrange(len(broken))
            length = rng.choice((1, 8, 512, 1024))
            broken[start : start + length] = rng.randbytes(len(broken[start : start + length]))
        payloads, _ = scan(bytes(broken))
        assert set(payloads) <= whole
