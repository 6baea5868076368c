"""The stories of dispatch, as ``transcripts/`` tells them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from magnetar.model.entry import Chunk, Description, Entry
from magnetar.topics.dispatch.seats import Machine, Seat
from magnetar.topics.dispatch.shared import SharedRoundRobin
from magnetar.topics.dispatch.single_active import SingleActive
from tests import transcript
from tests.transcript import in_words, numbers

HERE = Path(__file__).with_name("transcripts")
Words = Mapping[str, str]


def described(words: Words) -> list[Description]:
    """``messages=1*3,8`` or ``chunks=7:first,7:next,7:last``."""
    found: list[Description] = []
    for part in words.get("messages", "").split(","):
        if part:
            messages, _, times = part.partition("*")
            found += [Description(int(messages))] * int(times or 1)
    for part in words.get("chunks", "").split(","):
        if part:
            message, place = part.split(":")
            found.append(Description(1, Chunk(int(message), place == "last")))
    return found


class Dispatch:
    """One machine; entries are numbered as they are placed, what waits is forgotten."""

    def __init__(self, machine: Machine[str]) -> None:
        self.machine = machine
        self.seats: dict[str, Seat[str]] = {}
        self.next_entry = 0

    def _told(self) -> str:
        return ", ".join(
            f"{seat.name}: {seat.permits} permits"
            + (f", out {in_words(sorted(key[1] for key in seat.out))}" if seat.out else "")
            for seat in self.machine.seats
        )

    def shared(self, words: Words) -> str:
        self.machine = SharedRoundRobin(int(words["unacked_max"]))
        return ""

    def failover(self, words: Words) -> str:
        self.machine = SingleActive()
        return ""

    def add(self, words: Words) -> str:
        name = words["name"]
        self.seats[name] = Seat(name, name, int(words.get("priority", "0")))
        self.machine.add(self.seats[name])
        return self._told()

    def remove(self, words: Words) -> str:
        back = self.machine.remove(self.seats[words["name"]])
        told = [f"back: {in_words(sorted(key[1] for key in back))}"] if back else []
        return "\n".join([*told, self._told() or "nobody"])

    def flow(self, words: Words) -> str:
        self.machine.flow(self.seats[words["name"]], int(words["permits"]))
        return self._told()

    def set_blocked(self, words: Words) -> str:
        self.machine.set_blocked(self.seats[words["name"]], words["blocked"] == "yes")
        return f"room for {self.machine.room()} messages"

    def place(self, words: Words) -> str:
        descriptions = described(words)
        first, self.next_entry = self.next_entry, self.next_entry + len(descriptions)
        entries = [Entry(1, first + i, b"", 0) for i in range(len(descriptions))]
        placed = self.machine.place(entries, descriptions)
        told = [
            f"entries {in_words(list(range(first + run.start, first + run.stop)))} "
            f"({run.messages} messages) to {run.seat.name}"
            for run in placed.runs
        ]
        if placed.left:
            told.append(f"entries {in_words([first + index for index in placed.left])} wait")
            self.next_entry = first + placed.left[0]
        return "\n".join([*told, self._told()])

    def settle(self, words: Words) -> str:
        self.machine.settle([(1, entry_id) for entry_id in numbers(words["entries"])])
        return self._told()

    def take_back(self, words: Words) -> str:
        keys = [(1, entry_id) for entry_id in numbers(words["entries"])]
        back = self.machine.take_back(self.seats[words["name"]], keys)
        return f"back: {in_words(sorted(key[1] for key in back))}\n{self._told()}"

    def _change(self, name: str) -> str:
        assert isinstance(self.machine, SingleActive)
        change = self.machine.elect() if name == "elect" else self.machine.delay_over()
        told = [f"{change.deposed.name} is active no longer"] if change.deposed else []
        told += [f"{change.activated.name} is active"] if change.activated else []
        return "\n".join([*told, self.machine.turn.value])

    def elect(self, words: Words) -> str:
        return self._change("elect")

    def delay_over(self, words: Words) -> str:
        return self._change("delay_over")

    def commands(self) -> dict[str, transcript.Answer]:
        names = (
            "shared", "failover", "add", "remove", "flow", "set_blocked", "place", "settle",
            "take_back", "elect", "delay_over",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def test_a_shared_subscription() -> None:
    transcript.check(HERE / "shared.txt", Dispatch(SharedRoundRobin(1)).commands())


def test_a_failover_subscription() -> None:
    transcript.check(HERE / "failover.txt", Dispatch(SingleActive()).commands())
