"""The story of a cursor's state, as ``transcripts/`` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from magnetar.log.acknowledgements import AckImage, AckState, ack_set_bits, ack_set_words
from magnetar.model.ids import Position
from tests import transcript
from tests.transcript import in_words, numbers

HERE = Path(__file__).with_name("transcripts")
Words = Mapping[str, str]


class Ledgers:
    """The log's ledgers: entries by id, and which one is open."""

    def __init__(self, sizes: Mapping[int, int], open_ledger: int) -> None:
        self.sizes = dict(sorted(sizes.items()))
        self.open_ledger = open_ledger

    def last_at(self, position: Position) -> Position:
        found = Position(next(iter(self.sizes)), -1)
        for ledger_id, size in self.sizes.items():
            last = size - 1
            if ledger_id == position.ledger_id:
                last = min(last, position.entry_id)
            if ledger_id <= position.ledger_id and last >= 0:
                found = Position(ledger_id, last)
        return found

    def last_entry(self, ledger_id: int) -> int:
        return self.sizes.get(ledger_id, 0) - 1

    def is_final(self, ledger_id: int) -> bool:
        return ledger_id != self.open_ledger

    def following(self, ledger_id: int) -> int | None:
        return next((other for other in self.sizes if other > ledger_id), None)


def position_of(text: str) -> Position:
    ledger_id, entry_id = text.split(":")
    return Position(int(ledger_id), int(entry_id))


class Cursor:
    """A cursor's state, and what was stored of it."""

    def __init__(self) -> None:
        self.ledgers = Ledgers({0: 0}, 0)
        self.state = AckState(self.ledgers, Position(0, -1))
        self.stored: list[AckImage] = []
        self.late: AckImage | None = None  # on its way to the store

    def log(self, words: Words) -> str:
        sizes = {int(name): int(size) for name, size in words.items() if name != "open"}
        self.ledgers = Ledgers(sizes, int(words["open"]))
        return ""

    def cursor(self, words: Words) -> str:
        self.state = AckState(self.ledgers, position_of(words["mark"]))
        self.stored = [self.state.snapshot()]
        return self._told()

    def _told(self) -> str:
        return self._say(self.state.snapshot())

    def _say(self, image: AckImage) -> str:
        parts = [f"reset epoch {image.reset_epoch}"] if image.reset_epoch else []
        parts += [f"mark-delete {image.mark_delete.ledger_id}:{image.mark_delete.entry_id}"]
        for ledger_id, bitmap in sorted(image.holes.items()):
            if bitmap:
                parts.append(f"holes in {ledger_id}: {in_words(list(bitmap))}")
        for position, bits in sorted(image.ack_sets.items()):
            still_open = [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
            parts.append(
                f"messages left of {position.ledger_id}:{position.entry_id}: {in_words(still_open)}"
            )
        return ", ".join(parts)

    def acknowledge(self, words: Words) -> str:
        self.state.acknowledge([position_of(text) for text in words["entries"].split(",")])
        return self._told()

    def batch(self, words: Words) -> str:
        bits = sum(1 << bit for bit in numbers(words["open"]))
        sets = ack_set_words(bits)
        assert ack_set_bits(sets) == bits
        self.state.acknowledge_batch(position_of(words["entry"]), int(words["size"]), sets)
        return self._told()

    def cumulative(self, words: Words) -> str:
        self.state.acknowledge_cumulative(position_of(words["entry"]))
        return self._told()

    def reset(self, words: Words) -> str:
        self.state.reset(position_of(words["mark"]))
        return self._told()

    def store(self, words: Words) -> str:
        changes = self.state.take_changes()
        if changes is None:
            self.stored = [self.state.snapshot()]
            return "snapshot: " + self._say(self.stored[0])
        self.stored.append(changes)
        return "changes: " + self._say(changes)

    def take(self, _words: Words) -> str:
        """Take what changed, and be slow to store it."""
        changes = self.state.take_changes()
        assert changes is not None
        self.late = replace(changes, holes={i: b.copy() for i, b in changes.holes.items()})
        return "changes: " + self._say(self.late)

    def arrive(self, _words: Words) -> str:
        assert self.late is not None
        self.stored.append(self.late)
        return "changes: " + self._say(self.late)

    def recover(self, words: Words) -> str:
        first = self.stored[0]
        self.state = AckState(self.ledgers, first.mark_delete, first.reset_epoch)
        for image in (self.stored[0], *reversed(self.stored), *self.stored):
            self.state.merge(image)
        return self._told()


def test_a_cursor() -> None:
    cursor = Cursor()
    names = (
        "log", "cursor", "acknowledge", "batch", "cumulative", "reset", "store", "take", "arrive",
        "recover",
    )  # fmt: skip
    transcript.check(HERE / "cursor.txt", {name: getattr(cursor, name) for name in names})
