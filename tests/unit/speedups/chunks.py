"""Arguments for the functions of ``magnetar.speedups``: sound ones, odd ones, and damaged ones.

``arguments(rng)`` gives the name of a function and what to call it with; ``answer`` calls one twin
and gives what can be compared: the answer as plain values, or the kind of error.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from crc32c import crc32c

from magnetar.model.entry import Entry
from magnetar.model.ids import Position
from magnetar.speedups.varint import varint

Call: TypeAlias = tuple[str, tuple[Any, ...]]

FRAME_BYTES_MAX: Final = 4096


class Cut(NamedTuple):
    """A chunk, and which part of it is to be looked at."""

    view: memoryview
    start: int
    end: int


def number(rng: random.Random, bits_max: int = 63) -> int:
    """Small ones and large ones, and those at the edges of varints."""
    bits = rng.randrange(1, bits_max + 1)
    return rng.choice((rng.getrandbits(bits), 0, 1, 127, 128, (1 << bits) - 1))


def cut(rng: random.Random, frames: Sequence[bytes]) -> Cut:
    """The frames in one piece, mostly as they are, else with bytes changed, lost or added, or cut
    off somewhere."""
    data = bytearray(b"".join(frames))
    before = rng.choice((0, 0, 5))
    if data and rng.random() < 0.4:
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.choice((0, 1, 1, 1, 4))] = rng.choice(
                (b"", rng.randbytes(1), rng.randbytes(1), b"\x00\x00\x00\x00", b"\xff" * 9)
            )
    end = len(data) if rng.random() < 0.8 else rng.randrange(len(data) + 1)
    view = memoryview(bytearray(rng.randbytes(before) + data + rng.randbytes(rng.choice((0, 30)))))
    return Cut(view, before, before + end)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


# -- BookKeeper -----------------------------------------------------------------------------------


def entry(rng: random.Random, ledger_id: int, entry_id: int) -> bytes:
    lac = rng.choice((entry_id - 1, -1, number(rng)))
    return struct.pack(">qqqq", ledger_id, entry_id, lac, 7) + rng.randbytes(rng.choice((0, 4, 90)))


def _adds(rng: random.Random) -> list[bytes]:
    frames = []
    ledgers = [number(rng) for _ in range(rng.choice((1, 1, 3, 40)))]
    keys = [rng.randbytes(20) for _ in range(2)]
    next_ids = dict.fromkeys(ledgers, number(rng, 40))
    for _ in range(rng.randrange(1, 30)):
        ledger_id = rng.choice(ledgers)
        entry_id = next_ids[ledger_id]
        next_ids[ledger_id] += rng.choice((1, 1, 1, 1, 2, 0, -1))
        if rng.random() < 0.02:
            ledger_id, entry_id = rng.choice(((-1, 0), (ledger_id, -1)))
        head = rng.choice((0x02010000,) * 20 + (0x02010002, 0x02010004, 0x02020000, 0x03010000))
        key = keys[rng.random() < 0.05]
        frames.append(framed(struct.pack(">I", head) + key + entry(rng, ledger_id, entry_id)))
    return frames


def _decode_adds(rng: random.Random) -> Call:
    return "decode_adds", (*cut(rng, _adds(rng)), rng.choice((FRAME_BYTES_MAX, 100)))


def _inspect_adds(rng: random.Random) -> Call:
    ledger_id, first = number(rng), number(rng, 40)
    ids: Sequence[int] = range(first, first + rng.choice((0, 1, 1, 2, 30)))
    entries = [entry(rng, ledger_id, entry_id) for entry_id in ids]
    if entries and rng.random() < 0.5:
        place = rng.randrange(len(entries))
        damaged = bytearray(entries[place])
        damaged[rng.randrange(len(damaged))] ^= rng.randrange(256)
        entries[place] = bytes(damaged[: rng.choice((len(damaged), 31, 32))])
    if rng.random() < 0.1:
        entries = entries[1:]
    ids = rng.choice((ids, list(ids), tuple(ids)))
    return "inspect_adds", (ledger_id, ids, entries, rng.choice((1 << 20, 60)))


def _decode_add_answers(rng: random.Random) -> Call:
    frames = [
        struct.pack(
            ">IIiqq", 24, 0x02010000, rng.choice((0, 0, 0, -1, 101)), rng.choice((1, 1, 2, -1)),
            number(rng),
        )
        for _ in range(rng.randrange(20))
    ]  # fmt: skip
    return "decode_add_answers", tuple(cut(rng, frames))


def _build_entries(rng: random.Random) -> Call:
    count = rng.choice((0, 1, 1, 2, 20))
    payloads = [
        rng.choice((bytes, bytearray, memoryview))(rng.randbytes(rng.choice((0, 1, 100, 2000))))
        for _ in range(count)
    ]
    prefixes = [rng.randbytes(rng.choice((0, 30, 61))) for _ in range(count)]
    ids = (number(rng), number(rng, 40), rng.choice((-1, number(rng))), number(rng, 40))
    return "build_entries", (*ids, payloads, rng.choice(((), prefixes, tuple(prefixes))))


def _join_records(rng: random.Random) -> Call:
    groups = [
        (
            rng.randrange(16),
            [rng.randbytes(rng.choice((0, 20, 20, 1000))) for _ in range(rng.choice((0, 1, 9)))],
        )
        for _ in range(rng.randrange(4))
    ]
    if rng.random() < 0.02:  # so much that the interpreter's lock is given away
        groups.append((2, [bytes(100_000), rng.randbytes(70_000)]))
    return "join_records", (groups, rng.getrandbits(32), rng.choice((0, 24)), rng.choice((0, 500)))


# -- BookKeeper: reads ----------------------------------------------------------------------------


def _stored(rng: random.Random, ledger_id: int, count: int) -> tuple[int, list[bytes]]:
    """The first's id, and entries with CRC-32C."""
    first = number(rng, 40)
    step, size = rng.choice((1,) * 9 + (0, 2)), rng.choice((0, 90, 1000))
    entries = []
    for place in range(count):
        head = struct.pack(">qqqq", ledger_id, first + place * step, first - 1, 7)
        payload = rng.randbytes(size if rng.random() < 0.9 else rng.choice((0, 1, 300)))
        entries.append(head + crc32c(payload, crc32c(head)).to_bytes(4, "big") + payload)
    if rng.random() < 0.01:  # so much that the interpreter's lock is given away
        entries += [entries[-1] * 900] if entries else []
    return first, entries


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """With a byte that is another, or cut off."""
    changed = bytearray(data)
    if changed and rng.random() < 0.4:
        at = rng.randrange(min(len(changed), rng.choice((40, 1 << 30))))
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed[: rng.choice((len(changed),) * 4 + (rng.randrange(len(changed) + 1),))])


def _records(rng: random.Random, ledger_id: int, seed: int) -> tuple[int, bytes, int]:
    """The first's id, records one behind the other, how many."""
    first, entries = _stored(rng, ledger_id, rng.choice((0, 1, 1, 2, 30)))
    records = []
    for entry in entries:
        word = struct.pack(">I", len(entry))
        records.append(word + struct.pack(">I", crc32c(entry, crc32c(word, seed))) + entry)
    return first, b"".join(records), len(records)


def _check_records(rng: random.Random) -> Call:
    ledger_id, seed = number(rng), rng.getrandbits(32)
    first, data, count = _records(rng, ledger_id, seed)
    data = _damaged(rng, data + rng.randbytes(rng.choice((0, 0, 7, 50))))
    return "check_records", (data, seed, ledger_id, first, rng.choice((1 << 31, count, 3, 1, 0)))


def _frame_records(rng: random.Random) -> Call:
    _, data, _ = _records(rng, number(rng), 1)
    data = _damaged(rng, data)
    return "frame_records", (data, 0, len(data), rng.choice((0, 36)))


def _join_entries(rng: random.Random) -> Call:
    _, entries = _stored(rng, number(rng), rng.choice((0, 1, 2, 30)))
    return "join_entries", (rng.choice((entries, tuple(entries))), rng.choice((0, 36)))


def _split_entries(rng: random.Random) -> Call:
    _, entries = _stored(rng, number(rng), rng.choice((0, 1, 2, 30)))
    return "split_entries", (
        *cut(rng, [framed(entry) for entry in entries]),
        rng.choice((0, 0, 4)),
    )


def _count_sound(rng: random.Random) -> Call:
    ledger_id = number(rng)
    first, entries = _stored(rng, ledger_id, rng.choice((0, 1, 2, 30)))
    if entries and rng.random() < 0.5:
        place = rng.randrange(len(entries))
        entries[place] = _damaged(rng, entries[place])
    return "count_sound", (entries, rng.choice((ledger_id,) * 9 + (5,)), first)


# -- Pulsar ---------------------------------------------------------------------------------------


def _metadata(rng: random.Random) -> bytes:
    """As clients write it, with what they may have added."""
    odd = (b"", b"na\x10me", b"\xc3\xa9" * 3, b"n" * 130, b"n" * 127)
    name = rng.choice(odd) if rng.random() < 0.1 else b"producer-1"
    parts = [b"\x0a" + varint(len(name)) + name, b"\x10" + varint(number(rng))]
    parts.append(b"\x18" + varint(number(rng, 64 if rng.random() < 0.05 else 41)))
    optional = (
        b"\x12\x02ab", b"\x22\x03key", b"\x32\x03key", b"\x40\x00", b"\x40\x02",
        b"\x48" + varint(number(rng, 30)), b"\x58" + varint(number(rng, rng.choice((3, 40)))),
        b"\x58\x01", b"\x60" + varint(number(rng)), b"\x98\x01" + varint(number(rng)),
        b"\xc0\x01" + varint(number(rng)), b"\xd8\x01\x02", b"\xe0\x01\x09", b"\xe8\x01\x00",
        b"\x98\x81\x00\x05", b"\xc0\x80\x00", rng.randbytes(3), b"\x48\xff\xff",
    )  # fmt: skip
    if rng.random() < 0.3:
        parts += rng.sample(optional, rng.choice((1, 1, 2, 3)))
    elif rng.random() < 0.5:  # a batch, as clients have it
        parts += (b"\x48\xe8\x07", b"\x58" + varint(rng.randrange(1, 15)), b"\xc0\x01\x09")
    if rng.random() < 0.01:
        rng.shuffle(parts)
    return b"".join(parts)


def send_body(rng: random.Random, producer_id: int) -> bytes:
    body = b"\x08" + varint(producer_id) + b"\x10" + varint(number(rng, 60))
    body += rng.choice((b"", b"\x18\x01", b"\x18" + varint(number(rng, 28))))
    body += rng.choice((b"", b"", b"\x30" + varint(number(rng, 56))))
    if rng.random() < 0.1:
        body += rng.choice((b"\x38\x01", b"\x38\x00", b"\x40\x01", b"\x30" + varint(1 << 62)))
    command = b"\x08\x06\x32" + varint(len(body)) + body
    metadata = _metadata(rng)
    size = len(metadata) if rng.random() < 0.97 else rng.randrange(2000)
    data = rng.randbytes(rng.choice((100, 100, 1000, 6, 7, 0)))
    if rng.random() < 0.1:  # data that goes on as metadata would
        data = rng.choice((b"\x58\x02", b"\xc0\x01\x05", b"\x48\x05\x58\x01", b"\x98\x01")) + data
    rest = size.to_bytes(4, "big") + metadata + data
    checksum = crc32c(rest) if rng.random() < 0.98 else 7
    return framed(command) + b"\x0e\x01" + checksum.to_bytes(4, "big") + rest


def _read_sends(rng: random.Random) -> Call:
    producers = [number(rng, rng.choice((7, 56, 60))) for _ in range(rng.choice((1, 1, 3, 100)))]
    frames = [
        framed(send_body(rng, rng.choice(producers))) for _ in range(rng.choice((1, 5, 5, 150)))
    ]
    most = rng.choice((FRAME_BYTES_MAX, FRAME_BYTES_MAX, 300))
    return "read_sends", (*cut(rng, frames), FRAME_BYTES_MAX, most)


def _whole_messages(rng: random.Random) -> Call:
    payload = bytearray(send_body(rng, 1))
    payload = payload[payload.index(b"\x0e\x01") :]
    if rng.random() < 0.4:
        payload[rng.randrange(min(len(payload), 50))] ^= 1 << rng.randrange(8)
    return "whole_messages", (bytes(payload[: rng.choice((None, None, 9, 10, 30))]),)


def _single_metadata(rng: random.Random, size: int) -> bytes:
    parts = [b"\x18" + varint(size)]
    optional = (
        b"\x12\x03key", b"\x12\x00", b"\x28" + varint(number(rng)), b"\x30\x01", b"\x48\x01",
        b"\x40" + varint(number(rng)), b"\x3a\x02ok", b"\x0a\x06\x0a\x01a\x12\x01b", b"\x20\x01",
        b"\x18" + varint(size), b"\xa2\x06\x01x", b"\xa9\x06" + bytes(8), b"\xad\x06" + bytes(4),
    )  # fmt: skip
    if rng.random() < 0.6:
        parts += rng.sample(optional[: rng.choice((5, 5, 5, len(optional)))], rng.choice((1, 2, 3)))
        rng.shuffle(parts)
    return b"".join(parts)


def stored_entry(rng: random.Random) -> bytes:
    """As a broker stores it: of one message, or a batch."""
    count = rng.choice((0, 0, 1, 3, 3, 20))
    metadata = b"\x0a\x01p\x10" + varint(number(rng)) + b"\x18" + varint(number(rng, 42))
    optional = (
        b"\x32\x03key", b"\x48\x05", b"\x60" + varint(number(rng, 41)), b"\x88\x01\x01",
        b"\xc8\x01\x01",
        b"\x82\x01\x08" + bytes(7) + b"\x01", b"\x82\x01\x01v", b"\x22\x06\x0a\x01a\x12\x01b",
        b"\x82\x01\x08" + rng.randbytes(8), b"\x40" + varint(rng.randrange(3)), b"\xd8\x01\x02",
        b"\x58\x00", b"\x68\x01", b"\xfa\x01\x00", b"\x10" + varint(number(rng)),
    )  # fmt: skip
    if rng.random() < 0.5:
        chosen = rng.sample(optional[: rng.choice((6, 6, 6, len(optional)))], rng.choice((1, 2)))
        metadata += b"".join(chosen)
    data = rng.randbytes(rng.choice((0, 30)))
    if count:
        metadata += b"\x58" + varint(count + (rng.random() < 0.02))
        data = b"".join(
            framed(_single_metadata(rng, size)) + rng.randbytes(size)
            for size in (rng.choice((0, 1, 10, 130)) for _ in range(count))
        ) + rng.choice((b"", b"", b"", b"behind"))  # fmt: skip
    entry = framed(metadata) + data
    entry = rng.choice((b"", b"\x0e\x01abcd")) + entry
    offset = rng.choice((b"", b"\x08\x07", b"\x08\x07\x10" + varint(number(rng))))
    return rng.choice((b"", b"\x0e\x02" + framed(offset))) + entry


def _gather_messages(rng: random.Random) -> Call:
    payloads: list[bytes | memoryview] = []
    for _ in range(rng.choice((0, 1, 1, 4, 9))):
        view = memoryview(stored_entry(rng))
        if rng.random() < 0.1:
            view, start, end = cut(rng, [bytes(view)])
            view = view[start:end]
        payloads.append(rng.choice((view, bytes(view))))
    wanted = rng.choice((1, 31, 15, rng.randrange(32)))
    return "gather_messages", (payloads, wanted, rng.choice((1 << 30, 1 << 30, 300, 0)))


def ack_body(consumer_id: int, ledger_id: int, entry_id: int, kind: bytes = b"\x10\x00") -> bytes:
    message = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
    body = b"\x08" + varint(consumer_id) + kind + b"\x1a" + varint(len(message)) + message
    return framed(b"\x08\x0a\x52" + varint(len(body)) + body)


def _read_acks(rng: random.Random) -> Call:
    bits = rng.choice((14, 40, 40, 64))
    consumers = [number(rng, bits) for _ in range(rng.choice((1, 1, 3, 100)))]
    frames = [
        framed(
            ack_body(
                rng.choice(consumers),
                number(rng, bits),
                number(rng, bits),
                rng.choice((b"\x10\x00",) * 30 + (b"\x10\x01", b"")),
            )
        )
        for _ in range(rng.choice((1, 5, 150)))
    ]
    return "read_acks", (*cut(rng, frames), Position)


def _find_frames(rng: random.Random) -> Call:
    frames = [framed(rng.randbytes(rng.choice((0, 1, 50)))) for _ in range(rng.randrange(20))]
    return "find_frames", (*cut(rng, frames), rng.choice((0, 40, FRAME_BYTES_MAX, 1 << 31)))


def _encode_receipts(rng: random.Random) -> Call:
    sequence_id = number(rng, 64)
    sends = [
        (sequence_id + i, rng.choice((0, 0, number(rng, 64)))) for i in range(rng.randrange(300))
    ]
    ledger_id, entry_id = rng.choice(((-1, -1), (number(rng), number(rng))))
    return "encode_receipts", (
        number(rng, 64), rng.choice((-1, 0, 3, 1000)), sends, ledger_id, entry_id,
    )  # fmt: skip


def _join_messages(rng: random.Random) -> Call:
    first = number(rng)
    entries = []
    for i in range(rng.choice((0, 1, 5, 200))):
        offset = rng.choice((36, 66))
        begin = rng.choice((b"\x0e",) * 60 + (b"", b"\x00"))
        data = rng.randbytes(offset) + begin + rng.randbytes(rng.choice((0, 100)))
        entries.append(Entry(rng.choice((5, 5, 5, number(rng))), first + i, data, offset))
    most = rng.choice((1 << 20, 1 << 20, 500))
    epoch = rng.choice((-1, 0, number(rng)))
    return "join_messages", (number(rng, 64), rng.choice((-1, 0, 3)), epoch, entries, most)


def _crc32c(rng: random.Random) -> Call:
    data = rng.randbytes(rng.choice((0, 1, 7, 8, 9, 255, 767, 768, 769, 1600, 5000)))
    return "crc32c", rng.choice(((data,), (memoryview(data)[1:], rng.getrandbits(32))))


MAKERS: Final[tuple[Callable[[random.Random], Call], ...]] = (
    _build_entries, _check_records, _count_sound, _crc32c, _decode_add_answers, _decode_adds,
    _encode_receipts, _find_frames, _frame_records, _gather_messages, _inspect_adds, _join_entries,
    _join_messages, _join_records, _read_acks, _read_sends, _split_entries, _whole_messages,
)  # fmt: skip


def arguments(rng: random.Random) -> Call:
    """One of the functions, and what to call it with."""
    return rng.choice(MAKERS)(rng)


def plain(value: Any) -> Any:
    """``value`` with its views copied, its types told, and the hashes of tuples of numbers: what
    makes tuples in C has to begin them as tuples begin."""
    if isinstance(value, memoryview):
        return "view", value.tobytes()
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return type(value).__name__, [*value, ("hash", hash(value))]
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(item) for item in value]
    return type(value).__name__, value


def answer(twins: Any, call: Call) -> Any:
    name, args = call
    try:
        return plain(getattr(twins, name)(*args))
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        return "raised", type(error).__name__
