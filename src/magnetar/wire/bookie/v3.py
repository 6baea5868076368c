"""BookKeeper's protocol, version 3: protobuf ``Request`` and ``Response`` (``bookie.proto``).

A frame is a big-endian ``int32`` length and one message. Every answer repeats its request's
transaction id. Entries never pass through a protobuf object on the way out: the message is
serialized without its body, and the body follows as the last field of the nested message, which
protobuf allows (fields come in any order).

Whoever listens tries this version first: a version 2 frame begins with byte 2, which is no
protobuf field, so ``decode_requests`` says how many frames it understood.

Source: BookKeeper's ``BookkeeperProtocol.proto`` and request processors (4.18).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from google.protobuf.message import DecodeError, Message

from magnetar.model.entry import ENTRY_HEADER_BYTES
from magnetar.model.errors import (
    BadRequestError,
    BookieError,
    BookieVersionError,
    MagnetarError,
    ProtocolError,
)
from magnetar.wire.bookie import bookie_pb2 as pb
from magnetar.wire.bookie.messages import (
    ADD_DEFERRED_SYNC,
    ADD_HIGH_PRIORITY,
    ADD_RECOVERY,
    READ_FENCE,
    READ_HIGH_PRIORITY,
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
from magnetar.wire.varint import varint

Buffer: TypeAlias = bytes | bytearray | memoryview
Bounds: TypeAlias = Sequence[tuple[int, int]]

READ_ENTRY = pb.READ_ENTRY
ADD_ENTRY = pb.ADD_ENTRY
AUTH = pb.AUTH
WRITE_LAC = pb.WRITE_LAC
READ_LAC = pb.READ_LAC
GET_BOOKIE_INFO = pb.GET_BOOKIE_INFO
FORCE_LEDGER = pb.FORCE_LEDGER
LIST_ENTRIES = pb.GET_LIST_OF_ENTRIES_OF_LEDGER

DEFERRED_SYNC = 1
"""Bit of ``AddRequest.writeFlags``: answer before the entry is durable."""

HIGH_PRIORITY = 100
"""What BookKeeper's client sends as the priority of requests that a recovery makes."""

_PARTS: Mapping[int, str] = MappingProxyType(
    {
        pb.READ_ENTRY: "readResponse",
        pb.ADD_ENTRY: "addResponse",
        pb.WRITE_LAC: "writeLacResponse",
        pb.READ_LAC: "readLacResponse",
        pb.FORCE_LEDGER: "forceLedgerResponse",
        LIST_ENTRIES: "getListOfEntriesOfLedgerResponse",
        pb.GET_BOOKIE_INFO: "getBookieInfoResponse",
    }
)

_pack_int = struct.Struct(">I").pack
_unpack_ids = struct.Struct(">qq").unpack_from
_BODY_TAG = b"\x22"  # field 4, length-delimited: AddRequest.body and ReadResponse.body
_READ_RESPONSE_TAG = b"\xa2\x06"  # Response.readResponse, field 100
_ADD_REQUEST_TAG = b"\xaa\x06"  # Request.addRequest, field 101


def _frame(message: Message) -> bytes:
    data = message.SerializeToString()
    return _pack_int(len(data)) + data


def _frame_with_body(outer: Message, tag: bytes, inner: Message, body: bytes) -> list[Buffer]:
    """A frame of ``outer`` with ``inner`` under ``tag``, and ``body`` as inner's field 4."""
    head, small = outer.SerializePartialToString(), inner.SerializePartialToString()
    body_head = _BODY_TAG + varint(len(body))
    nested = tag + varint(len(small) + len(body_head) + len(body))
    size = len(head) + len(nested) + len(small) + len(body_head) + len(body)
    return [b"".join((_pack_int(size), head, nested, small, body_head)), body]


# -- requests, decoded ------------------------------------------------------------------------


def decode_requests(view: memoryview, bounds: Bounds) -> tuple[list[Request], int]:
    """The requests of a chunk and how many of its frames they took. Fewer than there are means
    that the next frame is not of version 3."""
    requests: list[Request] = []
    runs: dict[tuple[int, int, bytes], AddRun] = {}
    for taken, (start, end) in enumerate(bounds):
        try:
            message = pb.Request.FromString(bytes(view[start:end]))
        except DecodeError:
            return requests, taken
        if not message.IsInitialized():
            return requests, taken
        operation = message.header.operation
        if operation == pb.ADD_ENTRY and message.HasField("addRequest"):
            _add(requests, runs, message)
            continue
        runs.clear()
        requests.append(_decode(message))
    return requests, len(bounds)


def _add(
    requests: list[Request], runs: dict[tuple[int, int, bytes], AddRun], message: pb.Request
) -> None:
    refused = _bad_version(message) or _bad_add(message)
    if refused is not None:
        requests.append(refused)
        return
    add, header = message.addRequest, message.header
    flags = ADD_RECOVERY if add.flag == pb.AddRequest.RECOVERY_ADD and add.HasField("flag") else 0
    if header.priority > 0:
        flags |= ADD_HIGH_PRIORITY
    if add.writeFlags & DEFERRED_SYNC:
        flags |= ADD_DEFERRED_SYNC
    key = (flags, add.ledgerId, add.masterKey)
    run = runs.get(key)
    if run is None or add.entryId <= run.entry_ids[-1]:
        run = runs[key] = AddRun(add.ledgerId, add.masterKey, flags)
        requests.append(run)
    body = add.body
    run.entry_ids.append(add.entryId)
    run.entries.append(body)
    run.txn_ids.append(header.txnId)
    run.byte_count += len(body)


def _refused(message: pb.Request, ledger_id: int, entry_id: int, error: BookieError) -> Refused:
    header = message.header
    return Refused(header.txnId, header.operation, ledger_id, entry_id, error)


def _bad_version(message: pb.Request) -> Refused | None:
    if message.header.version == pb.VERSION_THREE:
        return None
    name = pb.ProtocolVersion.Name(message.header.version)
    error = BookieVersionError(f"a protobuf request says {name}; only VERSION_THREE is spoken")
    return _refused(message, 0, 0, error)


def _bad_add(message: pb.Request) -> Refused | None:
    add = message.addRequest
    ledger_id, entry_id, size = add.ledgerId, add.entryId, len(add.body)
    if ledger_id < 0 or entry_id < 0:
        reason = "ids are 0 or greater"
    elif size < ENTRY_HEADER_BYTES:
        reason = f"{size} bytes are fewer than an entry's header ({ENTRY_HEADER_BYTES})"
    elif _unpack_ids(add.body) != (ledger_id, entry_id):
        reason = "the entry itself carries other ids"
    else:
        return None
    error = BadRequestError(f"add of entry {ledger_id}:{entry_id}: {reason}")
    return _refused(message, ledger_id, entry_id, error)


def _decode(message: pb.Request) -> Request:
    """Any request but a sound add."""
    refused = _bad_version(message)
    if refused is not None:
        return refused
    operation, txn_id = message.header.operation, message.header.txnId
    if operation == pb.READ_ENTRY and message.HasField("readRequest"):
        return _decode_read(message)
    if operation == pb.AUTH:
        auth = message.authRequest
        return Auth(txn_id, auth.authPluginName, auth.payload)
    if operation == pb.WRITE_LAC and message.HasField("writeLacRequest"):
        lac = message.writeLacRequest
        return WriteLac(txn_id, lac.ledgerId, lac.lac, lac.masterKey, lac.body)
    if operation == pb.READ_LAC and message.HasField("readLacRequest"):
        return ReadLac(txn_id, message.readLacRequest.ledgerId)
    if operation == pb.FORCE_LEDGER and message.HasField("forceLedgerRequest"):
        return ForceLedger(txn_id, message.forceLedgerRequest.ledgerId)
    if operation == LIST_ENTRIES and message.HasField("getListOfEntriesOfLedgerRequest"):
        return ListEntries(txn_id, message.getListOfEntriesOfLedgerRequest.ledgerId)
    if operation == pb.GET_BOOKIE_INFO and message.HasField("getBookieInfoRequest"):
        return GetBookieInfo(txn_id, message.getBookieInfoRequest.requested)
    name = pb.OperationType.Name(operation)
    error = BadRequestError(f"{name} is not served here, or its request is missing")
    return _refused(message, 0, 0, error)


def _decode_read(message: pb.Request) -> Request:
    read = message.readRequest
    ledger_id, entry_id = read.ledgerId, read.entryId
    flag = read.flag if read.HasField("flag") else 0
    piggyback = flag == pb.ReadRequest.ENTRY_PIGGYBACK
    fence = flag == pb.ReadRequest.FENCE_LEDGER
    previous_lac = read.previousLAC if read.HasField("previousLAC") and not fence else None
    reason = ""
    if ledger_id < 0 or entry_id < -1:
        reason = "no such ids"
    elif piggyback and (previous_lac is None or entry_id != -1):
        reason = "ENTRY_PIGGYBACK needs previousLAC and entry -1"
    if reason:
        error = BadRequestError(f"read of entry {ledger_id}:{entry_id}: {reason}")
        return _refused(message, ledger_id, entry_id, error)
    flags = READ_FENCE if fence else 0
    if message.header.priority > 0:
        flags |= READ_HIGH_PRIORITY
    timeout_ms = max(0, read.timeOut)
    key = read.masterKey
    return Read(
        message.header.txnId, ledger_id, entry_id, flags, key, previous_lac, timeout_ms, piggyback
    )


# -- answers, encoded -------------------------------------------------------------------------


def _response(operation: int, txn_id: int, code: int) -> pb.Response:
    response = pb.Response(status=code)  # type: ignore[arg-type]
    header = response.header
    header.version = pb.VERSION_THREE
    header.operation = operation  # type: ignore[assignment]
    header.txnId = txn_id
    return response


def encode_add_answers(
    ledger_id: int,
    entry_ids: Sequence[int],
    txn_ids: Sequence[int],
    error: MagnetarError | None,
) -> bytes:
    """The frames that answer these adds (one status for all), as one ``bytes``."""
    code = v3_code(error)
    response = _response(pb.ADD_ENTRY, 0, code)
    header, answer = response.header, response.addResponse
    answer.status = code  # type: ignore[assignment]
    answer.ledgerId = ledger_id
    frames = []
    for entry_id, txn_id in zip(entry_ids, txn_ids, strict=True):
        header.txnId = txn_id
        answer.entryId = entry_id
        data = response.SerializeToString()
        frames.append(_pack_int(len(data)))
        frames.append(data)
    return b"".join(frames)


def encode_read_answer(
    request: Read, entry_id: int, entry: bytes | None, max_lac: int | None, time_ms: int = 0
) -> list[Buffer]:
    """The answer to a read that was served: ``entry`` (None: the long poll has none to give),
    the last add confirmed if it is known, and when that was seen to change (0: unknown)."""
    outer = _response(pb.READ_ENTRY, request.txn_id, pb.EOK)
    inner = pb.ReadResponse(status=pb.EOK, ledgerId=request.ledger_id, entryId=entry_id)
    if max_lac is not None:
        inner.maxLAC = max_lac
    if time_ms:
        inner.lacUpdateTimestamp = time_ms
    if entry is not None:
        return _frame_with_body(outer, _READ_RESPONSE_TAG, inner, entry)
    outer.readResponse.CopyFrom(inner)
    return [_frame(outer)]


def encode_read_lac_answer(
    request: ReadLac, explicit_lac: bytes | None, last_entry: bytes | None
) -> bytes:
    response = _response(pb.READ_LAC, request.txn_id, pb.EOK)
    answer = response.readLacResponse
    answer.status, answer.ledgerId = pb.EOK, request.ledger_id
    if explicit_lac is not None:
        answer.lacBody = explicit_lac
    if last_entry is not None:
        answer.lastEntryBody = last_entry
    return _frame(response)


def encode_write_lac_answer(request: WriteLac) -> bytes:
    response = _response(pb.WRITE_LAC, request.txn_id, pb.EOK)
    response.writeLacResponse.status = pb.EOK
    response.writeLacResponse.ledgerId = request.ledger_id
    return _frame(response)


def encode_force_answer(request: ForceLedger) -> bytes:
    response = _response(pb.FORCE_LEDGER, request.txn_id, pb.EOK)
    response.forceLedgerResponse.status = pb.EOK
    response.forceLedgerResponse.ledgerId = request.ledger_id
    return _frame(response)


def encode_list_answer(request: ListEntries, availability: bytes) -> bytes:
    """``availability`` is what ``availability.encode`` gives."""
    response = _response(LIST_ENTRIES, request.txn_id, pb.EOK)
    answer = response.getListOfEntriesOfLedgerResponse
    answer.status, answer.ledgerId = pb.EOK, request.ledger_id
    answer.availabilityOfEntriesOfLedger = availability
    return _frame(response)


def encode_info_answer(request: GetBookieInfo, total_bytes: int, free_bytes: int) -> bytes:
    """Only what ``request`` asks for goes into the answer."""
    response = _response(pb.GET_BOOKIE_INFO, request.txn_id, pb.EOK)
    answer = response.getBookieInfoResponse
    answer.status = pb.EOK
    if request.requested & 1:
        answer.totalDiskCapacity = total_bytes
    if request.requested & 2:
        answer.freeDiskSpace = free_bytes
    return _frame(response)


def encode_auth_answer(txn_id: int, plugin: str, payload: bytes) -> bytes:
    response = _response(pb.AUTH, txn_id, pb.EOK)
    response.authResponse.authPluginName = plugin
    response.authResponse.payload = payload
    return _frame(response)


def encode_error_answer(
    operation: int, txn_id: int, ledger_id: int, entry_id: int, error: MagnetarError
) -> bytes:
    """The answer to a request that failed; the operation's own part repeats the status."""
    code = v3_code(error)
    response = _response(operation, txn_id, code)
    name = _PARTS.get(operation)
    if name is not None:
        part = getattr(response, name)
        part.status = code
        if operation != pb.GET_BOOKIE_INFO:
            part.ledgerId = ledger_id
        if operation in (pb.READ_ENTRY, pb.ADD_ENTRY):
            part.entryId = entry_id
    return _frame(response)


# -- requests, encoded ------------------------------------------------------------------------


def _request(operation: int, txn_id: int, high_priority: bool = False) -> pb.Request:
    request = pb.Request()
    header = request.header
    header.version = pb.VERSION_THREE
    header.operation = operation  # type: ignore[assignment]
    header.txnId = txn_id
    if high_priority:
        header.priority = HIGH_PRIORITY
    return request


def encode_add(
    txn_id: int, ledger_id: int, entry_id: int, master_key: bytes, entry: bytes, flags: int
) -> list[Buffer]:
    """One ADD as parts; ``entry`` is not copied."""
    return encode_adds(txn_id, ledger_id, master_key, (entry_id,), (entry,), flags)[0]


def encode_adds(
    first_txn_id: int,
    ledger_id: int,
    master_key: bytes,
    entry_ids: Sequence[int],
    entries: Sequence[bytes],
    flags: int,
) -> tuple[list[Buffer], int]:
    """The ADD frames of ``entries`` under consecutive transaction ids, as parts (entries are not
    copied), and their bytes in all."""
    outer, inner = _add_messages(ledger_id, master_key, flags)
    header, pack = outer.header, _pack_int
    outer_bytes, inner_bytes = outer.SerializePartialToString, inner.SerializePartialToString
    parts: list[Buffer] = []
    byte_count = 0
    last_sizes, nested, body_head = (-1, -1), b"", b""
    for txn_id, entry_id, entry in zip(count(first_txn_id), entry_ids, entries, strict=False):
        header.txnId, inner.entryId = txn_id, entry_id
        head, small = outer_bytes(), inner_bytes()
        sizes = (len(small), len(entry))
        if sizes != last_sizes:
            last_sizes = sizes
            body_head = _BODY_TAG + varint(len(entry))
            nested = _ADD_REQUEST_TAG + varint(len(small) + len(body_head) + len(entry))
        size = len(head) + len(nested) + len(small) + len(body_head) + len(entry)
        parts.append(b"".join((pack(size), head, nested, small, body_head)))
        parts.append(entry)
        byte_count += 4 + size
    return parts, byte_count


def _add_messages(
    ledger_id: int, master_key: bytes, flags: int
) -> tuple[pb.Request, pb.AddRequest]:
    """What the adds of a run have in common: a request, and what stands in it before the entry."""
    flags = int(flags)  # operators of enum flags are slow
    outer = _request(pb.ADD_ENTRY, 0, bool(flags & ADD_HIGH_PRIORITY))
    inner = pb.AddRequest(ledgerId=ledger_id, masterKey=master_key)
    if flags & ADD_RECOVERY:
        inner.flag = pb.AddRequest.RECOVERY_ADD
    if flags & ADD_DEFERRED_SYNC:
        inner.writeFlags = DEFERRED_SYNC
    return outer, inner


def encode_read(read: Read) -> bytes:
    request = _request(pb.READ_ENTRY, read.txn_id, bool(read.flags & READ_HIGH_PRIORITY))
    part = request.readRequest
    part.ledgerId, part.entryId = read.ledger_id, read.entry_id
    if read.flags & READ_FENCE:
        part.flag = pb.ReadRequest.FENCE_LEDGER
        part.masterKey = read.master_key
    elif read.piggyback:
        part.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    if read.previous_lac is not None:
        part.previousLAC = read.previous_lac
        if read.timeout_ms:
            part.timeOut = read.timeout_ms
    return _frame(request)


def encode_write_lac(write: WriteLac) -> bytes:
    request = _request(pb.WRITE_LAC, write.txn_id)
    part = request.writeLacRequest
    part.ledgerId, part.lac = write.ledger_id, write.lac
    part.masterKey, part.body = write.master_key, write.body
    return _frame(request)


def encode_read_lac(txn_id: int, ledger_id: int) -> bytes:
    request = _request(pb.READ_LAC, txn_id)
    request.readLacRequest.ledgerId = ledger_id
    return _frame(request)


def encode_force_ledger(txn_id: int, ledger_id: int) -> bytes:
    request = _request(pb.FORCE_LEDGER, txn_id)
    request.forceLedgerRequest.ledgerId = ledger_id
    return _frame(request)


def encode_list_entries(txn_id: int, ledger_id: int) -> bytes:
    request = _request(LIST_ENTRIES, txn_id)
    request.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
    return _frame(request)


def encode_get_info(txn_id: int, requested: int = 3) -> bytes:
    request = _request(pb.GET_BOOKIE_INFO, txn_id)
    request.getBookieInfoRequest.requested = requested
    return _frame(request)


def encode_auth(txn_id: int, plugin: str, payload: bytes) -> bytes:
    request = _request(pb.AUTH, txn_id)
    request.authRequest.authPluginName = plugin
    request.authRequest.payload = payload
    return _frame(request)


# -- answers, decoded -------------------------------------------------------------------------


class Answer(NamedTuple):
    """Any answer. ``code`` is the operation's own status where it has one. ``body`` is the entry
    of a read, the explicit LAC of READ_LAC, the availability of a list; None if there is none."""

    txn_id: int
    operation: int
    code: int
    ledger_id: int = -1
    entry_id: int = -1
    body: bytes | None = None
    last_entry: bytes | None = None
    max_lac: int | None = None
    total_bytes: int = 0
    free_bytes: int = 0


class AddAnswers(NamedTuple):
    """Answers to adds that came one after the other with one status."""

    code: int
    ledger_id: int
    txn_ids: list[int]


def decode_answers(view: memoryview, bounds: Bounds) -> list[Answer | AddAnswers]:
    """All answers of a chunk in one pass; neighbouring add answers come as one ``AddAnswers``.

    Raises ``ProtocolError``.
    """
    answers: list[Answer | AddAnswers] = []
    run: AddAnswers | None = None
    for start, end in bounds:
        response = _parse_answer(bytes(view[start:end]))
        header = response.header
        if header.operation != pb.ADD_ENTRY or not response.HasField("addResponse"):
            answers.append(_answer_of(response))
            run = None
            continue
        add = response.addResponse
        code, ledger_id = add.status, add.ledgerId
        if run is None or run.code != code or run.ledger_id != ledger_id:
            run = AddAnswers(code, ledger_id, [])
            answers.append(run)
        run.txn_ids.append(header.txnId)
    return answers


def decode_answer(body: bytes) -> Answer:
    """One answer. Raises ``ProtocolError``."""
    return _answer_of(_parse_answer(body))


def _parse_answer(body: bytes) -> pb.Response:
    try:
        response = pb.Response.FromString(body)
    except DecodeError as error:
        raise ProtocolError(f"an answer of {len(body)} bytes is not of version 3") from error
    if not response.IsInitialized():
        raise ProtocolError("an answer of version 3 lacks required fields")
    return response


def _answer_of(response: pb.Response) -> Answer:
    operation, txn_id = response.header.operation, response.header.txnId
    if operation == pb.READ_ENTRY and response.HasField("readResponse"):
        read = response.readResponse
        return Answer(
            txn_id,
            operation,
            read.status,
            read.ledgerId,
            read.entryId,
            read.body if read.HasField("body") else None,
            max_lac=read.maxLAC if read.HasField("maxLAC") else None,
        )
    if operation == pb.ADD_ENTRY and response.HasField("addResponse"):
        add = response.addResponse
        return Answer(txn_id, operation, add.status, add.ledgerId, add.entryId)
    return _decode_rare_answer(response, operation, txn_id)


def _decode_rare_answer(response: pb.Response, operation: int, txn_id: int) -> Answer:
    if operation == pb.READ_LAC and response.HasField("readLacResponse"):
        lac = response.readLacResponse
        return Answer(
            txn_id,
            operation,
            lac.status,
            lac.ledgerId,
            body=lac.lacBody if lac.HasField("lacBody") else None,
            last_entry=lac.lastEntryBody if lac.HasField("lastEntryBody") else None,
        )
    if operation == LIST_ENTRIES and response.HasField("getListOfEntriesOfLedgerResponse"):
        part = response.getListOfEntriesOfLedgerResponse
        held = part.availabilityOfEntriesOfLedger
        return Answer(txn_id, operation, part.status, part.ledgerId, body=held)
    if operation == pb.GET_BOOKIE_INFO and response.HasField("getBookieInfoResponse"):
        info = response.getBookieInfoResponse
        return Answer(
            txn_id,
            operation,
            info.status,
            total_bytes=info.totalDiskCapacity,
            free_bytes=info.freeDiskSpace,
        )
    return Answer(txn_id, operation, response.status)
