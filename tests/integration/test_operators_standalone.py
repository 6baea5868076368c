"""Operators' commands and a standalone, which are given its data directory; and a topic of it that
does not open any more, since its last message is damaged in the one place where it was."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tests.roles import Role
from tests.standalone import Standalone

QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
TOPIC = "persistent://public/default/t"


def magnetar(*arguments: str, code: int = 0, both: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr if both else done.stdout


def told(*arguments: str, code: int = 0) -> Any:
    return json.loads(magnetar(*arguments, "--json", code=code))


def stored(ledger_id: int, *where: str) -> Any:
    """The ledger's metadata."""
    return json.loads(magnetar("ledger", "metadata", str(ledger_id), *where))


def connected(platform: Standalone) -> pulsar.Client:
    return pulsar.Client(platform.service_url, operation_timeout_seconds=60, logger=QUIET)


def bodies(count: int) -> list[bytes]:
    return [b"this is message number %04d" % number for number in range(count)]


def publish(platform: Standalone, found: list[bytes]) -> pulsar.Client:
    """The client is given back, connected: what closes it closes no ledger."""
    client = connected(platform)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for body in found:
        producer.send(body)
    return client


def received(platform: Standalone, count: int) -> list[bytes]:
    """By a new subscription, all there is."""
    client = connected(platform)
    start = pulsar.InitialPosition.Earliest
    consumer = client.subscribe(TOPIC, f"reads-{count}", initial_position=start)
    found = []
    for _ in range(count):
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        found.append(message.data())
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    client.close()
    return found


def damage(directory: Path, payload: bytes) -> None:
    """Turn a byte of an entry wherever a bookie keeps it."""
    turned = 0
    for path in directory.rglob("*"):
        if not path.is_file() or payload not in (content := path.read_bytes()):
            continue
        path.write_bytes(content.replace(payload, bytes([payload[0] ^ 0xFF]) + payload[1:]))
        turned += 1
    assert turned, f"{payload!r} is nowhere in {directory}"


def killed_with(platform: Standalone, found: list[bytes]) -> int:
    """The standalone has ended, and the topic's last ledger was not closed: its id. What its
    bookies were told is in their entry logs."""
    platform.start()
    client = publish(platform, found)
    ledger_id = open_ledger(platform)
    platform.kill()
    client.close()
    platform.start()
    platform.stop()
    return ledger_id


def open_ledger(platform: Standalone) -> int:
    with httpx.Client(base_url=platform.http_url, trust_env=False, timeout=60) as rest:
        stats = rest.get("/admin/v2/persistent/public/default/t/internalStats").json()
        return int(stats["ledgers"][-1]["ledgerId"])


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Standalone]:
    platform = Standalone(tmp_path / "data")
    yield platform
    platform.kill()


def test_a_topic_whose_last_message_is_lost_is_opened_at_an_operators_word(
    one: Standalone,
) -> None:
    sent = bodies(20)
    ledger_id = killed_with(one, sent)
    damage(one.data_dir / "bookie-0" / "ledgers", sent[-1])
    one.start()
    client = connected(one)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    client.close()
    assert f"magnetar ledger close-at-loss {ledger_id}" in one.log_path.read_text()

    where = ("--metadata", str(one.data_dir))
    about = ("ledger", "close-at-loss", str(ledger_id), *where)
    look = told(*about, code=1)
    assert (look["closesAt"], look["recoverable"], look["silent"]) == (18, False, {})
    assert [each["entryId"] for each in look["givenUp"]] == [19]
    assert look["of"]["magnetar-log"].endswith("t")
    shown = magnetar(*about, code=1)
    assert "it would be closed at entry 18, and, of what is known, 1 entry given up" in shown
    assert f"close-at-loss {ledger_id} --at 18 --accept-loss" in shown
    assert stored(ledger_id, *where)["state"] != "CLOSED"
    for wrong in (("--at", "18"), ("--accept-loss",)):
        magnetar(*about, *wrong, code=2)
    refused = magnetar(*about, "--at", "17", "--accept-loss", code=1, both=True)
    assert "would end at entry 18 now" in refused

    done = magnetar(*about, "--at", "18", "--accept-loss", both=True)
    assert f"ledger {ledger_id} is closed at entry 18: entry 19 was given up" in done
    assert "entries of it are given up" in done, "the event"
    assert received(one, 19) == sent[:19]
    more = [b"what comes next"]
    publish(one, more).close()
    assert received(one, 20) == sent[:19] + more

    found = told("ledger", "verify", "--all", *where)
    assert [each["ledgerId"] for each in found["givenUp"]] == [ledger_id]
    assert "entry 19 was given up" in magnetar("ledger", "explain", str(ledger_id), *where)
    kept = stored(ledger_id, *where)["custom"]
    assert json.loads(kept["magnetar-given-up"])["first"] == 19
    assert "given up at an operator's word" in one.log_path.read_text()
    again = magnetar(*about, code=1, both=True)
    assert "is closed, at entry 18" in again


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Standalone]:
    platform = Standalone(tmp_path / "data", "--bookies", "3")
    yield platform
    platform.kill()


def test_commands_ask_a_standalone_that_runs(three: Standalone) -> None:
    sent = bodies(30)
    ledger_id = killed_with(three, sent)
    where = ("--metadata", str(three.data_dir))
    for command in (
        ("ledger", "verify", "--all"), ("ledger", "metadata", "0"), ("bookie", "list"),
        ("recovery", "status"), ("cluster", "info"), ("bookie", "recover", "bookie-2"),
        ("autorecovery",),
    ):  # fmt: skip
        said = magnetar(*command, *where, code=1, both=True)
        assert f"the standalone of {three.data_dir} does not run" in said, command
        assert "start it (magnetar standalone --data-dir" in said.lower()
    damage(three.data_dir / "bookie-1" / "ledgers", sent[7])
    three.start()

    assert [each["state"] for each in told("bookie", "list", *where)] == ["read-write"] * 3
    assert [each["problem"] for each in told("bookie", "info", *where)] == [""] * 3
    listed = magnetar("bookie", "ledgers", "bookie-2", *where).split()
    assert str(ledger_id) in listed
    assert "bookie-2" in magnetar("bookie", "cookie", "bookie-2", *where)
    assert magnetar("cluster", "id", *where).strip()
    assert told("cluster", "info", *where)["silent"] == []
    assert told("recovery", "status", *where)["auditor"] is None
    assert told("recovery", "list", *where) == []
    assert not told("cluster", "plan-decommission", "bookie-0", *where, code=1)["possible"]
    assert stored(ledger_id, *where)["state"] == "OPEN"
    explained = told("ledger", "explain", str(ledger_id), *where)
    assert all(each["answers"] for each in explained["bookies"])

    for switch, state in (("on", "read-only"), ("off", "read-write")):
        magnetar("bookie", "read-only", switch, "bookie-2", *where)
        deadline_s = time.monotonic() + 30
        while told("bookie", "list", *where)[2]["state"] != state:
            assert time.monotonic() < deadline_s, switch

    found = told("ledger", "verify", "--all", "--repair", *where, code=1)
    assert [(each["firstEntryId"], each["bookieId"]) for each in found["findings"]] == [
        (7, "bookie-1")
    ]
    assert (found["replaced"], found["notRepaired"]) == (1, []), found
    assert told("ledger", "verify", "--all", *where)["sound"]
    assert received(three, 30) == sent


def test_a_bookie_of_a_standalone_is_given_up_and_its_copies_are_made_again(
    tmp_path: Path,
) -> None:
    platform = Standalone(tmp_path / "data", "--bookies", "4")
    where, sent = ("--metadata", str(platform.data_dir)), bodies(10)
    platform.start()
    for _ in range(6):  # ledgers, of which some are on the last bookie
        publish(platform, sent).close()
        magnetar("topics", "unload", TOPIC, "--url", platform.http_url)
    platform.stop()
    shutil.rmtree(platform.data_dir / "bookie-3")
    platform.arguments = ("--bookies", "3")
    platform.start()
    assert magnetar("bookie", "ledgers", "bookie-3", *where).split()
    repairs = Role(tmp_path, "autorecovery", *where, "--set", "repair.look_interval_ms=300")
    try:
        repairs.wait_ready()
        assert "bookie-3 is forgotten" in magnetar("bookie", "recover", "bookie-3", *where)
        found = told("ledger", "verify", "--all", *where)
        assert found["sound"]
        assert {each["bookieId"] for each in told("bookie", "list", *where)} == {
            f"bookie-{number}" for number in range(3)
        }
        assert received(platform, 60) == sent * 6
        platform.stop()
        assert repairs.wait_ended() == 1
        assert "has ended; start this again when it runs" in repairs.log
    finally:
        repairs.end()
        platform.kill()


def acknowledged_piecemeal(platform: Standalone, sent: list[bytes]) -> int:
    """Message 0, then 5 to 9, each stored by itself; the standalone was killed, and its bookie has
    all in entry logs. The id of the ledger that has them."""
    platform.start()
    client = publish(platform, sent)
    consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    messages = [consumer.receive(60_000) for _ in sent]
    for place in (0, 5, 6, 7, 8, 9):
        consumer.acknowledge(messages[place])
        time.sleep(0.4)  # longer than ``cursor_flush_interval_ms``
    ledger_id = open_ledger(platform) + 1  # the next that was made
    platform.kill()
    with suppress(pulsar.PulsarException):  # nobody is there to hear of it
        client.close()
    platform.start()
    kept = stored(ledger_id, "--metadata", str(platform.data_dir))["custom"]
    assert kept["magnetar-cursor"].endswith("t/s")
    platform.stop()
    return ledger_id


def test_a_topic_whose_acknowledgements_are_damaged_is_opened_at_an_operators_word(
    one: Standalone,
) -> None:
    sent = bodies(20)
    ledger_id = acknowledged_piecemeal(one, sent)
    damage(one.data_dir / "bookie-0" / "ledgers", struct.pack(">qqq", ledger_id, 2, 1))
    one.start()
    client = connected(one)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(TOPIC, "s")
    client.close()
    said = one.log_path.read_text()
    assert "acknowledgements of subscription 's' of topic public/default/persistent/t" in said
    assert f"magnetar ledger close-at-loss {ledger_id}" in said

    where = ("--metadata", str(one.data_dir))
    about = ("ledger", "close-at-loss", str(ledger_id), *where)
    look = told(*about, code=1)
    assert look["state"] == "CLOSED"
    assert (look["recoverable"], look["givenUp"]) == (False, [])
    assert [each["entryId"] for each in look["unreadable"]] == [2]
    shown = magnetar(*about, code=1)
    assert "has the acknowledgements of a subscription" in shown
    at = look["closesAt"]
    assert f"close-at-loss {ledger_id} --at {at} --accept-loss" in shown
    done = magnetar(*about, "--at", str(at), "--accept-loss", both=True)
    assert f"ledger {ledger_id} is closed at entry {at}: what nobody can read was" in done

    client = connected(one)
    consumer = client.subscribe(TOPIC, "s")
    lost = 6  # what the third record alone said
    wanted = [body for place, body in enumerate(sent) if place not in {0, 5, 7, 8, 9}]
    assert sent[lost] in wanted
    assert [consumer.receive(60_000).data() for _ in wanted] == wanted
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    client.close()
    assert "acknowledgements were given up" in one.log_path.read_text()


def gone(one: Standalone, ledger_id: int, of: str) -> None:
    """Its metadata are deleted; the topic says so to a client, and an operator goes on without."""
    where = ("--metadata", str(one.data_dir))
    assert "is deleted" in magnetar("ledger", "delete", str(ledger_id), "--force", *where)
    client = connected(one)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(TOPIC, "s")
    client.close()
    command = f"magnetar ledger close-at-loss {ledger_id} --of {of}"
    assert command in one.log_path.read_text()

    about = ("ledger", "close-at-loss", str(ledger_id), *where)
    assert "--of NAME" in magnetar(*about, code=1, both=True)
    other = magnetar(*about, "--of", of + "/other", code=1, both=True)
    assert f"there is no {of}/other" in other
    look = told(*about, "--of", of, code=1)
    assert (look["state"], look["closesAt"]) == ("GONE", -1)
    assert f"{command} --at -1 --accept-loss" in magnetar(*about, "--of", of, code=1)
    done = magnetar(*about, "--of", of, "--at", "-1", "--accept-loss", both=True)
    assert "entered anew, closed and empty: all that was in it was given up" in done
    assert "its metadata are there" in magnetar(*about, "--of", of, code=1, both=True)
    assert json.loads(stored(ledger_id, *where)["custom"]["magnetar-given-up"])["gone"] is True


def test_a_topic_whose_acknowledgements_are_gone_is_opened_at_an_operators_word(
    one: Standalone,
) -> None:
    """The topic was shut, and no command but its deletion was left."""
    sent = bodies(20)
    ledger_id = acknowledged_piecemeal(one, sent)
    one.start()
    gone(one, ledger_id, "public/default/persistent/t/s")

    client = connected(one)
    consumer = client.subscribe(TOPIC, "s")
    wanted = sent[1:]  # the mark-delete position was stored beside it
    assert [consumer.receive(60_000).data() for _ in wanted] == wanted
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    client.close()
    assert "acknowledgements were given up" in one.log_path.read_text()


def test_a_topic_whose_last_ledger_is_gone_is_opened_at_an_operators_word(
    one: Standalone,
) -> None:
    sent = bodies(20)
    one.start()
    client = publish(one, sent)
    client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    ledger_id = open_ledger(one)
    one.kill()
    with suppress(pulsar.PulsarException):  # nobody is there to hear of it
        client.close()
    one.start()
    gone(one, ledger_id, "public/default/persistent/t")

    client = connected(one)
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC)
    producer.send(b"new")
    assert consumer.receive(60_000).data() == b"new"
    client.close()
