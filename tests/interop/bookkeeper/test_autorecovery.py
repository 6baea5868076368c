"""BookKeeper's auto-recovery and ours on one cluster of our bookies, and its shell beside them: a
peer test, not part of ``make test``. Run: ``make interop``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.ledger import LedgerConfig, sync
from tests.interop.bookkeeper.conftest import bookie_process
from tests.interop.bookkeeper.test_shell import HERE, Shell
from tests.scenarios.repairs import survey

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

PATIENCE_S = 240.0
ALONE = ("repair.in_bookies=false", "metadata.session_timeout_ms=4000")
OURS = (
    "--set", "repair.lost_bookie_delay_ms=0", "--set", "repair.look_interval_ms=300",
    "--set", "metadata.session_timeout_ms=4000",
)  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zk") as server:
        yield server


@pytest.fixture
def shell(work_dir: Path, cluster: ZooKeeperServer, tmp_path: Path) -> Shell:
    configuration = tmp_path / "bookkeeper.conf"
    configuration.write_text(
        f"metadataServiceUri=zk+hierarchical://{cluster.address}/magnetar/ledgers\n"
        "allowLoopback=true\nbookieId=java-recovery\nlostBookieRecoveryDelay=0\n"
        "auditorPeriodicBookieCheckInterval=5\nhttpServerEnabled=false\nzkTimeout=4000\n"
    )
    return Shell(work_dir, configuration)


@contextlib.contextmanager
def java_autorecovery(shell: Shell, tmp_path: Path) -> Iterator[None]:
    with (tmp_path / "java.log").open("w") as log:
        process = subprocess.Popen(
            [HERE / "run.sh", shell.work_dir, "autorecovery", shell.configuration],
            stdout=log, stderr=log,
        )  # fmt: skip
        yield
        process.kill()
        process.wait()


@contextlib.contextmanager
def our_autorecovery(url: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "magnetar", "autorecovery", "--metadata", url, *OURS],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "ready" in process.stdout.readline()
    yield
    process.terminate()
    assert process.wait(60) == 0


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(1)


def write(url: str, count: int) -> dict[int, list[bytes]]:
    config = LedgerConfig(ensemble_size=3, write_quorum=3, ack_quorum=2)
    written = {}
    with sync.connect(url, config) as client:
        for number in range(count):
            with client.create() as writer:
                payloads = [b"%d/%d" % (number, entry) for entry in range(40)]
                writer.add_all(payloads)
                written[writer.ledger_id] = payloads
    return written


def check(url: str, written: dict[int, list[bytes]]) -> None:
    with sync.connect(url, LedgerConfig()) as client:
        for ledger_id, payloads in written.items():
            with client.open(ledger_id) as reader:
                assert [bytes(entry.payload) for entry in reader] == payloads


def verify(url: str, ledgers: int) -> None:
    """Every copy of every entry is sound, whoever made it."""
    command = ("ledger", "verify", "--all", "--metadata", url, "--json")
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["ledgers"], found["copies"]) == (ledgers, ledgers * 40 * 3)


@pytest.mark.parametrize("whose", ["java", "ours"])
def test_a_lost_bookies_ledgers_are_repaired(
    whose: str, cluster: ZooKeeperServer, shell: Shell, tmp_path: Path
) -> None:
    url = f"zk://{cluster.address}/magnetar"
    with contextlib.ExitStack() as running:
        bookies = {
            name: running.enter_context(bookie_process(cluster, tmp_path / name, name, *ALONE))
            for name in ("b-0", "b-1", "b-2", "b-3")
        }
        written = write(url, 6)
        with java_autorecovery(shell, tmp_path) if whose == "java" else our_autorecovery(url):
            time.sleep(5)
            named = survey(url).naming
            lost = max(named, key=lambda name: named[name])
            bookies[lost].kill()
            eventually(lambda: lost not in survey(url).naming, "no ledger names it")
            eventually(lambda: survey(url).whole, "every ledger is whole")
        check(url, written)
        verify(url, len(written))
        said = shell.said("listunderreplicated")
        assert "Under replicated ledger count: 0" in said
        running.pop_all()  # one of them was killed
        for process in bookies.values():
            process.kill()
            process.wait()


def test_the_shell_reads_and_says_what_ours_does(
    cluster: ZooKeeperServer, shell: Shell, tmp_path: Path
) -> None:
    url = f"zk://{cluster.address}/magnetar"

    def magnetar(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "magnetar", "recovery", *arguments, "--metadata", url],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    names = ("b-0", "b-1", "b-2")
    with contextlib.ExitStack() as running:
        bookies = {
            name: running.enter_context(bookie_process(cluster, tmp_path / name, name, *ALONE))
            for name in names
        }
        (ledger_id,) = write(url, 1)
        with our_autorecovery(url):
            assert "autorecovery-" in shell.said("whoisauditor")
            bookies["b-1"].kill()  # nobody can take its place: the ledger stays marked
            eventually(lambda: survey(url).marked == [ledger_id], "the ledger is marked")
            said = shell.said("listunderreplicated", "-printmissingreplica")
            assert "b-1" in said
            assert f"{ledger_id}" in said
            assert "Under replicated ledger count: 1" in said
            assert str(ledger_id) in magnetar("list")
            shell.said("lostbookierecoverydelay", "-set", "7")
            assert "7 s" in magnetar("status")
            magnetar("delay", "9")
            assert "9" in shell.said("lostbookierecoverydelay", "-get")
            shell.said("autorecovery", "-disable")
            assert "OFF" in magnetar("status")
            magnetar("enable")
            shell.said("autorecovery", "-disable")
            shell.said("autorecovery", "-enable")
            assert "OFF" not in magnetar("status")
            shell.said("triggeraudit")
        running.pop_all()
        for process in bookies.values():
            process.kill()
            process.wait()
