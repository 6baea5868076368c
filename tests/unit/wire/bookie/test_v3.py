from __future__ import annotations

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
    MagnetarError,
    NoEntryError,
    ProtocolError,
    UnknownLedgerStateError,
)
from magnetar.model.ledger import DigestType
from magnetar.wire.bookie import bookie_pb2 as pb
from magnetar.wire.bookie import v2, v3
from magnetar.wire.bookie.digest import EntryDigest
from magnetar.wire.bookie.messages import (
    ADD_DEFERRED_SYNC,
    AddRun,
    Auth,
    ForceLedger,
    GetBookieInfo,
    ListEntries,
    Read,
    ReadLac,
    Refused,
    Request,
    WriteLac,
)
from magnetar.wire.bookie.status import v3_code

KEY = bytes(range(20))
IDS = st.integers(0, 2**63 - 1)
TXNS = st.integers(0, 2**63 - 1)


def frames(data: bytes) -> tuple[memoryview, list[tuple[int, int]]]:
    bounds, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        assert at + 4 + size <= len(data), "a frame is cut off"
        bounds.append((at + 4, at + 4 + size))
        at += 4 + size
    return memoryview(bytearray(data)), bounds


def requests(data: bytes) -> list[Request]:
    view, bounds = frames(data)
    found, taken = v3.decode_requests(view, bounds)
    assert taken == len(bounds), "a frame was not of version 3"
    return found


def answer(data: bytes) -> v3.Answer:
    view, [(start, end)] = frames(data)
    return v3.decode_answer(bytes(view[start:end]))


def response(data: bytes) -> pb.Response:
    """As the peer's protobuf library reads it."""
    view, [(start, end)] = frames(data)
    found = pb.Response.FromString(bytes(view[start:end]))
    assert found.IsInitialized()
    return found


def entry(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    return EntryDigest(DigestType.CRC32C, ledger_id, b"").build(entry_id, entry_id - 1, 0, payload)


def add(txn: int, ledger_id: int, entry_id: int, body: bytes, flags: int = 0) -> bytes:
    return b"".join(v3.encode_add(txn, ledger_id, entry_id, KEY, body, flags))


def framed(message: pb.Request) -> bytes:
    body = message.SerializePartialToString()
    return struct.pack(">I", len(body)) + body


# -- golden frames, written from the field numbers --------------------------------------------


def test_golden_read_lac_request() -> None:
    header = "0a06080310071805"  # version three, READ_LAC, transaction 5
    golden = bytes.fromhex("0000000d" + header + "c206020807")  # field 104: ledger 7
    assert v3.encode_read_lac(5, 7) == golden
    assert requests(golden) == [ReadLac(5, 7)]


def test_golden_fencing_read() -> None:
    message = pb.Request()
    message.header.version, message.header.operation = pb.VERSION_THREE, pb.READ_ENTRY
    message.header.txnId = 9
    message.readRequest.ledgerId, message.readRequest.entryId = 7, -1
    message.readRequest.flag = pb.ReadRequest.FENCE_LEDGER
    message.readRequest.masterKey = KEY
    read = Read(9, 7, -1, 1, KEY)
    assert requests(framed(message)) == [read]
    assert v3.encode_read(read) == framed(message)


def test_golden_add_answer() -> None:
    header = "0a06080310021805"
    golden = bytes.fromhex("00000013" + header + "1000aa0606080010071809")
    assert v3.encode_add_answers(7, [9], [5], None) == golden
    assert answer(golden) == v3.Answer(5, v3.ADD_ENTRY, 0, 7, 9)


def test_the_body_that_protobuf_did_not_write_is_read_by_protobuf() -> None:
    body = entry(7, 9, b"x" * 100_000)
    message = pb.Request.FromString(add(3, 7, 9, body, flags=3)[4:])
    assert message.IsInitialized()
    assert message.addRequest.body == body
    assert message.addRequest.flag == pb.AddRequest.RECOVERY_ADD
    assert (message.addRequest.ledgerId, message.addRequest.entryId) == (7, 9)
    assert message.header.priority > 0
    parts = v3.encode_read_answer(Read(3, 7, 9, 0, b""), 9, body, 8)
    found = response(b"".join(parts))
    assert found.readResponse.body == body
    assert (found.readResponse.entryId, found.readResponse.maxLAC) == (9, 8)
    assert parts[-1] is body, "the entry was copied"


# -- requests ---------------------------------------------------------------------------------


@given(TXNS, IDS, st.binary(max_size=50))
def test_requests_survive_the_wire(txn: int, ledger_id: int, body: bytes) -> None:
    data = (
        v3.encode_write_lac(WriteLac(txn, ledger_id, 5, KEY, body))
        + v3.encode_read_lac(txn, ledger_id)
        + v3.encode_force_ledger(txn, ledger_id)
        + v3.encode_list_entries(txn, ledger_id)
        + v3.encode_get_info(txn, 3)
        + v3.encode_auth(txn, "plugin", body)
    )
    assert requests(data) == [
        WriteLac(txn, ledger_id, 5, KEY, body),
        ReadLac(txn, ledger_id),
        ForceLedger(txn, ledger_id),
        ListEntries(txn, ledger_id),
        GetBookieInfo(txn, 3),
        Auth(txn, "plugin", body),
    ]


@given(TXNS, IDS, st.integers(-1, 2**63 - 1), st.sampled_from([0, 2]))
def test_reads_survive_the_wire(txn: int, ledger_id: int, entry_id: int, flags: int) -> None:
    read = Read(txn, ledger_id, entry_id, flags, b"")
    poll = Read(txn, ledger_id, -1, flags, b"", previous_lac=4, timeout_ms=100, piggyback=True)
    assert requests(v3.encode_read(read) + v3.encode_read(poll)) == [read, poll]


def test_adds_of_one_ledger_are_one_run_with_their_transactions() -> None:
    data = b"".join(add(100 + i, 7, i, entry(7, i)) for i in range(10)) + add(
        200, 7, 3, entry(7, 3)
    )
    first, again = requests(data)
    assert isinstance(first, AddRun)
    assert isinstance(again, AddRun)
    assert (first.entry_ids, first.txn_ids) == (list(range(10)), list(range(100, 110)))
    assert (again.entry_ids, again.txn_ids) == ([3], [200])


def test_deferred_sync_is_a_write_flag_and_a_run_of_its_own() -> None:
    body = entry(7, 1)
    plain, deferred = add(1, 7, 1, body), add(2, 7, 2, entry(7, 2), ADD_DEFERRED_SYNC)
    message = pb.Request.FromString(deferred[4:])
    assert message.addRequest.writeFlags == 1
    assert not message.addRequest.HasField("flag")
    assert not pb.Request.FromString(plain[4:]).addRequest.HasField("writeFlags")
    first, second = requests(plain + deferred)
    assert isinstance(first, AddRun)
    assert isinstance(second, AddRun)
    assert (first.flags, second.flags) == (0, ADD_DEFERRED_SYNC)


def test_a_version_2_frame_is_left_over() -> None:
    parts, _ = v2.encode_adds(KEY, [entry(7, 1)], 0)
    view, bounds = frames(v3.encode_read_lac(5, 7) + b"".join(parts))
    found, taken = v3.decode_requests(view, bounds)
    assert (found, taken) == ([ReadLac(5, 7)], 1)


@pytest.mark.parametrize("frame", [
    v2.encode_read(7, 1, 0, b""), v2.encode_read(7, -1, 1, KEY), v2.encode_auth("p", b"")
])  # fmt: skip
def test_no_version_2_request_passes_for_version_3(frame: bytes) -> None:
    assert v3.decode_requests(*frames(frame)) == ([], 0)


def refusal(data: bytes) -> Refused:
    (found,) = requests(data)
    assert isinstance(found, Refused)
    return found


def bad_piggyback() -> bytes:
    return v3.encode_read(Read(5, 7, 3, 0, b"", previous_lac=1, piggyback=True))


def bare(operation: int) -> bytes:
    message = pb.Request()
    message.header.version, message.header.txnId = pb.VERSION_THREE, 5
    message.header.operation = operation  # type: ignore[assignment]
    return framed(message)


@pytest.mark.parametrize(
    "data",
    [
        add(5, 7, -1, entry(7, -1)),
        add(5, -7, 1, entry(-7, 1)),
        add(5, 7, 1, entry(7, 1)[:31]),
        add(5, 7, 1, entry(7, 2)),
        v3.encode_read(Read(5, 7, -2, 0, b"")),
        bad_piggyback(),
        bare(pb.READ_ENTRY),
        bare(pb.ADD_ENTRY),
        bare(pb.START_TLS),
        bare(pb.RANGE_READ_ENTRY),
        bare(pb.BATCH_READ_ENTRY),
    ],
)
def test_what_cannot_be_served_is_refused(data: bytes) -> None:
    found = refusal(data)
    assert found.txn_id == 5
    assert isinstance(found.error, BadRequestError)
    frame = v3.encode_error_answer(found.operation, found.txn_id, 7, 1, found.error)
    assert response(frame).status == pb.EBADREQ


def test_another_protobuf_version_is_refused() -> None:
    message = pb.Request.FromString(v3.encode_read_lac(5, 7)[4:])
    message.header.version = pb.VERSION_TWO
    assert isinstance(refusal(framed(message)).error, BookieVersionError)


# -- answers ----------------------------------------------------------------------------------


@given(IDS, st.lists(st.tuples(IDS, TXNS), min_size=1, max_size=10), st.booleans())
def test_add_answers_survive_the_wire(
    ledger_id: int, adds: list[tuple[int, int]], fenced: bool
) -> None:
    error = FencedError("x") if fenced else None
    ids, txns = [i for i, _ in adds], [t for _, t in adds]
    view, bounds = frames(v3.encode_add_answers(ledger_id, ids, txns, error))
    found = [v3.decode_answer(bytes(view[a:b])) for a, b in bounds]
    code = 504 if fenced else 0
    assert found == [v3.Answer(t, v3.ADD_ENTRY, code, ledger_id, i) for i, t in adds]


def test_answers_survive_the_wire() -> None:
    lac = answer(v3.encode_read_lac_answer(ReadLac(5, 7), b"lac", b"entry"))
    assert (lac.txn_id, lac.code, lac.body, lac.last_entry) == (5, 0, b"lac", b"entry")
    empty = answer(v3.encode_read_lac_answer(ReadLac(5, 7), None, b"entry"))
    assert (empty.body, empty.last_entry) == (None, b"entry")
    listed = answer(v3.encode_list_answer(ListEntries(5, 7), b"held"))
    assert (listed.ledger_id, listed.body) == (7, b"held")
    info = answer(v3.encode_info_answer(GetBookieInfo(5, 2), 100, 40))
    assert (info.total_bytes, info.free_bytes) == (0, 40)
    poll = Read(5, 7, -1, 0, b"", 3, 100, True)
    waited = answer(b"".join(v3.encode_read_answer(poll, -1, None, 3)))
    assert (waited.code, waited.body, waited.max_lac) == (0, None, 3)
    assert answer(v3.encode_auth_answer(5, "AuthDisabledPlugin", b"")).code == 0
    assert answer(v3.encode_write_lac_answer(WriteLac(5, 7, 1, KEY, b""))).code == 0
    assert answer(v3.encode_force_answer(ForceLedger(5, 7))).code == 0


@pytest.mark.parametrize("operation", [1, 2, 5, 6, 7, 8, 9, 10, 11])
@pytest.mark.parametrize("error", [NoEntryError("x"), UnknownLedgerStateError("x")])
def test_errors_of_every_operation_are_whole_messages(operation: int, error: MagnetarError) -> None:
    frame = v3.encode_error_answer(operation, 5, 7, 9, error)
    found = response(frame)
    assert found.header.operation == operation
    assert found.status == v3_code(error)
    assert answer(frame).code == v3_code(error)


# -- garbage ----------------------------------------------------------------------------------


def decode_both(body: bytes) -> Sequence[object]:
    outcomes: list[object] = list(v3.decode_requests(memoryview(body), [(0, len(body))])[0])
    try:
        outcomes.append(v3.decode_answer(body))
    except ProtocolError as error:
        outcomes.append(error)
    return outcomes


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_a_protocol_error(body: bytes) -> None:
    decode_both(body)


def test_mutated_frames_raise_nothing_but_a_protocol_error() -> None:
    rng = random.Random(21)
    sound = [
        add(5, 7, 9, entry(7, 9, b"payload")),
        v3.encode_read(Read(5, 7, -1, 1, KEY)),
        v3.encode_read(Read(5, 7, -1, 0, b"", 3, 100, True)),
        v3.encode_write_lac(WriteLac(5, 7, 1, KEY, b"body")),
        v3.encode_auth(5, "plugin", b"payload"),
        v3.encode_add_answers(7, [9], [5], None),
        b"".join(v3.encode_read_answer(Read(5, 7, 9, 0, b""), 9, b"entry", 8)),
        v3.encode_read_lac_answer(ReadLac(5, 7), b"lac", b"entry"),
    ]
    refused = 0
    for _ in range(10_000):
        body = bytearray(rng.choice(sound)[4:])
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        outcomes = decode_both(bytes(body[: rng.randint(0, len(body))]))
        refused += isinstance(outcomes[-1], ProtocolError)
    assert refused > 1000


def test_a_run_of_adds_is_the_same_frames_as_one_by_one() -> None:
    ids = [3, 127, 128, 1 << 20]  # ids and bodies of several sizes in one run
    bodies = [entry(7, i, b"x" * (i % 300)) for i in ids]
    parts, byte_count = v3.encode_adds(126, 7, KEY, ids, bodies, 1)
    singles = [add(126 + n, 7, ids[n], bodies[n], 1) for n in range(len(ids))]
    assert b"".join(parts) == b"".join(singles)
    assert byte_count == len(b"".join(parts))
    (run,) = requests(b"".join(parts))
    assert isinstance(run, AddRun)
    assert (run.txn_ids, run.entry_ids, run.entries) == ([126, 127, 128, 129], ids, bodies)


def test_neighbouring_add_answers_of_one_status_come_together() -> None:
    refusal = FencedError("fenced")
    sent = (
        v3.encode_add_answers(7, [1, 2], [11, 12], None),
        v3.encode_add_answers(7, [3], [13], refusal),
        v3.encode_force_answer(ForceLedger(14, 7)),
        v3.encode_add_answers(7, [4], [15], refusal),
        v3.encode_add_answers(8, [5], [16], refusal),
    )
    data = b"".join(sent)
    answers = v3.decode_answers(*frames(data))
    code = v3_code(refusal)
    assert answers[:2] == [v3.AddAnswers(0, 7, [11, 12]), v3.AddAnswers(code, 7, [13])]
    assert answers[2].txn_id == 14  # type: ignore[union-attr]
    assert answers[3:] == [v3.AddAnswers(code, 7, [15]), v3.AddAnswers(code, 8, [16])]
