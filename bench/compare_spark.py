"""Spark, kept running over the rounds of a comparison: scans a topic as often as it is told.

    python -m bench.compare_spark      # a line of JSON in: {"url", "topic", "columns"}; one out

One task, to the ``noop`` sink. The CPU time is taken from outside, over all processes (Java and its
Python workers).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.measure import process_tree, tree_cpu_seconds
from bench.server import ROOT, environment_of


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


class SparkSide:
    """The session of one source tree."""

    def __init__(self, source: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.compare_spark"],
            cwd=ROOT,
            env=environment_of(source),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._warm = False
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return
        raise SystemExit("the Spark session ended")

    def warm_up(self, port: int, topic: str) -> None:
        """The first time: scans that are not measured, as compilers and workers begin with them."""
        if not self._warm:
            for columns in ("value", "", "value", ""):
                self.scan(port, topic, columns)
        self._warm = True

    def scan(self, port: int, topic: str, columns: str) -> float:
        """CPU seconds of a scan, of all its processes."""
        assert self._process.stdin is not None
        before = self._cpu_s()
        asked = {"url": f"pulsar://127.0.0.1:{port}", "topic": topic, "columns": columns}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        self._answer()
        return self._cpu_s() - before

    def _cpu_s(self) -> float:
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
