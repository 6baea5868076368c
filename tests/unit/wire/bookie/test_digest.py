from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import DigestError
from magnetar.model.ledger import DigestType
from magnetar.wire.bookie.digest import EntryDigest, master_key

IDS = st.integers(0, 2**63 - 1)
TYPES = st.sampled_from(list(DigestType))
ALL_TYPES = pytest.mark.parametrize("digest_type", list(DigestType), ids=lambda t: t.name)
CHECKED = pytest.mark.parametrize(
    "digest_type", [t for t in DigestType if t is not DigestType.DUMMY], ids=lambda t: t.name
)


def test_the_master_key_is_sha1_of_ledger_and_password() -> None:
    assert master_key(b"pw") == hashlib.sha1(b"ledgerpw").digest()
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


def by_hand(digest_type: DigestType, header: bytes, payload: bytes) -> bytes:
    """The digests as BookKeeper describes them, computed over one joined string."""
    covered = header + payload
    if digest_type is DigestType.CRC32C:
        return struct.pack(">I", crc32c(covered))
    if digest_type is DigestType.CRC32:
        return struct.pack(">q", zlib.crc32(covered))
    if digest_type is DigestType.HMAC:
        return hmac.new(hashlib.sha1(b"macpw").digest(), covered, hashlib.sha1).digest()
    return b""


@ALL_TYPES
def test_an_entry_is_header_digest_payload(digest_type: DigestType) -> None:
    digest = EntryDigest(digest_type, 7, b"pw")
    header = struct.pack(">qqqq", 7, 3, 2, 100)
    entry = digest.build(3, 2, 100, memoryview(b"payload"))
    assert entry == header + by_hand(digest_type, header, b"payload") + b"payload"
    assert entry[digest.payload_offset :] == b"payload"
    assert digest.payload_offset == 32 + digest.digest_bytes


def test_crc32c_of_a_known_entry() -> None:
    """Fixed bytes, so that no change of a library goes unnoticed."""
    entry = EntryDigest(DigestType.CRC32C, 1, b"").build(0, -1, 5, b"hello")
    assert entry.hex() == (
        "0000000000000001" "0000000000000000" "ffffffffffffffff" "0000000000000005"
        + struct.pack(">I", crc32c(entry[:32] + b"hello")).hex()
        + "68656c6c6f"
    )  # fmt: skip
    assert crc32c(b"123456789") == 0xE3069283


@given(TYPES, IDS, IDS, st.integers(-1, 2**63 - 1), IDS, st.binary(max_size=300))
def test_what_is_built_verifies(
    digest_type: DigestType, ledger_id: int, entry_id: int, lac: int, length: int, payload: bytes
) -> None:
    digest = EntryDigest(digest_type, ledger_id, b"pw")
    entry = digest.build(entry_id, lac, length, payload)
    assert digest.verify(entry, entry_id) == (lac, length)
    assert digest.verify(entry, -1) == (lac, length)
    assert digest.verify_lac(digest.build_lac(lac)) == lac


@ALL_TYPES
def test_a_run_of_entries_is_those_entries_built_one_by_one(digest_type: DigestType) -> None:
    digest = EntryDigest(digest_type, 7, b"pw")
    payloads = [b"one", memoryview(b"three"), b"", bytearray(b"x" * 100)]
    lengths = [53, 58, 58, 158]
    entries, length = digest.build_run(10, 8, 50, payloads)
    one_by_one = zip(range(10, 14), lengths, payloads, strict=True)
    assert entries == [digest.build(i, 8, total, payload) for i, total, payload in one_by_one]
    assert length == 158


@given(st.sampled_from([t for t in DigestType if t is not DigestType.DUMMY]), st.data())
def test_any_changed_bit_is_found(digest_type: DigestType, data: st.DataObject) -> None:
    digest = EntryDigest(digest_type, 7, b"pw")
    entry = bytearray(digest.build(3, 2, 100, b"some payload"))
    bit = data.draw(st.integers(0, len(entry) * 8 - 1))
    entry[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DigestError):
        digest.verify(bytes(entry), 3)


@given(TYPES, st.binary(max_size=80))
def test_garbage_raises_nothing_but_a_digest_error(digest_type: DigestType, data: bytes) -> None:
    digest = EntryDigest(digest_type, 7, b"pw")
    for check in (lambda: digest.verify(data, 3), lambda: digest.verify_lac(data)):
        try:
            check()
        except DigestError:
            continue
        assert digest_type is DigestType.DUMMY, "garbage passed for an entry"


@CHECKED
def test_truncated_entries_are_found(digest_type: DigestType) -> None:
    digest = EntryDigest(digest_type, 7, b"pw")
    entry = digest.build(3, 2, 100, b"some payload")
    for size in range(len(entry)):
        with pytest.raises(DigestError):
            digest.verify(entry[:size], 3)


@ALL_TYPES
def test_a_sound_entry_of_another_place_is_refused(digest_type: DigestType) -> None:
    digest = EntryDigest(digest_type, 7, b"pw")
    other = EntryDigest(digest_type, 8, b"pw")
    with pytest.raises(DigestError, match="index is damaged"):
        digest.verify(digest.build(4, 2, 100, b""), 3)
    with pytest.raises(DigestError, match="index is damaged"):
        digest.verify(other.build(3, 2, 100, b""), 3)
    with pytest.raises(DigestError, match="ledger 8"):
        digest.verify_lac(other.build_lac(5))


def test_another_password_does_not_verify() -> None:
    entry = EntryDigest(DigestType.HMAC, 7, b"pw").build(3, 2, 100, b"payload")
    with pytest.raises(DigestError, match="password"):
        EntryDigest(DigestType.HMAC, 7, b"other").verify(entry, 3)


@ALL_TYPES
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_the_sound_entries_of_a_run_are_counted(
    digest_type: DigestType, kind: Callable[[bytes], bytes | memoryview]
) -> None:
    digest = EntryDigest(digest_type, 7, b"pw")
    run = [kind(digest.build(i, i - 1, 0, b"payload %d" % i)) for i in range(5, 10)]
    assert digest.sound_count(run, 5) == 5
    assert digest.sound_count([], 5) == 0
    assert digest.sound_count(run, 4) == 0
    assert digest.sound_count([*run[:3], run[4]], 5) == 3
    assert digest.sound_count([*run[:2], run[2][:20]], 5) == 2
    other = kind(EntryDigest(digest_type, 8, b"pw").build(8, 7, 0, b"payload 8"))
    assert digest.sound_count([*run[:3], other], 5) == 3
    if digest_type is not DigestType.DUMMY:
        assert digest.sound_count([run[0], kind(bytes(run[1][:-1]) + b"X")], 5) == 1
