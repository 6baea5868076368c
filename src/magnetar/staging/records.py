"""What the metadata store says of a query that writes by staged ledgers: values, codec, paths.

One node per query, ``/staged-writes/queries/<query>``, JSON (docs/formats/staged-writes.md). It is
the only thing that decides: a batch is committed when a compare-and-set of this node has named it.

| field | meaning |
|---|---|
| ``first_run`` | the run that made the record: tells a query from one of its name made anew |
| ``run`` | which run of the query may commit; "" when none may until one begins |
| ``epoch`` | how many runs there were |
| ``retired`` | earlier runs, the latest last: what they offer is refused |
| ``last_batch`` | the last batch that was committed; -1 before the first |
| ``commits`` | committed batches that are not taken in everywhere, in order |
| ``expires_ms`` | from when on the record may be deleted, if nothing is to be taken in; 0: never |
| ``garbage`` | ledgers that nobody needs any more, and may still exist |

Invariants: batches of ``commits`` grow strictly and end at or before ``last_batch``; a ledger is in
``commits`` or in ``garbage``, never in both; ``run`` is not in ``retired``.

Why: docs/adr/0084-staged-writes.md.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from magnetar.model.errors import StagedWriteError

ROOT: Final = "/staged-writes/queries"
VERSION: Final = 1
LEDGER_KEY: Final = "magnetar-staged"
"""The key in a staged ledger's metadata under which its ``Origin`` stands."""

NAME_CHARACTERS_MAX: Final = 200
RETIRED_MAX: Final = 64
"""Runs that are remembered; a run that is older than all of these has been refused long ago."""

INLINE: Final = -1
"""In place of a ledger id: the entries stand in the node itself."""


class Source(NamedTuple):
    """The entries that task ``part`` of a batch has for one topic, in order: all that ledger
    ``ledger_id`` holds for them, or ``data`` itself (``INLINE``)."""

    part: int
    ledger_id: int
    entries: int
    messages: int
    data: tuple[bytes, ...] = ()


class Commit(NamedTuple):
    """A batch that was committed. ``shares``: what each topic is still to take in, by part."""

    batch: int
    epoch: int
    shares: Mapping[str, tuple[Source, ...]]
    ledgers: tuple[int, ...]


class Origin(NamedTuple):
    """Whose staged ledger it is: kept with the ledger's metadata. A ``part`` of -1 is the
    driver's, which put what several tasks had into one."""

    query: str
    run: str
    batch: int
    part: int
    attempt: str


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """See the module's text."""

    run: str
    first_run: str
    epoch: int = 1
    retired: tuple[str, ...] = ()
    last_batch: int = -1
    commits: tuple[Commit, ...] = ()
    garbage: tuple[int, ...] = ()
    expires_ms: int = 0

    def key(self, query: str) -> str:
        """The name of what it writes: entries carry it, and marks are kept under it."""
        return f"{query}@{self.first_run}"

    @property
    def inline_bytes(self) -> int:
        """Of all entries that stand in the record."""
        sources = (s for c in self.commits for share in c.shares.values() for s in share)
        return sum(len(data) for source in sources for data in source.data)

    def needs(self, ledger_id: int) -> bool:
        """Whether a topic is still to read the ledger."""
        return any(ledger_id in commit.ledgers for commit in self.commits)


def check_query(query: str) -> str:
    """``query`` itself if it can be one. Raises ``StagedWriteError``."""
    return _check_name(query, "a query")


def check_run(run: str) -> str:
    """``run`` itself if it can be one. Raises ``StagedWriteError``."""
    return _check_name(run, "a run of a query")


def _check_name(name: str, what: str) -> str:
    if name and len(name) <= NAME_CHARACTERS_MAX and name.isprintable() and ":" not in name:
        return name
    raise StagedWriteError(
        f"{name!r} cannot name {what}: 1 to {NAME_CHARACTERS_MAX} printable characters without a "
        "colon are needed"
    )


def query_path(query: str) -> str:
    return f"{ROOT}/{quote(check_query(query), safe='').replace('.', '%2E')}"


def query_of(segment: str) -> str:
    """The query of a child of ``ROOT``."""
    return unquote(segment)


def encode_query(record: QueryRecord) -> bytes:
    value = {
        "version": VERSION,
        "run": record.run,
        "first_run": record.first_run,
        "epoch": record.epoch,
        "retired": record.retired,
        "last_batch": record.last_batch,
        "commits": [_commit_value(commit) for commit in record.commits],
        "garbage": record.garbage,
        "expires_ms": record.expires_ms,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def _commit_value(commit: Commit) -> dict[str, Any]:
    shares = {
        topic: [
            [*source[:4], *(b64encode(data).decode() for data in source.data)] for source in share
        ]
        for topic, share in commit.shares.items()
    }
    return {
        "batch": commit.batch,
        "epoch": commit.epoch,
        "shares": shares,
        "ledgers": commit.ledgers,
    }


def decode_query(path: str, value: bytes) -> QueryRecord:
    """Raises ``StagedWriteError`` for bytes that are no such record, or of another version."""
    try:
        found = json.loads(value)
        if found["version"] != VERSION:
            raise StagedWriteError(
                f"{path} is of version {found['version']}; this release reads {VERSION}"
            )
        return QueryRecord(
            run=found["run"],
            first_run=found["first_run"],
            epoch=found["epoch"],
            retired=tuple(found["retired"]),
            last_batch=found["last_batch"],
            commits=tuple(map(_commit, found["commits"])),
            garbage=tuple(found["garbage"]),
            expires_ms=found["expires_ms"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StagedWriteError(f"{path} holds {value[:40]!r}, no record of a query") from error


def _commit(value: Mapping[str, Any]) -> Commit:
    shares = {topic: tuple(map(_source, share)) for topic, share in value["shares"].items()}
    return Commit(value["batch"], value["epoch"], shares, tuple(value["ledgers"]))


def _source(value: Sequence[Any]) -> Source:
    part, ledger_id, entries, messages, *data = value
    return Source(part, ledger_id, entries, messages, tuple(map(b64decode, data)))


def encode_origin(origin: Origin) -> bytes:
    return json.dumps(origin._asdict(), separators=(",", ":")).encode()


def decode_origin(value: bytes) -> Origin:
    """Raises ``StagedWriteError``."""
    try:
        found = json.loads(value)
        return Origin(**{name: found[name] for name in Origin._fields if name in found})
    except (ValueError, TypeError) as error:
        raise StagedWriteError(f"{value[:80]!r} says nothing of a staged ledger") from error


Directory = Mapping[str, Mapping[int, Sequence[tuple[int, int]]]]
"""Which entries of a staged ledger are whose: topic -> part -> (first entry, count), in order. It
is the ledger's last entry."""


def encode_directory(directory: Directory) -> bytes:
    value = {
        topic: {str(part): runs for part, runs in parts.items()}
        for topic, parts in directory.items()
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode_directory(ledger_id: int, value: bytes) -> Directory:
    """Raises ``StagedWriteError``."""
    try:
        return {
            topic: {
                int(part): [(first, count) for first, count in runs] for part, runs in p.items()
            }
            for topic, p in json.loads(value).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise StagedWriteError(
            f"ledger {ledger_id} does not end with the directory of a staged ledger"
        ) from error
