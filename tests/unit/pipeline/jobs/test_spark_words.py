"""What is left of Spark's long texts. The texts are those of PySpark 4.3."""

from __future__ import annotations

import pytest

from magnetar.model.errors import ConfigError, JobError, MagnetarError
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import Job, Report, run
from magnetar.pipeline.jobs.spark_words import asked_wrongly, is_sparks, reason

UNRESOLVED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `foo` cannot be resolved.
'Project [key#0, value#1]
+- ~StreamingRelationV2 org.apache.spark.sql.PythonDataSourceV2@65786301"""
NOT_THERE = """[PYTHON_DATA_SOURCE_ERROR] Failed to read partitions: \
magnetar.model.errors.TopicNotFoundError: topic nope is not there; make it
SQLSTATE: 38000"""
REFUSED = """[PYTHON_DATA_SOURCE_ERROR] Failed to create the reader: \
magnetar.model.errors.ConfigError: option 'x' takes a whole number
SQLSTATE: 38000"""
CALLED = """An error occurred while calling o44.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed
\tat java.base/java.util.concurrent.ForkJoinPool.scan(ForkJoinPool.java:1655)"""


def raised(name: str, text: str, module: str = "pyspark.errors.exceptions.captured") -> Exception:
    kind = type(name, (Exception,), {"__module__": module})
    error = kind(text)
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(
    ("error", "said", "wrong"),
    [
        (raised("AnalysisException", UNRESOLVED), UNRESOLVED.splitlines()[0], True),
        (raised("AnalysisException", NOT_THERE), "topic nope is not there; make it", False),
        (raised("StreamingQueryException", REFUSED), "option 'x' takes a whole number", True),
        (
            raised("IllegalArgumentException", "requirement failed: no"),
            "requirement failed: no",
            True,
        ),
        (
            raised("Py4JJavaError", CALLED, "py4j.protocol"),
            "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed",
            False,
        ),
        (raised("PySparkRuntimeError", ""), "no reason given", False),
    ],
)
def test_one_line_is_left(error: Exception, said: str, wrong: bool) -> None:
    assert is_sparks(error)
    assert (reason(error), asked_wrongly(error)) == (said, wrong)

    def work(options: str, context: JobContext) -> Report:
        raise error

    expected: type[MagnetarError] = ConfigError if wrong else JobError
    with pytest.raises(expected, match="the job odd cannot be done: ") as told:
        run(Job("odd", "Fails.", str, work), "", JobContext())
    assert str(told.value).endswith(said)
    assert type(told.value) is expected


def test_what_is_not_sparks_stays_what_it_is() -> None:
    def work(options: str, context: JobContext) -> Report:
        raise KeyError("a defect of ours")

    assert not is_sparks(KeyError())
    with pytest.raises(KeyError):
        run(Job("odd", "Fails.", str, work), "", JobContext())
