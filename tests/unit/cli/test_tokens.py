"""``magnetar tokens`` and ``users``: what they write, servers take."""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from magnetar.cli.tokens import tokens
from magnetar.cli.users import users
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.config import SecurityConfig
from magnetar.model.errors import ConfigError


def run(command: object, *arguments: str, text: str = "") -> str:
    done = CliRunner().invoke(command, arguments, input=text)  # type: ignore[arg-type]
    assert done.exit_code == 0, done.output
    return done.stdout


def fails(command: object, *arguments: str) -> Result:
    done = CliRunner().invoke(command, arguments)  # type: ignore[arg-type]
    assert done.exit_code != 0
    return done


def test_a_secret_signs_tokens_that_servers_take(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    run(tokens, "create-secret-key", "--output", str(path))
    assert path.stat().st_mode & 0o077 == 0
    made = run(tokens, "create", "--secret-key", str(path), "--subject", "alice").strip()
    config = SecurityConfig(token_secret_key_file=str(path))
    assert Authenticator(config, time.time).by_token(made).role == "alice"
    checked = ("validate", "--secret-key", f"file://{path}")
    assert "alice" in run(tokens, *checked, made)
    assert "alice" in run(tokens, *checked, text=made)
    assert '"sub": "alice"' in run(tokens, "show", made)
    encoded = "data:;base64," + base64.b64encode(path.read_bytes()).decode()
    assert "alice" in run(tokens, "validate", "--secret-key", encoded, made)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384"])
def test_key_pairs_sign_tokens_that_servers_take(tmp_path: Path, algorithm: str) -> None:
    private, public = str(tmp_path / "a.key"), str(tmp_path / "a.pub")
    options = ("--output-private-key", private, "--output-public-key", public)
    run(tokens, "create-key-pair", *options, "--algorithm", algorithm)
    made = run(
        tokens, "create", "--private-key", private, "--subject", "bob", "--expiry-time", "1h"
    ).strip()
    config = SecurityConfig(token_public_key_file=public)
    found = Authenticator(config, time.time).by_token(made)
    assert found.role == "bob"
    assert found.expires_s is not None
    assert 3500 < found.expires_s - time.time() <= 3600
    assert "until" in run(tokens, "validate", "--public-key", public, made)


def test_what_does_not_count_is_said_why(tmp_path: Path) -> None:
    secret = str(tmp_path / "secret.key")
    run(tokens, "create-secret-key", "--output", secret)
    done = fails(tokens, "validate", "--secret-key", secret, "a.b.c")
    assert isinstance(done.exception, ConfigError)
    assert "not signed" in str(done.exception)
    for arguments in (
        ("create", "--subject", "a"),
        ("create", "--secret-key", secret, "--subject", "a", "--expiry-time", "soon"),
        ("create", "--secret-key", secret, "--subject", "a", "--algorithm", "RS256"),
        ("create", "--secret-key", str(tmp_path / "none"), "--subject", "a"),
        ("show", "x"),
        ("create", "--secret-key", secret, "--subject", ""),
        ("create", "--secret-key", secret, "--subject", "a", "--expiry-time", "9" * 20 + "y"),
        ("show", base64.urlsafe_b64encode(b"[" * 20_000).decode()),
    ):
        assert isinstance(fails(tokens, *arguments).exception, ConfigError | SystemExit)
    long = ("create", "--secret-key", secret, "--subject", "a", "--expiry-time", "99999999y")
    assert "until" in run(tokens, "validate", "--secret-key", secret, run(tokens, *long).strip())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """It was the name of a file beside it, which nobody had given; or an internal error."""
    away = str(tmp_path / "none" / "key")
    for arguments in (
        ("create-secret-key", "--output", away),
        ("create-secret-key", "--output", ""),
        ("create-key-pair", "--output-private-key", away, "--output-public-key", "/dev/null"),
    ):
        done = fails(tokens, *arguments)
        assert isinstance(done.exception, ConfigError)
        assert "key'" not in str(done.exception)
        assert f"{arguments[2] or '.'}" in str(done.exception)


def test_a_pair_without_a_place_for_its_public_key_changes_nothing(tmp_path: Path) -> None:
    private, away = tmp_path / "a.key", str(tmp_path / "none" / "a.pub")
    private.write_bytes(b"before")
    options = ("--output-private-key", str(private), "--output-public-key", away)
    assert away in str(fails(tokens, "create-key-pair", *options, "--algorithm", "ES256").exception)
    assert private.read_bytes() == b"before"


def test_users_are_added_listed_and_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "users.json")
    add = ("add", "alice", "--file", path, "--iterations", "4096")
    run(users, *add, "--password-stdin", text="secret\n")
    run(users, "add", "bob", "--file", path, "--iterations", "4096", text="b\nb\n")
    assert Path(path).stat().st_mode & 0o077 == 0
    assert "secret" not in Path(path).read_text()
    assert run(users, "list", "--file", path).split() == ["alice", "bob"]
    shown = Authenticator(SecurityConfig(users_file=path), time.time)
    assert shown.by_password("alice", "secret").role == "alice"
    assert shown.by_password("bob", "b").role == "bob"
    run(users, *add, "--password-stdin", text="other\n")
    assert shown.by_password("alice", "other").role == "alice"
    run(users, "remove", "alice", "--file", path)
    assert run(users, "list", "--file", path, "--json").strip().startswith("[")
    fails(users, "remove", "alice", "--file", path)
    fails(users, "add", "a,b", "--file", path, "--password-stdin")
    assert isinstance(fails(users, "list", "--file", path + "x").exception, ConfigError)


def test_users_that_are_added_at_once_are_all_there(tmp_path: Path) -> None:
    """Each read the file, and the last one wrote what it had read: the others were lost."""
    path = str(tmp_path / "users.json")
    names = [f"u{number}" for number in range(4)]
    begun = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "magnetar", "users", "add", name, "--file", path),
                *("--iterations", "4096", "--password-stdin"),
            ],
            stdin=subprocess.PIPE,
        )
        for name in names
    ]
    for each in begun:
        each.communicate(b"secret\n", timeout=60)
    assert [each.returncode for each in begun] == [0] * len(names)
    assert run(users, "list", "--file", path).split() == names


def test_a_password_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "users.json")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "magnetar", "users", "add", "a", "--file", path),
            "--password-stdin",
        ],
        input=b"\xff\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"UTF-8" in done.stderr
