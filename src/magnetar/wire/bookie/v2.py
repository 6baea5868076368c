"""BookKeeper's protocol, version 2: frames written and read by hand.

A frame is a big-endian ``int32`` length and a body; functions here take bodies and give whole
frames. A body begins with a header ``version(2) << 24 | operation << 16 | flags``. Big-endian::

    ADD        header 4 | master key 20 | entry (its first 16 bytes are ledger id, entry id)
    READ       header 4 | ledger 8 | entry 8 | master key 20 if FENCE
    BATCH_READ header 4 | ledger 8 | entry 8 | request id 8 | max entries 4 | max bytes 8
               | master key 20 if FENCE
    AUTH       header 4 | AuthMessage (protobuf)

    answers    header 4 | status 4 | ledger 8 | entry 8, then
       READ        entry bytes
       BATCH_READ  request id 8 | (size 4 | entry bytes)*
       AUTH        header 4 | AuthMessage, without status and ids

There is no transaction id: an answer belongs to the oldest unanswered request of the same
operation, ledger and entry. Decoding raises ``ProtocolError`` for what cannot be answered and
gives ``Refused`` for what can.

Source: BookKeeper's ``BookieProtocol`` and ``BookieProtoEncoding`` (4.18).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from magnetar.model.entry import ENTRY_HEADER_BYTES
from magnetar.model.errors import (
    BadRequestError,
    BookieVersionError,
    MagnetarError,
    ProtocolError,
)
from magnetar.speedups import decode_adds, split_entries
from magnetar.wire.bookie.bookie_pb2 import AuthMessage
from magnetar.wire.bookie.messages import (
    ADD_HIGH_PRIORITY,
    ADD_RECOVERY,
    READ_FENCE,
    READ_HIGH_PRIORITY,
    READ_STORED,
    AddRun,
    Auth,
    BatchRead,
    Read,
    Refused,
    Request,
)
from magnetar.wire.bookie.status import OK, v2_code

Buffer: TypeAlias = bytes | bytearray | memoryview
Bounds: TypeAlias = Sequence[tuple[int, int]]

VERSION = 2
ADD = 1
READ = 2
AUTH = 3
BATCH_READ = 7

FLAG_FENCE = 1
FLAG_RECOVERY_ADD = 2
FLAG_HIGH_PRIORITY = 4
FLAG_STORED = 0x4000
"""Ours, of a batch read; BookKeeper's bookies look at no such bit."""

MASTER_KEY_BYTES = 20
READ_ANSWER_BYTES = 24
"""Of a READ answer's body, before the entry."""
BATCH_ANSWER_BYTES = 32
"""Of a BATCH_READ answer's body, before the first entry's size."""

BATCH_HEAD_BYTES = 4 + BATCH_ANSWER_BYTES
"""Of a BATCH_READ answer, its length included, before the first entry's size."""

VIEW_BYTES_MIN = 16 << 10
"""Entries from this size on are cheaper as views of what was received than copied out of it."""

_ADD_ENTRY_AT = 4 + MASTER_KEY_BYTES
_ADD_BYTES_MIN = _ADD_ENTRY_AT + ENTRY_HEADER_BYTES
_READ_BYTES = 20
_BATCH_READ_BYTES = 40

_ADD_HEADER = VERSION << 24 | ADD << 16

_unpack_head = struct.Struct(">I").unpack_from
_unpack_ids = struct.Struct(">qq").unpack_from
_unpack_batch = struct.Struct(">qqqiq").unpack_from
_unpack_answer = struct.Struct(">Iiqq").unpack_from
_unpack_long = struct.Struct(">q").unpack_from
_pack_add = struct.Struct(">II20s").pack
_pack_head = struct.Struct(">II").pack
_pack_read = struct.Struct(">IIqq").pack
_pack_batch = struct.Struct(">IIqqqiq").pack
_pack_answer = struct.Struct(">IIiqq").pack
_pack_answers = struct.Struct(">IIiq").pack
_BATCH_ANSWER = struct.Struct(">IIiqqq")
_pack_long = struct.Struct(">q").pack
_pack_int = struct.Struct(">I").pack


def _header(operation: int, flags: int = 0) -> int:
    return VERSION << 24 | operation << 16 | flags


# -- requests, decoded ------------------------------------------------------------------------


def decode_requests(
    view: memoryview, start: int, end: int, frame_bytes_max: int
) -> tuple[list[Request], int]:
    """The requests of all whole frames in ``view[start:end]``, and where those frames end: at a
    frame that is not whole, or at one of more than ``frame_bytes_max`` bytes. Payloads are copied
    out of ``view``, once.

    One pass that finds the frames, too: three quarters of what finding them first costs. Raises
    ``ProtocolError`` for frames that are too short or of an unknown operation.
    """
    requests: list[Request] = []
    at = start
    while at < end:
        runs, at = decode_adds(view, at, end, frame_bytes_max)
        for header, key, ledger_id, entry_ids, entries, byte_count in runs:
            flags = 0 if header == _ADD_HEADER else _add_flags(header)
            requests.append(AddRun(ledger_id, key, flags, entry_ids, entries, byte_count))
        if end - at < 4:
            break
        (size,) = _unpack_head(view, at)
        stop = at + 4 + size
        if stop > end or size > frame_bytes_max:
            break
        requests.append(_decode_other(view[at + 4 : stop]))
        at = stop
    return requests, at


def _add_flags(header: int) -> int:
    flags = ADD_RECOVERY if header & FLAG_RECOVERY_ADD else 0
    return flags | ADD_HIGH_PRIORITY if header & FLAG_HIGH_PRIORITY else flags


def _decode_other(body: memoryview) -> Request:
    """Everything but a sound ADD."""
    if len(body) < 4:
        raise ProtocolError(f"a frame of {len(body)} bytes is too short for a request header")
    (header,) = _unpack_head(body)
    operation = header >> 16 & 0xFF
    if header >> 24 != VERSION:
        return _refuse_version(body, header)
    if operation == READ:
        return _decode_read(body, header)
    if operation == BATCH_READ:
        return _decode_batch_read(body, header)
    if operation == AUTH:
        return _decode_auth(body[4:])
    if operation == ADD:
        return _refuse_add(body)
    raise ProtocolError(f"unknown operation {operation} in a version 2 request")


def _refuse_version(body: memoryview, header: int) -> Request:
    version, operation = header >> 24, header >> 16 & 0xFF
    if version not in (1, 3) or operation not in (ADD, READ, BATCH_READ) or len(body) < 40:
        raise ProtocolError(
            f"not a request of BookKeeper's protocol: header {header:#010x}, {len(body)} bytes"
        )
    at = _ADD_ENTRY_AT if operation == ADD else 4
    ledger_id, entry_id = _unpack_ids(body, at)
    error = BookieVersionError(f"version {version} of the protocol is not spoken here; use 2 or 3")
    request_id = _unpack_long(body, 20)[0] if operation == BATCH_READ else 0
    return Refused(request_id, operation, ledger_id, entry_id, error)


def _refuse_add(body: memoryview) -> Request:
    """An ADD that ``decode_adds`` did not take."""
    if len(body) < _ADD_ENTRY_AT + 16:
        raise ProtocolError(f"an ADD of {len(body)} bytes has no room for its ids")
    ledger_id, entry_id = _unpack_ids(body, _ADD_ENTRY_AT)
    if len(body) < _ADD_BYTES_MIN:
        wrong = (
            f"{len(body) - _ADD_ENTRY_AT} bytes are fewer than an entry's header "
            f"({ENTRY_HEADER_BYTES})"
        )
    else:
        wrong = "ids are 0 or greater"
    error = BadRequestError(f"add of entry {ledger_id}:{entry_id}: {wrong}")
    return Refused(0, ADD, ledger_id, entry_id, error)


def _read_flags(header: int) -> int:
    flags = READ_FENCE if header & FLAG_FENCE else 0
    flags |= READ_STORED if header & FLAG_STORED else 0
    return flags | READ_HIGH_PRIORITY if header & FLAG_HIGH_PRIORITY else flags


def _fence_key(body: memoryview, header: int, at: int) -> bytes:
    if not header & FLAG_FENCE:
        return b""
    if len(body) < at + MASTER_KEY_BYTES:
        raise ProtocolError(f"a fencing read of {len(body)} bytes carries no master key")
    return bytes(body[at : at + MASTER_KEY_BYTES])


def _decode_read(body: memoryview, header: int) -> Request:
    if len(body) < _READ_BYTES:
        raise ProtocolError(f"a READ of {len(body)} bytes; at least {_READ_BYTES} are needed")
    ledger_id, entry_id = _unpack_ids(body, 4)
    key = _fence_key(body, header, _READ_BYTES)
    if ledger_id < 0 or entry_id < -1:
        error = BadRequestError(f"read of entry {ledger_id}:{entry_id}: no such ids")
        return Refused(0, READ, ledger_id, entry_id, error)
    return Read(0, ledger_id, entry_id, _read_flags(header), key)


def _decode_batch_read(body: memoryview, header: int) -> Request:
    if len(body) < _BATCH_READ_BYTES:
        raise ProtocolError(f"a BATCH_READ of {len(body)} bytes; {_BATCH_READ_BYTES} are needed")
    ledger_id, entry_id, request_id, max_entries, max_bytes = _unpack_batch(body, 4)
    key = _fence_key(body, header, _BATCH_READ_BYTES)
    if ledger_id < 0 or entry_id < 0:
        error = BadRequestError(f"batch read from entry {ledger_id}:{entry_id}: no such ids")
        return Refused(request_id, BATCH_READ, ledger_id, entry_id, error)
    flags = _read_flags(header)
    return BatchRead(request_id, ledger_id, entry_id, flags, key, max_entries, max_bytes)


def _decode_auth(body: memoryview) -> Auth:
    try:
        message = AuthMessage.FromString(bytes(body))
    except DecodeError as error:
        raise ProtocolError(f"an AUTH request that cannot be parsed: {error}") from error
    if not message.IsInitialized():
        raise ProtocolError("an AUTH request without plugin name or payload")
    return Auth(0, message.authPluginName, message.payload)


# -- answers, encoded -------------------------------------------------------------------------


def encode_add_answers(
    ledger_id: int, entry_ids: Sequence[int], error: MagnetarError | None
) -> bytes:
    """The frames that answer the adds of ``entry_ids`` (one status for all), as one ``bytes``."""
    code = OK if error is None else v2_code(error)
    if len(entry_ids) == 1:
        return _pack_answer(READ_ANSWER_BYTES, _ADD_HEADER, code, ledger_id, entry_ids[0])
    prefix = _pack_answers(READ_ANSWER_BYTES, _ADD_HEADER, code, ledger_id)
    return prefix + prefix.join(map(_pack_long, entry_ids))


def encode_read_answer(ledger_id: int, entry_id: int, entry_bytes: int) -> bytes:
    """What stands before the entry in the answer to a read that found it."""
    size = READ_ANSWER_BYTES + entry_bytes
    return _pack_answer(size, _header(READ), OK, ledger_id, entry_id)


def put_batch_head(answer: bytearray, request: BatchRead, byte_count: int) -> None:
    """What the answer to ``request`` begins with, into the first ``BATCH_HEAD_BYTES`` of
    ``answer``. In all it has ``byte_count``: behind the head the entries, each behind its size."""
    ids = (request.ledger_id, request.entry_id, request.request_id)
    _BATCH_ANSWER.pack_into(answer, 0, byte_count - 4, _header(BATCH_READ), OK, *ids)


def encode_error_answer(
    operation: int, ledger_id: int, entry_id: int, error: MagnetarError, request_id: int = 0
) -> bytes:
    """The answer to a request that failed."""
    head, code = _header(operation), v2_code(error)
    if operation == BATCH_READ:
        size = BATCH_ANSWER_BYTES
        return _BATCH_ANSWER.pack(size, head, code, ledger_id, entry_id, request_id)
    return _pack_answer(READ_ANSWER_BYTES, head, code, ledger_id, entry_id)


def encode_auth(plugin: str, payload: bytes) -> bytes:
    """An AUTH frame: request and answer have the same form."""
    message = AuthMessage(authPluginName=plugin, payload=payload).SerializeToString()
    return _pack_head(4 + len(message), _header(AUTH)) + message


# -- requests, encoded ------------------------------------------------------------------------


def encode_adds(
    master_key: bytes, entries: Sequence[bytes], flags: int
) -> tuple[list[Buffer], int]:
    """The ADD frames of ``entries`` as parts (entries are not copied) and their bytes in all."""
    head = _ADD_HEADER
    if flags:
        head |= FLAG_RECOVERY_ADD if flags & ADD_RECOVERY else 0
        head |= FLAG_HIGH_PRIORITY if flags & ADD_HIGH_PRIORITY else 0
    sizes = list(map(len, entries))
    parts: list[Buffer] = []
    last_size = -1
    prefix = b""
    for size, entry in zip(sizes, entries, strict=True):
        if size != last_size:
            prefix = _pack_add(_ADD_ENTRY_AT + size, head, master_key)
            last_size = size
        parts += (prefix, entry)
    return parts, (4 + _ADD_ENTRY_AT) * len(entries) + sum(sizes)


def _wire_read_flags(flags: int) -> int:
    bits = FLAG_FENCE if flags & READ_FENCE else 0
    bits |= FLAG_STORED if flags & READ_STORED else 0
    return bits | FLAG_HIGH_PRIORITY if flags & READ_HIGH_PRIORITY else bits


def encode_read(ledger_id: int, entry_id: int, flags: int, master_key: bytes) -> bytes:
    """A READ frame; the master key goes along only with a fencing read."""
    key = master_key if flags & READ_FENCE else b""
    head = _header(READ, _wire_read_flags(flags))
    return _pack_read(_READ_BYTES + len(key), head, ledger_id, entry_id) + key


def encode_batch_read(request: BatchRead) -> bytes:
    key = request.master_key if request.flags & READ_FENCE else b""
    head = _header(BATCH_READ, _wire_read_flags(request.flags))
    size = _BATCH_READ_BYTES + len(key)
    ids = (request.ledger_id, request.entry_id, request.request_id)
    return _pack_batch(size, head, *ids, request.max_entries, request.max_bytes) + key


# -- answers, decoded -------------------------------------------------------------------------


class V2AddAnswers(NamedTuple):
    """Answers to adds of one ledger that came one after the other with one status."""

    ledger_id: int
    code: int
    entry_ids: list[int]


class ReadAnswer(NamedTuple):
    """``entry`` is an owned copy; empty unless ``code`` is OK."""

    ledger_id: int
    entry_id: int
    code: int
    entry: bytes


Entries: TypeAlias = Sequence[bytes | memoryview]


class BatchReadAnswer(NamedTuple):
    request_id: int
    code: int
    entries: Entries


Answer: TypeAlias = V2AddAnswers | ReadAnswer | BatchReadAnswer | Auth


def decode_answers(view: memoryview, bounds: Bounds, stays: bool = False) -> list[Answer]:
    """All answers of a chunk in one pass; neighbouring add answers come as one ``V2AddAnswers``.
    ``stays``: ``view`` will not change, so that large entries of a batch read need no copy.

    Raises ``ProtocolError``.
    """
    answers: list[Answer] = []
    for start, end in bounds:
        answer = _decode_answer(view[start:end], stays)
        previous = answers[-1] if answers else None
        if (
            isinstance(answer, V2AddAnswers)
            and isinstance(previous, V2AddAnswers)
            and previous.ledger_id == answer.ledger_id
            and previous.code == answer.code
        ):
            previous.entry_ids.extend(answer.entry_ids)
        else:
            answers.append(answer)
    return answers


def _decode_answer(body: memoryview, stays: bool) -> Answer:
    if len(body) < 4:
        raise ProtocolError(f"a frame of {len(body)} bytes is too short for an answer's header")
    (header,) = _unpack_head(body)
    operation = header >> 16 & 0xFF
    if header >> 24 != VERSION or operation not in (ADD, READ, BATCH_READ, AUTH):
        raise ProtocolError(f"not an answer of version 2: header {header:#010x}")
    if operation == AUTH:
        return _decode_auth(body[4:])
    if len(body) < READ_ANSWER_BYTES:
        raise ProtocolError(f"an answer of {len(body)} bytes; {READ_ANSWER_BYTES} are needed")
    _, code, ledger_id, entry_id = _unpack_answer(body)
    if operation == ADD:
        return V2AddAnswers(ledger_id, code, [entry_id])
    if operation == READ:
        return ReadAnswer(ledger_id, entry_id, code, bytes(body[READ_ANSWER_BYTES:]))
    return _decode_batch_answer(body, code, stays)


def _decode_batch_answer(body: memoryview, code: int, stays: bool) -> BatchReadAnswer:
    if len(body) < BATCH_ANSWER_BYTES:
        raise ProtocolError(f"a BATCH_READ answer of {len(body)} bytes carries no request id")
    (request_id,) = _unpack_long(body, READ_ANSWER_BYTES)
    end = len(body)
    known = end >= BATCH_ANSWER_BYTES + 4
    first_bytes = _unpack_head(body, BATCH_ANSWER_BYTES)[0] if known else 0
    entries: Entries
    if stays and first_bytes >= VIEW_BYTES_MIN:
        entries, at = _views(body, BATCH_ANSWER_BYTES, end)
    else:
        entries, at = split_entries(body, BATCH_ANSWER_BYTES, end, 0)
    if at + 4 <= end:
        (size,) = _unpack_head(body, at)
        left = end - at - 4
        raise ProtocolError(f"an entry of {size} bytes in a BATCH_READ answer; {left} left")
    if at < end:
        raise ProtocolError("a BATCH_READ answer ends inside a size")
    return BatchReadAnswer(request_id, code, entries)


def _views(body: memoryview, start: int, end: int) -> tuple[list[memoryview], int]:
    """As ``split_entries`` without a gap, and without a copy."""
    found: list[memoryview] = []
    while end - start >= 4:
        stop = start + 4 + int(_unpack_head(body, start)[0])
        if stop > end:
            break
        found.append(body[start + 4 : stop])
        start = stop
    return found, start
