"""What a stream's checkpoint is of: a file of ours in it says what the job makes of what it reads.

A checkpoint knows how far its topics were read, and the state of windows. With another destination
what was read before would be copied to nobody, and other windows or aggregates would go on in the
state of the former ones; Spark notices neither. So the first run notes what it does, and a run
that does something else is refused. What may change: which topics are read, filters, rates,
addresses.

A checkpoint of an earlier release has no such file, and gets it.

Why: docs/adr/0220-a-checkpoint-is-of-one-job.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.model.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE: Final = "magnetar.json"
PLANNED: Final = "offsets/1"
"""Spark's, of the first micro-batch that has messages: from then on something may be written."""


def check_same_job(spark: SparkSession, checkpoint: str, about: Mapping[str, str]) -> None:
    """``about``: what the job makes of what it reads. Raises ``ConfigError`` for a checkpoint of
    something else."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return  # a session on a server's Spark does not reach its files
    files = _Files(spark, jvm, checkpoint)
    if files.has(PLANNED):
        differing = _differing(files.read(FILE), about)
        if differing:
            raise ConfigError(
                f"checkpoint {checkpoint} is of something else: {'; '.join(differing)}. What was "
                "read before would go nowhere, or into the wrong results: give a --checkpoint of "
                "its own, or what was given before"
            )
    files.write(FILE, json.dumps(about, indent=2, sort_keys=True))


def _differing(kept: str | None, about: Mapping[str, str]) -> list[str]:
    try:
        told = json.loads(kept or "")
    except ValueError:  # none, or one that was being written when the job was killed
        return []
    if not isinstance(told, dict):
        return []
    return [
        f"{name} was {told.get(name)!r}, and is {about.get(name)!r}"
        for name in sorted({*told, *about})
        if told.get(name) != about.get(name)
    ]


class _Files:
    """Of a checkpoint, wherever Spark keeps it."""

    def __init__(self, spark: Any, jvm: Any, folder: str) -> None:
        self._jvm = jvm
        self._folder = jvm.org.apache.hadoop.fs.Path(folder)
        self._system = self._folder.getFileSystem(spark._jsc.hadoopConfiguration())

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, name)

    def has(self, name: str) -> bool:
        return bool(self._system.exists(self._path(name)))

    def read(self, name: str) -> str | None:
        if not self.has(name):
            return None
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        stream = self._system.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
