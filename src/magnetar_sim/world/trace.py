"""The transcript of a run: who did what, when; and the product's own log lines among it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from magnetar_sim.world.loop import current_process

WHO_WIDTH = 8


class Trace:
    """Lines ``<seconds> <who> <what>``, kept only when ``tracing``."""

    def __init__(self, now_s: Callable[[], float], tracing: bool) -> None:
        self.tracing = tracing
        self.lines: list[str] = []
        self._now_s = now_s

    def note(self, who: str, what: str) -> None:
        if self.tracing:
            self.lines.append(f"{self._now_s():>10.4f}  {who:<{WHO_WIDTH}} {what}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


class ProductLog:
    """What the product logs while a run lasts: into the trace, and what is an error of the
    program (a task or a lane's job that ended in an exception) to ``failed``; what is logged as an
    error to ``erred``, with who logs it.

    ``with ProductLog(trace, failed): ...``; the settings of before come back at the end.
    """

    def __init__(
        self,
        trace: Trace,
        failed: Callable[[str], None],
        erred: Callable[[str, str], None] = lambda who, what: None,
    ) -> None:
        self._trace = trace
        self._failed = failed
        self._erred = erred
        self._before: dict[str, Any] = {}

    def __enter__(self) -> ProductLog:
        self._before = structlog.get_config()
        level = 10 if self._trace.tracing else 40
        structlog.configure(
            processors=[self._process],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.ReturnLoggerFactory(),
            cache_logger_on_first_use=False,
        )
        return self

    def __exit__(self, *_: object) -> None:
        structlog.configure(**self._before)

    def _process(self, _logger: object, level: str, event: MutableMapping[str, Any]) -> str:
        what = str(event.pop("event"))
        raised = event.pop("exc_info", None)
        if what in ("task failed", "job failed") and _is_bug(raised):
            self._failed(f"{what}: {event.get('task') or event.get('lane')}: {raised!r}")
        event.pop("seconds", None)  # of the wall clock: not the same in every run
        process = current_process()
        details = " ".join(f"{key}={value}" for key, value in event.items())
        self._trace.note(process.name if process else "-", f"[{level}] {what} {details}".rstrip())
        if level == "error" and process is not None:
            self._erred(process.name, f"{what} {details}".rstrip())
        raise structlog.DropEvent


def _is_bug(raised: object) -> bool:
    """Errors of the world are told to people; these are the program's own."""
    return isinstance(
        raised, AssertionError | TypeError | AttributeError | LookupError | ValueError | NameError
    )
