"""The twins in Python of what ``magnetar._speedups`` has in C: they say what it does, and do it
where it is not built."""

from __future__ import annotations

from magnetar.speedups.pure.adds import decode_add_answers, decode_adds, inspect_adds
from magnetar.speedups.pure.entries import build_entries, crc32c, find_frames, join_records
from magnetar.speedups.pure.gathering import gather_messages
from magnetar.speedups.pure.messages import encode_receipts, join_messages
from magnetar.speedups.pure.reads import (
    check_records,
    count_sound,
    frame_records,
    join_entries,
    split_entries,
)
from magnetar.speedups.pure.sends import read_acks, read_sends, whole_messages

__all__ = [
    "build_entries",
    "check_records",
    "count_sound",
    "crc32c",
    "decode_add_answers",
    "decode_adds",
    "encode_receipts",
    "find_frames",
    "frame_records",
    "gather_messages",
    "inspect_adds",
    "join_entries",
    "join_messages",
    "join_records",
    "read_acks",
    "read_sends",
    "split_entries",
    "whole_messages",
]
