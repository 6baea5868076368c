"""Open appends: order, bounds, and what a closed ledger settles."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.log.managed.open_appends import OpenAppend, OpenAppends
from magnetar.log.seam import AppendDone, Content, Run
from magnetar.model.errors import LogClosedError, MagnetarError

OFFSET = 2


def content(*payloads: bytes) -> Content:
    """As many messages as a payload's first byte, a digit, says; else one."""
    counts = [int(p[:1]) if p[:1].isdigit() else 1 for p in payloads]
    return Content(counts, [1] * len(payloads))


class Book:
    """Open appends whose outcomes are written down."""

    def __init__(self, waiting_bytes_max: int = 100) -> None:
        self.open = OpenAppends("t", waiting_bytes_max)
        self.told: list[tuple[object, ...]] = []  # name, error, runs
        self.next_id = self.next_offset = 0

    def done(self, name: str) -> AppendDone:
        def tell(error: MagnetarError | None, runs: Sequence[Run]) -> None:
            self.told.append((name, type(error).__name__ if error else "", *runs))

        return tell

    def send(self, name: str, *payloads: bytes) -> None:
        size = sum(map(len, payloads))
        self.open.pending_bytes += size
        self.put(OpenAppend(self.done(name), payloads, len(payloads), size, content(*payloads)))

    def put(self, item: OpenAppend) -> None:
        item.first = self.next_id
        self.next_id += item.count
        self.next_offset += sum(item.content.messages)
        item.end_offset = self.next_offset
        item.entries = [b"hh" + bytes(payload) for payload in item.payloads]
        item.payloads = ()
        self.open.sent.append(item)

    def send_waiting(self) -> list[list[bytes]]:
        self.next_id = 0
        sent = []
        while (item := self.open.next_waiting()) is not None:
            sent.append([bytes(payload) for payload in item.payloads])
            self.put(item)
        return sent

    def refuse(self, name: str) -> None:
        self.open.refuse(self.done(name), LogClosedError("closed"))


def test_what_the_ledger_holds_is_confirmed_and_the_rest_goes_on_in_order() -> None:
    book = Book()
    book.send("a", b"1", b"2")
    book.send("b", b"3", b"4", b"5")
    book.refuse("no")
    book.send("c", b"6")
    book.open.wait([b"7"], book.done("d"), content(b"7"))
    assert [book.open.sent[0].offset_after(count) for count in (1, 2)] == [1, 3]
    book.open.confirm(9, 0, 1)
    assert book.open.sent[0].offset_after(1) == 3
    book.open.settle(9, 2, OFFSET)
    assert book.told == [("a", "", (9, 0, 2))], "b is not whole yet"
    assert not book.open.sent
    assert book.send_waiting() == [[b"4", b"5"], [b"6"], [b"7"]]
    assert [item.refusal is None for item in book.open.sent] == [True, False, True, True]
    del book.told[:]
    assert [book.open.sent[0].offset_after(count) for count in (1, 2)] == [25, 30], (
        "21, then 4 and 5"
    )
    book.open.confirm(10, 0, 2)
    book.open.confirm(10, 2, 1)
    book.open.confirm(10, 3, 1)
    assert book.told == [
        ("b", "", (9, 2, 1), (10, 0, 2)),
        ("no", "LogClosedError"),
        ("c", "", (10, 2, 1)),
        ("d", "", (10, 3, 1)),
    ]
    assert book.open.pending_bytes == 0
    assert not book.open


def test_a_ledger_that_holds_everything_leaves_nothing_to_send_again() -> None:
    book = Book()
    book.send("a", b"1", b"2")
    book.refuse("no")
    book.open.settle(9, 1, OFFSET)
    assert book.told == [("a", "", (9, 0, 2)), ("no", "LogClosedError")]
    assert not book.open
    assert book.open.pending_bytes == 0


def test_an_append_that_fails_after_a_part_of_it_was_confirmed_says_where_that_lies() -> None:
    book = Book()
    book.send("a", b"1", b"2", b"3")
    book.open.confirm(9, 0, 1)
    book.open.confirm(9, 1, 1)
    assert not book.told
    book.open.fail_all(MagnetarError("broken"))
    assert book.told == [("a", "MagnetarError", (9, 0, 2))]
    assert book.open.pending_bytes == 0


def test_a_refusal_before_anything_else_is_told_in_its_turn() -> None:
    book = Book()
    book.open.wait([b"x" * 90], book.done("fits"), content(b"x" * 90))
    book.open.wait([b"x" * 11], book.done("too much"), content(b"x" * 11))
    book.open.wait([b"x"], book.done("after"), content(b"x"))
    assert book.open.pending_bytes == 90
    assert book.send_waiting() == [[b"x" * 90]]
    assert not book.told
    book.open.wait([b"y"], book.done("again"), content(b"y"))
    book.open.confirm(3, 0, 1)
    assert [name for name, *_ in book.told] == ["fits", "too much", "after"]
    assert book.send_waiting() == [[b"y"]]


def test_what_waits_again_counts_against_the_bound() -> None:
    book = Book(waiting_bytes_max=10)
    book.send("a", b"123456")
    book.open.settle(9, -1, OFFSET)
    book.open.wait([b"12345"], book.done("too much"), content(b"12345"))
    assert book.send_waiting() == [[b"123456"]]
    book.open.confirm(10, 0, 1)
    assert book.told[-1][:2] == ("too much", "LogError")
    book.open.wait([b"1234567890"], book.done("fits"), content(b"1234567890"))
    assert book.send_waiting() == [[b"1234567890"]]


def test_failing_all_keeps_the_order_and_refusals_alone_come_later() -> None:
    async def scenario() -> None:
        book = Book()
        book.send("a", b"1")
        book.refuse("no")
        book.open.wait([b"2", b"3"], book.done("b"), content(b"2", b"3"))
        book.open.fail_all(MagnetarError("broken"))
        assert book.told == [
            ("a", "MagnetarError"),
            ("no", "LogClosedError"),
            ("b", "MagnetarError"),
        ]
        assert book.open.pending_bytes == 0
        book.refuse("later")
        assert len(book.told) == 3, "never from inside the call"
        await asyncio.sleep(0)
        assert book.told[-1][0] == "later"

    asyncio.run(scenario())
