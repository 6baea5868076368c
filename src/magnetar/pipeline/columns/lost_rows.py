"""Rows that tell of what a read has passed over (``includeLosses``), among those of messages.

A task has no way to tell its driver anything but rows: its own log is the executor's, Spark takes
no counters of a source written in Python, and progress is what the driver planned. So who asks for
it gets a row for each loss: its topic and partition, the column ``_lost``, and null in all others.
They are part of what the task gives: there once when it ran twice, and again when it is read again.

Why: docs/adr/0210-losses-are-rows.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from magnetar.pipeline.columns.presentation import constants_of
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.losses import LOST, Loss
from magnetar.pipeline.places import START


def lost_rows(schema: pa.Schema, naming: str, topic: str, losses: Sequence[Loss]) -> pa.RecordBatch:
    """``schema``: what Spark was promised; ``topic``: the partition that they are of."""
    constants = constants_of(topic, naming)
    arrays = []
    for field in schema:
        if field.name == LOST:
            arrays.append(pa.array([_told(loss) for loss in losses], field.type))
        elif field.name in ("topic", "partition"):
            arrays.append(pa.repeat(pa.scalar(constants[field.name], field.type), len(losses)))
        else:
            arrays.append(pa.nulls(len(losses), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _told(loss: Loss) -> dict[str, object]:
    known = loss.at > START
    return {
        "ledger_id": loss.at.ledger_id if known else None,
        "entry_id": max(0, loss.at.entry_id) if known else None,
        "entries": loss.entries or None,
        "messages": loss.messages or None,
        "why": loss.what,
    }


def with_losses(
    batches: Iterator[pa.RecordBatch],
    reports: LossReports,
    rows: Callable[[Sequence[Loss]], pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The batches of a split, and behind each what was reported before it came."""
    for batch in batches:
        yield batch
        if losses := reports.taken():
            yield rows(losses)
    if losses := reports.taken(last=True):
        yield rows(losses)
