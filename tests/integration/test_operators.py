"""What operators ask of copies, on bookies as processes and a real ZooKeeper: where they are, what
would be lost (and then is), whether all are sound, and what emptying a bookie would take."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.ledger import LedgerConfig, MagnetarError, connect
from tests.scenarios.cluster import SETTINGS, Cluster

pytestmark = pytest.mark.zookeeper

NO_REPAIR = ("--set", "repair.in_bookies=false")
QUICK = {"add_timeout_ms": 4000, "read_timeout_ms": 4000}


def magnetar(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def told(*arguments: str, code: int = 0) -> Any:
    return json.loads(magnetar(*arguments, "--json", code=code))


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_url: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, zookeeper_url, 5, (*SETTINGS, *NO_REPAIR))
    cluster.start_bookies()
    yield cluster
    cluster.end()


async def write_three_fragments(cluster: Cluster) -> tuple[int, str]:
    """A closed ledger of 120 entries; one of its bookies stays down. Returns its id and that
    one."""
    config = LedgerConfig(ensemble_size=3, write_quorum=2, ack_quorum=2, **QUICK)
    async with connect(cluster.metadata_url, config) as client:
        writer = await client.create()
        for number in range(40):
            await writer.add([b"first %d" % number])
        back = cluster.bookie(writer.metadata.fragments[-1].bookies[0])
        back.kill()
        for number in range(40):
            await writer.add([b"second %d" % number])
        await asyncio.to_thread(back.start)
        dead = writer.metadata.fragments[-1].bookies[1]
        cluster.bookie(dead).kill()
        for number in range(40):
            await writer.add([b"third %d" % number])
        await writer.close()
        assert len(writer.metadata.fragments) == 3
        return writer.ledger_id, dead


async def readable(cluster: Cluster, ledger_id: int, count: int) -> set[int]:
    """The entries that a reader gets."""
    config = LedgerConfig(ensemble_size=3, write_quorum=2, ack_quorum=2, **QUICK)
    async with connect(cluster.metadata_url, config) as client:
        reader = await client.open_no_recovery(ledger_id)
        found = set()
        for entry_id in range(count):
            try:
                await reader.read(entry_id, 1, 1 << 20)
            except MagnetarError:
                continue
            found.add(entry_id)
        return found


def listed(forecast: Any, *fates: str) -> set[int]:
    return {
        entry
        for each in forecast["ranges"]
        if each["fate"] in fates
        for entry in range(each["firstEntryId"], each["lastEntryId"] + 1, each["every"])
    }


def test_a_forecast_comes_true(cluster: Cluster) -> None:
    """Three fragments on five bookies, one dead: the picture, the JSON, and what would be lost
    without two more, which are then lost."""
    ledger_id, dead = asyncio.run(write_three_fragments(cluster))
    last = [name for name in all_named(cluster, ledger_id)[-1] if name != dead]
    lost = last[:2]
    about = ("ledger", "explain", str(ledger_id), "--metadata", cluster.metadata_url)
    without = [part for name in lost for part in ("--lost", name)]
    found = told(*about, *without)
    rows = {each["bookieId"]: each for each in found["bookies"]}
    assert not rows[dead]["answers"]
    assert rows[dead]["copiesHeld"] is None
    for name, each in rows.items():
        if name != dead:
            assert each["copiesHeld"] == each["copiesNamed"] > 0, each
    firsts = [each["firstEntryId"] for each in found["fragments"]]
    assert firsts[0] == 0
    assert 40 <= firsts[1] <= 42, "the first entries after a loss may be for others"
    assert 80 <= firsts[2] <= 82
    assert found["now"]["entries"]["lost"] == found["now"]["entries"]["unreadable"] == 0
    assert sum(found["now"]["entries"].values()) == 120
    forecast = found["forecast"]
    assert sorted(forecast["without"]) == sorted(lost)
    assert forecast["entries"]["lost"] > 0
    gone = listed(forecast, "lost", "unreadable")
    assert len(gone) == forecast["entries"]["lost"] + forecast["entries"]["unreadable"] < 120

    picture = magnetar(*about, *without)
    assert all(len(line) <= 80 for line in picture.splitlines() if line.count("|") > 1), picture
    assert "\x1b" not in picture
    for name in rows:
        lines = [line for line in picture.splitlines() if line.startswith(f"{name} ")]
        (row,) = [line for line in lines if "|" in line]
        signs = {*row.partition("|")[2].rpartition("|")[0]} - {"|", " "}
        assert signs == ({"?"} if name == dead else {"x"} if name in lost else {"#"}), picture
    assert "LOST" in picture
    assert f"{dead} does not answer" in picture

    assert asyncio.run(readable(cluster, ledger_id, 120)) == {*range(120)}
    for name in lost:
        cluster.bookie(name).wipe()
    assert asyncio.run(readable(cluster, ledger_id, 120)) == {*range(120)} - gone


async def leave_open(cluster: Cluster, entries: int) -> int:
    """A ledger whose writer is gone, and has confirmed so many entries."""
    config = LedgerConfig(ensemble_size=3, write_quorum=3, ack_quorum=2, **QUICK)
    async with connect(cluster.metadata_url, config) as client:
        writer = await client.create()
        for number in range(entries):
            await writer.add([b"entry %d" % number])
        return writer.ledger_id


async def recovered(cluster: Cluster, ledger_id: int) -> int:
    async with connect(cluster.metadata_url, LedgerConfig(**QUICK)) as client:
        return (await client.open(ledger_id)).last_add_confirmed


def test_whether_an_open_ledger_could_be_closed_and_where(cluster: Cluster) -> None:
    """Forecast, and then done: without two of its bookies it cannot be closed, without one it can,
    and at an entry that was forecast."""
    ledger_id = asyncio.run(leave_open(cluster, 25))
    one, two, _ = all_named(cluster, ledger_id)[0]
    about = ("ledger", "explain", str(ledger_id), "--metadata", cluster.metadata_url)
    found = told(*about, "--lost", one, "--lost", two)
    assert (found["state"], found["lastEntry"]) == ("OPEN", 24)
    assert found["lastConfirmed"] in (23, 24)
    assert found["now"]["closing"]["possible"]
    assert not found["forecast"]["closing"]["possible"]
    assert one in found["forecast"]["closing"]["why"]
    without_one = told(*about, "--lost", one)["forecast"]["closing"]
    assert without_one["possible"]
    assert without_one["lastEntryIdMost"] == 24

    cluster.bookie(one).wipe()
    cluster.bookie(two).kill()
    with pytest.raises(MagnetarError):
        asyncio.run(recovered(cluster, ledger_id))
    cluster.bookie(two).start()
    end = asyncio.run(recovered(cluster, ledger_id))
    assert without_one["lastEntryIdLeast"] <= end <= without_one["lastEntryIdMost"]
    assert end == 24, "every entry was confirmed"


def all_named(cluster: Cluster, ledger_id: int) -> list[tuple[str, ...]]:
    async def ask() -> list[tuple[str, ...]]:
        async with connect(cluster.metadata_url, LedgerConfig()) as client:
            metadata = await client.read_metadata(ledger_id)
            return [tuple(map(str, one.bookies)) for one in metadata.fragments]

    return asyncio.run(ask())


async def write_closed(cluster: Cluster, ledgers: int, entries: int) -> list[int]:
    config = LedgerConfig(ensemble_size=3, write_quorum=3, ack_quorum=2, **QUICK)
    ids = []
    async with connect(cluster.metadata_url, config) as client:
        for _ in range(ledgers):
            writer = await client.create()
            payloads = [b"%d entry %05d of all" % (writer.ledger_id, n) for n in range(entries)]
            await writer.add(payloads)
            await writer.close()
            ids.append(writer.ledger_id)
        # A bookie was slow: its copies come behind, and nothing tells when they are there.
        while client.mender.has_missing:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return ids


def damage(cluster: Cluster, bookie_id: str, payload: bytes) -> None:
    """Turn a byte of an entry where that bookie keeps it, while it is down."""
    machine = cluster.bookie(bookie_id)
    machine.role.end()
    turned = 0
    for path in (machine.data_dir / "ledgers").rglob("*"):
        if not path.is_file() or payload not in (content := path.read_bytes()):
            continue
        spoiled = bytes([payload[0] ^ 0xFF]) + payload[1:]
        path.write_bytes(content.replace(payload, spoiled))
        turned += 1
    assert turned, f"{payload!r} is not in the entry logs of {bookie_id}"
    machine.start()


def test_a_copy_that_is_damaged_in_the_middle_is_found_and_replaced(cluster: Cluster) -> None:
    one, two = asyncio.run(write_closed(cluster, 2, 200))
    everything = ("ledger", "verify", "--all", "--metadata", cluster.metadata_url)
    found = told(*everything)
    assert found["sound"], found
    assert found["copies"] == 2 * 3 * 200
    victim = all_named(cluster, one)[0][1]
    damage(cluster, victim, b"%d entry %05d of all" % (one, 77))

    found = told(*everything, code=1)
    assert [
        (each["ledgerId"], each["firstEntryId"], each["lastEntryId"], each["bookieId"])
        for each in found["findings"]
    ] == [(one, 77, 77, victim)], found
    assert found["findings"][0]["fault"] == "damaged"
    assert found["copies"] == 2 * 3 * 200 - 1
    assert found["unchecked"] == []
    assert "damaged" in magnetar("ledger", "verify", str(one), *everything[3:], code=1)
    assert told("ledger", "verify", str(two), *everything[3:])["sound"]

    found = told(*everything, "--repair", code=1)
    assert (found["replaced"], found["notRepaired"]) == (1, []), found
    cluster.bookie(victim).role.end()
    cluster.bookie(victim).start()
    assert told(*everything)["sound"], "the replaced copy is sound, also after a restart"


def test_a_damaged_copy_of_an_open_ledger_is_replaced(cluster: Cluster) -> None:
    """It was left as long as the ledger was open, and found each time."""
    ledger_id = asyncio.run(leave_open(cluster, 25))
    victim = all_named(cluster, ledger_id)[0][2]
    damage(cluster, victim, b"entry 20")
    about = ("ledger", "verify", str(ledger_id), "--metadata", cluster.metadata_url)
    found = told(*about, "--repair", code=1)
    (finding,) = found["findings"]
    assert (finding["firstEntryId"], finding["bookieId"]) == (20, victim)
    assert (found["replaced"], found["notRepaired"]) == (1, []), found
    assert told(*about)["sound"]
    explained = told("ledger", "explain", str(ledger_id), "--metadata", cluster.metadata_url)
    assert explained["state"] == "OPEN"
    assert asyncio.run(recovered(cluster, ledger_id)) == 24


def test_missing_copies_and_silent_bookies_are_told_apart(cluster: Cluster) -> None:
    (one,) = asyncio.run(write_closed(cluster, 1, 50))
    ensemble = all_named(cluster, one)[0]
    away = cluster.bookie(ensemble[0])
    away.kill()
    about = ("ledger", "verify", str(one), "--metadata", cluster.metadata_url)
    found = told(*about, code=1)
    assert found["findings"] == []
    assert [u["bookieId"] for u in found["unchecked"]] == [ensemble[0]]
    assert (found["unchecked"][0]["firstEntryId"], found["unchecked"][0]["lastEntryId"]) == (0, 49)


def test_a_plan_tells_what_moves_and_what_cannot(cluster: Cluster) -> None:
    asyncio.run(write_closed(cluster, 4, 30))
    leaving = cluster.bookies[0].bookie_id
    about = ("cluster", "plan-decommission", "--metadata", cluster.metadata_url)
    found = told(*about, leaving)
    named = sum(leaving in all_named(cluster, ledger_id)[0] for ledger_id in range(4))
    assert found["possible"]
    assert found["ledgers"] == found["fragments"] == named
    assert found["entries"] == 30 * named
    assert leaving not in [each["bookieId"] for each in found["to"]]
    assert sum(each["bytes"] for each in found["to"]) == found["bytes"]
    assert any("nobody repairs" in each for each in found["waits"])

    three = [each.bookie_id for each in cluster.bookies[:3]]
    found = told(*about, *three, code=1)
    assert not found["possible"]
    assert found["stuckFragments"] > 0
    assert "it CANNOT be done" in magnetar(*about, *three, code=1)
    cluster.bookies[4].kill()
    away = cluster.bookies[4].bookie_id
    while not told("bookie", "list", "--away", *about[2:]):
        time.sleep(0.5)  # until its session is over
    gone = told(*about, away, code=1)
    assert any("is not registered" in each for each in gone["refusals"]), gone


def test_programs_can_read_it_and_what_is_not_there_is_an_error(cluster: Cluster) -> None:
    where = ("--metadata", cluster.metadata_url)
    assert told("recovery", "status", *where)["enabled"]
    assert told("recovery", "list", *where) == []
    for command in (("ledgers",), ("read-only", "on"), ("decommission",), ("recover",)):
        magnetar("bookie", *command, "nmaed", *where, code=1)
    magnetar("ledger", "verify", "99999", *where, code=1)
