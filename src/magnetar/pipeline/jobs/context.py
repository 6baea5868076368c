"""Where a job runs: a Spark session, who is told how far it is, and whether it only tries.

Rules:

* A session that was given, or that is active already (in a notebook, under ``spark-submit``), is
  used and left running. One that is made here, on ``master``, ends with the context. It is made
  when a job first asks for it: one that needs no Spark starts none.
* ``spread`` runs a function once for each of some pieces of work, on executors. What it gives comes
  back in the order of the pieces. A piece that fails is tried again as Spark is set to, so the
  function must be safe to repeat.
* Progress is counted in pieces that are done, as Spark's own tracker has it.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from magnetar.model.errors import ConfigError, JobError
from magnetar.pipeline.jobs.spark_words import is_sparks, reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = TypeVar("P")
R = TypeVar("R")

LOOK_S: Final = 0.5
DEFAULT_MASTER: Final = "local[*]"
OURS: Final = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Of a session that is made here; what the user sets comes over it."""


class JobProgress(Protocol):
    """Hears how far a job is. ``total`` 0: not known."""

    def __call__(self, done: int, total: int, what: str) -> None: ...


def unheard(done: int, total: int, what: str) -> None:
    """Nobody wants to know."""


class JobContext:
    """See the module's text. Close it, or use it as a context manager."""

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: JobProgress = unheard,
        dry_run: bool = False,
    ) -> None:
        self._spark = spark
        self._master = master
        self._conf = dict(conf or {})
        self._own = False
        self.progress = progress
        self.dry_run = dry_run

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            self._spark, self._own = _session(self._master, self._conf)
        return self._spark

    @property
    def has_session(self) -> bool:
        """Whether a session was given, or is made by now."""
        return self._spark is not None

    @property
    def parallelism(self) -> int:
        """How many pieces run at the same time."""
        return int(self.spark.sparkContext.defaultParallelism)

    def spread(self, what: str, pieces: Sequence[P], work: Callable[[P], R]) -> list[R]:
        """``work`` of each piece, on executors. ``what`` names the pieces for progress; the
        function, the pieces and the results are pickled. Raises ``MagnetarError``."""
        if not pieces:
            return []
        from magnetar.pipeline.jobs.executing import FAILED, RESULT_SCHEMA, executed

        frame = self.spark.range(0, len(pieces), 1, len(pieces))
        run = executed([*pieces], work)
        with self.watched(what, len(pieces)), _failures():
            rows = frame.mapInArrow(run, RESULT_SCHEMA).collect()
        for row in rows:
            if row["kind"] == FAILED:
                raise pickle.loads(row["result"])
        by_number = {row["number"]: row["result"] for row in rows}
        return [pickle.loads(by_number[number]) for number in range(len(pieces))]

    @contextmanager
    def collecting(self, what: str, total: int) -> Iterator[None]:
        """Around what Spark computes within: its progress is told, and what ends a task is raised
        as one of our errors."""
        with self.watched(what, total), _failures():
            yield

    @contextmanager
    def watched(self, what: str, total: int) -> Iterator[None]:
        """Tell the progress of what Spark does within, in tasks that are done. ``total`` 0: as
        many as Spark has planned so far."""
        context: Any = self.spark.sparkContext
        group = f"magnetar-{uuid.uuid4().hex[:12]}"
        context.setJobGroup(group, what)
        over = threading.Event()
        tracker = context.statusTracker()
        watcher = threading.Thread(
            target=self._watch, args=(tracker, group, what, total, over), daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            context.setLocalProperty("spark.jobGroup.id", None)
            context.setLocalProperty("spark.job.description", None)
        whole = total or _tasks(tracker, group)[0]
        self.progress(whole, whole, what)

    def _watch(
        self, tracker: Any, group: str, what: str, total: int, over: threading.Event
    ) -> None:
        while not over.wait(LOOK_S):
            done, planned = _tasks(tracker, group)
            self.progress(min(done, total) if total else done, total or planned, what)

    def close(self) -> None:
        """End the session if it was made here. Idempotent."""
        spark, self._spark = self._spark, None
        if spark is not None and self._own:
            spark.stop()

    def __enter__(self) -> JobContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _tasks(tracker: Any, group: str) -> tuple[int, int]:
    """Of a group of Spark's jobs: how many tasks are done, and how many there are."""
    jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(group)]
    found = [tracker.getStageInfo(each) for one in jobs if one for each in one.stageIds]
    stages = [each for each in found if each]
    return sum(each.numCompletedTasks for each in stages), sum(each.numTasks for each in stages)


def _session(master: str | None, conf: Mapping[str, str]) -> tuple[SparkSession, bool]:
    """The session, and whether it was made here."""
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            f"this job needs Spark, which is not installed here ({error}): pip install "
            "'magnetar[spark]', and Java 17 or later"
        ) from error
    active = SparkSession.getActiveSession()
    if active is not None and master is None:
        return active, False
    given = SparkConf()
    builder = SparkSession.builder.appName("magnetar pipeline")
    if master is not None or not given.contains("spark.master"):
        builder = builder.master(master or DEFAULT_MASTER)
    for name, value in OURS.items():
        if not given.contains(name):
            builder = builder.config(name, value)
    for name, value in conf.items():
        builder = builder.config(name, value)
    where = master or given.get("spark.master", DEFAULT_MASTER) or DEFAULT_MASTER
    _choose_python(where)
    with _starting(where):
        # One that is active serves whatever ``master`` says, and is not ours to end.
        return builder.getOrCreate(), active is None


@contextmanager
def _starting(where: str) -> Iterator[None]:
    """What keeps Spark from starting is a matter of the machine, or of what it was told."""
    try:
        yield
    except Exception as error:
        if not is_sparks(error):
            raise
        raise ConfigError(
            f"Spark could not be started on {where}: {reason(error)} It needs Java 17 or later "
            "(java -version, JAVA_HOME), and a --master and --conf that it knows; what it says "
            "itself stands above"
        ) from error


def _choose_python(master: str) -> None:
    """Workers on this machine run this Python: that is where the package is, and Spark would take
    whichever ``python3`` comes first. On a cluster the administrator says where it is."""
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@contextmanager
def _failures() -> Iterator[None]:
    """What Spark raises for a task that died becomes one line."""
    try:
        yield
    except Exception as error:
        if not is_sparks(error):
            raise
        raise JobError(f"Spark could not do the work: {reason(error)}") from error
