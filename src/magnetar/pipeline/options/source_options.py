"""The options of ``format("magnetar")``: parsed once, on the driver, with clear refusals.

Names are those of Spark's Kafka source wherever it has them. Spark hands option names over in lower
case; they are written here as users write them. README.md says what each does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.model.errors import ConfigError
from magnetar.pipeline.columns.conditions import Conditions
from magnetar.pipeline.option_values import OptionValues
from magnetar.pipeline.options.bounds import (
    EARLIEST,
    LATEST,
    AtTime,
    Bound,
    parse_offsets,
    parse_times,
)
from magnetar.pipeline.options.delivery import DELIVERY_OPTIONS, DeliveryOptions, parse_delivery
from magnetar.pipeline.options.filter_text import parse_filter
from magnetar.pipeline.options.selection import Selection, parse_selection
from magnetar.pipeline.schema import CORRUPT
from magnetar.pipeline.topic_names import full_topic
from magnetar.pipeline.typed.options import (
    READ_AS_BYTES,
    VALUE_READ_OPTIONS,
    VALUE_WRITE_OPTIONS,
    WRITTEN_AS_THEY_ARE,
    ValueOptions,
    parse_values_read,
    parse_values_written,
)

SELECTIONS = ("topic", "topics", "subscribe", "subscribePattern", "assign", "path")
BATCH_OPTIONS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
TRIGGER_OPTIONS = (
    "minOffsetsPerTrigger", "maxOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
)  # fmt: skip
READ_OPTIONS = (
    "service.url", *SELECTIONS[:-1],
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", *BATCH_OPTIONS, *TRIGGER_OPTIONS,
    "minPartitions", "columns", "filter", "columnNames", "includeHeaders", "pollTimeoutMs",
    "failOnDataLoss", "includeLosses", "readMode", "maxPartitionBytes", "pinTimeoutMs",
    *VALUE_READ_OPTIONS,
)  # fmt: skip
WRITE_OPTIONS = (
    "service.url", "topic", "sendTimeoutMs", "compression", "batchingMaxMessages", "columnNames",
    "keepSchemaVersion",
    *DELIVERY_OPTIONS, *VALUE_WRITE_OPTIONS,
)  # fmt: skip

TRIGGER_DELAY_MS = 15 * 60_000
PIN_MS, PIN_MS_MAX = 10 * 60_000, 60 * 60_000


@dataclass(frozen=True)
class TriggerLimits:
    """How much one micro-batch takes; None: no limit. ``messages_min`` is waited for, at most
    ``delay_ms_max`` since the last micro-batch."""

    messages_min: int | None = None
    messages_max: int | None = None
    bytes_max: int | None = None
    delay_ms_max: int = TRIGGER_DELAY_MS


@dataclass(frozen=True)
class ReadOptions:
    """What to read and from where to where."""

    service_url: str
    selection: Selection
    starting: Bound
    ending: Bound
    limits: TriggerLimits
    partitions_min: int | None
    columns: tuple[str, ...] | None
    column_names: str
    headers: bool
    poll_timeout_ms: int
    fail_on_data_loss: bool
    losses: bool
    """What is passed over is told by rows (``columns/lost_rows.py``)."""
    read_mode: str
    split_bytes: int | None
    future_start_allowed: bool
    given: frozenset[str]
    """The options that the user gave, in lower case."""
    conditions: Conditions
    """For which rows a read is."""
    pin_ms: int
    """How long what is read is held against trimming when nobody renews it; 0: it is not."""
    values: ValueOptions = READ_AS_BYTES


@dataclass(frozen=True)
class WriteOptions:
    service_url: str
    topic: str | None
    send_timeout_ms: int
    compression: str
    batching_messages_max: int
    delivery: DeliveryOptions
    values: ValueOptions = WRITTEN_AS_THEY_ARE
    keeps_version: bool = False
    """Rows say with which version of their topic's schema their bytes were written."""


def parse_read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Options of a batch or streaming read. Raises ``ConfigError``."""
    options = OptionValues(raw, READ_OPTIONS, others=WRITE_OPTIONS)
    naming = options.choice("columnNames", ("magnetar", "kafka"))
    return ReadOptions(
        service_url=options.needed("service.url", "pulsar://127.0.0.1:6650"),
        selection=_selection(options),
        starting=_bound(options, "starting", EARLIEST),
        ending=_bound(options, "ending", LATEST),
        limits=_limits(options),
        partitions_min=options.number("minPartitions", None),
        columns=_columns(options),
        column_names=naming,
        headers=options.flag("includeHeaders", False),
        poll_timeout_ms=options.timeout_ms("pollTimeoutMs", 60_000),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        losses=_losses(options),
        read_mode=options.choice("readMode", ("auto", "storage", "broker")),
        split_bytes=options.size("maxPartitionBytes"),
        future_start_allowed=options.choice(
            "startingOffsetsByTimestampStrategy", ("error", "latest")
        )
        == "latest",
        given=options.given,
        pin_ms=_pin_ms(options),
        conditions=parse_filter(text, naming) if (text := options.text("filter")) else (),
        values=_values(options),
    )


def _columns(options: OptionValues) -> tuple[str, ...] | None:
    text = options.text("columns")
    if not text:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if len(set(names)) < len(names):
        raise ConfigError(f"option 'columns' names a column twice: {text!r}")
    return names


def _values(options: OptionValues) -> ValueOptions:
    found = parse_values_read(options)
    if CORRUPT in (options.text("columns") or "") and not found.permissive:
        raise ConfigError(f"option 'columns': {CORRUPT} is a column with mode=PERMISSIVE only")
    return found


def _losses(options: OptionValues) -> bool:
    wanted = options.flag("includeLosses", False)
    if wanted and options.flag("failOnDataLoss", True):
        raise ConfigError(
            "option 'includeLosses' gives a row for each loss that is passed over, and none is: "
            "the first one ends the query. Give failOnDataLoss=false with it"
        )
    return wanted


def _pin_ms(options: OptionValues) -> int:
    pin_ms = options.number("pinTimeoutMs", PIN_MS, least=0) or 0
    if pin_ms > PIN_MS_MAX:
        raise ConfigError(f"option 'pinTimeoutMs' is {pin_ms}; brokers take {PIN_MS_MAX} at most")
    return pin_ms


def check_streaming(options: ReadOptions) -> None:
    """Refuse what means nothing to a stream: it has no end."""
    for name in BATCH_OPTIONS:
        if name.lower() in options.given:
            raise ConfigError(
                f"option {name!r} is for batch reads (spark.read); a stream has no end. To read "
                "what is there and stop use trigger(availableNow=True)"
            )


def ignored_in_batch(options: ReadOptions) -> list[str]:
    """The options that were given and mean nothing to a batch read."""
    return [name for name in TRIGGER_OPTIONS if name.lower() in options.given]


def _selection(options: OptionValues) -> Selection:
    given = [name for name in SELECTIONS if options.text(name)]
    if len(given) != 1:
        what = "none" if not given else " and ".join(given)
        raise ConfigError(
            "give one of the options 'subscribe' (or 'topic', 'topics'), 'subscribePattern', "
            f"'assign'; got {what}"
        )
    return parse_selection(given[0], options.text(given[0]) or "")


def _bound(options: OptionValues, prefix: str, default: str) -> Bound:
    """``startingOffsets``, ``startingTimestamp`` and so on; one of them at most."""
    names = [f"{prefix}Offsets", f"{prefix}Timestamp", f"{prefix}OffsetsByTimestamp"]
    given = [name for name in names if options.text(name) is not None]
    if len(given) > 1:
        raise ConfigError(f"give one of {' and '.join(map(repr, given))}")
    if not given:
        return Bound(names[0], default)
    text = (options.text(given[0]) or "").strip()
    if given[0] == names[0]:
        return parse_offsets(given[0], text, default)
    if given[0] == names[2]:
        return parse_times(given[0], text, default)
    return Bound(given[0], AtTime(options.number(given[0], 0, least=0) or 0))


def _limits(options: OptionValues) -> TriggerLimits:
    least, most = (
        options.number("minOffsetsPerTrigger", None),
        options.number("maxOffsetsPerTrigger", None),
    )
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"option 'minOffsetsPerTrigger' is {least}, more than 'maxOffsetsPerTrigger'"
        )
    if least is None and options.text("maxTriggerDelay") is not None:
        raise ConfigError(
            "option 'maxTriggerDelay' says how long 'minOffsetsPerTrigger' waits; give both"
        )
    return TriggerLimits(
        least,
        most,
        options.size("maxBytesPerTrigger"),
        options.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
    )


def parse_write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Options of a batch or streaming write. Raises ``ConfigError``."""
    options = OptionValues(raw, WRITE_OPTIONS, also=("checkpointLocation",), others=READ_OPTIONS)
    return WriteOptions(
        service_url=options.needed("service.url", "pulsar://127.0.0.1:6650"),
        topic=_topic_written(options),
        send_timeout_ms=options.timeout_ms("sendTimeoutMs", 60_000),
        compression=options.choice("compression", ("none", "lz4", "zlib", "zstd", "snappy")),
        batching_messages_max=options.number("batchingMaxMessages", 1000) or 1,
        delivery=parse_delivery(options),
        values=parse_values_written(options),
        keeps_version=options.flag("keepSchemaVersion", False),
    )


def _topic_written(options: OptionValues) -> str | None:
    """None: rows name theirs."""
    given = [(options.text(name) or "").strip() for name in ("topic", "path")]
    names = list(dict.fromkeys(full_topic(name) for name in given if name))
    if len(names) > 1:
        raise ConfigError(
            f"rows are written to one topic, and two are given: option 'topic' is {given[0]!r}, "
            f"and save() or start() were told {given[1]!r}"
        )
    return names[0] if names else None
