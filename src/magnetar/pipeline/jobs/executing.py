"""Pieces of a job's work on executors: a number comes in, what the work gave goes out, pickled.

An error of ours is a result too: it comes back whole, and not as the text of a traceback. Only a
process that dies, or a defect, has Spark try the piece again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from magnetar.model.errors import MagnetarError
from magnetar.pipeline.worker_process import PROCESS

RESULT_SCHEMA: Final = "number bigint, kind string, result binary"
DONE, FAILED = "done", "failed"


def executed(
    pieces: Sequence[Any], work: Callable[[Any], Any]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark runs in a task."""

    # Spark pickles this function by value, with every global that it names: so it names one, which
    # is pickled by its name.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_pieces(pieces, work, batches)

    return run


def run_pieces(
    pieces: Sequence[Any], work: Callable[[Any], Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In the task."""
    PROCESS.prepare()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield _row(number, *_result(work, pieces[number]))


def _result(work: Callable[[Any], Any], piece: Any) -> tuple[str, bytes]:
    try:
        return DONE, pickle.dumps(work(piece), pickle.HIGHEST_PROTOCOL)
    except MagnetarError as error:
        return FAILED, pickle.dumps(type(error)(str(error)))


def _row(number: int, kind: str, result: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "number": pa.array([number], pa.int64()),
            "kind": pa.array([kind], pa.string()),
            "result": pa.array([result], pa.binary()),
        }
    )
