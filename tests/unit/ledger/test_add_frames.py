from __future__ import annotations

from magnetar.ledger.connections.add_frames import AddFrames
from magnetar.wire.bookie import v2
from magnetar.wire.bookie.messages import ADD_RECOVERY

KEY = b"k" * 20
SMALL = [b"e" * 40, b"f" * 50]


def test_the_second_bookie_gets_the_very_bytes_of_the_first() -> None:
    frames = AddFrames()
    first, byte_count = frames.encode(KEY, SMALL, 0)
    again, again_count = frames.encode(KEY, SMALL, 0)
    assert again is first
    assert byte_count == again_count == len(b"".join(first))
    assert b"".join(first) == b"".join(v2.encode_adds(KEY, SMALL, 0)[0])
    assert len(first) == 1, "small frames are joined"


def test_another_key_other_flags_and_other_entries_are_encoded_anew() -> None:
    frames = AddFrames()
    frames.encode(KEY, SMALL, 0)
    for key, entries, flags in (
        (b"l" * 20, SMALL, 0),
        (b"l" * 20, SMALL, ADD_RECOVERY),
        (b"l" * 20, list(SMALL), ADD_RECOVERY),
        (b"l" * 20, SMALL[:1], ADD_RECOVERY),
    ):
        parts, byte_count = frames.encode(key, entries, flags)
        data = b"".join(parts)
        assert data == b"".join(v2.encode_adds(key, entries, flags)[0])
        assert byte_count == len(data)


def test_large_entries_are_not_copied() -> None:
    large = [b"e" * (200 << 10), b"f" * (200 << 10)]
    parts, _ = AddFrames().encode(KEY, large, 0)
    assert [id(part) for part in parts if len(part) > 100] == list(map(id, large))


def test_what_is_forgotten_is_encoded_anew() -> None:
    frames = AddFrames()
    first, _ = frames.encode(KEY, SMALL, 0)
    frames.forget()
    again, _ = frames.encode(KEY, SMALL, 0)
    assert again is not first
    assert again == first
