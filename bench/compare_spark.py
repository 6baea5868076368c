"""Spark, kept running over the rounds of a comparison: scans a topic as often as it is told.

    python -m bench.compare_spark      # a line of JSON in: {"url", "topic", "columns"}; one out

One task, to the ``noop`` sink. The CPU time is taken from outside, over all processes (Java and its
Python workers).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bench.spark_process import SparkProcess
from bench.trees import environment_of


def main() -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        reader = spark.read.format("magnetar").option("service.url", asked["url"])
        reader = reader.option("topic", asked["topic"])
        if asked["columns"]:
            reader = reader.option("columns", asked["columns"])
        reader.load().write.format("noop").mode("append").save()
        print(json.dumps({"done": True}), flush=True)
    spark.stop()


class SparkSide(SparkProcess):
    """The session of one source tree."""

    def __init__(self, source: Path) -> None:
        self._warm = False
        super().__init__("bench.compare_spark", environment=environment_of(source))

    def warm_up(self, port: int, topic: str) -> None:
        """The first time: scans that are not measured, as compilers and workers begin with them."""
        if not self._warm:
            for columns in ("value", "", "value", ""):
                self.scan(port, topic, columns)
        self._warm = True

    def scan(self, port: int, topic: str, columns: str) -> float:
        """CPU seconds of a scan, of all its processes."""
        before = self.cpu_s()
        self.ask({"url": f"pulsar://127.0.0.1:{port}", "topic": topic, "columns": columns})
        self.answer()
        return self.cpu_s() - before


if __name__ == "__main__":
    main()
