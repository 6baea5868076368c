"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from magnetar.env.zookeeper_server import ZooKeeperServer

# A stall of the machine is no finding, and a run is the same as the one before. For other examples:
# --hypothesis-profile=default, with --hypothesis-seed to repeat what it finds.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


SPARK = Path(__file__).parent / "integration" / "spark"


@pytest.hookimpl(tryfirst=True)  # before what distributes the tests reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What one of several processes runs as a whole: a file, and all files that share one Spark,
    which costs more to start than most of its tests."""
    if not config.getoption("loadgroup", False):  # as the processes are told; "dist" they are not
        return
    for item in items:
        group = "spark" if SPARK in item.path.parents else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


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
