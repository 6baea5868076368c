"""``staging.records``: what is written is read, and names are checked."""

from __future__ import annotations

import pytest

from magnetar.model.errors import StagedWriteError
from magnetar.staging.records import (
    INLINE,
    Commit,
    Origin,
    QueryRecord,
    Source,
    check_query,
    decode_directory,
    decode_origin,
    decode_query,
    encode_directory,
    encode_origin,
    encode_query,
    query_of,
    query_path,
)

RECORD = QueryRecord(
    run="b",
    first_run="a",
    epoch=2,
    retired=("a",),
    last_batch=4,
    commits=(
        Commit(
            4,
            2,
            {"persistent://t/n/x": (Source(0, 7, 3, 9), Source(1, INLINE, 1, 2, (b"\0\xff",)))},
            (7,),
        ),
    ),
    garbage=(5, 6),
)


def test_a_record_is_read_as_it_was_written() -> None:
    assert decode_query("/p", encode_query(RECORD)) == RECORD
    assert RECORD.inline_bytes == 2
    assert RECORD.key("q") == "q@a"
    assert (RECORD.needs(7), RECORD.needs(5)) == (True, False)


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"version": 1}', b"\xff"])
def test_other_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(StagedWriteError, match="/p holds"):
        decode_query("/p", value)
    with pytest.raises(StagedWriteError):
        decode_origin(value)


def test_a_later_version_is_refused() -> None:
    value = encode_query(RECORD).replace(b'"version":1', b'"version":2')
    with pytest.raises(StagedWriteError, match="is of version 2; this release reads 1"):
        decode_query("/p", value)


def test_origin_and_directory_are_read_as_they_were_written() -> None:
    origin = Origin("q", "r", 3, 1, "9")
    assert decode_origin(encode_origin(origin)) == origin
    directory = {"t": {0: [(0, 3), (5, 1)]}, "u": {0: [(3, 2)]}}
    assert decode_directory(7, encode_directory(directory)) == directory
    with pytest.raises(StagedWriteError, match="ledger 7 does not end with the directory"):
        decode_directory(7, b"[1]")


@pytest.mark.parametrize("name", ["", "a:b", "x" * 201, "a\nb"])
def test_names_that_no_query_can_have(name: str) -> None:
    with pytest.raises(StagedWriteError, match="cannot name a query"):
        check_query(name)


@pytest.mark.parametrize("name", ["..", "a/b", "ü %2F", "."])
def test_any_other_name_is_one_segment(name: str) -> None:
    path = query_path(name)
    assert path.count("/") == 3
    assert query_of(path.rpartition("/")[2]) == name
