"""Services, clients and topic names for the tests with the official client."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pulsar
import pytest

from tests.interop.pulsar.services import MemoryService, Service, StandaloneService

NUMBERS = itertools.count()


@pytest.fixture(scope="package", params=["memory", "standalone"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Each test runs against both."""
    made: Service
    if request.param == "memory":
        made = MemoryService()
    else:
        made = StandaloneService(tmp_path_factory.mktemp("standalone") / "data")
    yield made
    made.close()


@pytest.fixture
def connect(service: Service) -> Iterator[Callable[[], pulsar.Client]]:
    """Make clients that are closed after the test."""
    clients: list[pulsar.Client] = []

    def make() -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        clients.append(pulsar.Client(service.url, operation_timeout_seconds=60, logger=logger))
        return clients[-1]

    yield make
    for client in clients:
        with contextlib.suppress(pulsar.AlreadyClosed):  # what a fenced producer makes of it
            client.close()


@pytest.fixture
def client(connect: Callable[[], pulsar.Client]) -> pulsar.Client:
    return connect()


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"persistent://public/default/interop-{next(NUMBERS)}"
