"""What the registry keeps in memory: definitions, and answers that stay true. Each has a bound, and
what was asked for longest ago goes first.

Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

from magnetar.model.schema import RegisteredSchema

KEPT_BYTES_MAX: Final = 32 << 20
"""Of definitions in memory; those asked for longest ago go first."""
KEPT_OVERHEAD_BYTES: Final = 1024
ANSWERS_MAX: Final = 10_000
"""Identities of schemas, and pairs of a schema and a version that it reads, each."""

K = TypeVar("K")
V = TypeVar("V")


class KnownAnswers(Generic[K, V]):
    """What was found out and stays so; past ``ANSWERS_MAX`` the one asked for longest ago goes."""

    def __init__(self) -> None:
        self._found: OrderedDict[K, V] = OrderedDict()

    def get(self, question: K) -> V | None:
        found = self._found.get(question)
        if found is not None:
            self._found.move_to_end(question)
        return found

    def put(self, question: K, answer: V) -> None:
        self._found[question] = answer
        if len(self._found) > ANSWERS_MAX:
            self._found.popitem(last=False)


class KeptDefinitions:
    """Definitions by ledger, within ``KEPT_BYTES_MAX``."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, RegisteredSchema] = OrderedDict()
        self._bytes = 0

    def get(self, ledger_id: int) -> RegisteredSchema | None:
        found = self._found.get(ledger_id)
        if found is not None:
            self._found.move_to_end(ledger_id)
        return found

    def put(self, ledger_id: int, schema: RegisteredSchema) -> None:
        if ledger_id in self._found:
            return  # read twice at a time
        self._found[ledger_id] = schema
        self._bytes += _size(schema)
        while self._bytes > KEPT_BYTES_MAX:
            _, oldest = self._found.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(schema: RegisteredSchema) -> int:
    return len(schema.schema.data) + KEPT_OVERHEAD_BYTES
