"""Spark in a process of its own, as a load: it scans for as long as it is told.

    python -m bench.spark_load     # a line of JSON in: {"format", "options", "seconds"}; one out

``local[2]``, to the ``noop`` sink. At ``nice`` 19 it gets what others leave of the cores.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping

from bench.spark_process import SparkProcess


def main() -> None:
    from pyspark.sql import SparkSession

    from bench.arrow_ceiling import ArrowCeiling

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.dataSource.register(ArrowCeiling)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        scans, end = 0, time.monotonic() + asked["seconds"]
        while time.monotonic() < end:
            frame = spark.read.format(asked["format"]).options(**asked["options"]).load()
            frame.write.format("noop").mode("append").save()
            scans += 1
        print(json.dumps({"scans": scans}), flush=True)
    spark.stop()


class SparkLoad(SparkProcess):
    """A session; ``begin`` a load, do something else, ``wait`` until it is over."""

    def __init__(self, nice: int = 0) -> None:
        super().__init__("bench.spark_load", before=("nice", "-n", str(nice)))

    def begin(self, name: str, options: Mapping[str, str], seconds: float) -> None:
        self.ask({"format": name, "options": dict(options), "seconds": seconds})

    def wait(self) -> int:
        """How many scans there were, of which the last may have gone on past the time."""
        return int(self.answer()["scans"])


if __name__ == "__main__":
    main()
