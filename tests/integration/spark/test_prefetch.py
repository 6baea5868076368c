"""Small micro-batches come with their plan, in every form that a stream may ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable

from magnetar.pipeline.reading.stream_reader import StreamReader
from magnetar.pipeline.source import MagnetarDataSource
from tests.integration.spark.test_batch import publish
from tests.integration.spark.test_stream import Collected, run_available, stream
from tests.standalone import Standalone

pytestmark = pytest.mark.spark

FORMS = {
    "all": {},
    "one": {"columns": "value"},
    "numbered": {"columns": "offset,schema_version,value,key"},
    "headers": {"includeHeaders": "true"},
    "kafka": {"columnNames": "kafka", "includeHeaders": "true"},
}


class Driver:
    """What Spark's planning process does with a reader."""

    def __init__(self, platform: Standalone, topic: str, **options: str) -> None:
        given = {"service.url": platform.service_url, "subscribe": topic, **options}
        source = MagnetarDataSource(given)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader)
        self.reader = reader
        self.start = self._offset(reader.initialOffset())
        self.start = self._offset(reader.latestOffset(self.start, ReadAllAvailable()))

    @staticmethod
    def _offset(form: dict[str, object]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(form))
        return found

    def micro_batch(self) -> tuple[list[int], list[int] | None]:
        """What its tasks would read, and what came with the plan."""
        end = self._offset(self.reader.latestOffset(self.start, ReadAllAvailable()))
        assert not isinstance(self.reader, _SimpleStreamReaderWrapper)
        tasks = self.reader.partitions(self.start, end)
        rows = None
        if isinstance(self.reader, _SimpleStreamReaderWrapper):
            found = self.reader.getCache(self.start, end)
            assert found is not None
            rows = _values(list(found))
        assert not isinstance(self.reader, _SimpleStreamReaderWrapper)
        self.start = end
        read = [batch for task in tasks for batch in self.reader.read(task)]
        return _values(read), rows


def _values(batches: list[pa.RecordBatch]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_come_with_a_plan_are_those_of_its_tasks(
    platform: Standalone, client: pulsar.Client, topic: str, form: str
) -> None:
    publish(client, topic, 20, batching=True)
    driver = Driver(platform, topic, **FORMS[form])
    for first in (20, 30, 40):
        read, rows = driver.micro_batch()
        assert rows == read
        assert read[-1] == first - 1
        publish(client, topic, 10, batching=first == 30, first=first)
    driver.reader.stop()


def test_tasks_read_what_spark_would_not_take(
    platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, 5, batching=True)
    storage = Driver(platform, topic, readMode="storage")
    assert storage.micro_batch() == (list(range(5)), None)


@pytest.mark.parametrize("form", FORMS)
def test_spark_takes_them(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    form: str,
) -> None:
    """Spark compares the rows' schema with the query's."""
    publish(client, topic, 20, batching=True)
    sink = Collected()
    frame = stream(spark, platform, topic, **FORMS[form])
    run_available(frame, sink, tmp_path / "checkpoint")
    publish(client, topic, 10, batching=False, first=20)
    run_available(frame, sink, tmp_path / "checkpoint")
    assert sink.values == list(range(30))
