"""The two sides of ``spark_kafka``: the same steps through the platform's Spark source and sink and
through Spark's own for Kafka."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Protocol

import httpx
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from bench.peers.kafka import Fetched, Kafka
from bench.server import Server

STREAMED = "value"


class Side(Protocol):
    """``pids``: of the servers, whose CPU time counts."""

    kind: str
    address: str
    pids: tuple[int, ...]

    def make(self, topic: str, partitions: int) -> None:
        """A new topic; with one partition it is as plain as the system has it."""
        ...

    def read(self, topic: str, *, all_columns: bool) -> DataFrame: ...

    def write(self, frame: DataFrame, topic: str) -> None:
        """Consumers see every row when it returns."""
        ...

    def stream(self, source: str, sink: str, checkpoint: str) -> StreamingQuery:
        """Copies values from topic to topic, as soon as it can."""
        ...


@dataclass
class Magnetar:
    """``guarantee``: of what is written."""

    spark: SparkSession
    server: Server
    guarantee: str
    kind: str = "pulsar"

    @property
    def address(self) -> str:
        return f"pulsar://127.0.0.1:{self.server.broker_port}"

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.server.pid,)

    @property
    def _sink(self) -> dict[str, str]:
        return {"service.url": self.address, "deliveryGuarantee": self.guarantee}

    def make(self, topic: str, partitions: int) -> None:
        if partitions == 1:
            return  # who first sends to it makes it
        base = f"http://127.0.0.1:{self.server.http_port}/admin/v2/persistent/public/default"
        answer = httpx.put(f"{base}/{topic}/partitions", json=partitions, timeout=60)
        answer.raise_for_status()

    def read(self, topic: str, *, all_columns: bool) -> DataFrame:
        reader = self.spark.read.format("magnetar").option("service.url", self.address)
        if not all_columns:
            reader = reader.option("columns", "value")
        return reader.option("subscribe", topic).load()

    def write(self, frame: DataFrame, topic: str) -> None:
        writer = frame.write.format("magnetar").mode("append").options(**self._sink)
        writer.option("topic", topic).save()

    def stream(self, source: str, sink: str, checkpoint: str) -> StreamingQuery:
        reader = self.spark.readStream.format("magnetar").option("service.url", self.address)
        frame = reader.option("subscribe", source).option("columns", STREAMED).load()
        writer = frame.writeStream.format("magnetar").options(**self._sink)
        return writer.option("topic", sink).option("checkpointLocation", checkpoint).start()


@dataclass
class KafkaSide:
    spark: SparkSession
    broker: Kafka
    parts: Fetched
    kind: str = "kafka"

    @property
    def address(self) -> str:
        return self.broker.address

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.broker.pid,)

    @property
    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address}

    def make(self, topic: str, partitions: int) -> None:
        if str(self.parts.python) not in sys.path:
            sys.path.append(str(self.parts.python))
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        made = admin.create_topics([NewTopic(topic, num_partitions=partitions)])
        made[topic].result(60)

    def read(self, topic: str, *, all_columns: bool) -> DataFrame:
        reader = self.spark.read.format("kafka").options(**self._options)
        frame = reader.option("subscribe", topic).load()
        return frame if all_columns else frame.select("value")

    def write(self, frame: DataFrame, topic: str) -> None:
        frame.write.format("kafka").options(**self._options).option("topic", topic).save()

    def stream(self, source: str, sink: str, checkpoint: str) -> StreamingQuery:
        reader = self.spark.readStream.format("kafka").options(**self._options)
        frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
        writer = frame.select("value").writeStream.format("kafka").options(**self._options)
        return writer.option("topic", sink).option("checkpointLocation", checkpoint).start()
