"""``magnetar recovery`` and ``magnetar bookie decommission``: what is refused, what is shown."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sys
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from magnetar.app.metadata_socket import socket_place
from magnetar.cli.main import cli, run
from magnetar.cli.recovery import Bar, _switch_to_read_only
from magnetar.model.errors import ConfigError
from magnetar.model.ids import BookieId


@pytest.mark.parametrize(
    "arguments",
    [
        ["recovery", "status"],
        ["bookie", "decommission", "b1"],
        ["bookie", "recover", "b1"],
        ["bookie", "list"],
        ["bookie", "info"],
        ["bookie", "ledgers", "b1"],
        ["bookie", "read-only", "on", "b1"],
        ["bookie", "cookie", "b1"],
        ["cluster", "id"],
        ["cluster", "info"],
        ["cluster", "plan-decommission", "b1"],
        ["ledger", "explain", "1"],
        ["ledger", "verify", "1"],
        ["ledger", "metadata", "1"],
        ["ledger", "delete", "1"],
        ["ledger", "close-at-loss", "1"],
    ],
)
def test_they_need_a_clusters_metadata(arguments: list[str]) -> None:
    missing = CliRunner().invoke(cli, arguments)
    assert missing.exit_code == 2
    assert "--metadata" in missing.output


def test_a_file_is_no_clusters_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recovery", "list", "--metadata", "sqlite:/tmp/x"]) == 2
    assert "accepted: zk://" in capsys.readouterr().err


@pytest.mark.parametrize("left", ["nothing", "a note", "a socket that nobody listens at", "a copy"])
@pytest.mark.parametrize("command", [["recovery", "list"], ["autorecovery"]])
def test_a_standalone_that_does_not_run_is_to_be_started(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    left: str,
    command: list[str],
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "metadata.sqlite").touch()
    with ExitStack() as stack:
        if left != "nothing":
            process = AsyncExitStack()
            place = socket_place(process, data_dir)
            stack.callback(lambda: asyncio.run(process.aclose()))
            if left != "a note":
                made = stack.enter_context(socket.socket(socket.AF_UNIX))
                made.bind(str(place))
        if left == "a copy":
            made.listen()
            data_dir = Path(shutil.copytree(data_dir, tmp_path / "copy"))
        assert run([*command, "--metadata", str(data_dir)]) == 1
    said = capsys.readouterr().err
    assert f"the standalone of {data_dir} does not run" in said
    assert f"magnetar standalone --data-dir {data_dir}" in said


@pytest.mark.parametrize("arguments", [["--at", "3"], ["--accept-loss"]])
def test_a_loss_is_accepted_by_two_words(arguments: list[str]) -> None:
    about = ["ledger", "close-at-loss", "1", "--metadata", "zk://127.0.0.1:1/none"]
    refused = CliRunner().invoke(cli, [*about, *arguments])
    assert refused.exit_code == 2
    assert "go together" in refused.output


def test_help_names_the_commands_of_a_bookie() -> None:
    told = CliRunner().invoke(cli, ["bookie", "--help"]).output
    assert "decommission" in told
    assert "recover" in told
    assert "--leave-limbo" in told


def test_the_bar_fills_as_less_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = Bar("ledgers")
    for left in (10, 5, 0):
        bar.show(left)
    bar.end(0)
    shown = capsys.readouterr().err.split("\r")[1:]
    assert [each.count("#") for each in shown] == [0, 15, 30, 30]
    assert "5 ledgers" in shown[1]


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("ledgers")
    bar.show(3)
    bar.end(0)
    assert capsys.readouterr().err == ""


class OneBookie:
    """``Operating`` of a cluster with a bookie of BookKeeper's own, which takes entries until it is
    told otherwise."""

    def __init__(self, address: tuple[str, int] | None) -> None:
        self._address = address
        self.told = asyncio.Event()

    def http_address(self, bookie_id: BookieId) -> tuple[str, int] | None:
        return self._address

    async def wait_read_only(self, bookie_id: BookieId, read_only: bool) -> None:
        assert read_only
        await self.told.wait()


def switch(answer: bytes | None) -> list[bytes]:
    """Switch it to read-only; its REST answers so (None: there is none). What REST was asked."""

    async def main() -> list[bytes]:
        asked: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            asked.extend((head.partition(b"\r\n")[0], await reader.readexactly(length)))
            bookie.told.set()
            writer.write(answer or b"")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()[:2] if answer is not None else None
        bookie = OneBookie(address)
        async with server:
            await _switch_to_read_only(bookie, BookieId("j-1"))
        return asked

    return asyncio.run(main())


def test_a_bookie_of_bookkeepers_is_switched_to_read_only_by_its_rest() -> None:
    line, body = switch(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert line == b"PUT /api/v1/bookie/state/readonly HTTP/1.1"
    assert json.loads(body) == {"readOnly": True}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "says of no HTTP server"),
        (b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno", "answers 403: no"),
        (b"", "does not answer"),
    ],
)
def test_one_that_cannot_be_switched_is_not_emptied(answer: bytes | None, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        switch(answer)
    assert "magnetar bookie recover j-1" in str(refused.value)
