"""Frames captured between BookKeeper's Java client and our bookie (``tests/golden/bookie``).

What the client sent must decode, and what we make of the decoded request must be its bytes again;
what the bookie answered, and the client accepted, must stay what we encode today.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from magnetar.model.ledger import DigestType
from magnetar.wire.bookie import availability, v2, v3
from magnetar.wire.bookie import bookie_pb2 as pb
from magnetar.wire.bookie.digest import EntryDigest
from magnetar.wire.bookie.messages import (
    AddRun,
    BatchRead,
    GetBookieInfo,
    ListEntries,
    Read,
    ReadLac,
    Request,
    WriteLac,
)
from magnetar.wire.bookie.status import v2_error

GOLDEN = Path(__file__).parents[3] / "golden" / "bookie" / "java-client-4.17.2.json"
FRAMES = [(f["kind"], bytes.fromhex(f["body"])) for f in json.loads(GOLDEN.read_text())["frames"]]
PASSWORD = b"peer"
CHECKED = (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC)


def of(side: str, version: str) -> list[tuple[str, bytes]]:
    return [(kind, body) for kind, body in FRAMES if kind.startswith(f"{side} {version}")]


def each(side: str, version: str) -> pytest.MarkDecorator:
    frames = of(side, version)
    return pytest.mark.parametrize("body", [b for _, b in frames], ids=[k for k, _ in frames])


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def one_v2_request(body: bytes) -> Request:
    data = frame(body)
    (request,), end = v2.decode_requests(memoryview(data), 0, len(data), len(body))
    assert end == len(data)
    return request


def one_v3_request(body: bytes) -> Request:
    (request,), taken = v3.decode_requests(memoryview(body), [(0, len(body))])
    assert taken == 1
    return request


def assert_sound(ledger_id: int, entry_id: int, entry: bytes) -> None:
    """The Java client's digest is ours. The peer uses all types, and the frame does not say
    which; DUMMY, which anything passes for, is left out where a digest stands."""
    sound = []
    lac, length = struct.unpack_from(">qq", entry, 16)
    for digest_type in CHECKED:
        digest = EntryDigest(digest_type, ledger_id, PASSWORD)
        payload = entry[digest.payload_offset :]
        if digest.build(entry_id, lac, length, payload) == entry:
            sound.append(digest_type)
    assert sound or len(entry) == 32 + length, f"no digest matches entry {ledger_id}:{entry_id}"


def test_every_kind_was_captured() -> None:
    kinds = {kind for kind, _ in FRAMES}
    assert {"client v2 operation 1 flags 0", "client v2 operation 1 flags 6"} <= kinds
    assert {"client v2 operation 2 flags 5", "client v2 operation 7 flags 0"} <= kinds
    assert {"client v3 READ_ENTRY long poll", "client v3 READ_ENTRY fence"} <= kinds
    assert {"client v3 WRITE_LAC", "client v3 ADD_ENTRY", "client v3 READ_LAC"} <= kinds


@each("client", "v2")
def test_version_2_requests_survive(body: bytes) -> None:
    request = one_v2_request(body)
    assert v3.decode_requests(memoryview(body), [(0, len(body))]) == ([], 0)
    if isinstance(request, AddRun):
        assert request.master_key == EntryDigest(DigestType.CRC32C, 0, PASSWORD).master_key
        assert_sound(request.ledger_id, request.entry_ids[0], request.entries[0])
        parts, _ = v2.encode_adds(request.master_key, request.entries, request.flags)
        assert b"".join(parts) == frame(body)
    elif isinstance(request, Read):
        again = v2.encode_read(
            request.ledger_id, request.entry_id, request.flags, request.master_key
        )
        assert again == frame(body)
    else:
        assert isinstance(request, BatchRead)
        assert v2.encode_batch_read(request) == frame(body)


@each("client", "v3")
def test_version_3_requests_survive(body: bytes) -> None:
    request = one_v3_request(body)
    if isinstance(request, AddRun):
        assert_sound(request.ledger_id, request.entry_ids[0], request.entries[0])
        again = v3.encode_add(
            request.txn_ids[0],
            request.ledger_id,
            request.entry_ids[0],
            request.master_key,
            request.entries[0],
            request.flags,
        )
        assert same_request(b"".join(again), body)
    elif isinstance(request, Read):
        assert one_v3_request(v3.encode_read(request)[4:]) == request
    elif isinstance(request, WriteLac):
        assert same_request(v3.encode_write_lac(request), body)
    elif isinstance(request, ReadLac):
        assert same_request(v3.encode_read_lac(request.txn_id, request.ledger_id), body)
    elif isinstance(request, GetBookieInfo):
        assert same_request(v3.encode_get_info(request.txn_id, request.requested), body)
    else:
        assert isinstance(request, ListEntries)
        assert same_request(v3.encode_list_entries(request.txn_id, request.ledger_id), body)


def same_request(ours: bytes, theirs: bytes) -> bool:
    """The same message, but for the order of fields."""
    return pb.Request.FromString(ours[4:]) == pb.Request.FromString(theirs)


def test_the_java_clients_explicit_lac_has_our_digest() -> None:
    found = [one_v3_request(body) for kind, body in of("client", "v3") if "WRITE_LAC" in kind]
    sound = 0
    for request in found:
        assert isinstance(request, WriteLac)
        bodies = [
            EntryDigest(digest_type, request.ledger_id, PASSWORD).build_lac(request.lac)
            for digest_type in DigestType
        ]
        sound += request.body in bodies
    assert sound == len(found) > 0


@each("bookie", "v2")
def test_version_2_answers_stay_what_they_were(body: bytes) -> None:
    (answer,) = v2.decode_answers(memoryview(frame(body)), [(4, 4 + len(body))])
    if isinstance(answer, v2.V2AddAnswers):
        error = v2_error(answer.code, "add")
        again = v2.encode_add_answers(answer.ledger_id, answer.entry_ids, error)
        assert again == frame(body)
        return
    assert isinstance(answer, v2.ReadAnswer)
    failure = v2_error(answer.code, "read")
    if failure is None:
        head = v2.encode_read_answer(answer.ledger_id, answer.entry_id, len(answer.entry))
        assert head + answer.entry == frame(body)
    else:
        again = v2.encode_error_answer(v2.READ, answer.ledger_id, answer.entry_id, failure)
        assert again == frame(body)


@each("bookie", "v3")
def test_version_3_answers_are_understood(body: bytes) -> None:
    answer = v3.decode_answer(body)
    message = pb.Response.FromString(body)
    assert answer.txn_id == message.header.txnId
    assert answer.code == message.status
    if answer.operation == v3.READ_ENTRY and answer.code == 0 and answer.body is not None:
        assert struct.unpack_from(">q", answer.body)[0] == answer.ledger_id
    if answer.operation == v3.LIST_ENTRIES:
        groups = availability.decode(answer.body or b"")
        assert [i for i in range(-1, 40) if availability.holds(groups, i)] == list(range(30))
