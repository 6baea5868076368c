"""What the metadata store says of a log and of a cursor: values, codec, paths.

Layout: a log is the node ``/managed-ledgers/<tenant>/<namespace>/<domain>/<topic>``, its durable
cursors are the children of that node; topic and cursor names are URL-encoded as a form field is,
so they hold no slash. Formats: docs/formats/managed-ledger.md.

Why: docs/adr/0050-managed-log-metadata.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote_plus, unquote_plus

from google.protobuf.message import DecodeError

from magnetar.env.metadata import Versioned
from magnetar.log.managed.chain import NO_FRONT, Front, LedgerInfo
from magnetar.log.managed.managed_pb2 import Binding as BindingMessage
from magnetar.log.managed.managed_pb2 import Checkpoint as CheckpointMessage
from magnetar.log.managed.managed_pb2 import Compacted as CompactedMessage
from magnetar.log.managed.managed_pb2 import CursorRecord as CursorMessage
from magnetar.log.managed.managed_pb2 import Front as FrontMessage
from magnetar.log.managed.managed_pb2 import HandedCursor as HandedCursorMessage
from magnetar.log.managed.managed_pb2 import HandedOver as HandedOverMessage
from magnetar.log.managed.managed_pb2 import LedgerRecord as LedgerMessage
from magnetar.log.managed.managed_pb2 import LogRecord as LogMessage
from magnetar.log.managed.managed_pb2 import ReaderHold as HoldMessage
from magnetar.log.managed.managed_pb2 import TableMark as TableMessage
from magnetar.log.policy import Engine
from magnetar.log.seam import (
    Binding,
    Checkpoint,
    LedgerStats,
    ReaderHold,
    StoredAt,
    TableMark,
)
from magnetar.model.errors import LogError
from magnetar.model.ids import EARLIEST, Position

ROOT = "/managed-ledgers"
NAME_PARTS = 4
VERSION = 1
NOBODY = Binding()
NO_LEDGER = -1
"""In the place of a compacted ledger: nothing was left."""


class HandedCursor(NamedTuple):
    """A cursor's node, as its last owner has left it."""

    name: str
    stored: Versioned


class Compacted(NamedTuple):
    """What compaction left of a log up to ``horizon``: the entries of that ledger (-1: nothing was
    left), in the format of ``compacted_entries``."""

    ledger_id: int
    horizon: Position
    entries: int
    stored_bytes: int
    finished_ms: int
    last: Position = EARLIEST
    """That of the last survivor."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log's metadata. ``deleting`` are ledgers that left the log and may still exist.
    ``handed_over``: all cursors, by an owner that has written this record last, and writes none of
    them any more; None: there is no such owner. A log on another ``engine`` has no ledgers."""

    ledgers: tuple[LedgerInfo, ...] = ()
    deleting: tuple[int, ...] = ()
    trimmed: Position = EARLIEST
    first_offset: int = 0
    epoch: int = 0
    deleted: bool = False
    created_ms: int = 0  # 0: not known, made by an older release
    checkpoint: Checkpoint | None = None
    holds: tuple[ReaderHold, ...] = ()
    handed_over: tuple[HandedCursor, ...] | None = None
    table: TableMark | None = None
    compacted: Compacted | None = None
    engine: Engine = Engine.LEDGER
    front: Front = NO_FRONT
    terminated: bool = False

    @property
    def leader_epoch(self) -> int:
        """Of the log's last opening: as Kafka's batches say it, in 31 bits."""
        return self.epoch & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """A cursor's metadata. Without a ``ledger_id`` its state is ``mark_delete`` alone, after
    ``reset_epoch`` resets."""

    mark_delete: Position
    ledger_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    deleting: tuple[int, ...] = ()
    epoch: int = 0
    deleted: bool = False
    reset_epoch: int = 0
    binding: Binding = NOBODY


def closed_stats(info: LedgerInfo) -> LedgerStats:
    """What the record says of a closed ledger, as the seam has it."""
    told = info.ledger_id, info.entries, info.stored_bytes
    times = info.least_ms, info.greatest_ms
    return LedgerStats(*told, "closed", *times, info.stored, info.messages)


def encode_name(name: str) -> str:
    """One path segment for ``name``."""
    return quote_plus(name, safe="*").replace("~", "%7E").replace(".", "%2E", name in (".", ".."))


def log_path(name: str) -> str:
    """The node of a log. ``name`` is ``tenant/namespace/domain/topic``; the topic may hold
    slashes. Raises ``LogError`` for any other shape."""
    parts = name.split("/", NAME_PARTS - 1)
    if len(parts) != NAME_PARTS or not all(parts):
        raise LogError(f"log name {name!r} must be tenant/namespace/domain/topic")
    return "/".join((ROOT, *map(encode_name, parts)))


def cursor_path(log_name: str, cursor: str) -> str:
    return f"{log_path(log_name)}/{encode_name(cursor)}"


def decode_name(segment: str) -> str:
    return unquote_plus(segment)


def encode_log(record: LogRecord) -> bytes:
    message = LogMessage(
        version=VERSION,
        ledgers=[
            LedgerMessage(
                ledger_id=info.ledger_id,
                entries=info.entries,
                stored_bytes=info.stored_bytes,
                created_ms=info.created_ms,
                closed_ms=info.closed_ms,
                first_offset=info.first_offset,
                messages=info.messages,
                greatest_ms=info.greatest_ms,
                least_ms=info.least_ms,
                stored=info.stored,
            )
            for info in record.ledgers
        ],
        deleting=record.deleting,
        trimmed_ledger_id=record.trimmed.ledger_id,
        trimmed_entry_id=record.trimmed.entry_id,
        first_offset=record.first_offset,
        epoch=record.epoch,
        deleted=record.deleted,
        created_ms=record.created_ms,
        checkpoint=_checkpoint_message(record.checkpoint),
        holds=[HoldMessage(**hold._asdict()) for hold in record.holds],
        handed_over=_handed_message(record.handed_over),
        table=None if record.table is None else TableMessage(**record.table._asdict()),
        compacted=_compacted_message(record.compacted),
        # As it was before there was another engine, so that older releases read it.
        engine="" if record.engine is Engine.LEDGER else record.engine.value,
        front=_front_message(record.front),
        terminated=record.terminated,
    )
    return message.SerializeToString()


def _handed_message(handed: tuple[HandedCursor, ...] | None) -> HandedOverMessage | None:
    if handed is None:
        return None
    return HandedOverMessage(
        cursors=[
            HandedCursorMessage(name=name, node_version=stored.version, value=stored.value)
            for name, stored in handed
        ]
    )


def _handed(message: LogMessage) -> tuple[HandedCursor, ...] | None:
    if not message.HasField("handed_over"):
        return None
    return tuple(
        HandedCursor(each.name, Versioned(each.value, each.node_version))
        for each in message.handed_over.cursors
    )


def _compacted_message(compacted: Compacted | None) -> CompactedMessage | None:
    if compacted is None:
        return None
    return CompactedMessage(
        ledger_id=compacted.ledger_id,
        horizon_ledger_id=compacted.horizon.ledger_id,
        horizon_entry_id=compacted.horizon.entry_id,
        entries=compacted.entries,
        stored_bytes=compacted.stored_bytes,
        finished_ms=compacted.finished_ms,
        last_ledger_id=compacted.last.ledger_id,
        last_entry_id=compacted.last.entry_id,
    )


def _compacted(message: LogMessage) -> Compacted | None:
    if not message.HasField("compacted"):
        return None
    kept = message.compacted
    horizon = Position(kept.horizon_ledger_id, kept.horizon_entry_id)
    last = Position(kept.last_ledger_id, kept.last_entry_id)
    told = kept.entries, kept.stored_bytes, kept.finished_ms
    return Compacted(kept.ledger_id, horizon, *told, last)


def _checkpoint_message(checkpoint: Checkpoint | None) -> CheckpointMessage | None:
    if checkpoint is None:
        return None
    (ledger_id, entry_id), state = checkpoint
    return CheckpointMessage(ledger_id=ledger_id, entry_id=entry_id, state=state)


def _checkpoint(message: LogMessage) -> Checkpoint | None:
    if not message.HasField("checkpoint"):
        return None
    kept = message.checkpoint
    return Checkpoint(Position(kept.ledger_id, kept.entry_id), kept.state)


def decode_log(name: str, value: bytes) -> LogRecord:
    """Raises ``LogError`` for bytes that are no log record, or of a later version."""
    message = LogMessage()
    _parse(message, f"log {name}", value)
    return LogRecord(
        ledgers=tuple(
            LedgerInfo(
                m.ledger_id,
                m.entries,
                m.stored_bytes,
                m.created_ms,
                m.closed_ms,
                m.first_offset,
                m.messages,
                m.greatest_ms,
                m.least_ms,
                _stored(name, m.stored),
            )
            for m in message.ledgers
        ),
        deleting=tuple(message.deleting),
        trimmed=Position(message.trimmed_ledger_id, message.trimmed_entry_id),
        first_offset=message.first_offset,
        epoch=message.epoch,
        deleted=message.deleted,
        created_ms=message.created_ms,
        checkpoint=_checkpoint(message),
        holds=tuple(ReaderHold(m.holder, m.ledger_id, m.until_ms) for m in message.holds),
        handed_over=_handed(message),
        table=_table(message),
        compacted=_compacted(message),
        engine=_engine(name, message),
        front=_front(message),
        terminated=message.terminated,
    )


def _front_message(front: Front) -> FrontMessage | None:
    if front == NO_FRONT:
        return None
    (ledger_id, entry_id), entry_offset, offset = front
    return FrontMessage(
        ledger_id=ledger_id, entry_id=entry_id, entry_offset=entry_offset, offset=offset
    )


def _front(message: LogMessage) -> Front:
    if not message.HasField("front"):
        return NO_FRONT
    kept = message.front
    return Front(Position(kept.ledger_id, kept.entry_id), kept.entry_offset, kept.offset)


def _engine(name: str, message: LogMessage) -> Engine:
    try:
        return Engine(message.engine or Engine.LEDGER.value)
    except ValueError:
        raise LogError(
            f"log {name} is on the engine {message.engine!r}, which this release does not have"
        ) from None


def _stored(name: str, number: int) -> StoredAt:
    try:
        return StoredAt(number)
    except ValueError:
        raise LogError(
            f"metadata of log {name}: a ledger is stored in way {number}, which this release does "
            "not know; use the release that wrote it, or a later one"
        ) from None


def _table(message: LogMessage) -> TableMark | None:
    if not message.HasField("table"):
        return None
    return TableMark(message.table.where, message.table.kept_ms, message.table.kept_bytes)


def encode_cursor(record: CursorRecord) -> bytes:
    message = CursorMessage(
        version=VERSION,
        cursor_ledger_id=record.ledger_id,
        mark_ledger_id=record.mark_delete.ledger_id,
        mark_entry_id=record.mark_delete.entry_id,
        properties=dict(record.properties),
        deleting=record.deleting,
        epoch=record.epoch,
        deleted=record.deleted,
        reset_epoch=record.reset_epoch,
        binding=None if record.binding == NOBODY else BindingMessage(**record.binding._asdict()),
    )
    return message.SerializeToString()


def decode_cursor(name: str, value: bytes) -> CursorRecord:
    """Raises ``LogError`` for bytes that are no cursor record, or of a later version."""
    message = CursorMessage()
    _parse(message, f"cursor {name}", value)
    told = message.binding
    return CursorRecord(
        mark_delete=Position(message.mark_ledger_id, message.mark_entry_id),
        ledger_id=message.cursor_ledger_id if message.HasField("cursor_ledger_id") else None,
        properties=dict(message.properties),
        deleting=tuple(message.deleting),
        epoch=message.epoch,
        deleted=message.deleted,
        reset_epoch=message.reset_epoch,
        binding=Binding(told.epoch, told.broker_id, told.start, told.service_url),
    )


def _parse(message: LogMessage | CursorMessage, what: str, value: bytes) -> None:
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise LogError(f"metadata of {what} cannot be read: {error}") from error
    if message.version != VERSION:
        raise LogError(
            f"metadata of {what} has version {message.version}, this release reads {VERSION}"
        )
