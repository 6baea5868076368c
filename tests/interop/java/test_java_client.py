"""Pulsar's own Java clients (of messages, of REST) and pulsar-perf against a standalone: peer
tests, not part of ``make test``.

Need ``java``, ``javac``, ``mvn`` and a place to fetch from. Run: ``make interop``.
``MAGNETAR_PEER_DIR`` (in make: ``KEPT``) keeps what was fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.moving_topics import kill_owners, move_topics
from tests.interop.secured import SecuredPeer
from tests.interop.steered import follow_and_survive
from tests.scenarios.steered_brokers import OWNERS, steered_brokers
from tests.standalone import Standalone

HERE = Path(__file__).parent
KILLS = int(os.environ.get("MAGNETAR_KILLS", "5"))
STEPS = re.findall(r'^ +step\("([^"]+)"( \+ type)?', (HERE / "PulsarPeer.java").read_text(), re.M)
ADMIN_STEPS = re.findall(r'^ +step\("([^"]+)"', (HERE / "AdminPeer.java").read_text(), re.M)
SCHEMA_STEPS = re.findall(r'^ +step\("([^"]+)"', (HERE / "SchemaPeer.java").read_text(), re.M)
COMPACTED_STEPS = re.findall(r'^ +step\("([^"]+)"', (HERE / "CompactedPeer.java").read_text(), re.M)
SECURED_STEPS = re.findall(r'^ +step\("([^"]+)"', (HERE / "SecuredPeer.java").read_text(), re.M)
TYPES = {
    "consume ": ("Exclusive", "Shared", "Failover"),
    "batches ": ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"),
}

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    kept = os.environ.get("MAGNETAR_PEER_DIR")
    made = Path(kept) / "pulsar" if kept else tmp_path_factory.mktemp("peer")
    made.mkdir(parents=True, exist_ok=True)
    run(made, "fetch", timeout_s=600)
    return made


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone") / "data") as made:
        yield made


def run(work_dir: Path, *arguments: str, timeout_s: float = 300) -> str:
    """Run ``run.sh``; its standard output and error."""
    done = subprocess.run(
        [HERE / "run.sh", work_dir, *arguments],
        cwd=work_dir,  # where it may leave what it downloads
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def wanted_steps() -> list[str]:
    names = []
    for name, typed in STEPS:
        names += [name + kind for kind in TYPES[name]] if typed else [name]
    return names


def test_the_java_clients_show_who_they_are(work_dir: Path, tmp_path: Path) -> None:
    assert len(SECURED_STEPS) >= 5
    peer = SecuredPeer(tmp_path)
    with peer.running():
        said = run(work_dir, "secured", *peer.arguments)
    assert [line[3:] for line in said.splitlines() if line[:3] == "ok "] == SECURED_STEPS


def test_the_java_client_uses_a_standalone(work_dir: Path, standalone: Standalone) -> None:
    assert len(STEPS) >= 18
    said = run(work_dir, "peer", standalone.service_url)
    assert [line[3:] for line in said.splitlines() if line[:3] == "ok "] == wanted_steps()


def test_the_java_admin_client_uses_a_standalone(work_dir: Path, tmp_path: Path) -> None:
    """What is served works; every other method of the client is refused as what it is."""
    assert len(ADMIN_STEPS) >= 13
    with Standalone(tmp_path / "data") as standalone:
        said = run(work_dir, "admin", standalone.http_url, standalone.service_url)
    assert [line[3:] for line in said.splitlines() if line[:3] == "ok "] == ADMIN_STEPS


def test_the_java_client_has_its_values_typed(work_dir: Path, standalone: Standalone) -> None:
    assert len(SCHEMA_STEPS) >= 13
    said = run(work_dir, "schemas", standalone.service_url)
    assert [line[3:] for line in said.splitlines() if line[:3] == "ok "] == SCHEMA_STEPS


def test_the_java_client_reads_what_is_compacted(work_dir: Path, tmp_path: Path) -> None:
    """Consumers, readers and table views; compacted by Java's admin client."""
    assert len(COMPACTED_STEPS) >= 9
    with Standalone(tmp_path / "data") as standalone:
        said = run(work_dir, "compacted", standalone.http_url, standalone.service_url)
    assert [line[3:] for line in said.splitlines() if line[:3] == "ok "] == COMPACTED_STEPS


def test_pulsar_perf_produces_and_consumes(work_dir: Path, standalone: Standalone) -> None:
    def perf(*arguments: str) -> int:
        """Runs; how many messages it says it had."""
        said = run(work_dir, "perf", standalone.service_url, standalone.http_url, *arguments)
        found = re.findall(r"Aggregated throughput stats --- (\d+) records", said)
        assert found, said[-4000:]
        return int(found[-1])

    sent = perf("produce", "-r", "2000", "-s", "100", "-m", "10000", "perf")
    assert sent >= 10_000, "it ends a few later than it is told"
    received = perf("consume", "-sp", "Earliest", "-ss", "s", "-m", str(sent), "perf")
    assert received == sent


@pytest.mark.zookeeper
def test_topics_move_under_the_java_client(
    work_dir: Path,
    tmp_path: Path,
    zookeeper_url: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Lookups are redirected; clients come back by themselves; nothing acknowledged is lost."""
    gaps_ms = move_topics([HERE / "run.sh", work_dir, "shared"], tmp_path, zookeeper_url)
    record_property("counted", str(gaps_ms))
    print(f"\nJava's client, longest time without an acknowledgement, ms: {gaps_ms}")


@pytest.mark.zookeeper
@pytest.mark.timeout(600 + 60 * KILLS)
def test_brokers_are_killed_under_the_java_client(
    work_dir: Path,
    tmp_path: Path,
    zookeeper_url: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Nothing acknowledged is lost, repeated or out of order; nothing whose acknowledgement has a
    receipt comes again. A kill takes some ten seconds: all 30 with ``make interop KILLS=30``."""
    command = [HERE / "run.sh", work_dir, "shared"]
    found = kill_owners(command, tmp_path, zookeeper_url, KILLS, seed=20261122)
    record_property("counted", str(found))
    print(f"\nJava's client: {found}")


def test_the_java_client_goes_where_it_is_sent(
    work_dir: Path, tmp_path: Path, zookeeper_url: str
) -> None:
    with steered_brokers(tmp_path, zookeeper_url) as brokers:
        follow_and_survive((str(HERE / "run.sh"), str(work_dir), "steered"), brokers, tmp_path)


@pytest.mark.zookeeper
def test_the_java_client_hears_of_topics_of_other_brokers(
    work_dir: Path, tmp_path: Path, zookeeper_url: str
) -> None:
    """One broker watches the list for it; others own some of the topics that are new."""
    step = "pattern of topics that come later"
    with steered_brokers(tmp_path, zookeeper_url) as brokers:
        told = run(work_dir, "peer", brokers.service_url, step)
        assert brokers.loaded() == list(OWNERS)
    assert f"ok {step}" in told
