from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import ProtocolError
from magnetar.wire.bookie import availability
from magnetar.wire.bookie.availability import Condenser, Group, condense


def test_golden() -> None:
    """Entries 0, 1, 3, 4, 6, 7 (striped) and 20: two groups."""
    body = availability.encode(condense([0, 1, 3, 4, 6, 7, 20]))
    assert body == (
        struct.pack(">ii", 0, 2) + bytes(56)
        + struct.pack(">qqii", 0, 6, 2, 3)
        + struct.pack(">qqii", 20, 20, 1, 0)
    )  # fmt: skip
    assert availability.decode(body) == [Group(0, 6, 2, 3), Group(20, 20, 1, 0)]


def test_striping_is_condensed() -> None:
    held = [i for i in range(300_000) if i % 3 != 1]
    assert len(availability.encode(condense(held))) <= 64 + 3 * 24


@given(st.sets(st.integers(0, 300)), st.integers(1, 20))
def test_ids_that_come_in_pieces_are_condensed_alike(ids: set[int], size: int) -> None:
    held = sorted(ids)
    condenser = Condenser()
    for start in range(0, len(held), size):
        condenser.add(held[start : start + size])
        condenser.add([])
    assert condenser.groups() == condense(held)


def test_nothing_held() -> None:
    assert availability.encode(condense([])) == bytes(64)
    assert availability.decode(bytes(64)) == []


@given(st.sets(st.integers(0, 300)), st.integers(0, 2**40))
def test_what_is_encoded_is_held_and_nothing_else(ids: set[int], offset: int) -> None:
    held = sorted(i + offset for i in ids)
    groups = availability.decode(availability.encode(condense(held)))
    found = [i + offset for i in range(301) if availability.holds(groups, i + offset)]
    assert found == held


def test_a_period_too_large_for_its_field_is_another_group() -> None:
    groups = availability.decode(availability.encode(condense([0, 2**33])))
    assert groups == [Group(0, 0, 1, 0), Group(2**33, 2**33, 1, 0)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(63),
        struct.pack(">ii", 1, 0) + bytes(56),
        struct.pack(">ii", 0, -1) + bytes(56),
        struct.pack(">ii", 0, 1) + bytes(56),
        struct.pack(">ii56xqqii", 0, 1, 5, 4, 1, 0),
        struct.pack(">ii56xqqii", 0, 1, -1, 4, 1, 5),
        struct.pack(">ii56xqqii", 0, 1, 0, 4, 0, 2),
        struct.pack(">ii56xqqii", 0, 1, 0, 4, 1, 0),
        struct.pack(">ii56xqqii", 0, 1, 0, 4, 1, 3),
    ],
)
def test_what_is_no_list_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        availability.decode(body)


def test_mutated_lists_raise_nothing_but_a_protocol_error() -> None:
    rng = random.Random(22)
    sound = availability.encode(condense([0, 1, 3, 4, 6, 7, 20]))
    for _ in range(5000):
        body = bytearray(sound)
        body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            groups = availability.decode(bytes(body[: rng.randint(0, len(body))]))
        except ProtocolError:
            continue
        availability.holds(groups, rng.randrange(30))
