"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer

# A stall of the machine is no finding, and a run is the same as the one before. For other examples:
# --hypothesis-profile=default, with --hypothesis-seed to repeat what it finds.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """What a test had logs do is not the next one's matter: libraries leave them to the program."""
    yield
    structlog.reset_defaults()


def pytest_collection() -> None:
    """Nothing of what is collected is garbage before the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """All that was collected stays: no collection of garbage looks through it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


SPARK = "tests/integration/spark/"
SPARKS = 2


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """What one of several processes runs as a whole: a file, or every second file with Spark. One
    Spark costs more to start than most of its tests; all of them in one process are longer than
    everything else beside it."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if not file.startswith(SPARK):
            return file
        files = self._spark_files()
        return f"{SPARK}{files.index(file) % SPARKS}"

    def _spark_files(self) -> list[str]:
        return sorted({each.split("::", 1)[0] for each in self.collection if SPARK in each})


@pytest.hookimpl(optionalhook=True)  # also without the plugin
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper server for the whole run; take a root of your own (``zookeeper_url``).
    Tests that use it carry the mark ``zookeeper``."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_url(zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> str:
    """A metadata URL with a root that belongs to this test alone."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return f"zk://{zookeeper.address}/{name}"
