"""Options of the data source: what is accepted, and how clearly the rest is refused."""

from __future__ import annotations

import pytest

from magnetar.model.errors import ConfigError
from magnetar.pipeline.options.bounds import AtOffset, AtTime, Bound
from magnetar.pipeline.options.source_options import (
    TriggerLimits,
    check_streaming,
    ignored_in_batch,
    parse_read_options,
    parse_write_options,
)
from magnetar.pipeline.places import Place
from magnetar.pipeline.topic_names import full_topic, namespace_of, partition_number, topic_of

URL = {"service.url": "pulsar://127.0.0.1:6650"}
T = "persistent://public/default/t"


def test_defaults_of_a_read() -> None:
    options = parse_read_options({**URL, "topic": "t"})
    assert options.selection.topics == (T,)
    assert options.starting == Bound("startingOffsets", "earliest")
    assert options.ending == Bound("endingOffsets", "latest")
    assert options.limits == TriggerLimits()
    assert options.fail_on_data_loss
    assert options.column_names == "magnetar"


def test_names_come_in_lower_case_from_spark() -> None:
    raw = {**URL, "topics": "a, b,a", "maxoffsetspertrigger": "5", "startingtimestamp": "17"}
    options = parse_read_options(raw)
    prefix = "persistent://public/default/"
    assert options.selection.topics == (f"{prefix}a", f"{prefix}b")
    assert options.limits.messages_max == 5
    assert options.starting.at(T) == AtTime(17)


def test_a_table_hands_options_over_twice_among_its_own_properties() -> None:
    raw = {"owner": "me", "path": "", **{f"option.{key}": value for key, value in URL.items()}}
    given = parse_read_options({**raw, **URL, "option.topic": "t", "topic": "t"})
    assert given.selection.topics == (T,)
    assert not parse_read_options(
        {**raw, "option.failondataloss": "false", "topic": "t"}
    ).fail_on_data_loss
    with pytest.raises(
        ConfigError, match="unknown option 'startingoffset'; did you mean 'starting"
    ):
        parse_read_options({**raw, "topic": "t", "option.startingoffset": "earliest"})


def test_a_table_is_read_and_written_with_the_same_options() -> None:
    raw = {f"option.{key}": value for key, value in URL.items()} | {"option.topic": "t"}
    both = {**raw, "option.compression": "zstd", "option.failOnDataLoss": "false"}
    assert not parse_read_options(both).fail_on_data_loss
    assert parse_write_options(both).compression == "zstd"
    with pytest.raises(ConfigError, match="unknown option 'compression'"):
        parse_read_options({**URL, "topic": "t", "compression": "zstd"})


def test_what_is_read_in_kafkas_spelling() -> None:
    assert parse_read_options({**URL, "subscribe": "t"}).selection.topics == (T,)
    assigned = parse_read_options({**URL, "assign": '{"t": [2, 0], "u": [1]}'}).selection
    assert assigned.assigned == ((T, (0, 2)), ("persistent://public/default/u", (1,)))
    assert assigned.covers(f"{T}-partition-2")
    pattern = parse_read_options({**URL, "subscribePattern": "a.*"}).selection
    assert pattern.namespace == "public/default"
    names = [f"persistent://public/default/{name}" for name in ("ab", "a-partition-0", "ba")]
    assert pattern.matching(names) == [names[1], names[0]]
    other = parse_read_options({**URL, "subscribePattern": "my-tenant/ns/x|y"}).selection
    assert other.namespace == "my-tenant/ns"


def test_starting_offsets_in_kafkas_spelling() -> None:
    text = '{"t": {"0": 23, "1": -2, "2": -1}, "u": "3:4:5", "w": "latest"}'
    bound = parse_read_options({**URL, "topic": "t", "startingOffsets": text}).starting
    found = [bound.at(f"{T}-partition-{number}") for number in range(4)]
    assert found == [AtOffset(23), "earliest", "latest", "earliest"]
    assert bound.at(T) == AtOffset(23)  # without partitions: its partition 0
    assert bound.at("persistent://public/default/u") == Place(3, 4, 5)
    assert bound.without([T, "persistent://public/default/w"]) == [
        "persistent://public/default/t-partition-1",
        "persistent://public/default/t-partition-2",
        "persistent://public/default/u",
    ]


def test_times_by_partition() -> None:
    raw = {**URL, "topic": "t", "startingOffsetsByTimestamp": '{"t": {"1": 5}, "u": 6}'}
    bound = parse_read_options(raw).starting
    assert bound.at(f"{T}-partition-1") == AtTime(5)
    assert bound.at(f"{T}-partition-0") == "earliest"
    assert bound.at("persistent://public/default/u-partition-3") == AtTime(6)


def test_limits_with_units() -> None:
    raw = {
        **URL,
        "topic": "t",
        "minOffsetsPerTrigger": "10",
        "maxOffsetsPerTrigger": "20",
        "maxBytesPerTrigger": "64m",
        "maxTriggerDelay": "30s",
    }
    options = parse_read_options(raw)
    assert options.limits == TriggerLimits(10, 20, 64 << 20, 30_000)
    assert len(ignored_in_batch(options)) == 4
    check_streaming(options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(name, '{"t": 5}')
    with pytest.raises(ConfigError, match=f"'{name}' is for batch reads.*availableNow"):
        check_streaming(parse_read_options({**URL, "topic": "t", name: value}))


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("t", T),
        ("a/b/c", "persistent://a/b/c"),
        ("persistent://a/b/c", "persistent://a/b/c"),
    ],
)
def test_topic_names(name: str, full: str) -> None:
    assert full_topic(name) == full
    assert topic_of(f"{full}-partition-12") == full
    assert partition_number(f"{full}-partition-12") == 12
    assert partition_number(full) == -1
    assert full.startswith(f"persistent://{namespace_of(full)}/")


BAD_READS: list[tuple[dict[str, str], str]] = [
    ({}, "'service.url' is missing"),
    ({"topic": "t"}, "service.url"),
    (URL, "give one of the options.*got none"),
    ({**URL, "topic": "a", "topics": "b"}, "topic and topics"),
    ({**URL, "topics": " , "}, "names no topic"),
    ({**URL, "topic": "t", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
    ({**URL, "topic": "t", "zzz": "1"}, "unknown option 'zzz'; there are service.url, topic"),
    ({**URL, "topic": "t", "startingOffsets": "first"}, "takes earliest, latest, or JSON"),
    ({**URL, "topic": "t", "startingOffsets": "[1]"}, "takes earliest, latest, or JSON"),
    ({**URL, "topic": "t", "startingOffsets": '{"t": "x"}'}, "is not 'ledger:entry'"),
    ({**URL, "topic": "t", "startingOffsets": '{"t": 1.5}'}, "1.5 is neither"),
    ({**URL, "topic": "t", "startingOffsets": '{"t": true}'}, "True is neither"),
    ({**URL, "topic": "t", "startingOffsets": '{"t": {"x": 1}}'}, "'x' of 't' is no partition"),
    ({**URL, "topic": "t", "endingOffsets": "earliest"}, "nothing would be read"),
    ({**URL, "topic": "t", "endingOffsets": '{"t": -2}'}, "is no end of a read"),
    ({**URL, "topic": "t", "startingOffsets": "latest", "startingTimestamp": "1"}, "give one of"),
    ({**URL, "topic": "t", "startingOffsetsByTimestamp": '{"t": "x"}'}, "milliseconds since 1970"),
    ({**URL, "topic": "t", "startingOffsetsByTimestamp": "5"}, "JSON from topic partition"),
    ({**URL, "topic": "t", "columns": "key, value,key"}, "names a column twice"),
    ({**URL, "topic": "t", "minPartitions": "9" * 30}, "it takes 9223372036854775807 at most"),
    ({**URL, "topic": "t", "startingTimestamp": "9" * 5000}, r"is 9{40}\.\.\.; it takes 92"),
    ({**URL, "topic": "t", "pollTimeoutMs": str(2**62)}, "it takes 1000000000000 at most"),
    ({**URL, "topic": "t", "maxBytesPerTrigger": "9" * 17 + "g"}, "'maxBytesPerTrigger' is 9+g"),
    ({**URL, "topic": "t", "maxBytesPerTrigger": "000"}, "takes bytes, such as"),
    (
        {**URL, "topic": "t", "startingOffsetsByTimestamp": f'{{"t": {2**63}}}'},
        "takes JSON from topic partition to milliseconds",
    ),
    ({**URL, "topic": "t", "maxOffsetsPerTrigger": "0"}, "whole number from 1"),
    ({**URL, "topic": "t", "maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "more than"),
    ({**URL, "topic": "t", "maxBytesPerTrigger": "5x"}, "such as 67108864 or 64m"),
    ({**URL, "topic": "t", "maxTriggerDelay": "5s"}, "give both"),
    (
        {**URL, "topic": "t", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"},
        "such as 30s or 15m",
    ),
    ({**URL, "topic": "t", "endingTimestamp": "-4"}, "whole number from 0"),
    ({**URL, "topic": "t", "failOnDataLoss": "maybe"}, "true or false"),
    ({**URL, "topic": "t", "readMode": "magic"}, "auto, storage or broker"),
    ({**URL, "topic": "t", "columnNames": "avro"}, "magnetar or kafka"),
    ({**URL, "assign": '{"t": 1}'}, "JSON from topic to a list of partitions"),
    ({**URL, "assign": "t"}, "JSON from topic to a list of partitions"),
    ({**URL, "subscribePattern": "("}, "is no pattern"),
    ({**URL, "subscribePattern": "a/b.*/c"}, "that of 'a/b.*/c' is a pattern itself"),
]


@pytest.mark.parametrize(("raw", "text"), BAD_READS)
def test_bad_read_options_are_refused(raw: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_read_options(raw)


def test_write_options() -> None:
    options = parse_write_options({**URL, "topic": "t", "compression": "LZ4"})
    assert options.topic == T
    assert options.compression == "lz4"
    with pytest.raises(ConfigError, match="compression"):
        parse_write_options({**URL, "compression": "rar"})
    with pytest.raises(ConfigError, match="did you mean 'compression'"):
        parse_write_options({**URL, "compresion": "lz4"})


def test_the_topic_of_a_write() -> None:
    """Its name went as it stood into that of a topic, blanks and all; and a second one was passed
    over."""
    assert parse_write_options({**URL, "topic": " t "}).topic == T
    assert parse_write_options({**URL, "path": "t"}).topic == T
    assert parse_write_options({**URL, "topic": "t", "path": T}).topic == T
    assert parse_write_options({**URL, "topic": " ", "path": ""}).topic is None
    with pytest.raises(ConfigError, match="two are given: option 'topic' is 't', and save"):
        parse_write_options({**URL, "topic": "t", "path": "u"})


@pytest.mark.parametrize("text", ["Latest", "EARLIEST"])
def test_ends_of_a_log_are_spelt_in_any_case_as_for_kafkas_source(text: str) -> None:
    options = parse_read_options({**URL, "topic": "t", "startingOffsets": text})
    assert options.starting.default == text.lower()
