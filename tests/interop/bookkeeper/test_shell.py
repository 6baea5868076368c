"""BookKeeper's own shell against our bookies and ledgers: a peer test, not part of ``make test``.

Its commands for ledgers and bookies (of repair: ``test_autorecovery.py``); those that read a
bookie's own files do not apply. Run: ``make interop``. ``MAGNETAR_PEER_DIR`` (in make: ``KEPT``)
keeps what was fetched.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.ledger import LedgerConfig, sync
from tests.interop.bookkeeper.conftest import bookie_process

HERE = Path(__file__).parent
BOOKIES = ("shell-0", "shell-1", "shell-2")
ENTRIES = [b"entry %d" % number for number in range(10)]
LOGGED = re.compile(r"^\S+ - (?P<level>[A-Z]+) +- \[[^]]*:(?P<by>\w+)[^]]*\] - (?P<text>.*)$")

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


@dataclass
class Shell:
    work_dir: Path
    configuration: Path

    def said(self, *command: str) -> str:
        """What a command says for people: lines of its own, not of the client below it."""
        done = subprocess.run(
            [HERE / "run.sh", self.work_dir, "shell", self.configuration, *command],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        kept = []
        for line in done.stdout.splitlines():
            logged = LOGGED.match(line)
            if logged is None:
                kept.append(line)
            elif logged["by"].endswith("Command"):
                kept.append(f"{logged['level']} {logged['text']}")
        return "\n".join(kept)


@pytest.fixture(scope="module")
def cluster(
    zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperServer]:
    with contextlib.ExitStack() as running:
        for bookie_id in BOOKIES:
            data_dir = tmp_path_factory.mktemp(bookie_id)
            running.enter_context(bookie_process(zookeeper, data_dir, bookie_id))
        yield zookeeper


@pytest.fixture(scope="module")
def shell(
    work_dir: Path, cluster: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Shell:
    configuration = tmp_path_factory.mktemp("shell") / "bookkeeper.conf"
    configuration.write_text(
        f"metadataServiceUri=zk+hierarchical://{cluster.address}/magnetar/ledgers\n"
        f"allowLoopback=true\nbookieId={BOOKIES[0]}\n"
    )
    return Shell(work_dir, configuration)


@pytest.fixture(scope="module")
def ledger_id(cluster: ZooKeeperServer) -> int:
    """A closed ledger that our client wrote, on all bookies."""
    config = LedgerConfig(ensemble_size=3, write_quorum=3, ack_quorum=2)
    url = f"zk://{cluster.address}/magnetar"
    with sync.connect(url, config) as client, client.create() as writer:
        writer.add_all(ENTRIES)
        return writer.ledger_id


def test_ledgers_are_listed(shell: Shell, ledger_id: int) -> None:
    assert f"INFO ledgerID: {ledger_id}" in shell.said("listledgers").splitlines()
    said = shell.said("listledgers", "-meta", "-bookieid", BOOKIES[1])
    assert f"ledgerID: {ledger_id}" in said
    assert "ensembleSize=3, writeQuorumSize=3, ackQuorumSize=2, state=CLOSED" in said


def test_metadata_of_a_ledger_is_shown(shell: Shell, ledger_id: int) -> None:
    said = shell.said("ledgermetadata", "-ledgerid", str(ledger_id))
    ensemble = re.search(r"ensembles=\{0=\[([^]]+)\]\}", said)
    assert ensemble is not None, said
    assert sorted(ensemble[1].split(", ")) == list(BOOKIES)
    length = sum(len(each) for each in ENTRIES)
    assert f"state=CLOSED, length={length}, lastEntryId=9, digestType=CRC32C" in said


def test_entries_are_read(shell: Shell, ledger_id: int) -> None:
    said = shell.said(
        "readledger", "-ledgerid", str(ledger_id), "-msg", "-firstentryid", "3", "-lastentryid", "6"
    )
    found = re.findall(r"Lid=(\d+), Eid=(\d+), EntrySize=\d+ -+\n(?:Data: )?(.*)", said)
    assert found == [(str(ledger_id), str(each), f"entry {each}") for each in range(3, 7)], said


def test_entries_are_read_from_one_bookie(shell: Shell, ledger_id: int) -> None:
    said = shell.said(
        "readledger", "-ledgerid", str(ledger_id), "-msg", "-bookie", BOOKIES[2],
        "-firstentryid", "3", "-lastentryid", "6",
    )  # fmt: skip
    # It leaves out the last one here, and shows entries as bookies keep them.
    assert re.findall(r"Lid=(\d+), Eid=(\d+)", said) == [
        (str(ledger_id), str(each)) for each in range(3, 6)
    ]
    for number in range(3, 6):
        assert re.search(rf"entry {number} +\|", said), said


def test_bookies_are_listed(shell: Shell, ledger_id: int) -> None:
    said = shell.said("listbookies", "-readwrite")
    assert sorted(re.findall(r"BookieID:([^,]+), IP:127.0.0.1, Port:\d+", said)) == list(BOOKIES)
    assert "No bookie exists" in shell.said("listbookies", "-readonly")


def test_space_of_bookies_is_shown(shell: Shell, ledger_id: int) -> None:
    said = shell.said("bookieinfo")
    found = re.findall(r"BookieID:([^,]+),.*\tFree: (\d+)\(.*\tTotal: (\d+)\(", said)
    assert sorted(name for name, _, _ in found) == list(BOOKIES), said
    assert all(0 < int(free) < int(total) for _, free, total in found)


def test_the_cluster_is_described(shell: Shell, ledger_id: int) -> None:
    said = shell.said("clusterinfo")
    for fact in (
        '"totalBookiesCount" : 3', '"writableBookiesCount" : 3', '"unavailableBookiesCount" : 0',
        '"clusterUnderReplicated" : false',
    ):  # fmt: skip
        assert fact in said
    assert re.search(r"InstanceId: [0-9a-f-]{36}", shell.said("whatisinstanceid"))
    assert "Under replicated ledger count: 0" in shell.said("listunderreplicated")


def test_the_shells_own_tests_pass(shell: Shell, ledger_id: int) -> None:
    said = shell.said(
        "simpletest", "-ensemble", "3", "-writeQuorum", "2", "-ackQuorum", "2", "-numEntries", "50"
    )
    assert "50 entries written to ledger" in said
    assert "Bookie sanity test succeeded" in shell.said("bookiesanity", "-entries", "5")


def test_a_ledger_is_deleted(shell: Shell, cluster: ZooKeeperServer) -> None:
    with sync.connect(f"zk://{cluster.address}/magnetar", LedgerConfig()) as client:
        with client.create() as writer:
            writer.add(b"for a while")
        deleted = writer.ledger_id
    assert f"INFO ledgerID: {deleted}" in shell.said("listledgers").splitlines()
    shell.said("deleteledger", "-ledgerid", str(deleted), "-force")
    assert f"INFO ledgerID: {deleted}" not in shell.said("listledgers").splitlines()
