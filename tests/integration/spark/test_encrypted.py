"""Messages that producers encrypted: nobody here has the keys, so no ciphertext is given as a
value, whichever way it is read; the error names the entry and what can be done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar.schema import AvroSchema, Record, String
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from magnetar.model.errors import JobError
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import run
from magnetar.pipeline.jobs.mirror import MIRROR, MirrorOptions
from tests.integration.spark.test_batch import read
from tests.integration.spark.test_stream import Collected, run_available, stream
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SECRET = "the secret text"


class Letter(Record):  # type: ignore[misc]
    text = String()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    folder = tmp_path_factory.mktemp("keys")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "private.pem").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    (folder / "public.pem").write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return pulsar.CryptoKeyReader(str(folder / "public.pem"), str(folder / "private.pem"))


@contextmanager
def encrypting(
    client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader, **more: object
) -> Iterator[pulsar.Producer]:
    producer = client.create_producer(topic, encryption_key="mine", crypto_key_reader=keys, **more)
    yield producer
    producer.close()


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("mode", ["broker", "storage"])
def test_a_read_ends_with_the_entry_and_what_to_do(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    keys: pulsar.CryptoKeyReader,
    batching: bool,
    mode: str,
) -> None:
    with encrypting(client, topic, keys, batching_enabled=batching) as producer:
        producer.send(SECRET.encode())
    with pytest.raises(PySparkException, match="is encrypted; only a client that has the key"):
        read(spark, platform, topic, readMode=mode).collect()


def test_typed_values_of_them_are_no_values_either(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    keys: pulsar.CryptoKeyReader,
) -> None:
    with encrypting(client, topic, keys, schema=AvroSchema(Letter)) as producer:
        producer.send(Letter(text=SECRET))
    for mode in ("FAILFAST", "PERMISSIVE"):
        frame = read(spark, platform, topic, valueFormat="schema", mode=mode)
        with pytest.raises(PySparkException, match="is encrypted"):
            frame.collect()


def test_streams_and_jobs_end_there_and_have_given_what_was_before(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    keys: pulsar.CryptoKeyReader,
    tmp_path: Path,
) -> None:
    """The way on is the place behind it."""
    plain = client.create_producer(topic)
    plain.send(b"1")
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    run_available(stream(spark, platform, topic), sink, checkpoint)
    with encrypting(client, topic, keys) as producer:
        last = producer.send(SECRET.encode())
    plain.send(b"2")
    with pytest.raises(StreamingQueryException, match="is encrypted"):
        run_available(stream(spark, platform, topic), sink, checkpoint)
    assert sink.values == [1]
    options = MirrorOptions(
        (topic,),
        service_url=platform.service_url,
        prefix="copy-",
        checkpoint=str(tmp_path / "mirror"),
    )
    with pytest.raises(JobError, match="is encrypted"):
        run(MIRROR, options, JobContext(spark))
    behind = json.dumps({topic: f"{last.ledger_id()}:{last.entry_id() + 1}:0"})
    frame = stream(spark, platform, topic, startingOffsets=behind)
    run_available(frame, sink, tmp_path / "anew")
    assert sink.values[-1] == 2
