"""How brokers reach one another, by their settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.app.kafka_doors import open_doors
from magnetar.app.securing import open_own_access
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.config import Config, KafkaConfig, SecurityConfig, TlsConfig
from magnetar.model.errors import ConfigError, StartError
from magnetar.protocols.kafka.server import KafkaDoors
from tests.certificates import Authority
from tests.unit.cluster.security.files import token, write_secret


def configured(directory: Path, said: str | None, port: int = 9092) -> Config:
    path = directory / "own"
    if said is not None:
        path.write_text(said)
    security = SecurityConfig(
        authentication=True,
        token_secret_key_file=str(write_secret(directory)),
        super_users="root",
        own_token_file="" if said is None else str(path),
    )
    return Config(kafka=KafkaConfig(port=port), security=security)


def opened(config: Config, *, shares: bool = True) -> KafkaDoors:
    authenticator = None
    if config.security.authentication:
        certificates = config.tls.client_certificates != "none"
        authenticator = Authenticator(config.security, lambda: 1e9, certificates)
    return open_doors(config, open_own_access(config, authenticator, shares), shares)


def test_where_nobody_is_asked_nothing_is_shown() -> None:
    way = opened(Config(kafka=KafkaConfig(port=9092))).way
    assert (way.token, way.tls) == (None, None)


def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    config = configured(tmp_path, f" {token('root')}\n")
    way = opened(config).way
    assert way.token is not None
    assert way.token() == token("root")
    longer = token("root", exp=2e9)
    (tmp_path / "own").write_text(longer)
    assert way.token() == longer


@pytest.mark.parametrize("shares", [True, False])
def test_brokers_of_a_cluster_need_a_token(tmp_path: Path, shares: bool) -> None:
    config = configured(tmp_path, None)
    if shares:
        with pytest.raises(StartError, match="own_token_file"):
            opened(config)
    else:
        assert opened(config, shares=False).way.token is None


def test_a_token_that_others_would_refuse_is_refused_at_start(tmp_path: Path) -> None:
    for said, why in (
        (token("carol"), "carol is not among security.super_users"),
        (token("root", exp=1), "expired"),
        (token("root", secret=b"x" * 32), "not signed by a key of ours"),
    ):
        config = configured(tmp_path, said)
        with pytest.raises(StartError, match=why):
            opened(config)
    for said in ("", "two words", "\u00e4"):
        config = configured(tmp_path, said)
        with pytest.raises(ConfigError, match="own_token_file"):
            opened(config)


def test_a_listener_with_tls_and_a_way_by_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("root")
    tls = TlsConfig(
        certificate_file=str(own.certificate),
        key_file=str(own.key),
        trusted_file=str(authority.trusted),
        between_brokers=True,
        client_certificates="optional",
    )
    config = configured(tmp_path, None)
    by_tls = replace(config, kafka=KafkaConfig(port=-1, tls_port=9093), tls=tls)
    doors = opened(by_tls)
    assert doors.tls is not None
    assert doors.way.tls is not None
    assert doors.way.token is None, "its certificate is enough"
    with pytest.raises(StartError, match=r"kafka\.tls_port"):
        opened(replace(config, tls=tls))
