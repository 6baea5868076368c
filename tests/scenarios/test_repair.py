"""Bookies that are lost, come back, are added and taken away, while ledgers are written: every
ledger becomes whole again, by auto-recovery beside the bookies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.model.errors import MetadataUnavailableError
from tests.roles import Role
from tests.scenarios.cluster import SETTINGS, Cluster
from tests.scenarios.repairs import Load, copies_now, fill, held_by, naming, survey

pytestmark = pytest.mark.zookeeper

QUORUMS = (3, 3, 2)
DELAY_S = 4
SILENT_S = 6
PATIENCE_S = 180.0
REPAIR = (
    "--set", f"repair.lost_bookie_delay_ms={DELAY_S * 1000}",
    "--set", "repair.look_interval_ms=300",
    "--set", "repair.open_ledger_grace_ms=3000",
    "--set", "repair.copy_bytes_per_s=0",
    "--set", "repair.give_up_interval_ms=1000",
    "--set", f"repair.silent_bookie_delay_ms={SILENT_S * 1000}",
)  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_url: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, zookeeper_url, 5, (*SETTINGS, *REPAIR))
    cluster.start_bookies()
    yield cluster
    cluster.end()


def magnetar(*arguments: str, timeout_s: float = PATIENCE_S) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not told(holds):
        assert time.monotonic() < deadline_s, what
        time.sleep(0.5)


def told(holds: Callable[[], bool]) -> bool:
    """A look that ZooKeeper does not answer within 15 s says nothing: a machine that is busy with
    other tests is no finding."""
    try:
        return holds()
    except MetadataUnavailableError:
        return False


def test_a_bookie_wiped_under_load(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    url = cluster.metadata_url
    fill(url, QUORUMS, ledgers=10, entries=600)
    before = survey(url)
    assert before.whole
    lost = max(before.naming, key=lambda name: before.naming[name])
    with Load(url, QUORUMS, 200, 2000) as load:
        time.sleep(2)
        cluster.bookie(lost).wipe()
        began_s = time.monotonic()
        eventually(lambda: lost not in survey(url).naming, "no ledger names the lost bookie")
        took_s = time.monotonic() - began_s
    copied = sum(
        each.length for each in before.ledgers for one in each.fragments if lost in one.bookies
    )
    with capsys.disabled():
        print(f"\n{copied / 1e6:.0f} MB copied within {took_s:.1f} s of the loss, "
              f"{DELAY_S} s of delay and a session of {4} s included")  # fmt: skip
    load.check()
    eventually(lambda: survey(url).whole, "every ledger is whole")


def test_a_bookie_that_is_back_in_time_is_not_copied(cluster: Cluster) -> None:
    url = cluster.metadata_url
    fill(url, QUORUMS, ledgers=5, entries=20)
    magnetar("recovery", "delay", "30", "--metadata", url)
    before = survey(url)
    away = cluster.bookie(max(before.naming, key=lambda name: before.naming[name]))
    away.kill()
    time.sleep(10)
    assert survey(url).marked == []
    away.start()
    time.sleep(5)
    after = survey(url)
    assert after.whole
    assert after.ledgers == before.ledgers


def test_a_bookie_that_is_back_too_late_gives_up_its_copies(cluster: Cluster) -> None:
    url = cluster.metadata_url
    fill(url, QUORUMS, ledgers=6, entries=50)
    before = survey(url)
    late = max(before.naming, key=lambda name: before.naming[name])
    away = cluster.bookie(late)
    away.kill()
    eventually(lambda: late not in survey(url).naming, "others have taken its places")
    eventually(lambda: not survey(url).marked, "every ledger is whole")
    away.start()
    eventually(lambda: not held_by(url, late), "it gives its copies up")
    assert survey(url).whole
    second = max(before.naming, key=lambda name: (name != late, before.naming[name]))
    cluster.bookie(second).kill()
    eventually(lambda: second not in survey(url).naming, "also those it has given up may come back")
    eventually(lambda: survey(url).whole, "every ledger is whole")


def test_a_bookie_that_never_answers_is_replaced_while_it_is_registered(cluster: Cluster) -> None:
    url = cluster.metadata_url
    hung = cluster.add_linked_bookie()
    with hung.link:
        fill(url, QUORUMS, ledgers=10, entries=30)
        assert naming(url).get(hung.bookie_id, 0) > 0
        hung.link.cut()
        eventually(lambda: hung.bookie_id not in naming(url), "others have its places")
        eventually(lambda: survey(url).whole, "every ledger is whole, without it")
        assert hung.bookie_id in survey(url).registered
        hung.link.heal()
        eventually(lambda: not held_by(url, hung.bookie_id), "it gives its copies up")
        assert survey(url).whole


def test_a_bookie_is_added_and_another_emptied_under_load(cluster: Cluster) -> None:
    url = cluster.metadata_url
    fill(url, QUORUMS, ledgers=8, entries=100)
    before = survey(url)
    leaving = max(before.naming, key=lambda name: before.naming[name])
    with Load(url, QUORUMS, 100, 1000) as load:
        added = cluster.add_bookie()
        eventually(lambda: survey(url).naming.get(added.bookie_id, 0) > 0, "it takes new ledgers")
        emptying = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "magnetar",
                "bookie",
                "decommission",
                leaving,
                "--metadata",
                url,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        fewest = []

        def emptied() -> bool:
            fewest.append(copies_now(url))
            return leaving not in naming(url)

        eventually(emptied, "no ledger names it")
        # Looked at all the time, and not only when it is over.
        assert all(each.fewest >= QUORUMS[2] for each in fewest), fewest
        assert sum(each.ledgers for each in fewest) >= 8
        cluster.bookie(leaving).role.ask_to_end()
        out, _ = emptying.communicate(timeout=PATIENCE_S)
        assert f"{leaving} is forgotten" in out
    load.check()
    eventually(lambda: survey(url).whole, "every ledger is whole")
    assert "none" in magnetar("recovery", "status", "--metadata", url)


def test_a_zookeeper_that_stands_still_ends_who_asks_and_not_who_waits(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        url = f"zk://{server.address}/still"
        slow = ("--set", "repair.copy_bytes_per_s=50000")
        cluster = Cluster(tmp_path, url, 4, (*SETTINGS, *REPAIR, *slow))
        try:
            cluster.start_bookies()
            fill(url, QUORUMS, ledgers=6, entries=50)
            magnetar("recovery", "delay", "3600", "--metadata", url)
            before = survey(url)
            lost = max(before.naming, key=lambda name: before.naming[name])
            cluster.bookie(lost).wipe()
            eventually(lambda: lost not in survey(url).registered, "its session is over")
            said = recovered_over_a_pause(server, tmp_path, url, lost)
            assert "waits for the metadata store" in said
            assert f"{lost} is forgotten" in said
            assert all(each.role.running for each in cluster.bookies if each.bookie_id != lost)
            eventually(lambda: survey(url).whole, "every ledger is whole")
        finally:
            cluster.end()


def recovered_over_a_pause(server: ZooKeeperServer, folder: Path, url: str, lost: str) -> str:
    """What `magnetar bookie recover` says, while ZooKeeper stands still for 20 s."""
    command = [sys.executable, "-m", "magnetar"]
    recovering = subprocess.Popen(
        [*command, "bookie", "recover", lost, "--metadata", url],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    eventually(lambda: lost in magnetar("recovery", "status", "--metadata", url), "it is begun")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        ends_s = time.monotonic() + 20
        started = Role(folder, "autorecovery", "--metadata", url)
        asked = subprocess.run(
            [*command, "recovery", "status", "--metadata", url],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (asked.returncode, started.wait_ended()) == (1, 1)
        for words in (asked.stderr, started.log):
            assert "did not answer within 15 s" in words
            assert "check that it runs" in words
        time.sleep(max(0.0, ends_s - time.monotonic()))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    out, _ = recovering.communicate(timeout=PATIENCE_S)
    assert recovering.returncode == 0, out
    return out
