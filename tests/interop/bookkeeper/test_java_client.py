"""BookKeeper's own Java client against our bookie: a peer test, not part of ``make test``.

Needs ``java``, ``javac``, ``mvn`` and a place to fetch from. Run:
``pytest -m peer tests/interop/bookkeeper``. ``MAGNETAR_PEER_DIR`` keeps what was fetched.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from tests.interop.bookkeeper.conftest import bookie_process

HERE = Path(__file__).parent
STEPS = [
    "add and read, MAC",
    "add and read, CRC32",
    "add and read, CRC32C",
    "add and read, DUMMY",
    "5000 adds under way at once",
    "an entry of 4 MiB",
    "recovery of an empty ledger",
    "recovery fences the writer",
    "another password is refused",
    "bookie info",
    "delete",
]
ONLY_V2 = ["batch read", "tailing by reading the last confirmed"]
ONLY_V3 = ["explicit LAC and long poll", "list of entries"]

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def bookie(
    zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[str]]:
    with bookie_process(zookeeper, tmp_path_factory.mktemp("bookie"), "peer-test") as process:
        yield process


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_the_java_client_uses_a_bookie(
    work_dir: Path, zookeeper: ZooKeeperServer, bookie: subprocess.Popen[str], version: str
) -> None:
    done = subprocess.run(
        [HERE / "run.sh", work_dir, "peer", zookeeper.address, "/magnetar/ledgers", version],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    steps = [line.removeprefix("ok ") for line in done.stdout.splitlines() if line[:3] == "ok "]
    wanted = STEPS + (ONLY_V2 if version == "v2" else ONLY_V3)
    assert done.returncode == 0, f"after {steps}:\n{done.stderr[-4000:]}"
    assert sorted(steps) == sorted(wanted)
    assert bookie.poll() is None, "the bookie ended"
