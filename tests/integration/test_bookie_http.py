"""A bookie over HTTP, and the commands that ask a cluster's metadata store and bookies, on bookies
as processes and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.env.network.free_ports import free_port
from magnetar.ledger import LedgerConfig, connect
from tests.integration.test_operators import magnetar, told
from tests.roles import Role
from tests.scenarios.cluster import SETTINGS

pytestmark = pytest.mark.zookeeper


class HttpBookie:
    def __init__(self, folder: Path, url: str, *more: str) -> None:
        self.port = free_port()
        self.bookie_id = f"127.0.0.1:{self.port}"
        self._start = (
            *("bookie", "--data-dir", str(folder / "bookie"), "--port", str(self.port)),
            *("--http-port", "0", "--metadata", url, *SETTINGS, *more),
        )
        self._folder = folder
        self.start()

    def start(self) -> None:
        self.role = Role(self._folder, *self._start).wait_ready()
        found = re.search(r"http://\S+", self.role.ready_line)
        assert found, self.role.ready_line
        self.http = found[0]

    def get(self, path: str, body: Any = None, method: str = "GET") -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.http}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, path: str, body: Any = None, method: str = "GET") -> Any:
        status, text = self.get(path, body, method)
        assert status == 200, text
        return json.loads(text)


@pytest.fixture
def bookie(tmp_path: Path, zookeeper_url: str) -> Iterator[HttpBookie]:
    bookie = HttpBookie(tmp_path, zookeeper_url)
    yield bookie
    bookie.role.kill()


def write(url: str, custom: dict[str, bytes]) -> int:
    async def work() -> int:
        async with connect(url, LedgerConfig()) as client:
            writer = await client.create(custom)
            await writer.add([b"x" * 1000] * 20)
            await writer.close()
            return writer.ledger_id

    return asyncio.run(work())


def test_what_a_bookie_says_of_itself(bookie: HttpBookie, zookeeper_url: str) -> None:
    assert bookie.http.startswith("http://127.0.0.1:")
    ledger_id = write(zookeeper_url, {})
    assert bookie.get("/heartbeat") == (200, "OK\n")
    assert bookie.get("/api/v1/bookie/is_ready") == (200, "OK")
    health = bookie.json("/health")
    assert health["ok"], health
    assert {each["part"] for each in health["parts"]} == {"metadata", "bookie", "registration"}
    status, metrics = bookie.get("/metrics")
    assert status == 200
    assert "magnetar_bookie_" in metrics

    state = bookie.json("/api/v1/bookie/state")
    for field, value in {
        "running": True, "readOnly": False, "shuttingDown": False,
        "availableForHighPriorityWrites": True, "bookieId": bookie.bookie_id,
        "registered": True, "limbo": False, "ledgers": 1, "refusal": None,
    }.items():  # fmt: skip
        assert state[field] == value, (field, state)
    (directory,), (journal,) = state["directories"], state["journals"]
    assert 0 < directory["freeBytes"] <= directory["totalBytes"]
    assert journal["offset"] > 20_000
    assert journal["problem"] == ""
    info = bookie.json("/api/v1/bookie/info")
    assert info["totalSpace"] == directory["totalBytes"]
    assert bookie.json("/api/v1/bookie/ledgers") == [ledger_id]
    assert bookie.json(f"/api/v1/bookie/ledgers?after={ledger_id}") == []
    assert bookie.json("/api/v1/bookie/sanity") == {"passed": True, "readOnly": False}
    assert bookie.json("/api/v1/bookie/ledgers") == [ledger_id], "sanity has left something"
    assert "Triggered GC" in bookie.json("/api/v1/bookie/gc", method="PUT")
    assert bookie.json("/api/v1/bookie/gc") == {"is_in_force_gc": "false"}


def test_read_only_by_an_operators_word_outlives_a_restart(
    bookie: HttpBookie, zookeeper_url: str
) -> None:
    path, where = "/api/v1/bookie/state/readonly", ("--metadata", zookeeper_url)
    assert bookie.json(path) == {"readOnly": False}
    assert bookie.json(path, {"readOnly": True}, "PUT") == {"readOnly": True}
    assert bookie.json("/api/v1/bookie/sanity") == {"passed": False, "readOnly": True}
    assert bookie.json("/health")["ok"], "what an operator wants is no fault"
    bookie.role.end()
    bookie.start()
    assert bookie.json(path) == {"readOnly": True}
    (row,) = told("bookie", "list", "--read-only", *where)
    assert (row["bookieId"], row["toBeReadOnly"]) == (bookie.bookie_id, True)
    assert told("bookie", "list", "--read-write", *where) == []
    assert "takes entries again" in magnetar("bookie", "read-only", "off", bookie.bookie_id, *where)
    while bookie.json(path) != {"readOnly": False}:
        pass  # each look is a turn of its loop


def test_commands_about_bookies_and_ledgers(bookie: HttpBookie, zookeeper_url: str) -> None:
    where = ("--metadata", zookeeper_url)
    mine, left_over = write(zookeeper_url, {"application": b"mine"}), write(zookeeper_url, {})
    (space,) = told("bookie", "info", *where)
    assert 0 < space["freeBytes"] <= space["totalBytes"]
    assert told("bookie", "ledgers", bookie.bookie_id, *where) == [mine, left_over]
    instance_id = magnetar("cluster", "id", *where).strip()
    found = told("cluster", "info", *where)
    assert (found["instanceId"], found["bookies"]) == (instance_id, {"read-write": 1})
    assert instance_id in magnetar("bookie", "cookie", bookie.bookie_id, *where)
    magnetar("bookie", "cookie", bookie.bookie_id, "--delete", *where, code=2)  # it runs
    mistyped = [sys.executable, "-m", "magnetar", "bookie", "cookie", "mistyped", *where]
    refused = subprocess.run(mistyped, capture_output=True, text=True, timeout=200, check=False)
    assert "knows no bookie mistyped" in refused.stderr

    metadata = json.loads(magnetar("ledger", "metadata", str(mine), *where))
    assert metadata["custom"] == {"application": "mine"}
    assert metadata["fragments"] == [{"firstEntryId": 0, "bookies": [bookie.bookie_id]}]
    magnetar("ledger", "delete", str(mine), *where, code=2)  # it says whose it is
    magnetar("ledger", "delete", str(mine), "--force", *where)
    magnetar("ledger", "delete", str(left_over), *where)
    assert told("bookie", "ledgers", bookie.bookie_id, *where) == []
    bookie.role.kill()
    assert told("bookie", "info", bookie.bookie_id, *where, code=1)[0]["problem"]


def test_a_bookie_serves_no_http_unless_it_is_given_a_port(
    tmp_path: Path, zookeeper_url: str
) -> None:
    role = Role(
        tmp_path, "bookie", "--data-dir", str(tmp_path / "quiet"), "--port", str(free_port()),
        "--metadata", zookeeper_url, *SETTINGS,
    )  # fmt: skip
    try:
        assert "http://" not in role.wait_ready().ready_line
    finally:
        role.end()


def test_autorecovery_tells_its_health_and_metrics(
    bookie: HttpBookie, tmp_path: Path, zookeeper_url: str
) -> None:
    role = Role(tmp_path, "autorecovery", "--http-port", "0", "--metadata", zookeeper_url)
    try:
        found = re.search(r"http://\S+", role.wait_ready().ready_line)
        assert found, role.ready_line
        for path, words in (("/health", '"ok":true'), ("/metrics", "magnetar_repair_")):
            with urllib.request.urlopen(f"{found[0]}{path}", timeout=60) as answer:
                assert words in answer.read().decode()
    finally:
        assert role.end() == 0
