"""The twins in Python of what ``magnetar._speedups`` has in C: they say what it does, and do it
where it is not built."""

from __future__ import annotations

from magnetar.speedups.pure.adds import decode_add_answers, decode_adds, inspect_adds
from magnetar.speedups.pure.entries import build_entries, crc32c, find_frames, join_records
from magnetar.speedups.pure.gathering import gather_messages
from magnetar.speedups.pure.messages import encode_receipts, join_messages
from magnetar.speedups.pure.reads import (
    count_sound,
    join_entries,
    split_entries,
    take_records,
)
from magnetar.speedups.pure.sends import read_acks, read_sends, whole_messages

__all__ = [
    "build_entries",
    "count_sound",
    "crc32c",
    "decode_add_answers",
    "decode_adds",
    "encode_receipts",
    "find_frames",
    "gather_messages",
    "inspect_adds",
    "join_entries",
    "join_messages",
    "join_records",
    "read_acks",
    "read_sends",
    "split_entries",
    "take_records",
    "whole_messages",
]
