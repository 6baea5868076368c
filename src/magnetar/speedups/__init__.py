"""The inner loops over bytes, and the one place that chooses how they run: in C, or in Python.

Each function is there twice under one name: in ``magnetar._speedups`` (``_speedups.c``, built
where there is a compiler) and in ``magnetar.speedups.pure``, which says what it does. Both give the
same for the same bytes; tests and a fuzzer hold one against the other. Whoever uses them imports
them from here and does not know which they are.

``MAGNETAR_SPEEDUPS`` is read once, at import: ``0`` is Python, ``require`` is C or an error,
anything else is C where it is built. ``IN_USE`` says which it is, and why (``magnetar config``
prints it).

Rules: a function works on one chunk, run or commit; it keeps nothing, does no I/O, and decides
nothing. Bytes of an unusual shape it leaves to its caller: it stops before them, or answers None.
So errors of protocols are raised in one place, by the codecs.

Why: docs/adr/0121-a-native-module-with-twins.md.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

INTERFACE: Final = 6
"""What is asked of the module in C; ``_speedups.c`` has the same. To be raised with every change
of an argument or an answer: a module that was built before it is not used."""


def _choose(wanted: str) -> tuple[bool, str]:
    """Whether C is in use, and words on it. Raises ``ImportError`` if it must be and cannot."""
    if wanted == "0":
        return False, "pure Python (MAGNETAR_SPEEDUPS=0)"
    try:
        found = import_module("magnetar._speedups").INTERFACE
        problem = "" if found == INTERFACE else "it was built from other sources"
    except ImportError as error:
        problem = str(error)
    if not problem:
        return True, "native (magnetar._speedups)"
    if wanted == "require":
        raise ImportError(
            f"MAGNETAR_SPEEDUPS=require, and magnetar._speedups cannot be used: {problem}; install "
            "a C compiler and Python's headers, then install the package again (make does)"
        )
    return False, f"pure Python, which is slower (magnetar._speedups: {problem})"


NATIVE, IN_USE = _choose(os.environ.get("MAGNETAR_SPEEDUPS", ""))

if TYPE_CHECKING or not NATIVE:
    from magnetar.speedups.pure import (
        build_entries,
        check_records,
        count_sound,
        crc32c,
        decode_add_answers,
        decode_adds,
        encode_receipts,
        find_frames,
        frame_records,
        gather_messages,
        inspect_adds,
        join_entries,
        join_messages,
        join_records,
        read_acks,
        read_sends,
        split_entries,
        whole_messages,
    )
else:
    from magnetar._speedups import (
        build_entries,
        check_records,
        count_sound,
        crc32c,
        decode_add_answers,
        decode_adds,
        encode_receipts,
        find_frames,
        frame_records,
        gather_messages,
        inspect_adds,
        join_entries,
        join_messages,
        join_records,
        read_acks,
        read_sends,
        split_entries,
        whole_messages,
    )

__all__ = [
    "INTERFACE",
    "IN_USE",
    "NATIVE",
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
