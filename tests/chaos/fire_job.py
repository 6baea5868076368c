"""The query that ``spark_fire`` sets fire to; run by ``spark-submit``, not imported.

    fire_job.py SERVICE_URL FOLDER ROWS_PER_TRIGGER [METADATA_URL]

Every row of the topic ``fire-in`` becomes one of ``fire-out``: its value, a colon, and its number
among the rows of its key, which the query counts in its state. Rows are numbered in another order
each time a batch runs: so only one of its runs may be in the topic, and the state must be that
run's. Some tasks dawdle, so that Spark starts a second attempt beside the first.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa

DAWDLING = 0.04
DAWDLE_S = 4.0


def numbered(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    count = state.get[0] if state.exists else 0
    for frame in frames:
        ids = [bytes(value).decode() for value in frame["value"]]
        random.SystemRandom().shuffle(ids)
        texts = [f"{one}:{number}" for number, one in enumerate(ids, count + 1)]
        count += len(ids)
        yield pd.DataFrame({"key": key[0], "value": texts})
    state.update((count,))


def dawdling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    # All its rows are on their way to the sink: it ends late, and its twin may be first.
    if TaskContext.get().attemptNumber() == 0 and random.SystemRandom().random() < DAWDLING:
        time.sleep(DAWDLE_S)


def main() -> None:
    service, folder, per_trigger, *metadata = sys.argv[1:]
    asked = {"metadata.url": metadata[0]} if metadata else {}  # else the brokers are
    spark = SparkSession.builder.appName("fire").getOrCreate()
    rows = (
        spark.readStream.format("magnetar")
        .option("service.url", service).option("subscribe", "fire-in")
        .option("columns", "key,value").option("maxOffsetsPerTrigger", per_trigger).load()
        .groupBy("key")
        .applyInPandasWithState(
            numbered, "key string, value string", "count long", "append", "NoTimeout"
        )
    )  # fmt: skip
    query = (
        rows.mapInArrow(dawdling, rows.schema)
        .writeStream.format("magnetar")
        .option("service.url", service).options(**asked).option("topic", "fire-out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .outputMode("append").start()
    )  # fmt: skip
    query.awaitTermination()


if __name__ == "__main__":
    main()
