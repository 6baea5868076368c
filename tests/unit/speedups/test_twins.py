"""What the inner loops over bytes do, in Python and in C; and that both do the same.

What is expected is made by others: protobuf, struct, the codecs' own encoders.
"""

from __future__ import annotations

import random
import struct
from itertools import accumulate
from typing import Any

import pytest

from magnetar import speedups
from magnetar.model.entry import Entry
from magnetar.model.ids import Position
from magnetar.model.ledger import DigestType
from magnetar.speedups import pure
from magnetar.wire.bookie import v2
from magnetar.wire.bookie.digest import EntryDigest
from magnetar.wire.pulsar.commands import encode_command, encode_payload_command
from magnetar.wire.pulsar.metadata import dispatch_facts
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    MessageMetadata,
    SingleMessageMetadata,
)
from tests.unit.speedups.chunks import MAKERS, answer, arguments, framed
from tests.unit.speedups.fuzz import difference

CHUNKS = 4000
KEY = b"k" * 20


def test_there_are_two_of_each(twins: Any) -> None:
    names = {name for name in pure.__all__ if callable(getattr(pure, name))}
    if twins is not pure:
        assert {name for name in vars(twins) if not name.startswith("_")} == {*names, "INTERFACE"}
        assert twins.INTERFACE == speedups.INTERFACE
    assert names <= set(speedups.__all__)


def test_both_give_the_same_for_the_same_bytes(twins: Any) -> None:
    if twins is pure:
        pytest.skip("nothing to compare it with")
    for seed in range(CHUNKS):
        wrong = difference(twins, seed)
        assert wrong is None, wrong


def test_a_difference_is_found() -> None:
    """The fuzzer sees it when one byte of an answer is another."""

    class Wrong:
        def __getattr__(self, name: str) -> Any:
            function = getattr(pure, name)
            if name != "encode_receipts":
                return function
            return lambda *args: function(*args).replace(b"\x08\x07\x3a", b"\x08\x07\x3b")

    assert any(difference(Wrong(), seed) for seed in range(200))


def test_chunks_are_sound_and_unsound() -> None:
    """Every function is called with what it takes whole, and with what it leaves."""
    seen = set()
    for seed in range(3000):
        name, args = arguments(random.Random(seed))
        kind, value = answer(pure, (name, args))
        assert kind != "raised", (seed, name, value)
        stops = name in (
            "read_sends", "read_acks", "decode_adds", "decode_add_answers", "split_entries",
        )  # fmt: skip
        whole = value[1][1] == args[2] if stops else kind != "NoneType"
        if name == "gather_messages":
            whole = len(value[0][1]) == 32 * len(args[0])
        seen.add((name, whole))
    for name in (
        "read_sends", "read_acks", "decode_adds", "inspect_adds", "join_messages", "split_entries",
        "gather_messages",
    ):  # fmt: skip
        assert {(name, True), (name, False)} <= seen


def test_crc32c_is_castagnoli(twins: Any) -> None:
    """RFC 3720, B.4."""
    assert twins.crc32c(bytes(32)) == 0x8A9136AA
    assert twins.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert twins.crc32c(bytes(range(32))) == 0x46DD794E
    data = random.Random(1).randbytes(200_000)
    parts = twins.crc32c(memoryview(data)[7:], twins.crc32c(data[:7]))
    assert parts == twins.crc32c(data) == pure.crc32c(data)


def test_frames_end_before_what_is_not_whole(twins: Any) -> None:
    data = framed(b"one") + framed(b"") + framed(b"three")
    view = memoryview(b"xx" + data)
    assert twins.find_frames(view, 2, len(view), 5) == ([(6, 9), (13, 13), (17, 22)], 22)
    assert twins.find_frames(view, 2, len(view) - 1, 5) == ([(6, 9), (13, 13)], 13)
    assert twins.find_frames(view, 2, len(view), 4) == ([(6, 9), (13, 13)], 13)
    assert twins.find_frames(view, 2, 2, 4) == ([], 2)


@pytest.mark.parametrize("prefixes", [(), (b"p" * 30, b"")])
def test_entries_are_those_of_the_digest(twins: Any, prefixes: tuple[bytes, ...]) -> None:
    digest = EntryDigest(DigestType.CRC32C, 7, b"secret")
    payloads = [memoryview(b"abc"), b"d" * 900]
    whole = [b"".join(pair) for pair in zip(prefixes or (b"", b""), payloads, strict=True)]
    length = 40
    expected = []
    for entry_id, payload in enumerate(whole, 3):
        length += len(payload)
        expected.append(digest.build(entry_id, 1, length, payload))
    assert twins.build_entries(7, 3, 1, 40, payloads, prefixes) == (expected, length)
    one = twins.build_entries(7, 3, 1, 40, payloads[:1], prefixes[:1])
    assert one == (expected[:1], 40 + len(whole[0]))


def test_records_have_their_length_and_checksum(twins: Any) -> None:
    payloads = [b"abc", b"def", b"x" * 70_000]
    joined = bytes(twins.join_records([(2, payloads), (3, [b""])], 77, 24, 5))
    expected = bytes(24)
    for word, payload in zip(
        (0x20000003, 0x20000003, 0x20011170, 0x30000000), [*payloads, b""], strict=True
    ):
        head = struct.pack(">I", word)
        expected += head + struct.pack(">I", pure.crc32c(payload, pure.crc32c(head, 77))) + payload
    assert joined == expected + bytes(5)
    assert bytes(twins.join_records([], 77, 0, 0)) == b""


def _add(ledger_id: int, entry_id: int, body: bytes = b"", lac: int = -1) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, lac, 0) + body


def test_adds_are_runs_by_ledger(twins: Any) -> None:
    """Two ledgers in turn are two runs; an id that comes again begins another."""
    entries = [_add(1, 5), _add(2, 0, b"x"), _add(1, 6), _add(2, 3), _add(1, 6), _add(1, 9)]
    parts, _ = v2.encode_adds(KEY, entries, 0)
    view = memoryview(b"".join(parts))
    runs, stop = twins.decode_adds(view, 0, len(view), 1000)
    assert stop == len(view)
    assert [(run[2], run[3]) for run in runs] == [(1, [5, 6]), (2, [0, 3]), (1, [6, 9])]
    assert [run[4] for run in runs] == [entries[0:3:2], entries[1:4:2], entries[4:]]
    assert [run[5] for run in runs] == [112, 113, 112]
    assert {run[:2] for run in runs} == {(0x02010000, KEY)}


@pytest.mark.parametrize(
    "other",
    [_add(-1, 0), _add(1, -1), _add(1, 1)[:-1], _add(1, 1, bytes(1000))],
    ids=["no ledger", "no entry", "short", "large"],
)
def test_adds_end_before_what_is_not_sound(twins: Any, other: bytes) -> None:
    parts, _ = v2.encode_adds(KEY, [_add(1, 0), other, _add(1, 2)], 0)
    view = memoryview(b"".join(parts))
    runs, stop = twins.decode_adds(view, 0, len(view), 1000)
    assert [run[3] for run in runs] == [[0]]
    assert stop == len(parts[0]) + len(parts[1])


def test_added_entries_name_their_ledger_and_id(twins: Any) -> None:
    entries = [_add(1, 5, lac=3), _add(1, 9, b"xy", lac=7), _add(1, 8)]
    for ids in ([5, 9, 8], (5, 9, 8)):
        assert twins.inspect_adds(1, ids, entries, 34) == (98, 7, 9)
    assert twins.inspect_adds(1, range(5, 6), entries[:1], 34) == (32, 3, 5)
    wrong: list[tuple[int, list[int], list[bytes], int]] = [
        (2, [5], entries[:1], 34), (1, [6], entries[:1], 34), (1, [5], [entries[0][:31]], 34),
        (1, [5, 9], entries[:2], 33), (1, [5], [], 34), (1, [], [], 34),
        (1, [-1], [_add(1, -1)], 34),
    ]  # fmt: skip
    for args in wrong:
        assert twins.inspect_adds(*args) is None


def test_add_answers_are_runs_by_ledger_and_status(twins: Any) -> None:
    told = [(0, 7, 1), (0, 7, 2), (0, 8, 3), (101, 8, 4), (0, 7, 9)]
    data = b"".join(struct.pack(">IIiqq", 24, 0x02010000, *each) for each in told)
    view = memoryview(data + b"\0\0\0\x18\x02\x02")
    runs, stop = twins.decode_add_answers(view, 0, len(view))
    assert runs == [(7, 0, [1, 2]), (8, 0, [3]), (8, 101, [4]), (7, 0, [9])]
    assert stop == len(data)


def _record(entry: bytes, seed: int) -> bytes:
    word = struct.pack(">I", len(entry))
    return word + struct.pack(">I", pure.crc32c(entry, pure.crc32c(word, seed))) + entry


def test_records_are_sound_up_to_what_is_not_the_next_one(twins: Any) -> None:
    entries = [_add(7, 5, b"x" * 40_000), _add(7, 6, b"y" * 40_000), _add(7, 7), _add(7, 8, b"z")]
    records = [_record(entry, 99) for entry in entries]
    data = b"".join(records)
    bounds = [0, *accumulate(map(len, records))]
    check = twins.check_records
    assert check(data, 99, 7, 5, 1 << 31) == bounds
    assert check(data, 99, 7, 5, 2) == bounds[:3]
    assert check(data[:-1], 99, 7, 5, 9) == bounds[:4]
    assert check(data + data, 99, 7, 5, 9) == bounds  # not the next id
    for wrong in ((98, 7, 5), (99, 8, 5), (99, 7, 4)):
        assert check(data, *wrong, 9) == [0]
    assert check(data, 99, 7, 5, 0) == check(b"", 99, 7, 5, 9) == [0]
    for at in (3, 4, 8 + 39, len(records[0]) - 1):  # length, checksum, entry
        damaged = bytearray(data)
        damaged[len(records[0]) + at] ^= 1
        assert check(bytes(damaged), 99, 7, 5, 9) == bounds[:2]
    framed_records = b"".join(map(framed, entries[1:3]))
    assert twins.frame_records(data, bounds[1], bounds[3], 5) == bytes(5) + framed_records
    assert twins.frame_records(data, bounds[2], bounds[2], 5) == bytes(5)
    assert twins.split_entries(memoryview(data), bounds[1], bounds[4], 4) == (
        entries[1:],
        bounds[4],
    )


@pytest.mark.parametrize("size", [0, 100, 70_000])
def test_entries_of_an_answer_are_those_that_were_joined(twins: Any, size: int) -> None:
    entries = [b"", b"ab", bytes(size), b"c"]
    joined = twins.join_entries(entries, 5)
    assert joined == bytes(5) + b"".join(map(framed, entries))
    view = memoryview(joined)
    assert twins.split_entries(view, 5, len(view), 0) == (entries, len(view))
    for less in (1, 4):
        assert twins.split_entries(view, 5, len(view) - less, 0) == (entries[:3], len(view) - 5)
    assert twins.join_entries([], 3) == bytes(3)
    assert twins.split_entries(view, 7, 7, 0) == ([], 7)


@pytest.mark.parametrize("size", [0, 70_000])
def test_sound_entries_are_those_with_their_digest(twins: Any, size: int) -> None:
    digest = EntryDigest(DigestType.CRC32C, 7, b"")
    entries = [digest.build(5 + i, 4, 9, bytes((i,)) * size) for i in range(4)]
    count = twins.count_sound
    assert count(entries, 7, 5) == 4
    assert count(entries, 8, 5) == count(entries, 7, 4) == count([], 7, 5) == 0
    assert count([*entries[:2], entries[3]], 7, 5) == 2
    for at in (0, 15, 16, 31, 32, 35, len(entries[2]) - 1):
        damaged = bytearray(entries[2])
        damaged[at] ^= 4
        assert count([*entries[:2], bytes(damaged), entries[3]], 7, 5) == 2
    assert count([*entries[:3], entries[3][:35]], 7, 5) == 3


def send(producer_id: int, sequence_id: int, data: bytes, highest: int = 0, **fields: Any) -> bytes:
    """A SEND frame as clients write it."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = producer_id, sequence_id
    command.send.num_messages = fields.get("num_messages_in_batch", 1)
    if highest:
        command.send.highest_sequence_id = highest
    meta = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=500, **fields)
    head = meta.SerializeToString()
    rest = len(head).to_bytes(4, "big") + head + data
    checked = b"\x0e\x01" + pure.crc32c(rest).to_bytes(4, "big") + rest
    return encode_payload_command(command, checked)


def test_sends_are_runs_by_producer(twins: Any) -> None:
    frames = [
        send(1, 300, b"abc"),
        send(2, 7, b"y" * 12, highest=8, num_messages_in_batch=2, uncompressed_size=12),
        send(1, 301, b"d", partition_key="key"),
    ]
    view = memoryview(bytearray(b"".join(frames)))
    runs, stop = twins.read_sends(view, 0, len(view), 1000, 1000)
    assert stop == len(view)
    assert [(run[0], run[2], run[3], run[4]) for run in runs] == [
        (1, [(300, 0), (301, 0)], [1, 1], [500, 500]),
        (2, [(7, 8)], [2], [500]),
    ]
    payloads = [frame[frame.index(b"\x0e\x01") :] for frame in frames]
    assert [[bytes(each) for each in run[1]] for run in runs] == [payloads[::2], payloads[1:2]]
    assert [run[5] for run in runs] == [len(payloads[0]) + len(payloads[2]), len(payloads[1])]
    view[runs[0][1][0].nbytes // 2] ^= 1  # they are views, not copies
    assert runs[0][1][0].obj is view.obj


@pytest.mark.parametrize(
    "frame",
    [
        send(1, 1, b"d", deliver_at_time=900),
        send(1, 1, b"d", compression=2),
        send(1, 1, b"d", num_messages_in_batch=9),
        send(1, 1, b"d" * 900),
        send(1, 1, b"d")[:-1] + b"e",
        encode_command(BaseCommand(type=BaseCommand.PING)),
    ],
    ids=["delayed", "compressed", "no such batch", "large", "damaged", "a ping"],
)
def test_sends_end_before_what_is_unusual(twins: Any, frame: bytes) -> None:
    first = send(1, 0, b"abc")
    view = memoryview(first + frame + first)
    runs, stop = twins.read_sends(view, 0, len(view), 2000, 800)
    assert [run[2] for run in runs] == [[(0, 0)]]
    assert stop == len(first)


@pytest.mark.parametrize(
    ("fields", "data", "expected"),
    [
        ({}, b"d", 1),
        ({"num_messages_in_batch": 2, "uncompressed_size": 12}, b"d" * 12, 2),
        ({"num_messages_in_batch": 2, "highest_sequence_id": 9}, b"d" * 12, 2),
        ({"num_messages_in_batch": 2}, b"d" * 11, 0),
        ({"partition_key": "key"}, b"d", 0),
        ({"deliver_at_time": 900}, b"d", 0),
        ({"compression": 2}, b"d", 0),
        ({"num_chunks_from_msg": 3}, b"d", 0),
    ],
)
def test_what_an_entry_holds(
    twins: Any, fields: dict[str, Any], data: bytes, expected: int
) -> None:
    frame = send(1, 5, data, **fields)
    payload = frame[frame.index(b"\x0e\x01") :]
    assert twins.whole_messages(memoryview(payload)) == expected
    if expected:
        assert dispatch_facts(payload) == (expected, 0)
    assert twins.whole_messages(payload[:15]) == twins.whole_messages(b"") == 0


def test_what_is_said_of_an_entry_is_what_decoding_says(twins: Any) -> None:
    """Or nothing: of whatever bytes."""
    told = 0
    for seed in range(3000):
        name, (payload, *_) = MAKERS[-1](random.Random(seed))
        assert name == "whole_messages"
        found = twins.whole_messages(payload)
        if found:
            told += 1
            assert dispatch_facts(payload) == (found, 0)
    assert told > 300


def ack(consumer_id: int, ledger_id: int, *entry_ids: int) -> bytes:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = consumer_id, 0
    for entry_id in entry_ids:
        command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    return encode_command(command)


def test_acks_are_positions_by_consumer(twins: Any) -> None:
    frames = [ack(1, 9, 300), ack(2, 9, 7), ack(1, 8, 4), ack(1, 9, 5, 6)]
    view = memoryview(b"".join(frames))
    groups, stop = twins.read_acks(view, 0, len(view), Position)
    assert groups == [(1, [(9, 300), (8, 4)]), (2, [(9, 7)])]
    assert {type(each) for _, positions in groups for each in positions} == {Position}
    assert groups[0][1][0].entry_id == 300
    assert set(groups[0][1]) == {(9, 300), (8, 4)}, "found by their hashes, as what is out is"
    assert stop == len(view) - len(frames[-1])


@pytest.mark.parametrize("highest", [0, 9])
@pytest.mark.parametrize("stored", [(-1, -1), (5, 126)])
def test_receipts_are_protobufs(twins: Any, highest: int, stored: tuple[int, int]) -> None:
    ledger_id, entry_id = stored
    sends = [(sequence_id, highest) for sequence_id in (126, 127, 128, 2**64 - 1)]
    expected = b""
    for number, (sequence_id, _) in enumerate(sends):
        command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        receipt = command.send_receipt
        receipt.producer_id, receipt.sequence_id = 3, sequence_id
        receipt.message_id.ledgerId = ledger_id % 2**64
        receipt.message_id.entryId = (entry_id + number) % 2**64
        receipt.message_id.partition = -1
        if highest:
            receipt.highest_sequence_id = highest
        expected += encode_command(command)
    assert twins.encode_receipts(3, -1, sends, ledger_id, entry_id) == expected


@pytest.mark.parametrize("epoch", [-1, 0, 1, 127, 128, 2**63 - 1])
def test_messages_are_protobufs(twins: Any, epoch: int) -> None:
    entries = [Entry(5, i, bytes(36) + b"\x0e\x01" + bytes(i), 36) for i in (126, 127, 128, 400)]
    expected = b""
    for entry in entries:
        command = BaseCommand(type=BaseCommand.MESSAGE)
        command.message.consumer_id = 300
        command.message.message_id.ledgerId = 5
        command.message.message_id.entryId = entry.entry_id
        command.message.message_id.partition = 2
        if epoch >= 0:
            command.message.consumer_epoch = epoch
        expected += encode_payload_command(command, entry.data[36:])
    assert twins.join_messages(300, 2, epoch, entries, len(expected)) == expected
    assert twins.join_messages(300, 2, epoch, entries, len(expected) - 1) is None
    other = Entry(5, 0, bytes(40), 36)  # of a producer of another protocol
    assert twins.join_messages(300, 2, epoch, [*entries, other], 1 << 20) is None
    view = Entry(5, 0, memoryview(entries[0].data), 36)  # of a partition
    assert twins.join_messages(300, 2, epoch, [view], 1 << 20) is None


# -- stored entries, as columns -------------------------------------------------------------------


def test_messages_of_entries_are_columns(twins: Any) -> None:
    """Batches and entries of one message, with nulls, as protobuf writes them."""
    singles = [
        SingleMessageMetadata(payload_size=3, partition_key="k", event_time=9),
        SingleMessageMetadata(payload_size=0, null_value=True, partition_key_b64_encoded=True),
    ]
    heads = [single.SerializeToString() for single in singles]
    data = framed(heads[0]) + b"abc" + framed(heads[1])
    batch = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=70, num_messages_in_batch=2,
        schema_version=(5).to_bytes(8, "big"),
    )  # fmt: skip
    alone = MessageMetadata(producer_name="p", sequence_id=2, publish_time=80, partition_key="xy")
    offset = BrokerEntryMetadata(index=11).SerializeToString()
    entries = [
        b"\x0e\x02" + framed(offset) + b"\x0e\x01abcd" + framed(batch.SerializeToString()) + data,
        memoryview(framed(alone.SerializeToString()) + b"value"),
    ]
    found = twins.gather_messages(entries, 31, 100)
    told, values, keys, times, encoded = found
    assert struct.unpack("8q", told) == (2, 70, 11, 5, -1, 80, -1, -1)
    assert values == (struct.pack("4i", 0, 3, 3, 8), b"abcvalue", b"\x05")
    assert keys == (struct.pack("4i", 0, 1, 1, 3), b"kxy", b"\x05")
    assert times == struct.pack("3q", 9, 0, 0)
    assert encoded == b"\x00\x01\x00"
    assert twins.gather_messages(entries, 0, 100) == (told, None, None, None, None)
    assert twins.gather_messages(entries, 1, 10)[0] == told[:32]  # 11 bytes of values and keys
    assert twins.gather_messages([], 1, 0)[:2] == (b"", (bytes(4), b"", None))
    with pytest.raises(ValueError, match="bytes_max"):
        twins.gather_messages(entries, 1, 1 << 31)
    with pytest.raises(TypeError):
        twins.gather_messages(["text"], 1, 1)


@pytest.mark.parametrize(
    "odd",
    [
        {"compression": 1}, {"encryption_algo": "x"}, {"num_chunks_from_msg": 2},
        {"publish_time": 2**62}, {"num_messages_in_batch": 0}, {"num_messages_in_batch": 9},
        {"event_time": 2**62}, {"compacted_batch_indexes": [1]},
    ],
)  # fmt: skip
def test_entries_of_another_shape_are_left(twins: Any, odd: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"producer_name": "p", "sequence_id": 1, "publish_time": 70}
    plain = framed(MessageMetadata(**fields).SerializeToString()) + b"value"
    left = framed(MessageMetadata(**fields | odd).SerializeToString()) + b"value"
    told, values, *_ = twins.gather_messages([plain, left, plain], 1, 100)
    assert len(told) == 32
    assert values == (struct.pack("2i", 0, 5), b"value", None)
