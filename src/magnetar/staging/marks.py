"""How far a topic has taken in what queries committed for it: pure.

A *mark* of a query is (batch, part, entry): everything up to there, inclusive, is in the topic's
log, and nothing after it. It is known from the log alone: the entries are appended in that order,
each says in its metadata which it is (``sender``), and a failed append stores a leading part. So
the last one found is the mark, whoever appended it; the log's checkpoint keeps the marks up to a
position, and the entries after that position say the rest.

Queries stand here under the keys of their records (``QueryRecord.key``): one that is deleted and
made anew has another. The producer of an entry is ``staged:<key>:<batch>:<part>``, and its sequence
id is its number among that part's entries for that topic, from 0. No other producer may have such a
name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from magnetar.model.errors import StagedWriteError
from magnetar.staging.records import Commit, Source

SENDER_PREFIX: Final = "staged:"
WHOLE: Final = 1 << 62
"""As a part: after all parts of the batch."""


class Mark(NamedTuple):
    batch: int
    part: int
    entry: int


NOTHING: Final = Mark(-1, -1, -1)


class Left(NamedTuple):
    """Entries of ``source`` from number ``first`` on are to be appended."""

    source: Source
    first: int


def sender(key: str, batch: int, part: int) -> str:
    """The producer's name in the entries of a part."""
    return f"{SENDER_PREFIX}{key}:{batch}:{part}"


def sent_by(producer: str) -> tuple[str, int, int] | None:
    """(key, batch, part) of an entry of that producer; None for any other's."""
    if not producer.startswith(SENDER_PREFIX):
        return None
    key, _, rest = producer.removeprefix(SENDER_PREFIX).partition(":")
    batch, _, part = rest.partition(":")
    if not (key and batch.isdecimal() and part.isdecimal()):
        return None
    return key, int(batch), int(part)


class QueryMarks:
    """The marks of one topic, by query."""

    def __init__(self, marks: Iterable[tuple[str, Mark]] = ()) -> None:
        self._marks = dict(marks)

    def __len__(self) -> int:
        return len(self._marks)

    def of(self, key: str) -> Mark:
        return self._marks.get(key, NOTHING)

    def reach(self, key: str, mark: Mark) -> None:
        """Everything of the query up to ``mark`` is in the log. A mark never goes back."""
        if mark > self.of(key):
            self._marks[key] = mark

    def found(self, producer: str, sequence_id: int) -> bool:
        """An entry of the log is by that producer; True if it is a staged one."""
        told = sent_by(producer)
        if told is None:
            return False
        key, batch, part = told
        self.reach(key, Mark(batch, part, sequence_id))
        return True

    def left(self, key: str, commit: Commit, topic: str) -> Iterator[Left]:
        """What of the topic's share is not in the log yet, in the order to append it."""
        mark = self.of(key)
        for source in sorted(commit.shares.get(topic, ())):
            done = Mark(commit.batch, source.part, source.entries - 1)
            if done <= mark:
                continue
            here = mark.batch == commit.batch and mark.part == source.part
            yield Left(source, mark.entry + 1 if here else 0)

    def finish(self, key: str, batch: int) -> None:
        """All of the batch's share is in the log."""
        self.reach(key, Mark(batch, WHOLE, 0))

    def forget(self, query: str, but: str | None) -> None:
        """Nothing of the query will be taken in under any key but that."""
        for key in [each for each in self._marks if each != but]:
            if key.rpartition("@")[0] == query:
                del self._marks[key]

    def encode(self) -> bytes:
        return json.dumps(self._marks, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, log_name: str, state: bytes) -> QueryMarks:
        """Raises ``StagedWriteError``."""
        try:
            return cls((query, Mark(*mark)) for query, mark in json.loads(state).items())
        except (ValueError, TypeError, AttributeError) as error:
            raise StagedWriteError(
                f"the checkpoint of log {log_name} holds {state[:40]!r}, not how far queries are "
                "taken in"
            ) from error
