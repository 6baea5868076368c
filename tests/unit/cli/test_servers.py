"""How servers are configured, and what their process is set to."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from magnetar.cli.main import run
from magnetar.cli.servers import beside_pulsar, configured, quorums
from magnetar.config import Config
from magnetar.config_loading import load
from magnetar.env.allocator import tune_allocator
from magnetar.model.errors import ConfigError, StartError


@pytest.mark.parametrize(
    ("bookies", "expected"), [(1, (1, 1, 1)), (2, (2, 2, 2)), (3, (3, 3, 2)), (16, (3, 3, 2))]
)
def test_quorums_of_so_many_bookies(bookies: int, expected: tuple[int, int, int]) -> None:
    ledger = load(role_defaults=quorums(bookies)).ledger
    assert (ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum) == expected


def test_settings_of_the_user_win_over_those_of_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_LEDGER_ACK_QUORUM", "3")
    config = configured(None, ("ledger.add_timeout_ms=77",), {"http.port": None}, quorums(3))
    assert (config.ledger.ack_quorum, config.ledger.add_timeout_ms) == (3, 77)
    assert config.http.port == 8080


def test_a_flag_wins_over_a_pair() -> None:
    assert configured(None, ("http.port=1",), {"http.port": 2}).http.port == 2


def test_pairs_are_checked_like_any_setting() -> None:
    with pytest.raises(ConfigError, match=r"did you mean ledger\.ack_quorum"):
        configured(None, ("ledger.ack_qourum=1",), {})


def test_the_allocator_takes_the_settings() -> None:
    assert tune_allocator()


def kafka_port(*pairs: str, brokers: int = 1) -> int:
    """Where a standalone server with these settings serves Kafka's clients."""

    def with_kafka_on(port: int) -> Config:
        return configured(None, pairs, {}, {"kafka.port": port})

    return beside_pulsar(with_kafka_on, brokers).kafka.port


def test_kafkas_usual_port_is_beside_pulsars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def free(host: str, port: int, setting: str) -> socket.socket:
        asked.append(port)
        return socket.socket()

    monkeypatch.setattr("magnetar.cli.servers.bind", free)
    assert kafka_port(brokers=2) == 9092
    assert asked == [9092, 9093]
    assert kafka_port("broker.port=0") == -1  # a server with a place of its own
    assert kafka_port("broker.port=0", "kafka.port=9092") == 9092
    assert kafka_port("kafka.port=-1") == -1
    assert kafka_port("kafka.port=7") == 7
    assert capsys.readouterr().err == ""


def test_a_port_that_nobody_asked_for_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def taken(host: str, port: int, setting: str) -> socket.socket:
        raise StartError(f"{setting} = {port}: another process listens")

    monkeypatch.setattr("magnetar.cli.servers.bind", taken)
    assert kafka_port() == -1
    assert "Kafka's clients are not served: kafka.port = 9092" in capsys.readouterr().err
    assert kafka_port("kafka.port=9092") == 9092  # asked for: the start fails, and says why


@pytest.mark.parametrize(
    "words", [("standalone",), ("bookie",), ("cluster", "up"), ("zookeeper",)], ids=" ".join
)
def test_an_empty_data_directory_is_refused(
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a variable that is not set. The server lay down where it was started."""
    monkeypatch.chdir(tmp_path)
    assert run([*words, "--data-dir", ""]) == 2
    assert "it is empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
