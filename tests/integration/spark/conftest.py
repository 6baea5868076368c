"""One platform and one Spark session for all tests of this folder; each test has own topics."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import SparkSession

from tests.spark_cluster import JAVA_OPTIONS
from tests.standalone import Standalone


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("spark") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    folder: Path = tmp_path_factory.mktemp("spark-session")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def active(request: pytest.FixtureRequest) -> None:
    """Spark looks for sources written in Python in the session that is active in its own thread of
    who asks, and that is gone when the connection to Java was made anew: it is set again, and told.
    """
    if "spark" not in request.fixturenames:
        return
    session: SparkSession = request.getfixturevalue("spark")
    if SparkSession.getActiveSession() is None:
        warnings.warn("the connection to Spark's Java was made anew", stacklevel=1)
        session.createDataFrame([(1,)], "number int")


@pytest.fixture
def client(platform: Standalone) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    connected = pulsar.Client(platform.service_url, logger=logger)
    yield connected
    connected.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "spark-" + request.node.name.replace("[", "-").replace("]", "")
