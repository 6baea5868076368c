"""The journal's bytes: what is written is found again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.journal.journal_blocks import BLOCK_BYTES
from magnetar.bookie.journal.journal_format import (
    ENTRY,
    LAC,
    LEDGER,
    FileHeader,
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
from magnetar.bookie.journal.journal_scan import FileScan

FILE_ID = 7


def file_of(commits: list[list[bytes]], file_id: int = FILE_ID) -> bytes:
    """The bytes after the header block."""
    data = bytearray()
    for number, payloads in enumerate(commits):
        block = len(data) // BLOCK_BYTES + 1
        data += encode_commit([(ENTRY, payloads)], number, seed_of(file_id), block)
    return bytes(data)


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
    groups = [(LEDGER, [b"l" * 29]), (ENTRY, [b"e" * 50] * 2), (LAC, [b"c" * 20])]
    commit = encode_commit(groups, 0, seed_of(1), block=1)
    assert len(commit) % BLOCK_BYTES == 0
    kinds = [record.kind for record in FileScan(bytes(commit), 512, 1).records()]
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
