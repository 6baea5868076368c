"""The options of ``format("magnetar")``: parsed once, on the driver, with clear refusals.

Spark hands option names over in lower case; they are written here as users write them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.model.errors import ConfigError
from magnetar.pipeline.places import Place, parse_place

EARLIEST = "earliest"
LATEST = "latest"

READ_OPTIONS = (
    "service.url", "topic", "topics", "subscribe", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "columns", "pollTimeoutMs",
    "failOnDataLoss", "readMode",
)  # fmt: skip
WRITE_OPTIONS = ("service.url", "topic", "sendTimeoutMs", "compression", "batchingMaxMessages")

Bound = str | int | dict[str, Place]
"""``"earliest"``, ``"latest"``, a time in milliseconds since 1970, or places by partition."""


@dataclass(frozen=True)
class ReadOptions:
    """What to read and from where to where."""

    service_url: str
    topics: tuple[str, ...]
    starting: Bound
    ending: Bound
    messages_per_trigger_max: int | None
    columns: tuple[str, ...] | None
    poll_timeout_ms: int
    fail_on_data_loss: bool


@dataclass(frozen=True)
class WriteOptions:
    service_url: str
    topic: str | None
    send_timeout_ms: int
    compression: str
    batching_messages_max: int


def full_topic(name: str) -> str:
    """``persistent://public/default/NAME`` for a short name."""
    if "://" in name:
        return name
    return f"persistent://{name}" if name.count("/") == 2 else f"persistent://public/default/{name}"


TABLE_PREFIX = "option."


def _of_a_reader(raw: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    """Options by their names in lower case. Of a table in Spark's catalog each comes twice, once as
    ``option.NAME``, among properties of the table (``owner``), which are none of ours."""
    given = {key.lower(): value for key, value in raw.items()}
    prefixed = {key for key in given if key.startswith(TABLE_PREFIX)}
    if not prefixed:
        return given
    ours = {key: value for key, value in given.items() if key in known}
    return {key.removeprefix(TABLE_PREFIX): given[key] for key in prefixed} | ours


class _Options:
    """Lower-cased options with typed look-ups that name the option in their errors."""

    def __init__(self, raw: Mapping[str, str], known: tuple[str, ...]) -> None:
        if not raw:
            raise ConfigError(
                "no options came. Spark keeps those of a table in its catalog to itself: name them "
                "in the query (SELECT ... FROM table WITH ('service.url' = '...', 'topic' = "
                "'...')), or make a view that has them (CREATE TEMPORARY VIEW name USING magnetar "
                "OPTIONS (...))"
            )
        allowed = frozenset(name.lower() for name in known) | {"path"}
        self._raw = _of_a_reader(raw, allowed)
        unknown = sorted(key for key in self._raw if key not in allowed)
        if unknown:
            raise ConfigError(f"unknown option {unknown[0]!r}; known: {', '.join(known)}")

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._raw.get(name.lower(), default)

    def needed(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise ConfigError(f"option {name!r} is missing; for example {example!r}")
        return value

    def number(self, name: str, default: int | None, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if not value.strip().lstrip("-").isdigit() or int(value) < least:
            raise ConfigError(f"option {name!r} takes a whole number from {least}, not {value!r}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise ConfigError(f"option {name!r} takes true or false, not {value!r}")
        return value == "true"


def parse_read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Options of a batch or streaming read. Raises ``ConfigError``."""
    options = _Options(raw, READ_OPTIONS)
    mode = options.text("readMode", "auto")
    if mode not in ("auto", "broker"):
        raise ConfigError(f"option 'readMode' takes auto or broker, not {mode!r}")
    columns = options.text("columns")
    return ReadOptions(
        service_url=options.needed("service.url", "pulsar://127.0.0.1:6650"),
        topics=_topics(options),
        starting=_bound(options, "starting"),
        ending=_bound(options, "ending"),
        messages_per_trigger_max=options.number("maxOffsetsPerTrigger", None),
        columns=tuple(c.strip() for c in columns.split(",")) if columns else None,
        poll_timeout_ms=options.number("pollTimeoutMs", 60_000) or 0,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
    )


def _topics(options: _Options) -> tuple[str, ...]:
    given = [n for n in ("topic", "topics", "subscribe", "path") if options.text(n)]
    if len(given) != 1:
        what = "none" if not given else " and ".join(given)
        raise ConfigError(f"give one of the options 'topic', 'topics', 'subscribe'; got {what}")
    names = [n.strip() for n in (options.text(given[0]) or "").split(",") if n.strip()]
    if not names:
        raise ConfigError(f"option {given[0]!r} names no topic")
    return tuple(dict.fromkeys(full_topic(name) for name in names))


def _bound(options: _Options, prefix: str) -> Bound:
    """``startingOffsets``/``startingTimestamp`` or the ending pair."""
    offsets, timestamp = f"{prefix}Offsets", f"{prefix}Timestamp"
    at_ms = options.number(timestamp, None, least=0)
    text = options.text(offsets)
    if at_ms is not None and text is not None:
        raise ConfigError(f"give {offsets!r} or {timestamp!r}, not both")
    if at_ms is not None:
        return at_ms
    text = text or (EARLIEST if prefix == "starting" else LATEST)
    if text in (EARLIEST, LATEST):
        return text
    return _places(offsets, text)


def _places(name: str, text: str) -> dict[str, Place]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(
            f"option {name!r} takes earliest, latest, or JSON from topic partition to "
            f"'ledger:entry:batch' (the next message to read), not {text!r}"
        )
    return {full_topic(str(topic)): parse_place(str(place)) for topic, place in value.items()}


def parse_write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Options of a batch or streaming write. Raises ``ConfigError``."""
    options = _Options(raw, (*WRITE_OPTIONS, "checkpointLocation"))
    topic = options.text("topic") or options.text("path")
    compression = (options.text("compression") or "none").lower()
    if compression not in ("none", "lz4", "zlib", "zstd", "snappy"):
        raise ConfigError(
            f"option 'compression' takes none, lz4, zlib, zstd or snappy, not {compression!r}"
        )
    return WriteOptions(
        service_url=options.needed("service.url", "pulsar://127.0.0.1:6650"),
        topic=full_topic(topic) if topic else None,
        send_timeout_ms=options.number("sendTimeoutMs", 60_000) or 0,
        compression=compression,
        batching_messages_max=options.number("batchingMaxMessages", 1000) or 1,
    )
