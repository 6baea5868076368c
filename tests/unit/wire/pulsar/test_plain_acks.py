"""ACKs that are read by what they have in common, against the decoder of all ACKs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.model.errors import ProtocolError
from magnetar.model.ids import Position
from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.hot import decode_ack
from magnetar.wire.pulsar.plain_acks import PlainAcks
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

IDS = st.integers(0, 300) | st.integers(0, 2**40) | st.integers(0, 2**64 - 1)


def ack(consumer_id: int, ledger_id: int, *entry_ids: int, cumulative: bool = False) -> bytes:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.ack_type = command.ack.Cumulative if cumulative else command.ack.Individual
    for entry_id in entry_ids:
        command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    return encode_command(command)[4:]


def agree(plain: PlainAcks, frame: bytes) -> bool:
    """Take ``frame``, which is to mean the same to both; whether it was taken."""
    view = memoryview(b"before" + len(frame).to_bytes(4, "big") + frame + b"after")
    start, end = 10, 10 + len(frame)
    if not plain.take(view, start, end):
        assert not plain.collected
        return False
    found = decode_ack(view, start, end)
    [only] = found.ids
    expected = {found.consumer_id: [Position(only.ledger_id, only.entry_id)]}
    assert plain.taken() == expected
    assert (found.cumulative, found.request_id, found.txn) == (False, None, None)
    assert (only.ack_set, only.batch_index, only.batch_size) == ((), -1, 0)
    return True


@settings(max_examples=300)
@given(st.lists(st.tuples(IDS, IDS, IDS), min_size=1, max_size=8))
def test_what_is_taken_means_what_it_says(acks: list[tuple[int, int, int]]) -> None:
    plain = PlainAcks()
    for consumer_id, ledger_id, entry_id in acks * 2:
        frame = ack(consumer_id, ledger_id, entry_id)
        usual = max(consumer_id, ledger_id) < 2**63 and entry_id < 2**56 and len(frame) <= 40
        assert agree(plain, frame) == usual


@settings(max_examples=500)
@given(st.data())
def test_what_looks_like_it_is_not_taken_for_it(data: st.DataObject) -> None:
    plain = PlainAcks()
    frame = bytearray(ack(*data.draw(st.tuples(IDS, IDS, IDS))))
    agree(plain, bytes(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at : at + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=2))
        if len(frame) < 4:
            return
    try:
        agree(plain, bytes(frame))
    except ProtocolError as error:
        raise AssertionError("it was taken and cannot be decoded") from error


def test_others_are_left_alone() -> None:
    plain = PlainAcks()
    assert agree(plain, ack(1, 2, 3))
    for frame in (ack(1, 2, 3, 4), ack(1, 2), ack(1, 2, 3, cumulative=True), b"", b"\xff" * 9):
        assert not agree(plain, frame)


def test_they_are_collected_by_consumer_and_in_order() -> None:
    plain = PlainAcks()
    for consumer_id, entry_id in ((1, 300), (2, 7), (1, 4), (1, 5)):
        frame = ack(consumer_id, 9, entry_id)
        data = memoryview(len(frame).to_bytes(4, "big") + frame)
        assert plain.take(data, 4, len(data))
    assert plain.collected
    assert plain.taken() == {1: [(9, 300), (9, 4), (9, 5)], 2: [(9, 7)]}
    assert not plain.collected


def test_a_run_ends_before_what_is_something_else() -> None:
    frames = [ack(1, 9, 300), ack(2, 9, 7), ack(1, 9, 4), ack(1, 9, 5, 6)]
    data = memoryview(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
    plain = PlainAcks()
    assert plain.take_run(data, 0, len(data)) == len(data) - len(frames[-1]) - 4
    assert plain.taken() == {1: [(9, 300), (9, 4)], 2: [(9, 7)]}
