"""What a compaction of one topic partition reads: pieces of what its broker says it has.

The view that is compacted is what compaction has left so far, up to its horizon, and the log after
it up to the new horizon, the last entry that could be read when the job began. A piece is some
entries of one ledger, in one of three places: a compacted ledger, a ledger of the log at the
bookies, one in the log's table. Pieces are in the order of the view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from magnetar.log.seam import StoredAt
from magnetar.model.errors import JobError
from magnetar.model.ids import EARLIEST, Position
from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.losses import LedgerFacts
from magnetar.wire.pulsar.pulsar_pb2 import CompactedLedger

PIECE_BYTES_MIN, PIECE_BYTES_MAX = 4 << 20, 64 << 20
PIECES_PER_CORE: Final = 3


class PieceOf(Enum):
    """Where entries lie."""

    COMPACTED = "compacted"
    LEDGER = "ledger"
    TABLE = "table"


class Asks(NamedTuple):
    """How a broker is asked."""

    service_url: str
    timeout_s: float


@dataclass(frozen=True)
class CompactPiece:
    """Entries from ``first`` up to, not including, ``stop``, of a ledger with ``entries`` entries.
    ``told``: its metadata; ``where``: the log's table; ``asks``: of whom to ask where the ledger is
    by now, for who passes over entries that are lost; None: they end the job. Picklable."""

    number: int
    topic: str
    of: PieceOf
    ledger_id: int
    first: int
    stop: int
    entries: int
    stored_bytes: int
    told: bytes
    bookies: Mapping[str, tuple[str, int]]
    where: str
    asks: Asks | None = None


@dataclass
class TopicCompacted:
    """Of one partition. ``horizon``: up to where it is compacted now, ``compacted_before``: was
    before; ``entries`` and ``stored_bytes`` of what is left, in ``ledger_id`` (-1: nothing is)."""

    topic: str
    horizon: Position = EARLIEST
    compacted_before: Position = EARLIEST
    ledgers: int = 0
    pieces: int = 0
    entries_read: int = 0
    bytes_read: int = 0
    from_table: int = 0
    ledger_id: int = -1
    entries: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class LedgerPart:
    """Of one ledger, what is to be read."""

    of: PieceOf
    ledger_id: int
    first: int
    entries: int
    stored_bytes: int

    @property
    def bytes_to_read(self) -> int:
        return self.stored_bytes * (self.entries - self.first) // max(1, self.entries)


def horizon_of(answer: LogAnswer) -> Position:
    """The last entry that may be read; ``EARLIEST`` without any."""
    there = [each for each in answer.ledgers if each.entries]
    return Position(there[-1].ledger_id, there[-1].entries - 1) if there else EARLIEST


def base_horizon(compacted: CompactedLedger | None) -> Position:
    """Up to where the log was compacted."""
    if compacted is None:
        return EARLIEST
    return Position(compacted.horizon_ledger_id, compacted.horizon_entry_id)


def parts_of(answer: LogAnswer) -> list[LedgerPart]:
    """The view, ledger by ledger; empty if nothing came since it was compacted."""
    base = base_horizon(answer.compacted)
    if horizon_of(answer) <= base:
        return []
    found = []
    kept = answer.compacted
    if kept is not None and kept.entries:
        found.append(
            LedgerPart(PieceOf.COMPACTED, kept.ledger_id, 0, kept.entries, kept.stored_bytes)
        )
    return found + [part for each in answer.ledgers if (part := _after(base, each)) is not None]


def _after(base: Position, ledger: LedgerFacts) -> LedgerPart | None:
    first = base.entry_id + 1 if ledger.ledger_id == base.ledger_id else 0
    if ledger.ledger_id < base.ledger_id or first >= ledger.entries:
        return None
    of = PieceOf.TABLE if ledger.stored == StoredAt.TABLE else PieceOf.LEDGER
    return LedgerPart(of, ledger.ledger_id, first, ledger.entries, ledger.stored_bytes)


def pieces_of(
    topic: str,
    parts: Sequence[LedgerPart],
    answer: LogAnswer,
    cores: int,
    asks: Asks | None = None,
) -> list[CompactPiece]:
    """``answer`` tells where ``parts`` lie. Raises ``JobError`` where it does not."""
    total = sum(part.bytes_to_read for part in parts)
    wanted = min(max(total // (cores * PIECES_PER_CORE), PIECE_BYTES_MIN), PIECE_BYTES_MAX)
    found: list[CompactPiece] = []
    for part in parts:
        told = answer.stored_ledgers.get(part.ledger_id, b"")
        if part.of is not PieceOf.TABLE and not (told and answer.bookies):
            raise JobError(
                f"{topic}: its broker does not tell where ledger {part.ledger_id} lies; it was "
                "deleted meanwhile, the topic is on a partition (which is not compacted yet), or "
                "the broker is of an older release"
            )
        for first, stop in _cut(part, wanted):
            found.append(
                CompactPiece(
                    len(found),
                    topic,
                    part.of,
                    part.ledger_id,
                    first,
                    stop,
                    part.entries,
                    part.stored_bytes,
                    told,
                    answer.bookies,
                    answer.table,
                    asks,
                )
            )
    return found


def _cut(part: LedgerPart, wanted: int) -> Iterator[tuple[int, int]]:
    count = max(1, -(-part.bytes_to_read // wanted))
    left = part.entries - part.first
    count = min(count, left)
    for number in range(count):
        yield (
            part.first + left * number // count,
            part.first + left * (number + 1) // count,
        )
