"""What a job is: a function from typed options, and a context, to a report.

    @dataclass(frozen=True)
    class CountOptions:
        topics: tuple[str, ...] = argument("Topics to count.")
        service_url: str = option("Where brokers answer.", default="pulsar://127.0.0.1:6650")

    @dataclass
    class CountReport(Report):
        messages: int = 0

    def count(options: CountOptions, context: JobContext) -> CountReport: ...

    COUNT = Job("count", "Count the messages of topics.", CountOptions, count)

Rules:

* One definition serves the command line (``cli.pipeline`` makes a command of it), ``spark-submit``
  (the same command line, in a file) and a call from Python: ``run(COUNT, CountOptions(...))``.
* A job that is given ``context.dry_run`` changes nothing, anywhere: it reports what it would do.
* The report is data: every field is in its JSON form (``to_json``). ``ok`` decides the exit code:
  0, or 1 when the job found something that must be looked at. A job that cannot do its work raises
  a ``MagnetarError`` instead, which is exit code 1 as well; one that was asked wrongly raises
  ``ConfigError``, which is 2.
* A module with a job imports neither PySpark nor Arrow when it is loaded: its options are shown by
  ``--help`` where they are not installed.

Why: docs/adr/0129-jobs-are-functions.md.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from magnetar.model.errors import ConfigError
from magnetar.pipeline.jobs.spark_words import failure, is_sparks

if TYPE_CHECKING:
    from magnetar.pipeline.jobs.context import JobContext

Options = TypeVar("Options")
R = TypeVar("R", bound="Report")

ABOUT: Final = "magnetar"
"""Under this name a field's metadata holds its ``About``."""
NEEDED: Final = object()
SPARKS: Final = ("pyspark", "pyarrow", "pandas", "numpy")
"""Modules that ``magnetar[spark]`` brings."""


class OptionKind(Enum):
    """How the text of an option is understood; ``PLAIN``: as the field's type says."""

    PLAIN = "plain"
    BYTES = "bytes"
    """A number, or with KiB, MiB, GiB."""
    DURATION_MS = "duration"
    """A number of milliseconds, or with s, min, h, d."""


@dataclass(frozen=True)
class About:
    """What a command line must know of a field. ``positional``: given without a name."""

    text: str
    positional: bool = False
    kind: OptionKind = OptionKind.PLAIN
    choices: tuple[str, ...] = ()
    environment: str | None = None


def option(
    text: str,
    *,
    default: Any = NEEDED,
    kind: OptionKind = OptionKind.PLAIN,
    choices: tuple[str, ...] = (),
    environment: str | None = None,
) -> Any:
    """A field that is an option on the command line. Types: str, int, float, bool (a flag; one
    that is true by default takes true or false), each perhaps None, and tuple[str, ...]
    (repeatable)."""
    about = {ABOUT: About(text, False, kind, choices, environment)}
    if default is NEEDED:
        return field(metadata=about)
    return field(default=default, metadata=about)


def argument(text: str, *, default: Any = NEEDED) -> Any:
    """A field that is given without a name; tuple[str, ...] takes all that are given."""
    about = {ABOUT: About(text, positional=True)}
    if default is NEEDED:
        return field(metadata=about)
    return field(default=default, metadata=about)


def service_url_option() -> Any:
    """What every job needs that works on topics."""
    return option(
        "Where brokers answer: pulsar://HOST:PORT[,HOST:PORT].",
        default="pulsar://127.0.0.1:6650",
        environment="MAGNETAR_SERVICE_URL",
    )


@dataclass
class Report:
    """What every report says. A job's own has fields beside, all with defaults."""

    job: str = ""
    dry_run: bool = False
    started_ms: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was found that must be looked at."""
        return True

    def lines(self) -> Iterator[str]:
        """For people."""
        for name, value in to_json(self).items():
            yield f"{name}: {value}"


@dataclass(frozen=True)
class Job(Generic[Options, R]):
    """``notes``: for ``--help``, behind the summary; examples, above all."""

    name: str
    summary: str
    options: type[Options]
    work: Callable[[Options, JobContext], R]
    notes: str = ""


def run(job: Job[Options, R], options: Options, context: JobContext | None = None) -> R:
    """The job's report. A context that is given stays open; else the job has its own, with the
    Spark session that is active or one on ``local[*]``. Raises ``MagnetarError``."""
    if context is None:
        from magnetar.pipeline.jobs.context import JobContext

        with JobContext() as own:
            return run(job, options, own)
    started_ns, begun_s = time.time_ns(), time.monotonic()
    try:
        report = job.work(options, context)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SPARKS:
            raise
        raise ConfigError(
            f"the job {job.name} needs Spark, which is not installed here ({error}): pip install "
            "'magnetar[spark]', and Java 17 or later"
        ) from error
    except Exception as error:
        if not is_sparks(error):
            raise
        raise failure(error, f"the job {job.name} cannot be done") from error
    report.job, report.dry_run = job.name, context.dry_run
    report.started_ms = started_ns // 1_000_000
    report.seconds = round(time.monotonic() - begun_s, 3)
    return report


def to_json(value: Any) -> Any:
    """Plain values, with the names of fields in camelCase, and ``ok`` beside a report's fields."""
    if isinstance(value, Report):
        return {"job": value.job, "ok": value.ok} | _fields(value)
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {camel(name): to_json(each) for name, each in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [to_json(each) for each in value]
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {camel(each.name): to_json(getattr(value, each.name)) for each in _public(value)}


def _public(value: Any) -> list[dataclasses.Field[Any]]:
    return [each for each in dataclasses.fields(value) if not each.name.startswith("_")]


def camel(name: str) -> str:
    """``publish_time_ms`` -> ``publishTimeMs``."""
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)
