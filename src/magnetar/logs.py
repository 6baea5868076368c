"""Log output: one line an event, on standard error.

On a terminal lines are coloured and aligned; elsewhere they are the same without colours; with
``json`` each is one JSON object. What libraries write through ``logging`` (uvicorn, kazoo) comes
out the same way, from warnings up.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

import structlog

from magnetar.config import LoggingConfig

if TYPE_CHECKING:
    from structlog.typing import Processor

EVENT_WIDTH = 36
OURS = "magnetar"


def configure(config: LoggingConfig, stream: TextIO | None = None) -> None:
    """Send all logs to ``stream`` (standard error by default) as ``config`` says."""
    stream = stream if stream is not None else sys.stderr
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(
            fmt="iso" if config.json else "%Y-%m-%d %H:%M:%S.%f", utc=True
        ),
        structlog.processors.StackInfoRenderer(),
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_last(config, stream),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(OURS).setLevel(config.level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def leave_to_program() -> None:
    """For libraries: what is logged goes to Python's ``logging``, for the program that uses them to
    show or not. structlog by itself would print it between the lines of that program's output. A
    program that has configured structlog has said what it wants."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _last(config: LoggingConfig, stream: TextIO) -> list[Processor]:
    """The processors that make the line."""
    if config.json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        _short_fields,
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            pad_event_to=EVENT_WIDTH,
            exception_formatter=structlog.dev.plain_traceback,
        ),
    ]


def _short_fields(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """For people: milliseconds are enough, and the package's name says nothing."""
    event["timestamp"] = event["timestamp"][:-3]
    event["logger"] = event["logger"].removeprefix(f"{OURS}.")
    return event
