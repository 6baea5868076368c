"""Pulsar's own Go clients (of messages, of REST) against a standalone: peer tests, not part of
``make test``.

Need ``go`` and a place to fetch from. Run: ``make interop``. ``MAGNETAR_PEER_DIR`` (in make:
``KEPT``) keeps what was fetched and built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.moving_topics import move_topics
from tests.interop.secured import SecuredPeer
from tests.interop.steered import follow_and_survive
from tests.scenarios.steered_brokers import steered_brokers
from tests.standalone import Standalone

HERE = Path(__file__).parent
STEPS = re.findall(r'^\t\t\{"([^"]+)", p\.', (HERE / "main.go").read_text(), re.M)
ADMIN_STEPS = re.findall(r'^\t\t\{"([^"]+)", p\.', (HERE / "admin/main.go").read_text(), re.M)
COMPACTED_STEPS = re.findall(
    r'^\t\t\{"([^"]+)", p\.', (HERE / "compacted/main.go").read_text(), re.M
)

SECURED_STEPS = re.findall(r'^\t\t\{"([^"]+)", p\.', (HERE / "secured/main.go").read_text(), re.M)

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed"),
]


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("MAGNETAR_PEER_DIR")
    return Path(kept) / "go" if kept else tmp_path_factory.mktemp("peer")


def run(work_dir: Path, peer: str, *urls: str) -> list[str]:
    """The steps that a peer says it has done."""
    done = subprocess.run(
        [HERE / "run.sh", work_dir, peer, *urls],
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    return [line[3:] for line in done.stdout.splitlines() if line[:3] == "ok "]


def test_the_go_client_uses_a_standalone(work_dir: Path, tmp_path: Path) -> None:
    assert len(STEPS) >= 8
    with Standalone(tmp_path / "data") as standalone:
        said = run(work_dir, "peer", standalone.service_url, standalone.http_url)
    assert said[-len(STEPS) :] == STEPS


def test_the_go_clients_show_who_they_are(work_dir: Path, tmp_path: Path) -> None:
    assert len(SECURED_STEPS) >= 6
    peer = SecuredPeer(tmp_path)
    with peer.running():
        assert run(work_dir, "secured", *peer.arguments) == SECURED_STEPS


def test_the_go_admin_client_uses_a_standalone(work_dir: Path, tmp_path: Path) -> None:
    """What is served works; every other method of the client is refused as what it is."""
    assert len(ADMIN_STEPS) >= 7
    with Standalone(tmp_path / "data") as standalone:
        assert run(work_dir, "admin", standalone.http_url) == ADMIN_STEPS


def test_the_go_client_reads_what_is_compacted(work_dir: Path, tmp_path: Path) -> None:
    """Consumers, readers and table views."""
    assert len(COMPACTED_STEPS) >= 5
    with Standalone(tmp_path / "data") as standalone:
        said = run(work_dir, "compacted", standalone.http_url, standalone.service_url)
    assert said == COMPACTED_STEPS


@pytest.mark.zookeeper
def test_topics_move_under_the_go_client(
    work_dir: Path,
    tmp_path: Path,
    zookeeper_url: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Lookups are redirected; clients come back by themselves; nothing acknowledged is lost."""
    gaps_ms = move_topics([HERE / "run.sh", work_dir, "shared"], tmp_path, zookeeper_url)
    record_property("counted", str(gaps_ms))
    print(f"\nGo's client, longest time without an acknowledgement, ms: {gaps_ms}")


def test_the_go_client_goes_where_it_is_sent(
    work_dir: Path, tmp_path: Path, zookeeper_url: str
) -> None:
    with steered_brokers(tmp_path, zookeeper_url) as brokers:
        follow_and_survive((str(HERE / "run.sh"), str(work_dir), "steered"), brokers, tmp_path)
