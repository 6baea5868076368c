from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import (
    BadRequestError,
    BookieVersionError,
    FencedError,
    NoEntryError,
    ProtocolError,
    UnknownLedgerStateError,
)
from magnetar.model.ledger import DigestType
from magnetar.speedups import decode_add_answers, join_entries
from magnetar.wire.bookie import v2
from magnetar.wire.bookie.digest import EntryDigest
from magnetar.wire.bookie.messages import (
    READ_STORED,
    AddRun,
    Auth,
    BatchRead,
    Read,
    Refused,
    Request,
)

KEY = bytes(range(20))
OTHER_KEY = b"o" * 20
IDS = st.integers(0, 2**63 - 1)


def frames(data: bytes) -> tuple[memoryview, list[tuple[int, int]]]:
    """Split whole frames, as a connection does."""
    bounds, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        assert at + 4 + size <= len(data), "a frame is cut off"
        bounds.append((at + 4, at + 4 + size))
        at += 4 + size
    return memoryview(bytearray(data)), bounds


def requests(data: bytes) -> list[Request]:
    found, end = v2.decode_requests(memoryview(bytearray(data)), 0, len(data), len(data))
    assert end == len(data)
    return found


def answers(data: bytes) -> list[v2.Answer]:
    return v2.decode_answers(*frames(data))


def entry(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    return EntryDigest(DigestType.CRC32C, ledger_id, b"").build(entry_id, entry_id - 1, 0, payload)


def adds(entries: Sequence[bytes], key: bytes = KEY, flags: int = 0) -> bytes:
    parts, byte_count = v2.encode_adds(key, entries, flags)
    data = b"".join(parts)
    assert len(data) == byte_count
    return data


# -- golden frames, built by hand from the description of the format --------------------------


def test_golden_add() -> None:
    body = entry(5, 9, b"payload")
    golden = struct.pack(">I", 4 + 20 + len(body)) + bytes([2, 1, 0, 0]) + KEY + body
    assert adds([body]) == golden
    (run,) = requests(golden)
    assert isinstance(run, AddRun)
    assert (run.ledger_id, run.entry_ids, run.entries) == (5, [9], [body])
    assert (run.master_key, run.flags) == (KEY, 0)
    assert adds([body], flags=1)[4:8] == bytes([2, 1, 0, 2]), "RECOVERY_ADD is bit 2"
    assert adds([body], flags=3)[4:8] == bytes([2, 1, 0, 6]), "HIGH_PRIORITY is bit 4"


def test_golden_read() -> None:
    plain = bytes.fromhex("000000140202000000000000000000050000000000000009")
    assert v2.encode_read(5, 9, 0, KEY) == plain
    assert requests(plain) == [Read(0, 5, 9, 0, b"")]
    fencing = bytes.fromhex("00000028020200010000000000000005ffffffffffffffff") + KEY
    assert v2.encode_read(5, -1, 1, KEY) == fencing
    assert requests(fencing) == [Read(0, 5, -1, 1, KEY)]


def test_golden_batch_read() -> None:
    golden = bytes.fromhex(
        "00000028" "02070000" "0000000000000005" "0000000000000009"
        "0000000000000003" "00000064" "0000000000010000"
    )  # fmt: skip
    request = BatchRead(3, 5, 9, 0, b"", 100, 65536)
    assert v2.encode_batch_read(request) == golden
    assert requests(golden) == [request]


def test_golden_answers() -> None:
    added = bytes.fromhex(
        "00000018" "02010000" "00000000" "0000000000000005" "0000000000000009"
        "00000018" "02010000" "00000000" "0000000000000005" "000000000000000a"
    )  # fmt: skip
    assert v2.encode_add_answers(5, [9, 10], None) == added
    assert answers(added) == [v2.V2AddAnswers(5, 0, [9, 10])]
    fenced = bytes.fromhex("00000018020100000000006800000000000000050000000000000009")
    assert v2.encode_add_answers(5, [9], FencedError("x")) == fenced
    missing = bytes.fromhex("00000018020200000000000200000000000000050000000000000009")
    assert v2.encode_error_answer(v2.READ, 5, 9, NoEntryError("x")) == missing
    assert answers(missing) == [v2.ReadAnswer(5, 9, 2, b"")]
    found = bytes.fromhex("0000001b020200000000000000000000000000050000000000000009")
    assert v2.encode_read_answer(5, 9, 3) == found
    assert answers(found + b"abc") == [v2.ReadAnswer(5, 9, 0, b"abc")]


def batch_answer(entries: list[bytes]) -> bytes:
    answer = join_entries(entries, v2.BATCH_HEAD_BYTES)
    v2.put_batch_head(answer, BatchRead(3, 5, 9, 0, b"", 0, 0), len(answer))
    return bytes(answer)


def test_a_batch_read_from_the_disk_has_a_bit_of_ours() -> None:
    request = BatchRead(3, 5, 9, READ_STORED, b"", 100, 65536)
    data = v2.encode_batch_read(request)
    assert data[6:8] == b"\x40\x00"
    assert v2.decode_requests(memoryview(data), 0, len(data), 1 << 20) == ([request], len(data))


def test_golden_batch_read_answer() -> None:
    golden = bytes.fromhex(
        "0000002d" "02070000" "00000000" "0000000000000005" "0000000000000009"
        "0000000000000003" "00000003" "616263" "00000002" "6465"
    )  # fmt: skip
    assert batch_answer([b"abc", b"de"]) == golden
    assert answers(golden) == [v2.BatchReadAnswer(3, 0, [b"abc", b"de"])]


def test_large_entries_of_what_stays_are_not_copied() -> None:
    large = [bytes([n]) * (v2.VIEW_BYTES_MIN + n) for n in range(3)] + [b"small"]
    view, bounds = frames(batch_answer(large))
    (answer,) = v2.decode_answers(view, bounds, stays=True)
    assert isinstance(answer, v2.BatchReadAnswer)
    assert list(answer.entries) == large
    view[-1] = 0x21
    assert answer.entries[3] == b"smal!", "a part of what was received"
    (answer,) = v2.decode_answers(*frames(batch_answer([b"small", *large])), stays=True)
    assert isinstance(answer, v2.BatchReadAnswer)
    assert {type(each) for each in answer.entries} == {bytes}
    data = bytearray(batch_answer(large)[:-2])
    data[:4] = struct.pack(">I", len(data) - 4)
    with pytest.raises(ProtocolError, match=r"an entry of 5 bytes.*; 3 left"):
        v2.decode_answers(*frames(bytes(data)), stays=True)


def test_golden_auth() -> None:
    name = b"AuthDisabledPlugin"
    message = b"\x0a" + bytes([len(name)]) + name + b"\x12\x00"
    golden = struct.pack(">I", 4 + len(message)) + bytes([2, 3, 0, 0]) + message
    assert v2.encode_auth("AuthDisabledPlugin", b"") == golden
    assert requests(golden) == [Auth(0, "AuthDisabledPlugin", b"")]
    assert answers(golden) == [Auth(0, "AuthDisabledPlugin", b"")]


def test_limbo_leaves_as_an_io_error() -> None:
    """107 makes BookKeeper's version 2 client throw."""
    frame = v2.encode_error_answer(v2.READ, 5, 9, UnknownLedgerStateError("x"))
    assert struct.unpack_from(">i", frame, 8) == (101,)


# -- runs -------------------------------------------------------------------------------------


def shape(found: Sequence[Request]) -> list[object]:
    return [
        (r.ledger_id, r.entry_ids, r.flags, r.master_key) if isinstance(r, AddRun) else r
        for r in found
    ]


def test_adds_of_one_ledger_are_one_run() -> None:
    data = adds([entry(5, i) for i in range(100)])
    assert shape(requests(data)) == [(5, list(range(100)), 0, KEY)]


def test_interleaved_ledgers_are_one_run_each() -> None:
    data = adds([entry(ledger, i) for i in range(10) for ledger in (1, 2, 3)])
    assert shape(requests(data)) == [(ledger, list(range(10)), 0, KEY) for ledger in (1, 2, 3)]


def test_flags_and_keys_separate_runs() -> None:
    data = (
        adds([entry(5, 0)])
        + adds([entry(5, 1)], flags=1)
        + adds([entry(5, 2)], key=OTHER_KEY)
        + adds([entry(5, 3)])
    )
    assert shape(requests(data)) == [
        (5, [0, 3], 0, KEY), (5, [1], 1, KEY), (5, [2], 0, OTHER_KEY)
    ]  # fmt: skip


def test_no_entry_id_occurs_twice_in_a_run() -> None:
    data = adds([entry(5, i) for i in (0, 1, 1, 2, 0, 7)])
    assert shape(requests(data)) == [
        (5, [0, 1], 0, KEY), (5, [1, 2], 0, KEY), (5, [0, 7], 0, KEY)
    ]  # fmt: skip


def test_other_requests_keep_their_place_among_adds() -> None:
    """A fence between two adds of one ledger must stay between them."""
    fence = v2.encode_read(5, -1, 1, KEY)
    data = adds([entry(5, 0)]) + fence + adds([entry(5, 1)])
    assert shape(requests(data)) == [(5, [0], 0, KEY), Read(0, 5, -1, 1, KEY), (5, [1], 0, KEY)]


def test_entries_are_copied_out_of_the_receive_buffer() -> None:
    view = memoryview(bytearray(adds([entry(5, 0, b"payload")])))
    (run,), _ = v2.decode_requests(view, 0, len(view), len(view))
    view[:] = bytes(len(view))
    assert isinstance(run, AddRun)
    assert run.entries == [entry(5, 0, b"payload")]


@pytest.mark.parametrize("kind", ["add", "read"])
def test_decoding_ends_at_a_frame_that_is_not_whole(kind: str) -> None:
    last = adds([entry(5, 7)]) if kind == "add" else v2.encode_read(5, 7, 0, KEY)
    before, data = b"older", adds([entry(5, 0), entry(6, 0)]) + v2.encode_read(5, 0, 0, KEY)
    whole = len(before) + len(data)
    view = memoryview(bytearray(before + data + last))
    for end in range(whole, len(view)):
        found, stop = v2.decode_requests(view, len(before), end, 1000)
        assert (len(found), stop) == (3, whole)
    assert v2.decode_requests(view, len(before), len(view), 1000)[1] == len(view)


def test_decoding_ends_at_a_frame_that_is_too_large() -> None:
    small, large = adds([entry(5, 0)]), adds([entry(5, 1, b"payload")])
    view = memoryview(bytearray(small + large + small))
    for limit, stop in ((len(small) - 5, 0), (len(small) - 4, len(small)), (1000, len(view))):
        assert v2.decode_requests(view, 0, len(view), limit)[1] == stop


# -- what cannot be served --------------------------------------------------------------------


def refusal(data: bytes) -> Refused:
    (found,) = requests(data)
    assert isinstance(found, Refused)
    return found


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def test_ids_below_zero_are_refused() -> None:
    assert isinstance(refusal(adds([entry(5, -1)])).error, BadRequestError)
    assert isinstance(refusal(adds([entry(-5, 1)])).error, BadRequestError)
    assert isinstance(refusal(v2.encode_read(5, -2, 0, b"")).error, BadRequestError)
    assert isinstance(
        refusal(v2.encode_batch_read(BatchRead(3, 5, -1, 0, b"", 1, 1))).error, BadRequestError
    )


def test_an_add_without_a_whole_header_is_refused() -> None:
    found = refusal(adds([entry(5, 9)[:31]]))
    assert (found.operation, found.ledger_id, found.entry_id) == (v2.ADD, 5, 9)
    assert isinstance(found.error, BadRequestError)


def test_other_versions_are_refused_with_bad_version() -> None:
    data = bytearray(adds([entry(5, 9)]))
    data[4] = 1
    found = refusal(bytes(data))
    assert (found.ledger_id, found.entry_id) == (5, 9)
    assert isinstance(found.error, BookieVersionError)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x02\x01",
        b"\x02\x09\x00\x00" + bytes(60),  # no such operation
        b"\x02\x01\x00\x00" + bytes(30),  # an add without ids
        b"\x02\x02\x00\x00" + bytes(15),  # a short read
        b"\x02\x02\x00\x01" + bytes(16),  # fencing without a master key
        b"\x02\x07\x00\x00" + bytes(35),  # a short batch read
        b"\x02\x03\x00\x00\xff\xff",  # no AuthMessage
        b"\x02\x03\x00\x00",  # an AuthMessage without its fields
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_request_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        requests(framed(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x02\x01\x00\x00" + bytes(10),
        b"\x01\x01\x00\x00" + bytes(20),
        b"\x02\x04\x00\x00" + bytes(20),
        b"\x02\x07\x00\x00" + bytes(20),  # no request id
        b"\x02\x07\x00\x00" + bytes(28) + b"\x00\x00",  # ends inside a size
        b"\x02\x07\x00\x00" + bytes(28) + b"\x00\x00\x00\x09abc",  # an entry past the end
        b"\x02\x07\x00\x00" + bytes(28) + b"\xff\xff\xff\xffabc",
    ],
)
def test_what_is_no_answer_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        answers(framed(body))


# -- round trips and garbage ------------------------------------------------------------------


@given(IDS, st.lists(st.tuples(IDS, st.binary(max_size=60)), min_size=1, max_size=20))
def test_adds_survive_the_wire(ledger_id: int, wanted: list[tuple[int, bytes]]) -> None:
    entries = [entry(ledger_id, entry_id, payload) for entry_id, payload in wanted]
    found = requests(adds(entries))
    runs = [run for run in found if isinstance(run, AddRun)]
    assert len(runs) == len(found)
    assert [e for run in runs for e in run.entries] == entries
    for run in runs:
        assert run.entry_ids == sorted(set(run.entry_ids))
        assert run.byte_count >= sum(map(len, run.entries))


@given(IDS, st.integers(-1, 2**63 - 1), st.integers(0, 3))
def test_reads_survive_the_wire(ledger_id: int, entry_id: int, flags: int) -> None:
    key = KEY if flags & 1 else b""
    assert requests(v2.encode_read(ledger_id, entry_id, flags, KEY)) == [
        Read(0, ledger_id, entry_id, flags, key)
    ]


@given(st.lists(st.tuples(IDS, st.sampled_from([0, 104]), IDS), min_size=1, max_size=30))
def test_add_answers_survive_the_wire(wanted: list[tuple[int, int, int]]) -> None:
    data = b"".join(
        v2.encode_add_answers(ledger, [entry_id], FencedError("x") if code else None)
        for ledger, code, entry_id in wanted
    )
    read = v2.encode_read_answer(1, 2, 3) + b"abc"
    for stream in (data, data + read):  # all adds at once, and mixed
        found = [a for a in answers(stream) if isinstance(a, v2.V2AddAnswers)]
        assert [(a.ledger_id, a.code, i) for a in found for i in a.entry_ids] == wanted


@given(
    st.lists(st.tuples(IDS, st.sampled_from([0, 104]), IDS), max_size=30),
    st.sampled_from([b"", v2.encode_read_answer(1, 2, 3) + b"abc", bytes(28), b"\0" * 27]),
    st.integers(0, 5),
)
def test_a_run_of_add_answers_is_found_at_the_front_of_a_chunk(
    wanted: list[tuple[int, int, int]], rest: bytes, before: int
) -> None:
    """What follows is left alone: an answer of another kind, another size, or a cut frame."""
    data = bytes(before) + b"".join(
        v2.encode_add_answers(ledger, [entry_id], FencedError("x") if code else None)
        for ledger, code, entry_id in wanted
    )
    view = memoryview(bytearray(data + rest))
    runs, end = decode_add_answers(view, before, len(view))
    assert [(ledger, code, i) for ledger, code, ids in runs for i in ids] == wanted
    assert end == len(data)
    places = [(ledger, code) for ledger, code, _ in runs]
    assert all(a != b for a, b in itertools.pairwise(places)), "a run is in two"


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=6))
def test_garbage_raises_nothing_but_a_protocol_error(bodies: list[bytes]) -> None:
    data = b"".join(map(framed, bodies))
    for decode in (requests, answers):
        try:
            decode(data)
        except ProtocolError:
            continue


def test_mutated_frames_raise_nothing_but_a_protocol_error() -> None:
    rng = random.Random(20)
    sound = [
        adds([entry(5, 9, b"payload")]),
        v2.encode_read(5, -1, 1, KEY),
        v2.encode_batch_read(BatchRead(3, 5, 9, 1, KEY, 100, 65536)),
        v2.encode_auth("AuthDisabledPlugin", b"abc"),
        v2.encode_add_answers(5, [9, 10], None),
        v2.encode_read_answer(5, 9, 3) + b"abc",
        batch_answer([b"a", b"bc"]),
    ]
    refused = 0
    for _ in range(20_000):
        body = bytearray(rng.choice(sound)[4:])
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        data = framed(bytes(body[: rng.randint(0, len(body))]))
        for decode in (requests, answers):
            try:
                decode(data)
            except ProtocolError:
                refused += 1
    assert refused > 1000
