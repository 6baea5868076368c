"""Ledger metadata against BookKeeper's bytes, round trips, and damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import MetadataFormatError
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.wire.bookie.metadata import (
    VERSION_KEY,
    decode_ledger_metadata,
    encode_ledger_metadata,
)

BOOKIES = tuple(BookieId(f"192.0.2.{n}:3181") for n in (1, 2, 3))

# What BookKeeper 4.18 writes for ledgers of ensemble 3 and write quorum 2, field by field.
V3 = VERSION_KEY + b"3\n" + bytes.fromhex(
    "60"  # the length of the message: 96
    "0802"  # write quorum 2
    "1003"  # ensemble size 3
    "1800"  # length 0
    "20ffffffffffffffffff01"  # last entry -1
    "2801"  # state OPEN
    "3232"  # a fragment of 50 bytes
    "0a0e3139322e302e322e313a33313831"  # 192.0.2.1:3181
    "0a0e3139322e302e322e323a33313831"
    "0a0e3139322e302e322e333a33313831"
    "1000"  # from entry 0
    "3803"  # digest CRC32C
    "4206666f6f626172"  # password "foobar"
    "4801"  # ack quorum 1
    "50ffffffffffffffffff01"  # creation time -1, "unknown"
    "6000"  # creator token 0
)  # fmt: skip

V2 = (
    VERSION_KEY
    + b"""2
quorumSize: 2
ensembleSize: 3
length: 0
lastEntryId: -1
state: IN_RECOVERY
segment {
  ensembleMember: "192.0.2.1:3181"
  ensembleMember: "192.0.2.2:3181"
  ensembleMember: "192.0.2.3:3181"
  firstEntryId: 0
}
digestType: CRC32
password: "passwd"
ackQuorumSize: 2
ctime: 1544002383075
"""
)

V1 = VERSION_KEY + b"1\n2\n3\n0\n0\t192.0.2.1:3181\t192.0.2.2:3181\t192.0.2.3:3181\n-102\tCLOSED"

V3_METADATA = LedgerMetadata(
    ledger_id=LedgerId(59),
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=1,
    digest_type=DigestType.CRC32C,
    password=b"foobar",
    fragments=(Fragment(0, BOOKIES),),
    ctime_ms=-1,
)


def v3(body: bytes) -> bytes:
    assert len(body) < 128
    return VERSION_KEY + b"3\n" + bytes([len(body)]) + body


V3_BODY = V3[len(VERSION_KEY) + 3 :]


# -- BookKeeper's bytes ---------------------------------------------------------------------------


def test_version_3() -> None:
    assert decode_ledger_metadata(59, V3) == V3_METADATA
    assert encode_ledger_metadata(V3_METADATA) == V3


def test_version_2() -> None:
    metadata = decode_ledger_metadata(59, V2)
    assert metadata == LedgerMetadata(
        ledger_id=LedgerId(59),
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        digest_type=DigestType.CRC32,
        password=b"passwd",
        fragments=(Fragment(0, BOOKIES),),
        state=LedgerState.IN_RECOVERY,
        ctime_ms=1544002383075,
        format_version=2,
    )
    assert encode_ledger_metadata(metadata) == V2


def test_version_2_without_creation_time() -> None:
    data = V2.replace(b"ctime: 1544002383075\n", b"")
    assert encode_ledger_metadata(decode_ledger_metadata(1, data)) == data


def test_version_2_of_old_writers() -> None:
    """No ack quorum: it is the write quorum; no password: no password."""
    data = V2.replace(b"ackQuorumSize: 2\n", b"").replace(b'password: "passwd"\n', b"")
    metadata = decode_ledger_metadata(1, data)
    assert (metadata.ack_quorum, metadata.password) == (2, b"")


def test_version_1() -> None:
    metadata = decode_ledger_metadata(59, V1)
    assert metadata.state is LedgerState.IN_RECOVERY
    assert (metadata.write_quorum, metadata.ack_quorum, metadata.ensemble_size) == (2, 2, 3)
    assert (metadata.last_entry_id, metadata.length) == (-1, 0)
    assert encode_ledger_metadata(metadata) == V1


@pytest.mark.parametrize(
    ("end", "state", "last_entry_id", "length"),
    [(b"", LedgerState.OPEN, -1, 0), (b"41\tCLOSED", LedgerState.CLOSED, 41, 1000)],
)
def test_version_1_open_and_closed(
    end: bytes, state: LedgerState, last_entry_id: int, length: int
) -> None:
    data = V1.replace(b"-102\tCLOSED", end).replace(b"2\n3\n0\n", b"2\n3\n%d\n" % length)
    metadata = decode_ledger_metadata(1, data)
    assert (metadata.state, metadata.last_entry_id) == (state, last_entry_id)
    assert metadata.length == length
    assert encode_ledger_metadata(metadata) == data


def test_an_end_counts_only_when_closed() -> None:
    body = V3_BODY.replace(b"\x18\x00", b"\x18\x63").replace(
        bytes.fromhex("20ffffffffffffffffff01"), b"\x20\x07"
    )
    open_one = decode_ledger_metadata(1, v3(body))
    assert (open_one.last_entry_id, open_one.length) == (-1, 0)
    closed = decode_ledger_metadata(1, v3(body.replace(b"\x28\x01", b"\x28\x03")))
    assert (closed.last_entry_id, closed.length) == (7, 99)


# -- newer writers --------------------------------------------------------------------------------


def test_unknown_fields_are_kept() -> None:
    data = v3(V3_BODY + b"\xa2\x06\x03abc" + b"\xa8\x06\x05")  # fields 100 and 101
    metadata = decode_ledger_metadata(59, data)
    assert metadata.unknown_fields == b"\xa2\x06\x03abc\xa8\x06\x05"
    assert encode_ledger_metadata(metadata) == data
    closed = decode_ledger_metadata(59, encode_ledger_metadata(metadata.with_close(3, 9)))
    assert closed.unknown_fields == metadata.unknown_fields
    assert closed.last_entry_id == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x28\x01", b"\x28\x09"),  # state 9
        (b"\x38\x03", b"\x38\x09"),  # digest type 9
        (b"\x32\x32", b"\x32\x34"),  # a fragment with ...
    ],
)
def test_what_would_be_lost_is_refused(old: bytes, new: bytes) -> None:
    body = V3_BODY.replace(old, new)
    if old == b"\x32\x32":
        body = body.replace(b"\x10\x00\x38", b"\x10\x00\x78\x01\x38")  # ... an unknown field 15
    with pytest.raises(MetadataFormatError, match=r"ledger 59.*newer BookKeeper"):
        decode_ledger_metadata(59, v3(body))


# -- round trips ----------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), min_size=1, max_size=20)


@st.composite
def ledgers(draw: st.DrawFn, versions: tuple[int, ...] = (2, 3)) -> LedgerMetadata:
    ack = draw(st.integers(1, 4))
    write = draw(st.integers(ack, 5))
    size = draw(st.integers(write, 6))
    version = draw(st.sampled_from(versions))
    first_ids = sorted(draw(st.sets(st.integers(0, 2**62), min_size=1, max_size=4)))
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=LedgerId(draw(st.integers(0, 2**63 - 1))),
        ensemble_size=size,
        write_quorum=write,
        ack_quorum=ack if version > 1 else write,
        digest_type=draw(st.sampled_from(DigestType)) if version > 1 else DigestType.CRC32,
        password=draw(st.binary(max_size=30)) if version > 1 else b"",
        fragments=tuple(
            Fragment(first, tuple(BookieId(draw(names)) for _ in range(size)))
            for first in first_ids
        ),
        state=state,
        last_entry_id=draw(st.integers(-1, 2**63 - 1)) if closed else -1,
        length=draw(st.integers(0, 2**63 - 1)) if closed else 0,
        ctime_ms=draw(st.integers(-1, 2**62)) if version > 1 else 0,
        creator_token=draw(st.integers(0, 2**63 - 1)) if version > 2 else 0,
        custom=tuple(draw(st.lists(st.tuples(names, st.binary(max_size=9)), max_size=3)))
        if version > 1
        else (),
        format_version=version,
    )


@given(ledgers())
def test_round_trip(metadata: LedgerMetadata) -> None:
    assert decode_ledger_metadata(metadata.ledger_id, encode_ledger_metadata(metadata)) == metadata


@given(ledgers(versions=(1,)).filter(lambda m: m.last_entry_id != -102))
def test_round_trip_version_1(metadata: LedgerMetadata) -> None:
    assert decode_ledger_metadata(metadata.ledger_id, encode_ledger_metadata(metadata)) == metadata


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not start with"),
        (b"garbage", "does not start with"),
        (VERSION_KEY, "no number"),
        (VERSION_KEY + b"foobar\nblah", "no number"),
        (VERSION_KEY + b"123456789123456789\n", "no number"),
        (VERSION_KEY + b"4\nblah", "version is 4"),
        (VERSION_KEY + b"0\nblah", "version is 0"),
        (VERSION_KEY + b"3\n", "length"),
        (VERSION_KEY + b"3\n\xff\xff\xff\xff\xff\xff", "32 bits"),
        (V3[:-1], "cut off"),
        (v3(V3_BODY[2:]), "missing"),
        (v3(V3_BODY.replace(b"\x10\x00\x38", b"\x78\x00\x38")), "ledger 59"),
        (v3(V3_BODY[:17] + V3_BODY[69:]), "fragment"),
        (VERSION_KEY + b"2\nquorumSize: two\n", "ledger 59"),
        (VERSION_KEY + b"2\n\xff\xfe\n", "ledger 59"),
        (VERSION_KEY + b"1\n2\n3\n", "lines"),
        (VERSION_KEY + b"1\n2\n3\nx\n0\ta\tb\tc\n", "ledger 59"),
        (V1.replace(b"\n2\n3\n", b"\n4\n3\n"), "E >= Qw >= Qa"),
        (V1.replace(b"192.0.2.1:3181\t", b""), "2 bookies, not 3"),
        (V1.replace(b"192.0.2.1:3181\t", b"\t"), "without a name"),
        (V2.replace(b"firstEntryId: 0", b"firstEntryId: -1"), "fragment -1"),
        (V2.replace(b"IN_RECOVERY", b"CLOSED").replace(b"lastEntryId: -1\n", b""), "last entry"),
        (V2.replace(b"IN_RECOVERY", b"CLOSED").replace(b"length: 0", b"length: -5"), "length"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(MetadataFormatError, match=message) as caught:
        decode_ledger_metadata(59, data)
    assert "ledger 59" in str(caught.value)


def test_fragments_out_of_order_are_refused() -> None:
    """The order that the recovery bug BookKeeper #2615 could write."""
    segment = V2[V2.index(b"segment") : V2.index(b"digestType")]
    for first in (b"0", b"5"):
        twice = segment.replace(b": 0", b": 5") + segment.replace(b": 0", b": " + first)
        with pytest.raises(MetadataFormatError, match="does not follow fragment 5"):
            decode_ledger_metadata(1, V2.replace(segment, twice))


@pytest.mark.parametrize("original", [V1, V2, V3], ids=["v1", "v2", "v3"])
def test_random_damage_is_an_error_or_a_ledger(original: bytes) -> None:
    chance = random.Random(7)
    readable = 0
    for _ in range(3000):
        data = bytearray(original)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            kind = chance.randrange(3)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                del data[at : at + chance.randint(1, 5)]
            else:
                data[at:at] = chance.randbytes(chance.randint(1, 5))
        try:
            metadata = decode_ledger_metadata(59, bytes(data))
        except MetadataFormatError:
            continue
        readable += 1
        again = decode_ledger_metadata(59, encode_ledger_metadata(metadata))
        assert again == metadata
    assert 0 < readable < 3000
