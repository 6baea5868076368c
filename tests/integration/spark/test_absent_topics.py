"""Reads of topics that are not there, of brokers that make topics with partitions on their first
use. Without Spark's Java."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import httpx
import pulsar
import pytest

from magnetar.model.errors import TopicNotFoundError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.reading.stream_reader import StreamReader
from magnetar.pipeline.source import MagnetarDataSource
from tests.standalone import Standalone

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("absent")
    with Standalone(folder / "data", "--set", "broker.auto_create_partitions=3") as running:
        yield running


def url_of(platform: Standalone, topic: str) -> str:
    return f"{platform.http_url}/admin/v2/persistent/public/default/{topic}"


def is_there(platform: Standalone, topic: str) -> bool:
    names = httpx.get(url_of(platform, "partitioned"), timeout=60).json()
    return f"persistent://public/default/{topic}" in names


def source(platform: Standalone, topic: str, **options: str) -> MagnetarDataSource:
    return MagnetarDataSource({"service.url": platform.service_url, "topic": topic, **options})


def test_a_read_makes_no_topic(platform: Standalone, topic: str) -> None:
    """One whose name was misspelt was made, and read as empty."""
    for options in ({}, {"assign": f'{{"{topic}": [0]}}', "topic": ""}, {"valueFormat": "auto"}):
        absent = source(platform, **({"topic": topic} | options))
        with pytest.raises(TopicNotFoundError, match="is not there; make it, or mend the option"):
            absent.reader(absent.schema()).partitions()
        assert not is_there(platform, topic)
    client = BrokerClient(platform.service_url)
    full = f"persistent://public/default/{topic}"
    assert client.partitions(full) == [full]
    assert client.partitions(full, make=True) == [f"{full}-partition-{n}" for n in range(3)]
    client.close()
    assert is_there(platform, topic)


def test_a_stream_does_not_make_a_deleted_topic_anew(
    platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"1")
    producer.close()
    read = source(platform, topic, failOnDataLoss="false", pinTimeoutMs="0")
    stream = cast("StreamReader", read.streamReader(read.schema()))
    limit = stream.getDefaultReadLimit()
    offset = stream.latestOffset(stream.initialOffset(), limit)
    assert len(cast("dict[str, str]", offset["places"])) == 3
    deleted = httpx.delete(f"{url_of(platform, topic)}/partitions?force=true", timeout=60)
    assert deleted.status_code < 300
    offset = stream.latestOffset(offset, limit)
    stream.stop()
    assert offset["places"] == {}
    assert not is_there(platform, topic)
