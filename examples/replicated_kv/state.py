"""The state that is replicated: keys and values, and the place in the log up to which they go.

It knows nothing of ledgers but positions. Rule: the same commands in the same order make the same
state, on every replica; hence no clock, no randomness, and nothing from outside in ``apply``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

CLIENTS_MAX = 10_000
"""Clients whose last request is remembered, those that wrote last."""
CHUNK_CHARACTERS = 1 << 19
"""Of a snapshot's entry, about: an entry may have a few MiB."""


class Position(NamedTuple):
    """The last entry that was applied: ledgers of a log ascend, and entries within a ledger."""

    ledger_id: int
    entry_id: int


NOWHERE = Position(-1, -1)


class Command(NamedTuple):
    """``client`` and ``number``: a client numbers its requests from 1 on, and sends one again under
    its number when it has got no answer."""

    op: str
    key: str = ""
    value: str = ""
    client: str = ""
    number: int = 0

    def encode(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, entry: bytes) -> Command:
        return cls(**json.loads(entry))


NOTHING = Command("nothing")
"""Changes nothing: whoever gets it confirmed is the active replica still, and has all before it."""


class Store:
    """One replica's copy of the state."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.position = NOWHERE
        self._numbers: dict[str, int] = {}

    def apply(self, position: Position, command: Command) -> None:
        """The next entry of the log. One that is there already is passed over, and so is a request
        that was applied before under its number: its first answer may have been lost."""
        if position <= self.position:
            return
        self.position = position
        if command.client and not self._is_new(command):
            return
        if command.op == "put":
            self.values[command.key] = command.value
        elif command.op == "delete":
            self.values.pop(command.key, None)

    def _is_new(self, command: Command) -> bool:
        last = self._numbers.pop(command.client, 0)  # and to the end: it wrote last
        self._numbers[command.client] = max(last, command.number)
        if len(self._numbers) > CLIENTS_MAX:
            del self._numbers[next(iter(self._numbers))]
        return command.number > last

    # -- snapshots ----------------------------------------------------------------------------

    def dump(self) -> list[bytes]:
        """All of it, as entries of a snapshot: where it stands, then chunks."""
        found = [json.dumps({"position": self.position}).encode()]
        for name, pairs in (("values", self.values), ("numbers", self._numbers)):
            found += [json.dumps({name: chunk}).encode() for chunk in _chunks(pairs)]
        return found

    @classmethod
    def load(cls, entries: Iterable[bytes]) -> Store:
        """What ``dump`` gave."""
        store = cls()
        for entry in entries:
            part = json.loads(entry)
            if "position" in part:
                store.position = Position(*part["position"])
            store.values.update(part.get("values", {}))
            store._numbers.update(part.get("numbers", {}))
        return store


def _chunks(pairs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    chunk: dict[str, Any] = {}
    size = 0
    for key, value in pairs.items():
        chunk[key] = value
        size += len(key) + len(str(value))
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = {}, 0
    if chunk:
        yield chunk
