"""``magnetar pipeline JOB``: a command of each job, made of its options (``pipeline.jobs.job``)."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import typing
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any

import click

from magnetar import logs
from magnetar.cli.output import print_json
from magnetar.config import LoggingConfig
from magnetar.config_loading import BYTE_UNITS, TIME_UNITS, whole_number
from magnetar.model.errors import ConfigError
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import ABOUT, About, Job, OptionKind, Report, run, to_json
from magnetar.pipeline.jobs.registry import JOBS, job

FOUND = 1
"""The exit code when a job's report is not ``ok``."""
BAR_CHARACTERS = 30
SAY_EVERY_S = 10.0
"""How often progress is said where nobody watches: a log keeps every line."""
SCRIPT = Path(__file__).with_name("submitted.py")


class JobGroup(click.Group):
    """A command per job; its module is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *JOBS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = job(cmd_name)
        return super().get_command(ctx, cmd_name) if found is None else command_of(found)


@click.group(cls=JobGroup)
def pipeline() -> None:
    """Run the platform's heavy jobs on Spark: on this machine, or on a cluster.

    Each job tries without changing anything with --dry-run, says how far it is, ends with a report
    (--json, --report FILE), and with exit code 1 when something must be looked at.

    \b
    Examples:
      magnetar pipeline audit flights
      magnetar pipeline audit flights --master spark://10.0.0.1:7077 --report audit.json
      spark-submit "$(magnetar pipeline script)" audit flights
    """


@pipeline.command()
def script() -> None:
    """Print the path of the file that spark-submit is given; the job and its options follow it."""
    click.echo(SCRIPT)


def command_of(found: Job[Any, Any]) -> click.Command:
    """The job's command."""
    hints = typing.get_type_hints(found.options)
    fields = dataclasses.fields(found.options)
    own = [_parameter(each, hints[each.name]) for each in fields if ABOUT in each.metadata]

    def work(**values: Any) -> int:
        return _run(found, values)

    text = f"{found.summary}\n\n{found.notes}" if found.notes else found.summary
    return click.Command(found.name, params=[*own, *_common()], callback=work, help=text)


def _common() -> list[click.Parameter]:
    return [
        click.Option(["--dry-run"], is_flag=True, help="Say what would be done; change nothing."),
        click.Option(
            ["--master"],
            help="Where Spark runs, as spark://HOST:PORT.  [default: local[*], or spark-submit's]",
        ),
        click.Option(
            ["--conf"], multiple=True, metavar="NAME=VALUE", help="A setting of Spark; repeatable."
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the report as JSON."),
        click.Option(
            ["--report"], type=click.Path(dir_okay=False), help="Write the report there, as JSON."
        ),
        click.Option(
            ["--progress"],
            type=click.Choice(["auto", "bar", "lines", "none"]),
            default="auto",
            show_default=True,
            help="How it says how far it is: a bar on a terminal, else a line now and then.",
        ),
    ]


def _parameter(each: dataclasses.Field[Any], hint: Any) -> click.Parameter:
    about: About = each.metadata[ABOUT]
    needed = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    default = None if needed else each.default
    several, inner = _inner(hint)
    if about.positional:
        return click.Argument([each.name], nargs=-1 if several else 1, required=needed)
    flag = inner is bool and default is not True  # else it could not be said to be false
    return click.Option(
        [f"--{each.name.replace('_', '-')}", each.name],
        type=None if flag else _type(about, inner),
        is_flag=flag,
        multiple=several,
        required=needed,
        default=default,
        show_default=default not in (None, False, ()),
        envvar=about.environment,
        show_envvar=about.environment is not None,
        help=about.text,
    )


def _inner(hint: Any) -> tuple[bool, Any]:
    """Whether there may be several, and the type of one."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        (hint,) = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) is tuple:
        return True, typing.get_args(hint)[0]
    return False, hint


def _type(about: About, inner: Any) -> Any:
    if about.choices:
        return click.Choice(about.choices)
    if about.kind is OptionKind.PLAIN:
        return inner
    return Quantity(about.kind)


class Quantity(click.ParamType):  # type: ignore[type-arg]  # not generic when it runs
    """Bytes or milliseconds, perhaps with a unit."""

    def __init__(self, kind: OptionKind) -> None:
        self.name = "size" if kind is OptionKind.BYTES else "time"
        self._units = BYTE_UNITS if kind is OptionKind.BYTES else TIME_UNITS

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = whole_number(value, self._units)
        if found is None or found < 0:
            self.fail(f"{value!r} is no {self.name}; units: {', '.join(self._units)}", param, ctx)
        return found


def _run(found: Job[Any, Any], values: dict[str, Any]) -> int:
    names = {each.name for each in dataclasses.fields(found.options)}
    options = found.options(**{name: value for name, value in values.items() if name in names})
    # What is logged here is of clients inside, and may not come between the lines of a report.
    logs.configure(LoggingConfig(level="warning"))
    told = ShownProgress(values["progress"])
    context = JobContext(
        master=values["master"],
        conf=_settings(values["conf"]),
        progress=told,
        dry_run=values["dry_run"],
    )
    _check_writable(values["report"])
    with context:
        try:
            report = run(found, options, context)
        finally:
            told.end()
    _show(report, as_json=values["as_json"], path=values["report"])
    return 0 if report.ok else FOUND


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise ConfigError(f"--conf {each!r}: give NAME=VALUE")
    return dict(each.split("=", 1) for each in given)


def _check_writable(path: str | None) -> None:
    """Before the work: a report that has no place would be lost when hours of it are over. Raises
    ``ConfigError``."""
    if path is None:
        return
    try:
        with Path(path).open("a"):
            pass
    except OSError as error:
        raise ConfigError(
            f"--report {path} cannot be written ({error.strerror}), and nothing was done: give a "
            "file in a directory that is there and may be written to"
        ) from error


def _show(report: Report, *, as_json: bool, path: str | None) -> None:
    if path is not None:
        Path(path).write_text(json.dumps(to_json(report), indent=2, ensure_ascii=False) + "\n")
    if as_json:
        print_json(to_json(report))
        return
    if report.dry_run:
        click.echo("nothing was changed (--dry-run)")
    for line in report.lines():
        click.echo(line)


class ShownProgress:
    """Progress, on the standard error."""

    def __init__(self, how: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._how = ("bar" if sys.stderr.isatty() else "lines") if how == "auto" else how
        self._clock_s = clock_s
        self._said = ""
        self._next_s = clock_s() + SAY_EVERY_S

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._how == "bar":
            share = min(1.0, done / total) if total else 0.0
            full = round(BAR_CHARACTERS * share)
            bar = "#" * full + "." * (BAR_CHARACTERS - full)
            self._say(f"\r[{bar}] {done:,} of {total or '?'} {what}   ", new_line=False)
        elif self._how == "lines" and (self._clock_s() >= self._next_s or done == total > 0):
            self._next_s = self._clock_s() + SAY_EVERY_S
            of = f" of {total:,}" if total else ""
            self._say(f"{done:,}{of} {what}", new_line=True)

    def _say(self, text: str, *, new_line: bool) -> None:
        if text != self._said:
            click.echo(text, nl=new_line, err=True)
            self._said = text

    def end(self) -> None:
        if self._how == "bar" and self._said:
            click.echo(err=True)
