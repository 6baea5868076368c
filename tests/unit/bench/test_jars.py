"""Jars of peers: what is said when they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import prove
from bench.peers.jars import NotFetchedError, fetched_jars

POM = Path("server.pom.xml")


def tools(folder: Path, **scripts: str) -> str:
    """A PATH with these alone."""
    for name, script in scripts.items():
        tool = folder / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    return str(folder)


@pytest.fixture(autouse=True)
def _no_java_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_without_maven_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", tools(tmp_path, java=""))
    with pytest.raises(NotFetchedError, match="there is no mvn: install it"):
        fetched_jars(POM, tmp_path / "jars")


def test_what_maven_cannot_fetch_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / "jars.part"
    script = f"/bin/mkdir {part}; echo > {part}/one.jar; exit 3"
    monkeypatch.setenv("PATH", tools(tmp_path, java="", mvn=script))
    with pytest.raises(NotFetchedError, match="status 3"):
        fetched_jars(POM, tmp_path / "jars")
    assert not (tmp_path / "jars").exists()


def test_what_is_there_needs_no_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", tools(tmp_path, java=""))
    (tmp_path / "jars").mkdir()
    assert fetched_jars(POM, tmp_path / "jars") == tmp_path / "jars"


def test_a_peer_without_its_jars_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", tools(tmp_path, java=""))
    for name in prove.PEERS:
        peer = prove.found_peer(name, tmp_path)
        assert "there is no mvn" in peer.not_run["leader-dies"]
        assert f"{peer.name} is not run: " in capsys.readouterr().err
