"""One process per data directory; ports in use are found out when they are bound."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from magnetar.env.files.data_dir import DataDir, metadata_file
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.env.network.listening import advertised_host, bind, port_of
from magnetar.model.errors import MetadataError, StartError


def test_a_directory_is_made_and_locked(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    held = DataDir.open(path, "standalone")
    with pytest.raises(StartError, match=rf"in use by magnetar standalone, process {os.getpid()}"):
        DataDir.open(path, "bookie")
    held.close()
    DataDir.open(path, "bookie").close()


def test_the_layout(tmp_path: Path) -> None:
    held = DataDir.open(tmp_path, "standalone")
    assert metadata_file(tmp_path) == tmp_path / "metadata.sqlite"
    assert held.journal_directory(2) == tmp_path / "bookie-2" / "journal"
    assert held.ledger_directory(0) == tmp_path / "bookie-0" / "ledgers"
    assert held.bookies_held() == 0
    for name in ("bookie-0", "bookie-10", "bookie-x"):
        (tmp_path / name).mkdir()
    assert held.bookies_held() == 11
    held.close()


def test_a_path_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="cannot use the data directory"):
        DataDir.open(tmp_path / "file", "standalone")


def test_a_full_disk_is_said_of_which_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was "[Errno 28] No space left on device", of what was not said."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StartError, match=rf"data directory {tmp_path}: .*No space left"):
            DataDir.open(tmp_path, "standalone")
        with pytest.raises(MetadataError, match=rf"{tmp_path}/m cannot be locked: No space left"):
            asyncio.run(SqliteMetadataStore.open(tmp_path / "m"))
    DataDir.open(tmp_path, "standalone").close()


def test_port_0_takes_a_free_one() -> None:
    with bind("127.0.0.1", 0, "x.port") as bound:
        assert port_of(bound) > 0


def test_a_port_that_is_bound_but_not_served_yet_is_in_use() -> None:
    with bind("127.0.0.1", 0, "x.port") as first:
        port = port_of(first)
        first.listen()
        with pytest.raises(StartError, match=rf"x\.port = {port}: another process listens"):
            bind("127.0.0.1", port, "x.port")


def test_an_address_of_another_machine() -> None:
    with pytest.raises(StartError, match=r"x\.port = 1234: cannot listen on 192\.0\.2\.1:1234"):
        bind("192.0.2.1", 1234, "x.port")


def test_what_others_are_told() -> None:
    assert advertised_host("127.0.0.1", "") == "127.0.0.1"
    assert advertised_host("127.0.0.1", "broker.example") == "broker.example"
    assert advertised_host("0.0.0.0", "") == socket.gethostname()
