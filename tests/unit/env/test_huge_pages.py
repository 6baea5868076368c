"""Which memory is put on huge pages; and, where the kernel has them, that it is."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Iterable, Iterator

import pytest

from magnetar.env import huge_pages
from magnetar.env.huge_pages import (
    HUGE_BYTES,
    MAPPINGS,
    HugePages,
    Mapping,
    allowed,
    known,
    left,
    mappings,
    places,
)

MIB = 1 << 20
TEXT = """\
55d000000000-55d000400000 r-xp 00001000 fe:00 1234    /usr/bin/python3.11
Size:               4096 kB
Rss:                4096 kB
AnonHugePages:         0 kB
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                8000 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac
55e000000000-55e000400000 rw-p 00000000 00:00 0       [heap]
Rss:                4096 kB
7ffc00000000-7ffc00400000 rw-p 00000000 00:00 0       [stack]
Rss:                4096 kB
7f1000000000-7f1000400000 rw-p 00000000 fe:00 77      /tmp/a file (deleted)
Rss:                4096 kB
7f2000000000-7f2000400000 rw-s 00000000 00:01 78      /dev/zero (deleted)
Rss:                4096 kB
"""

real = pytest.mark.skipif(not (allowed() and known()), reason="no huge pages, or Linux before 6.1")


def test_mappings_are_read() -> None:
    text, memory, heap, stack, file, shared = mappings(TEXT.splitlines())
    start = 0x7F0000000000
    assert memory == Mapping(start, start + 8 * MIB, True, 8000 << 10, 2 * MIB)
    assert heap.own
    assert not any(each.own for each in (text, stack, file, shared))
    assert list(mappings([])) == []


def test_only_what_is_whole_and_in_use_is_taken() -> None:
    at = 6 * HUGE_BYTES
    whole = Mapping(at, at + 4 * MIB, True, 4 * MIB)
    assert list(places(whole)) == [at, at + HUGE_BYTES]
    assert list(places(whole._replace(start=at - 4096))) == [at, at + HUGE_BYTES]
    assert list(places(whole._replace(start=at + 4096))) == [at + HUGE_BYTES]
    assert list(places(whole._replace(end=at + 4 * MIB - 4096))) == [at]
    for other in (
        whole._replace(own=False),
        whole._replace(resident_bytes=3 * MIB),
        whole._replace(huge_bytes=4 * MIB),
        Mapping(at + 4096, at + 2 * MIB + 4096, True, 2 * MIB),
    ):
        assert not places(other)


def test_what_was_made_is_left_alone_until_it_was_taken_apart() -> None:
    at = 6 * HUGE_BYTES
    grown = Mapping(at, at + 6 * MIB, True, 6 * MIB, 2 * MIB)
    assert left(grown, {at}) == [at + HUGE_BYTES, at + 2 * HUGE_BYTES]
    assert left(grown, set(places(grown))) == list(places(grown)), "two of them are no more"
    assert left(grown._replace(huge_bytes=6 * MIB), set(places(grown))) == []


def test_the_operator_of_the_machine_may_have_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    switch = tmp_path / "enabled"  # type: ignore[operator]
    monkeypatch.setattr(huge_pages, "SWITCH", switch)
    assert not allowed()
    for text, allows in (
        ("always [madvise] never", True),
        ("[always] madvise never", True),
        ("always madvise [never]", False),
    ):
        switch.write_text(text)
        assert allowed() is allows


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """16 MiB in use, by pages of the small size, and all that is looked at; where they begin."""
    with mmap.mmap(-1, 16 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        held.write(bytes(range(256)) * (16 * MIB // 256))
        first = ctypes.c_char.from_buffer(held)
        at = ctypes.addressof(first)

        def only_this(lines: Iterable[str]) -> Iterator[Mapping]:
            return (each for each in mappings(lines) if each.start <= at < each.end)

        monkeypatch.setattr(huge_pages, "mappings", only_this)
        monkeypatch.setattr(huge_pages, "REST_BUSY_S", 0.01)
        yield at
        del first
        assert held[:] == bytes(range(256)) * (16 * MIB // 256)


def huge_bytes(at: int) -> int:
    with MAPPINGS.open() as file:
        return next(each.huge_bytes for each in mappings(file) if each.start <= at < each.end)


@real
def test_memory_that_is_kept_is_put_on_huge_pages(memory: int) -> None:
    if huge_bytes(memory):
        pytest.skip("the machine gives huge pages by itself")
    pages = HugePages()
    assert pages.look() >= 7
    assert huge_bytes(memory) >= 14 * MIB
    assert pages._made


@real
def test_the_thread_looks_and_ends(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(huge_pages, "RESIDENT_LEAST", 0)
    pages = HugePages()
    pages.begin()
    end_s = time.monotonic() + 30
    while not huge_bytes(memory) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert huge_bytes(memory)
    pages.close()
    pages.close()


def test_one_that_was_not_begun_ends() -> None:
    HugePages().close()


def test_it_is_due_when_memory_has_changed_and_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(huge_pages, "UNCHANGED_LOOKS", 6)
    sizes = iter([191, 300, 310, 320, 320, 320, 320, 320, 320, 320, 300, 191])
    monkeypatch.setattr(huge_pages, "resident_bytes", lambda: next(sizes) * MIB)
    pages = HugePages()
    due = [pages._is_due() for _ in range(12)]
    assert due == [False, True, False, True, *[False] * 5, True, True, False]
