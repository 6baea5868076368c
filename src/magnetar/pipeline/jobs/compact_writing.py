"""The task that writes the compacted ledger: entries in the order of the log, into a ledger that
the topic's broker has made for it.

A task that is tried again has another ledger made, and the broker deletes the one before. What it
gives back is what the driver tells the broker (``compact_running``): nothing is served of it until
then.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import JobError
from magnetar.model.ids import EARLIEST, Position
from magnetar.pipeline.brokers.log_watch import job_watch
from magnetar.pipeline.worker_process import PROCESS
from magnetar.pipeline.writing.staged_session import SESSIONS, StagedSession
from magnetar.wire.pulsar.pulsar_pb2 import LogCompaction, LogQuestion

ADD_BYTES: Final = 2 << 20
WRITTEN_SCHEMA: Final = (
    "ledger_id bigint, entries bigint, last_ledger_id bigint, last_entry_id bigint"
)
_WRITTEN: Final = pa.schema(
    [(name, pa.int64()) for name in ("ledger_id", "entries", "last_ledger_id", "last_entry_id")]
)


@dataclass(frozen=True)
class WriteTask:
    """For which topic, under which hold. Picklable."""

    service_url: str
    timeout_s: float
    topic: str
    holder: str


def write(task: WriteTask, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """In a task: entries come in, in order; where they are goes out."""
    PROCESS.prepare()
    writing: _Writing | None = None
    try:
        for batch in batches:
            if batch.num_rows and writing is None:
                writing = _Writing(task)
            for each in _slices(batch):
                assert writing is not None
                writing.add(*each)
        if writing is not None:
            yield writing.finish()
    except BaseException:
        if writing is not None:
            writing.abandon()
        raise


def _slices(batch: pa.RecordBatch) -> Iterator[tuple[list[Position], list[bytes]]]:
    places, stored, size = list[Position](), list[bytes](), 0
    columns = (column.to_pylist() for column in batch.columns)
    for ledger_id, entry_id, entry in zip(*columns, strict=True):
        places.append(Position(ledger_id, entry_id))
        stored.append(entry)
        size += len(entry)
        if size >= ADD_BYTES:
            yield places, stored
            places, stored, size = [], [], 0
    if places:
        yield places, stored


class _Writing:
    """One add is under way while the next entries come from Spark."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self._session: StagedSession = SESSIONS.get(task.service_url, int(task.timeout_s * 1000))
        ledger_id = self._begin()
        self._writer: LedgerWriter = self._session.run(self._session.client.writer_of(ledger_id))
        self._under_way: Future[Any] | None = None
        self._entries = 0
        self._last = EARLIEST

    def _begin(self) -> int:
        task = self._task
        question = LogQuestion(compaction=LogCompaction(holder=task.holder, begin=True))
        with closing(job_watch(task.service_url, task.timeout_s)) as logs:
            ledger_id = logs.ask(task.topic, question).compacting_ledger_id
        if ledger_id < 0:
            raise JobError(
                f"the broker of {task.topic} does not take over what jobs compact: it needs a "
                "release that does; compact the topic by REST"
            )
        return ledger_id

    def add(self, places: list[Position], stored: list[bytes]) -> None:
        if not self._last < places[0] or places != sorted(places):
            raise JobError(f"{self._task.topic}: entries came out of order at {places[0]}")
        self._wait()
        self._under_way = self._session.begin(self._writer.add(stored))
        self._entries += len(stored)
        self._last = places[-1]

    def _wait(self) -> None:
        if self._under_way is not None:
            self._session.result_of(self._under_way)
            self._under_way = None

    def finish(self) -> pa.RecordBatch:
        """Everything is confirmed, and the ledger closed, when it returns."""
        self._wait()
        self._session.run(self._writer.close())
        row = [self._writer.ledger_id, self._entries, *self._last]
        return pa.RecordBatch.from_arrays(
            [pa.array([one], pa.int64()) for one in row], schema=_WRITTEN
        )

    def abandon(self) -> None:
        self._session.run(self._writer.abandon())
