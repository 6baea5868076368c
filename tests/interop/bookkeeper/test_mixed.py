"""Bookies of BookKeeper's own and ours in one cluster, with either auto-recovery; its shell's
commands of repair on ours; our client on its bookies: a peer test, not part of ``make test``.
Run: ``make interop``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.ledger import LedgerConfig, sync
from tests.chaos.whole.copies import wait_whole
from tests.interop.bookkeeper.conftest import HERE, bookie_process, initialize, java_bookie
from tests.interop.bookkeeper.test_autorecovery import (
    ALONE,
    PATIENCE_S,
    check,
    cluster,
    eventually,
    java_autorecovery,
    our_autorecovery,
    shell,
    write,
)
from tests.interop.bookkeeper.test_shell import Shell
from tests.scenarios.repairs import Load, naming, survey

__all__ = ["cluster", "shell"]  # fixtures

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1500)]

QUORUMS = (3, 3, 2)
Processes = dict[str, subprocess.Popen[str]]


class Mixed:
    """Bookies of both kinds in one ZooKeeper."""

    def __init__(
        self, work_dir: Path, zookeeper: ZooKeeperServer, folder: Path, stack: contextlib.ExitStack
    ) -> None:
        self.url = f"zk://{zookeeper.address}/magnetar"
        self.processes: Processes = {}
        self._work_dir = work_dir
        self._zookeeper = zookeeper
        self._folder = folder
        self._stack = stack
        asyncio.run(initialize(self.url))

    def ours(self, *names: str) -> None:
        for name in names:
            running = bookie_process(self._zookeeper, self._folder / name, name, *ALONE)
            # Not by the stack: it would ask for an orderly end of one that was killed.
            process = self.processes[name] = running.__enter__()
            self._stack.callback(_end, process)

    def javas(self, *names: str, http: bool = False) -> None:
        for name in names:
            running = java_bookie(
                self._work_dir, self._zookeeper, self._folder / name, name, http=http
            )
            self.processes[name] = self._stack.enter_context(running)
        # It listens before it is registered.
        eventually(lambda: {*names} <= {*survey(self.url).registered}, "they are registered")

    def lose(self, name: str) -> None:
        _end(self.processes[name])

    def told(self, *command: str, code: int = 0) -> Any:
        """What our command says of this cluster, as JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "magnetar", *command, "--metadata", self.url, "--json"],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def check_whole(self) -> None:
        """By our reads of every copy, by ``ledger verify``, and by BookKeeper's own check."""
        found = wait_whole(self.url)
        assert not found.trouble
        assert found.copies.copies > 0
        verified = self.told("ledger", "verify", "--all")
        assert verified["sound"], verified
        assert verified["ledgers"] == found.copies.ledgers
        assert verified["copies"] == found.copies.copies
        done = subprocess.run(
            [
                HERE / "run.sh", self._work_dir, "check", self._zookeeper.address,
                "/magnetar/ledgers",
            ],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        assert f"whole {found.copies.ledgers}" in done.stdout


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def mixed(work_dir: Path, cluster: ZooKeeperServer, tmp_path: Path) -> Iterator[Mixed]:
    with contextlib.ExitStack() as stack:
        yield Mixed(work_dir, cluster, tmp_path, stack)


@pytest.mark.parametrize("lost", ["theirs", "ours"])
def test_either_auto_recovery_makes_a_mixed_cluster_whole(
    lost: str,
    mixed: Mixed,
    shell: Shell,
    tmp_path: Path,
) -> None:
    """One after the other, on the same bookie: it is lost, it comes back without entries, new
    ledgers are written to it, and it is lost again."""
    mixed.ours("o-0", "o-1", "o-2")
    mixed.javas("j-0", "j-1", "j-2")
    written = write(mixed.url, 8)
    victim = {"theirs": "j-1", "ours": "o-1"}[lost]
    while victim not in naming(mixed.url):  # bookies are chosen by chance
        written |= write(mixed.url, 4)
    with java_autorecovery(shell, tmp_path):
        mixed.lose(victim)
        eventually(lambda: victim not in naming(mixed.url), "Java's auto-recovery replaces it")
        eventually(lambda: not survey(mixed.url).marked, "Java's auto-recovery is done")
    check(mixed.url, written)
    mixed.check_whole()
    assert "Under replicated ledger count: 0" in shell.said("listunderreplicated")
    (mixed.javas if lost == "theirs" else mixed.ours)(victim)
    while victim not in naming(mixed.url):
        written |= write(mixed.url, 4)
    with our_autorecovery(mixed.url):
        mixed.lose(victim)
        eventually(lambda: victim not in naming(mixed.url), "our auto-recovery replaces it")
        eventually(lambda: survey(mixed.url).whole, "every ledger is whole")
    check(mixed.url, written)
    mixed.check_whole()
    assert "Under replicated ledger count: 0" in shell.said("listunderreplicated")


def test_the_shell_recovers_and_decommissions_our_bookies(
    mixed: Mixed,
    shell: Shell,
    tmp_path: Path,
) -> None:
    mixed.ours("o-0", "o-1", "o-2", "o-3", "o-4")
    written = write(mixed.url, 8)
    named = naming(mixed.url)
    first, second = sorted(named, key=lambda name: -named[name])[:2]
    mixed.lose(first)
    eventually(lambda: first not in survey(mixed.url).registered, "its session is over")
    shell.said("recover", "-force", first)  # the shell copies by itself
    assert first not in naming(mixed.url)
    mixed.check_whole()
    with our_autorecovery(mixed.url):
        mixed.lose(second)
        eventually(lambda: second not in survey(mixed.url).registered, "its session is over")
        shell.said("decommissionbookie", "-bookieid", second)  # our auto-recovery copies
        assert second not in naming(mixed.url)
    shutil.rmtree(tmp_path / second)
    mixed.ours(second)  # its cookie is gone, or an empty disk would be refused
    assert "Under replicated ledger count: 0" in shell.said("listunderreplicated")
    check(mixed.url, written)
    mixed.check_whole()


def test_our_client_writes_and_reads_on_bookkeepers_bookies(mixed: Mixed) -> None:
    mixed.javas("j-0", "j-1", "j-2", "j-3")
    for quorums in ((3, 3, 2), (4, 2, 2), (1, 1, 1)):
        size, write_quorum, ack_quorum = quorums
        config = LedgerConfig(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
        payloads = [b"%d" % number * (1 + 40 * (number % 50)) for number in range(1000)]
        with sync.connect(mixed.url, config) as client:
            with client.create() as writer:
                writer.add_all(payloads)
            with client.open(writer.ledger_id) as reader:
                assert [bytes(entry.payload) for entry in reader] == payloads
            old = client.create()
            for payload in payloads[:10]:
                old.add(payload)
            with client.open(old.ledger_id) as reader:  # takes it from its writer
                assert [bytes(entry.payload) for entry in reader] == payloads[:10]
            with pytest.raises(Exception, match="fenced"):
                old.add(b"too late")
    # A writer that is fenced no longer gives a slow bookie what it lacks of the confirmed.
    with our_autorecovery(mixed.url):
        mixed.check_whole()


def test_copies_on_bookkeepers_bookies_are_explained_and_verified(mixed: Mixed) -> None:
    """What they say of what they hold is asked as of ours; a forecast comes true; a bookie that is
    lost is told from copies that are."""
    mixed.ours("o-0")
    mixed.javas("j-0", "j-1", "j-2")
    (ledger_id,) = [each for each in write(mixed.url, 6) if len(_held_by_java(mixed, each)) == 2][
        :1
    ]
    about = ("ledger", "explain", str(ledger_id))
    first, second = _held_by_java(mixed, ledger_id)
    found = mixed.told(*about, "--lost", first, "--lost", second)
    for each in found["bookies"]:
        assert each["answers"], each
        assert each["copiesHeld"] == each["copiesNamed"] == 40, each
    assert found["now"]["entries"]["whole"] == 40, found["now"]
    assert found["forecast"]["entries"]["lost"] == 0, "ours has a copy of each"
    mixed.lose(first)
    mixed.lose(second)
    eventually(lambda: not {first, second} & {*survey(mixed.url).registered}, "they are gone")
    found = mixed.told(*about)
    answering = {each["bookieId"]: each["answers"] for each in found["bookies"]}
    assert answering == {first: False, second: False, "o-0": True}
    verified = mixed.told("ledger", "verify", str(ledger_id), code=1)
    assert verified["findings"] == []
    assert {each["bookieId"] for each in verified["unchecked"]} == {first, second}


def _held_by_java(mixed: Mixed, ledger_id: int) -> list[str]:
    found = mixed.told("ledger", "explain", str(ledger_id))
    return [each["bookieId"] for each in found["bookies"] if each["bookieId"].startswith("j-")]


def test_a_bookie_of_bookkeepers_is_swapped_for_ours_and_back_under_load(mixed: Mixed) -> None:
    mixed.javas("j-0")
    mixed.javas("j-1", "j-2", http=True)
    written = write(mixed.url, 4)
    with our_autorecovery(mixed.url), Load(mixed.url, QUORUMS, 60, 2000) as load:
        mixed.ours("o-0", "o-1")
        _replace(mixed, "j-1")
        assert naming(mixed.url)["o-1"] > 0
        _decommission(mixed, "j-2")  # by its REST: it serves all the time
        refused = subprocess.run(
            _decommissioning(mixed, "j-0"), capture_output=True, text=True, check=False,
            timeout=PATIENCE_S,
        )  # fmt: skip
        assert refused.returncode != 0
        assert "magnetar bookie recover j-0" in refused.stderr
        mixed.javas("j-3")
        _decommission(mixed, "o-1")
        assert naming(mixed.url)["j-3"] > 0
    load.check()
    assert len(load.written) > 1
    check(mixed.url, written)
    mixed.check_whole()


def test_bookies_of_both_are_switched_to_read_only_and_back(mixed: Mixed) -> None:
    mixed.javas("j-0", http=True)
    mixed.javas("j-1")
    mixed.ours("o-0")

    def switched(word: str, name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "magnetar", "bookie", "read-only", word, name]
        return subprocess.run(
            [*command, "--metadata", mixed.url],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    def states() -> dict[str, str]:
        return {each["bookieId"]: each["state"] for each in mixed.told("bookie", "list")}

    for name in ("j-0", "o-0"):
        for word, state in (("on", "read-only"), ("off", "read-write")):
            assert switched(word, name).returncode == 0
            eventually(lambda n=name, s=state: states()[n] == s, f"{name} is {state}")  # type: ignore[misc]
    refused = switched("on", "j-1")
    assert refused.returncode != 0
    assert "httpServerEnabled" in refused.stderr


def _replace(mixed: Mixed, name: str) -> None:
    """A bookie of BookKeeper's own is ended first, as its own tools want it."""
    mixed.lose(name)
    eventually(lambda: name not in survey(mixed.url).registered, "its session is over")
    command = [sys.executable, "-m", "magnetar", "bookie", "recover", name]
    out = subprocess.run(
        [*command, "--metadata", mixed.url],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    ).stdout  # fmt: skip
    assert f"{name} is forgotten" in out
    assert name not in naming(mixed.url)


def _decommission(mixed: Mixed, name: str) -> None:
    emptying = subprocess.Popen(_decommissioning(mixed, name), stdout=subprocess.PIPE, text=True)
    eventually(lambda: name not in naming(mixed.url), f"no ledger names {name}")
    mixed.lose(name)
    out, _ = emptying.communicate(timeout=PATIENCE_S)
    assert f"{name} is forgotten" in out


def _decommissioning(mixed: Mixed, name: str) -> list[str]:
    command = [sys.executable, "-m", "magnetar", "bookie", "decommission", name]
    return [*command, "--metadata", mixed.url]
