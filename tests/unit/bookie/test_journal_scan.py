"""What survives in a damaged journal file, what is told of the rest; nothing is made up."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterator

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.journal.journal_blocks import BLOCK_BYTES
from magnetar.bookie.journal.journal_format import COMMIT_BYTES, ENTRY, encode_commit, seed_of
from magnetar.bookie.journal.journal_scan import FileScan

FILE_ID = 7
OLD_ID = 3
COMMITS = [[b"a" * 40, b"bb" * 300], [b"ccc" * 5], [b"d" * 2000, b"", b"e" * 9]]
LAST = [
    pytest.param([b"tiny"], id="one block"),
    pytest.param([], id="no records"),
    pytest.param([b"x" * 300, b"y" * 900, b"z" * 400], id="four blocks"),
    pytest.param([b"w" * (508 * 3 - 24)], id="a table that fills its block"),
]


def commit_of(payloads: list[bytes], block: int, file_id: int = FILE_ID, attempt: int = 0) -> bytes:
    return bytes(encode_commit([(ENTRY, payloads)], block, seed_of(file_id), block, attempt))


def file_of(commits: list[list[bytes]], file_id: int = FILE_ID) -> bytes:
    """The bytes after the header block."""
    data = b""
    for payloads in commits:
        data += commit_of(payloads, len(data) // BLOCK_BYTES + 1, file_id)
    return data


def scan(data: bytes, file_id: int = FILE_ID) -> tuple[list[bytes], FileScan]:
    found = FileScan(data, BLOCK_BYTES, file_id)
    return [record.payload for record in found.records()], found


def flat(commits: list[list[bytes]]) -> list[bytes]:
    return [payload for commit in commits for payload in commit]


# -- cut short by a crash ---------------------------------------------------------------------


def test_a_cut_anywhere_is_a_torn_tail() -> None:
    data = file_of(COMMITS)
    for length in range(0, len(data), 7):
        payloads, found = scan(data[:length])
        whole = [one for n, one in enumerate(COMMITS, 1) if len(file_of(COMMITS[:n])) <= length]
        assert payloads[: len(flat(whole))] == flat(whole)
        assert set(payloads) <= set(flat(COMMITS))
        assert all(damage.torn for damage in found.damages)


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"r"])
def test_an_overwritten_last_commit_is_torn(fill: bytes) -> None:
    data = file_of(COMMITS)
    start = len(file_of(COMMITS[:2]))
    for keep in range(0, len(data) - start, BLOCK_BYTES):
        torn = data[: start + keep]
        payloads, found = scan(torn + fill * (len(data) - len(torn)))
        assert payloads[:3] == flat(COMMITS[:2])
        assert all(damage.torn for damage in found.damages)
        assert set(payloads) <= set(flat(COMMITS))


def before(kind: str, length: int) -> bytes:
    """What the file held before."""
    if kind == "records of an earlier life":
        return file_of([[b"old" * 150, b"records" * 40]] * (length // 512), OLD_ID)[:length]
    if kind == "a commit that found no room":
        block = 1 + len(file_of(COMMITS)) // BLOCK_BYTES
        return bytes(len(file_of(COMMITS))) + commit_of([REFUSED], block, attempt=3)
    return {"zeros": bytes(length), "noise": random.Random(length).randbytes(length)}[kind]


REFUSED = b"refused" * 900
BEFORE = ["zeros", "noise", "records of an earlier life", "a commit that found no room"]


def losing(data: bytes, old: bytes, lost: tuple[int, ...]) -> bytes:
    """``data`` was written over ``old``, but those blocks did not make it."""
    left = bytearray(data + old[len(data) :])
    for block in lost:
        piece = slice(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
        left[piece] = old[piece]
    return bytes(left)


def every_loss(first: int, end: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, end - first + 1):
        yield from itertools.combinations(range(first, end), count)


@pytest.mark.parametrize("kind", BEFORE)
@pytest.mark.parametrize("last", LAST)
def test_a_commit_that_lacks_any_of_its_blocks_is_torn(last: list[bytes], kind: str) -> None:
    whole, data = file_of(COMMITS), file_of([*COMMITS, last])
    old = before(kind, len(data) + 4096)
    for lost in every_loss(len(whole) // BLOCK_BYTES, len(data) // BLOCK_BYTES):
        payloads, found = scan(losing(data, old, lost))
        assert payloads[:6] == flat(COMMITS)
        assert set(payloads[6:]) <= {*last, REFUSED}
        assert all(damage.torn for damage in found.damages), lost
        assert all(damage.start >= BLOCK_BYTES + len(whole) for damage in found.damages)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(st.binary(max_size=3000), min_size=1, max_size=30))
def test_a_commit_that_lacks_some_of_its_blocks_is_torn(
    draw: st.DataObject, last: list[bytes]
) -> None:
    whole, data = file_of(COMMITS), file_of([*COMMITS, last])
    first, end = len(whole) // BLOCK_BYTES, len(data) // BLOCK_BYTES
    lost = draw.draw(st.sets(st.integers(first, end - 1), min_size=1))
    old = before(draw.draw(st.sampled_from(BEFORE)), len(data))
    payloads, found = scan(losing(data, old, tuple(lost)))
    assert payloads[:6] == flat(COMMITS)
    assert all(damage.torn for damage in found.damages)


# -- damaged ----------------------------------------------------------------------------------


def told(found: FileScan) -> list[bool]:
    return [damage.torn for damage in found.damages]


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("kind", ["zeros", "records of an earlier life"])
def test_a_changed_byte_of_the_last_commit_is_no_torn_tail(last: list[bytes], kind: str) -> None:
    start, data = len(file_of(COMMITS)), file_of([*COMMITS, last])
    old = before(kind, len(data) + 4096)
    for offset in range(start, len(data)):
        for change in (0x01, 0x80, 0xFF):
            broken = bytearray(data + old[len(data) :])
            broken[offset] ^= change
            payloads, found = scan(bytes(broken))
            lost = len(COMMITS[2]) + 3 + len(last) - len(payloads)
            assert set(payloads) <= set(flat([*COMMITS, last]))
            headless = offset % BLOCK_BYTES >= 4 and offset < start + COMMIT_BYTES
            assert told(found) == ([False] if lost or headless else []), offset
            assert found.end == BLOCK_BYTES + len(data)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(st.binary(max_size=3000), min_size=1, max_size=30))
def test_damage_that_leaves_the_stamps_is_no_torn_tail(
    draw: st.DataObject, last: list[bytes]
) -> None:
    """Of any size, in any number of blocks, but behind the COMMIT record."""
    start, data = len(file_of(COMMITS)), file_of([*COMMITS, last])
    broken = bytearray(data)
    for block in draw.draw(st.sets(st.integers(start // 512, len(data) // 512 - 1), min_size=1)):
        noise = draw.draw(st.binary(min_size=1, max_size=480))
        at = block * BLOCK_BYTES + draw.draw(st.integers(COMMIT_BYTES, BLOCK_BYTES - len(noise)))
        broken[at : at + len(noise)] = noise
    payloads, found = scan(bytes(broken))
    assert payloads[:6] == flat(COMMITS)
    assert set(told(found)) <= {False}
    assert found.damages or payloads == flat([*COMMITS, last])


def test_a_commit_behind_it_tells_damage_from_a_torn_tail() -> None:
    """Also if that commit is torn itself, and the damage has the stamps too."""
    start, data = len(file_of(COMMITS[:2])), file_of(COMMITS)
    following = commit_of([b"f" * 900], len(data) // BLOCK_BYTES + 1)[:BLOCK_BYTES]
    for block in range(start // BLOCK_BYTES, len(data) // BLOCK_BYTES):
        broken = losing(data, bytes(len(data)), (block,))
        assert set(told(scan(broken)[1])) <= {True}
        payloads, found = scan(broken + following)
        assert payloads[:3] == flat(COMMITS[:2])
        assert any(damage == damage._replace(torn=False) for damage in found.damages)


def test_a_flipped_bit_costs_its_record_only_and_is_corruption() -> None:
    data, whole = file_of(COMMITS), flat(COMMITS)
    starts = [len(file_of(COMMITS[:count])) for count in range(3)]
    for offset in range(starts[2]):
        broken = bytearray(data)
        broken[offset] ^= 0x04
        payloads, found = scan(bytes(broken))
        assert all(payload in whole for payload in payloads)
        assert payloads[-3:] == COMMITS[2]
        lost = len(whole) - len(payloads)
        assert lost <= 2
        headless = any(start + 4 <= offset < start + COMMIT_BYTES for start in starts)
        assert told(found) == ([False] if lost or headless else []), offset


def test_a_flipped_bit_in_a_body_leaves_its_neighbours() -> None:
    data = bytearray(file_of([[b"one", b"two!", b"three"], [b"four"]]))
    data[data.index(b"two!")] ^= 1
    payloads, found = scan(bytes(data))
    assert payloads == [b"one", b"three", b"four"]
    assert told(found) == [False]


def test_a_damaged_commit_header_leaves_its_records() -> None:
    data = file_of([[b"one", b"two" * 900]])
    for offset in range(4, COMMIT_BYTES):
        broken = bytearray(data)
        broken[offset] ^= 0x40
        payloads, found = scan(bytes(broken))
        assert payloads == [b"one", b"two" * 900]
        assert told(found) == [False]


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


# -- files of version 1 -------------------------------------------------------------------------


def old_commit(payloads: list[bytes], sequence: int) -> bytes:
    """As version 1 wrote them: no stamps, no table, another kind of COMMIT record."""

    def record(kind: int, payload: bytes) -> bytes:
        word = struct.pack(">I", kind << 28 | len(payload))
        return word + struct.pack(">I", crc32c(word + payload, seed_of(FILE_ID))) + payload

    records = b"".join(record(ENTRY, payload) for payload in payloads)
    data = record(1, struct.pack(">QII", sequence, len(records), len(payloads))) + records
    return data + bytes(-len(data) % BLOCK_BYTES)


def test_commits_without_stamps_are_read() -> None:
    data = b"".join(old_commit(payloads, number) for number, payloads in enumerate(COMMITS))
    payloads, found = scan(data + bytes(2048))
    assert payloads == flat(COMMITS)
    assert found.damages == []
    assert found.end == BLOCK_BYTES + len(data)


def test_damage_in_a_last_commit_without_stamps_counts_as_torn() -> None:
    data = b"".join(old_commit(payloads, number) for number, payloads in enumerate(COMMITS))
    for victim, torn in ((b"bb" * 300, False), (b"d" * 2000, True)):
        broken = bytearray(data)
        broken[data.index(victim) + 100] ^= 1
        payloads, found = scan(bytes(broken))
        assert payloads == [payload for payload in flat(COMMITS) if payload != victim]
        assert told(found) == [torn]
