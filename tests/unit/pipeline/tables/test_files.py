"""What a task tells of its files comes whole out of another process."""

from __future__ import annotations

import pickle

from pyiceberg.manifest import DataFileContent

from magnetar.log.seam import TakenLedger
from magnetar.pipeline.tables.files import Span, WrittenFile
from magnetar.pipeline.tables.topic_table import WrittenLedger

STATISTICS = {
    "record_count": 3,
    "column_sizes": {1: 10},
    "value_counts": {1: 3},
    "null_value_counts": {1: 0},
    "nan_value_counts": {},
    "lower_bounds": {1: b"a"},
    "upper_bounds": {1: b"c"},
    "split_offsets": [4],
}


def test_a_written_ledger_is_pickled() -> None:
    file = WrittenFile("s3://b/f.parquet", Span(20_000), 99, 0, STATISTICS)
    ledger = WrittenLedger(TakenLedger(5, 3, 3), [file], [], 100, 3, 0)
    again = pickle.loads(pickle.dumps(ledger))
    assert again == ledger
    assert again.file_bytes == 99
    (told,) = (each.data_file() for each in again.main)
    assert (told.content, told.partition[0]) == (DataFileContent.DATA, 20_000)
    assert (told.record_count, told.lower_bounds) == (3, {1: b"a"})
    assert WrittenFile("f", Span(None), 1, 0, STATISTICS).data_file().partition is not None
