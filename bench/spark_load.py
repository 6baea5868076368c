"""Spark in a process of its own, as a load: it scans for as long as it is told.

    python -m bench.spark_load     # a line of JSON in: {"format", "options", "seconds"}; one out

``local[2]``, to the ``noop`` sink. At ``nice`` 19 it gets what others leave of the cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping

from bench.measure import process_tree, tree_cpu_seconds
from bench.server import ROOT


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


class SparkLoad:
    """A session; ``begin`` a load, do something else, ``wait`` until it is over."""

    def __init__(self, nice: int = 0) -> None:
        self._process = subprocess.Popen(
            ["nice", "-n", str(nice), sys.executable, "-m", "bench.spark_load"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer()

    def _answer(self) -> dict[str, int]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, int] = json.loads(line)
                return answer
        raise SystemExit("the Spark session ended")

    def begin(self, name: str, options: Mapping[str, str], seconds: float) -> None:
        assert self._process.stdin is not None
        asked = {"format": name, "options": dict(options), "seconds": seconds}
        print(json.dumps(asked), file=self._process.stdin, flush=True)

    def wait(self) -> int:
        """How many scans there were, of which the last may have gone on past the time."""
        return self._answer()["scans"]

    def cpu_s(self) -> float:
        """Of all its processes so far."""
        return tree_cpu_seconds(process_tree([self._process.pid]))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    main()
