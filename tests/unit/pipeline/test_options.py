"""Options of the data source: what is accepted, and how clearly the rest is refused."""

from __future__ import annotations

import pytest

from magnetar.model.errors import ConfigError
from magnetar.pipeline.options import (
    full_topic,
    parse_read_options,
    parse_write_options,
)
from magnetar.pipeline.places import Place

URL = {"service.url": "pulsar://127.0.0.1:6650"}


def test_defaults_of_a_read() -> None:
    options = parse_read_options({**URL, "topic": "t"})
    assert options.topics == ("persistent://public/default/t",)
    assert (options.starting, options.ending) == ("earliest", "latest")
    assert options.messages_per_trigger_max is None
    assert options.fail_on_data_loss


def test_names_come_in_lower_case_from_spark() -> None:
    raw = {**URL, "topics": "a, b,a", "maxoffsetspertrigger": "5", "startingtimestamp": "17"}
    options = parse_read_options(raw)
    assert options.topics == ("persistent://public/default/a", "persistent://public/default/b")
    assert options.messages_per_trigger_max == 5
    assert options.starting == 17


def test_a_table_hands_options_over_twice_among_its_own_properties() -> None:
    raw = {"owner": "me", "path": "", **{f"option.{key}": value for key, value in URL.items()}}
    assert parse_read_options({**raw, **URL, "option.topic": "t", "topic": "t"}).topics
    assert parse_read_options({**raw, "option.failondataloss": "false", "topic": "t"}) == (
        parse_read_options({**URL, "failOnDataLoss": "false", "topic": "t"})
    )
    with pytest.raises(ConfigError, match="unknown option 'startingoffset'"):
        parse_read_options({**raw, "topic": "t", "option.startingoffset": "earliest"})


def test_places_by_partition() -> None:
    raw = {**URL, "topic": "t", "startingOffsets": '{"t-partition-0": "3:4:5"}'}
    name = "persistent://public/default/t-partition-0"
    assert parse_read_options(raw).starting == {name: Place(3, 4, 5)}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/c", "persistent://a/b/c"),
        ("persistent://a/b/c", "persistent://a/b/c"),
    ],
)
def test_topic_names(name: str, full: str) -> None:
    assert full_topic(name) == full


BAD_READS: list[tuple[dict[str, str], str]] = [
    ({}, "Spark keeps those of a table in its catalog"),
    ({"topic": "t"}, "service.url"),
    (URL, "give one of the options"),
    ({**URL, "topic": "a", "topics": "b"}, "topic and topics"),
    ({**URL, "topics": " , "}, "names no topic"),
    ({**URL, "topic": "t", "startingOffset": "earliest"}, "unknown option 'startingoffset'"),
    ({**URL, "topic": "t", "startingOffsets": "first"}, "takes earliest, latest, or JSON"),
    ({**URL, "topic": "t", "startingOffsets": "[1]"}, "takes earliest, latest, or JSON"),
    ({**URL, "topic": "t", "startingOffsets": '{"t": "x"}'}, "is not 'ledger:entry'"),
    ({**URL, "topic": "t", "startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
    ({**URL, "topic": "t", "maxOffsetsPerTrigger": "0"}, "whole number from 1"),
    ({**URL, "topic": "t", "endingTimestamp": "-4"}, "whole number from 0"),
    ({**URL, "topic": "t", "failOnDataLoss": "maybe"}, "true or false"),
    ({**URL, "topic": "t", "readMode": "magic"}, "auto or broker"),
]


@pytest.mark.parametrize(("raw", "text"), BAD_READS)
def test_bad_read_options_are_refused(raw: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_read_options(raw)


def test_write_options() -> None:
    options = parse_write_options({**URL, "topic": "t", "compression": "LZ4"})
    assert options.topic == "persistent://public/default/t"
    assert options.compression == "lz4"
    with pytest.raises(ConfigError, match="compression"):
        parse_write_options({**URL, "compression": "rar"})
