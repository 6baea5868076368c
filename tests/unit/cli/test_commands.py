"""The command line against REST of a platform of dictionaries: output, errors, exit codes."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest

from magnetar.admin.server import HttpServer
from magnetar.cli.main import COMMANDS, run
from magnetar.cli.rest import topic_path
from magnetar.env.health import WELL, Health, PartHealth
from magnetar.env.network.listening import bind
from magnetar.model.errors import ConfigError, TopicNotFoundError
from tests.unit.admin.fakes import FakeLedgers, application
from tests.unit.protocols.pulsar.harness import World

T = TypeVar("T")
TLS = ("--set", "tls.certificate_file=c", "--set", "tls.key_file=k")


class Served:
    """A fake platform behind real HTTP, on a thread of its own."""

    def __init__(self) -> None:
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._started.wait(10)

    async def _run(self) -> None:
        self.health = Health()
        self.world = await World(ledger_entries=100).start()
        await self._fill(self.world)
        app = application(self.world.broker, FakeLedgers(), self.health)
        server = HttpServer(app, bind("127.0.0.1", 0, "http.port"))
        await server.start()
        self.url = f"http://127.0.0.1:{server.port}"
        self._end = asyncio.Event()
        self._started.set()
        await self._end.wait()
        await server.stop()
        await self.world.broker.close()

    async def _fill(self, world: World) -> None:
        """Topic a has eight messages, three of them out at a consumer, and busy a producer."""
        peer = world.peer()
        await peer.produce("persistent://public/default/a", producer_id=1, name="p")
        await peer.subscribe("s", topic="persistent://public/default/a")
        peer.publish(8)
        await peer.heard()
        peer.flow(3)
        await peer.heard()
        await peer.produce("persistent://public/default/busy", producer_id=2)

    def ask(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def platform() -> Iterator[Served]:
    served = Served()
    yield served
    served.stop()


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    return capsys


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself_by_example(
    command: str, out: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    text = out.readouterr().out
    assert "Usage: magnetar" in text
    assert command in ("bookies",) or "Example" in text


def test_topics_list_and_stats(platform: Served, out: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "list", "--url", platform.url]) == 0
    assert "persistent://public/default/a\n" in out.readouterr().out
    assert run(["topics", "stats", "a", "--url", platform.url]) == 0
    text = out.readouterr().out
    assert "Shared" in text
    assert "retention keeps everything, for ever" in text
    assert "since" in text
    assert run(["topics", "stats", "a", "--json", "--url", platform.url]) == 0
    found = json.loads(out.readouterr().out)
    assert (found["msgInCounter"], found["msgOutCounter"]) == (8, 3)
    assert found["subscriptions"]["s"]["msgBacklog"] == 8


def test_brokers_list_says_who_serves_what(
    platform: Served, out: pytest.CaptureFixture[str]
) -> None:
    async def join() -> None:
        await platform.world.broker.join("http://r:80", "z1", 1000, lambda why: None, True)

    platform.ask(join())
    assert run(["brokers", "list", "--url", platform.url]) == 0
    assert re.search(r"r:80 .* z1 +read-only *\n", out.readouterr().out)


def test_health_says_what_is_wrong_and_what_to_do(
    platform: Served, out: pytest.CaptureFixture[str]
) -> None:
    async def well() -> PartHealth:
        return WELL

    async def full() -> PartHealth:
        return PartHealth(False, "3 MiB of 120 MiB are free", "free space on /data")

    ends = [platform.health.add("metadata", well)]
    assert run(["health", "--url", platform.url]) == 0
    assert "NOT WELL" not in out.readouterr().out
    ends.append(platform.health.add("disks", full))
    assert run(["health", "--url", platform.url]) == 1
    text = out.readouterr().out
    assert "3 MiB of 120 MiB are free" in text
    assert "free space on /data" in text
    assert run(["health", "--json", "--url", platform.url]) == 1
    assert json.loads(out.readouterr().out)["parts"][0]["part"] == "metadata"
    for end in ends:
        end()


def test_topics_create_and_delete(platform: Served, out: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "create-partitioned", "p", "3", "--url", platform.url]) == 0
    assert platform.ask(platform.world.admin.partitions("p")) == 3
    assert run(["topics", "create-partitioned", "p", "3", "--url", platform.url]) == 1
    assert "persistent://public/default/p exists already" in out.readouterr().err
    assert run(["topics", "delete", "public/default/p", "--url", platform.url]) == 0
    with pytest.raises(TopicNotFoundError):
        platform.ask(platform.world.admin.partitions("p"))
    assert run(["topics", "delete", "p", "--url", platform.url]) == 1
    assert "topic persistent://public/default/p does not exist" in out.readouterr().err
    assert run(["topics", "delete", "busy", "--url", platform.url]) == 1
    assert run(["topics", "delete", "busy", "--force", "--url", platform.url]) == 0


def test_ledger_list_show_read(platform: Served, out: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "list", "--url", platform.url]) == 0
    text = out.readouterr().out
    assert "CLOSED" in text
    assert "b:1: 5.0 MiB on disk are not used any more and wait to be given back; 3 del" in text
    assert "next look at 2026-01-02 03:04:05+00:00" in text
    assert "b:2" not in text, "what another process holds is not known here"
    assert run(["ledger", "show", "2", "--url", platform.url]) == 0
    assert "b:1" in out.readouterr().out
    assert run(["ledger", "read", "2", "--first", "8", "--url", platform.url]) == 0
    text = out.readouterr().out
    assert "2:8  5 bytes" in text
    assert "68 65 6c 6c 6f" in text
    assert run(["ledger", "read", "2", "--json", "--url", platform.url]) == 0
    assert len(json.loads(out.readouterr().out)) == 10
    assert run(["bookies", "--url", platform.url]) == 0
    assert re.search(r"b:1 .* 5.0 MiB *\n", out.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fly"], 2, "No such command 'fly'"),
        (["topics", "stats"], 2, "Missing argument 'TOPIC'"),
        (["topics", "stats", "none"], 1, "topic persistent://public/default/none does not exist"),
        (["topics", "stats", "kafka://a/b/c"], 2, "persistent topics only"),
        (["topics", "create-partitioned", "p", "0"], 2, "0 is not in the range"),
        (["ledger", "show", "x"], 2, "'x' is not a valid integer"),
        (["ledger", "show", "9"], 1, "there is no ledger 9"),
        (["ledger", "read", "1", "--count", "5000"], 2, "is not in the range"),
        (["topics", "stats", "../../x"], 2, "[TENANT/NAMESPACE/]TOPIC"),
        (["topics", "stats", ".."], 2, "[TENANT/NAMESPACE/]TOPIC"),
        (["topics", "delete", "public/default"], 2, "[TENANT/NAMESPACE/]TOPIC"),
        (["topics", "create", "a/b/c/d"], 2, "[TENANT/NAMESPACE/]TOPIC"),
        (["topics", "list", "public"], 2, "TENANT/NAMESPACE"),
        (["topics", "list", "public/.."], 2, "TENANT/NAMESPACE"),
        (["namespaces", "list", "public/default"], 2, "accepted: TENANT"),
        (["namespaces", "policies", "get", "public"], 2, "TENANT/NAMESPACE"),
        (["namespaces", "create", "public"], 2, "TENANT/NAMESPACE"),
        (["namespaces", "create", "acme/prod"], 1, "tenant acme does not exist"),
        (["namespaces", "split-bundle", "a/b/c", "--bundle", "x"], 2, "TENANT/NAMESPACE"),
        (["brokers", "bundles", "public"], 2, "TENANT/NAMESPACE"),
        (["brokers", "unload", ""], 2, "TENANT/NAMESPACE"),
        (["produce", "t"], 2, "say what to publish"),
        (["produce", "public/t", "-m", "x"], 2, "[TENANT/NAMESPACE/]TOPIC"),
        (["produce", "t", "--count", "1", "--rate", "-1"], 2, "-1.0 is not in the range"),
        (["consume", "t", "-s", "s", "--timeout", "-1"], 2, "-1.0 is not in the range"),
        (["produce", "t", "-m", "x", "--count", "3"], 2, "in one way"),
        (["produce", "t", "-m", "x", "--property", "p"], 2, "NAME=VALUE"),
        (["produce", "t", "-m", "x", "--service-url", "kafka:1"], 2, "pulsar://HOST:PORT"),
        (["consume", "t"], 2, "Missing option '--subscription'"),
        (["topics", "list", "--url", "ftp://x"], 2, "http://HOST:PORT"),
        (["config", "--config", "/nowhere.toml"], 2, "cannot read"),
        (["standalone", "--set", "broker.prot=1"], 2, "did you mean broker.port"),
        (["standalone", "--set", "broker.port"], 2, "NAME=VALUE"),
        (["standalone", "--broker-port", "99999"], 2, "99999"),
        (["standalone", "--http-port", "6650"], 2, "broker.port = 6650 and http.port = 6650"),
        (["standalone", "--kafka-port", "8080"], 2, "give each its own"),
        (["standalone", *TLS, "--set", "kafka.tls_port=6650"], 2, "give each its own"),
        (["standalone", "--brokers", "4", "--kafka-port", "6653"], 2, "of 4 brokers"),
        (["standalone", "--bookies", "0"], 2, "0 is not in the range"),
        (["standalone", "--metadata", "etcd://x"], 2, "zk://"),
        (["bookie", "--metadata", "sqlite:x"], 2, "zk://"),
        (["broker"], 2, "--metadata"),
        (["topics", "list", "--url", "http://"], 2, "http://HOST:PORT"),
        (["topics", "list", "--url", "http://a..b:1"], 2, "http://HOST:PORT"),
        (["topics", "list", "--url", "http://127.0.0.1:99999"], 2, "http://HOST:PORT"),
        (["topics", "list", "--url", "http://127.0.0.1:80?x=1"], 2, "http://HOST:PORT"),
        (["produce", "t", "-m", "x", "--service-url", "pulsar://"], 1, "no host's name"),
        (["produce", "t", "--count", "1", "--rate", "nan"], 2, "'nan' is no number"),
        (["consume", "t", "-s", "s", "--timeout", "nan"], 2, "'nan' is no number"),
        (["schemas", "upload", "t", "--file", sys.executable], 2, "text in UTF-8"),
    ],
)
def test_errors_are_one_clear_line_and_an_exit_code(
    platform: Served,
    out: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv("MAGNETAR_URL", platform.url)
    assert run(arguments) == code
    text = out.readouterr().err
    assert words in text
    assert "Traceback" not in text


class _NoPlatform(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *_: object) -> None:
        """Not to the output of the tests."""


class _Asking(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b'{"reason": "authentication failed"}')

    def log_message(self, *_: object) -> None:
        """Not to the output of the tests."""


@pytest.mark.parametrize(("given", "told"), [([], True), (["--token", "abc"], False)])
def test_who_shows_nothing_hears_how(
    out: pytest.CaptureFixture[str], given: list[str], told: bool
) -> None:
    with HTTPServer(("127.0.0.1", 0), _Asking) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert run(["topics", "list", "--url", url, *given]) == 1
        answering.join()
    assert ("--token-file" in out.readouterr().err) is told


def test_somebody_else_answers(out: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), _NoPlatform) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert run(["topics", "list", "--url", url]) == 1
        answering.join()
    told = out.readouterr().err
    assert "answered 200 with what is no JSON" in told
    assert "--url" in told


def test_tls_where_there_is_none_has_a_remedy_of_its_own(
    platform: Served, out: pytest.CaptureFixture[str]
) -> None:
    """It was said that no platform answers, and to start one."""
    assert run(["topics", "list", "--url", platform.url.replace("http", "https")]) == 1
    told = out.readouterr().err
    assert "--tls-trust" in told
    assert "magnetar standalone" not in told


def test_bytes_that_are_no_text_are_refused_before_anything_is_asked(
    out: pytest.CaptureFixture[str],
) -> None:
    """They were an internal error, and as a message's key the command never ended."""
    for words in (("topics", "stats", "a\udcff"), ("produce", "a", "-m", "x", "--key", "\udcff")):
        assert run(list(words)) == 2
        assert "\\xff' cannot be used; accepted: text in UTF-8" in out.readouterr().err


@pytest.mark.parametrize("token", ["\u00fc", "one two", "one\ntwo"])
def test_what_is_no_token_is_not_sent_nor_shown(
    token: str, platform: Served, out: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(token, encoding="utf-8")
    assert run(["topics", "list", "--url", platform.url, "--token", token]) == 2
    assert run(["topics", "list", "--url", platform.url, "--token-file", str(file)]) == 2
    said = out.readouterr().err
    assert "the token has spaces" in said
    assert "--token-file" in said
    assert token not in said


@pytest.mark.parametrize(
    ("closed", "command", "status"),
    [
        ("<&- >&- 2>&-", "config", 0),
        (">&-", "topics list --url http://127.0.0.1:1", 1),
        ("<&-", "tokens show", 2),
    ],
)
def test_standard_descriptors_may_be_closed(closed: str, command: str, status: int) -> None:
    """Each ended with an internal error, and a server without standard output was aborted."""
    line = f"exec {sys.executable} -m magnetar {command} {closed}"
    found = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == status
    assert "internal error" not in found.stderr


def test_nobody_answers(out: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "list", "--url", "http://127.0.0.1:9"]) == 1
    assert "no platform answers at http://127.0.0.1:9" in out.readouterr().err


def test_config_lists_checks_and_writes_settings(
    out: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNETAR_LEDGER_ADD_TIMEOUT_MS", "1234")
    assert run(["config"]) == 0
    assert "bookie.journal.sync" in out.readouterr().out
    assert run(["config", "--toml"]) == 0
    file = tmp_path / "m.toml"
    file.write_text(out.readouterr().out)
    monkeypatch.delenv("MAGNETAR_LEDGER_ADD_TIMEOUT_MS")
    assert run(["config", "--config", str(file), "--json"]) == 0
    found = {each["name"]: each for each in json.loads(out.readouterr().out)}
    assert found["ledger.add_timeout_ms"]["value"] == 1234
    assert found["ledger.add_timeout_ms"]["unit"] == "ms"
    assert found["bookie.journal.sync"]["value"] is True


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("a", "public/default/a"),
        ("t/n/a", "t/n/a"),
        ("a b", "public/default/a%20b"),
    ],
)
def test_topics_may_be_named_in_short(given: str, path: str) -> None:
    assert topic_path(given) == f"/admin/v2/persistent/{path}"


@pytest.mark.parametrize("given", ["", "t//a", "non-persistent://t/n/a"])
def test_topic_names_that_cannot_be(given: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        topic_path(given)


def test_schemas(platform: Served, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def schemas(*arguments: str) -> str:
        assert run(["schemas", *arguments, "--url", platform.url]) == 0
        return capsys.readouterr().out

    file = tmp_path / "definition"
    file.write_text('{"type": "record", "name": "R", "fields": []}')
    said = schemas("upload", "typed", "--file", str(file), "--type", "json")
    assert said.endswith("the schema of typed has version 0\n"), "after what the platform logs"
    assert json.loads(schemas("get", "typed")) == json.loads(file.read_text())
    assert json.loads(schemas("get", "typed", "--version", "0", "--json"))["type"] == "JSON"
    assert "JSON" in schemas("list", "typed")
    assert schemas("test", "typed", "--file", str(file), "--type", "json") == "compatible (FULL)\n"
    assert run(["schemas", "test", "typed", "--type", "INT8", "--url", platform.url]) == 1
    assert "does not become INT8" in capsys.readouterr().out
    assert run(["schemas", "upload", "typed", "--property", "x", "--url", platform.url]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err
    assert schemas("delete", "typed") == "deleted the schema of typed\n"
    assert run(["schemas", "get", "typed", "--url", platform.url]) == 1
    assert "has no schema" in capsys.readouterr().err


def test_prove_says_which_scenarios_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prove", "--list"]) == 0
    told = capsys.readouterr().out
    assert "leader-dies" in told
    assert "ledger-loses-bookies" in told
    assert run(["prove", "--scenario", "none"]) == 2
    assert "there are: leader-dies" in capsys.readouterr().err
