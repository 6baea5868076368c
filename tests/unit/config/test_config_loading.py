"""Where settings come from, which source wins, and what a bad one is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import magnetar
from magnetar.config import Config, keeps_everything
from magnetar.config_loading import (
    ENVIRONMENT_PREFIX,
    NOT_SETTINGS,
    SERVICE_LINK,
    load,
    settings,
    unsafe_settings,
)
from magnetar.model.errors import ConfigError

HOSTS = ("host", "advertised_host")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_nothing_given_makes_the_defaults() -> None:
    assert load() == Config()


def test_later_sources_win(tmp_path: Path) -> None:
    file = written(
        tmp_path / "m.toml",
        "[ledger]\nensemble_size = 4\nwrite_quorum = 4\nack_quorum = 4\nread_timeout_ms = 77\n",
    )
    config = load(
        file,
        environment={"MAGNETAR_LEDGER_WRITE_QUORUM": "3", "MAGNETAR_LEDGER_ACK_QUORUM": "3"},
        flags={"ledger.ack_quorum": 2},
        role_defaults={"ledger.ensemble_size": 9, "ledger.add_timeout_ms": 55},
    )
    ledger = config.ledger
    assert (ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum) == (4, 3, 2)
    assert (ledger.read_timeout_ms, ledger.add_timeout_ms) == (77, 55)


def test_flags_that_were_not_given_change_nothing() -> None:
    config = load(environment={"MAGNETAR_HTTP_PORT": "81"}, flags={"http.port": None})
    assert config.http.port == 81


def test_values_of_every_kind_from_text() -> None:
    config = load(
        environment={
            "MAGNETAR_DATA_DIR": "/tmp/x",
            "MAGNETAR_CLUSTER": "blue",
            "MAGNETAR_BOOKIE_JOURNAL_SYNC": "off",
            "MAGNETAR_BOOKIE_JOURNAL_DIRECTORIES": "/a:/b",
            "MAGNETAR_BOOKIE_WRITE_CACHE_BYTES": "16MiB",
            "MAGNETAR_LEDGER_LEDGER_ENTRIES_MAX": "1_000",
        }
    )
    assert (config.data_dir, config.cluster) == (Path("/tmp/x"), "blue")
    assert config.bookie.journal.sync is False
    assert config.bookie.journal.directories == (Path("/a"), Path("/b"))
    assert config.bookie.write_cache_bytes == 16 << 20
    assert config.ledger.ledger_entries_max == 1000


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "[::1]", "fe80::1%eth0", "b\u00fccher.de"])
def test_hosts(host: str) -> None:
    given = {f"{part}.{name}": host for part in ("broker", "kafka") for name in HOSTS}
    config = load(flags=given)
    assert {config.broker.host, config.kafka.advertised_host} == {host}


def test_values_of_every_kind_from_toml(tmp_path: Path) -> None:
    text = 'cluster = "blue"\n[bookie]\nledger_directories = ["/a", "/b"]\n[bookie.journal]\n'
    config = load(written(tmp_path / "m.toml", text + "sync = false\nfile_bytes = '128 MiB'\n"))
    assert config.bookie.ledger_directories == (Path("/a"), Path("/b"))
    assert config.bookie.journal.sync is False
    assert config.bookie.journal.file_bytes == 128 << 20


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("broker.port", "70000", "0 to 65535"),
        ("ledger.retention_ms", "--5", "a whole number"),
        ("ledger.retention_ms", "9" * 5000, "a whole number"),
        ("bookie.journal.group_wait_us", 10**18, "at most 1000000"),
        ("ledger.retention_ms", "-", "a whole number"),
        ("ledger.retention_ms", "\u00b2", "a whole number"),
        ("broker.port", -1, "0 to 65535"),
        ("broker.port", "pulsar", "0 to 65535"),
        ("broker.port", True, "0 to 65535"),
        ("http.port", -2, "-1 to 65535"),
        ("bookie.journal.sync", "maybe", "true or false"),
        ("bookie.journal.file_bytes", "1KiB", "at least 1048576"),
        ("bookie.journal.file_bytes", "64 potatoes", "64KiB"),
        ("ledger.ack_quorum", 0, "at least 1"),
        ("bookie.disk_full_percent", 500, "at least 1 and at most 100"),
        ("bookie.compaction_minor_percent", -1, "at least 0 and at most 100"),
        ("ledger.ack_quorum", 1.5, "whole number"),
        ("ledger.add_timeout_ms", "16MiB", "whole number"),
        ("broker.host", "a..b", "a host's name"),
        ("kafka.advertised_host", "http://one", "a host's name"),
        ("tls.host", "one two", "a host's name"),
        ("logging.level", "loud", "debug, info, warning, error"),
        ("cluster", 7, "text"),
        ("data_dir", "", "a path"),
        ("bookie.ledger_directories", [1], "a list of paths"),
    ],
)
def test_a_bad_value_names_setting_value_source_and_what_is_accepted(
    name: str, value: object, accepted: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(flags={name: value})
    text = str(caught.value)
    assert name in text
    assert repr(value) in text
    assert "flag" in text
    assert accepted in text


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"ledger.write_quorum": 2}, "ledger.write_quorum = 2"),
        ({"ledger.ensemble_size": 3, "ledger.ack_quorum": 2}, "ledger.ack_quorum = 2"),
        ({"broker.message_bytes_max": "8MiB"}, "bookie.entry_bytes_max"),
        (
            {"broker.message_bytes_max": "8MiB", "bookie.entry_bytes_max": "9MiB"},
            "ledger.payload_bytes_max",
        ),
        ({"ledger.payload_bytes_max": "5MiB"}, "broker.message_bytes_max"),
        ({"ledger.read_hedge_ceiling_ms": 1}, "ledger.read_hedge_floor_ms = 5"),
        ({"bookie.journal.file_bytes": "4MiB"}, "bookie.journal.file_bytes"),
        ({"metadata.url": "etcd://x"}, "zk://"),
        ({"metadata.url": "sqlite:"}, "zk://"),
    ],
)
def test_settings_that_contradict_each_other(flags: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        load(flags=flags)


def test_a_misspelt_setting_is_an_error_with_a_proposal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean bookie\.journal\.sync"):
        load(written(tmp_path / "m.toml", "[bookie.journal]\nsink = true\n"))
    with pytest.raises(ConfigError, match="did you mean MAGNETAR_BROKER_PORT"):
        load(environment={"MAGNETAR_BROKER_PROT": "1"})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("MAGNETAR_DATADIR", "MAGNETAR_DATA_DIR"),
        ("MAGNETAR_BOKIE_JOURNAL_SYNC", "MAGNETAR_BOOKIE_JOURNAL_SYNC"),
        ("MAGNETAR_JOURNAL_SYNC", "MAGNETAR_BOOKIE_JOURNAL_SYNC"),
        ("MAGNETAR_LEDGERS_ACK_QUORUM", "MAGNETAR_LEDGER_ACK_QUORUM"),
        ("MAGNETAR_CLUSTERS", "MAGNETAR_CLUSTER"),
    ],
)
def test_a_misspelt_section_is_an_error_too(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting {variable}; did you mean {meant}"):
        load(environment={variable: "1"})


def test_variables_that_are_not_settings_are_left_alone() -> None:
    others = dict.fromkeys((*NOT_SETTINGS, "MAGNETAR_HOME", "PATH", "DATA_DIR"), "x")
    assert load(environment=others) == Config()


def test_variables_that_are_read_elsewhere_are_known_here() -> None:
    found = {
        name
        for source in Path(magnetar.__file__).parent.rglob("*.py")
        for name in re.findall(r'"(MAGNETAR_[A-Z_]+)"', source.read_text())
    }
    settings_of = {setting.variable for setting in settings()}
    assert found - settings_of - {ENVIRONMENT_PREFIX} == NOT_SETTINGS


def test_links_to_services_of_kubernetes_are_no_settings() -> None:
    """Of services named magnetar, and magnetar-broker."""
    links = {
        "SERVICE_HOST": "10.96.0.7",
        "SERVICE_PORT": "6650",
        "SERVICE_PORT_PULSAR": "6650",
        "PORT": "tcp://10.96.0.7:6650",
        "PORT_6650_TCP": "tcp://10.96.0.7:6650",
        "PORT_6650_TCP_PROTO": "tcp",
        "PORT_6650_TCP_PORT": "6650",
        "PORT_6650_TCP_ADDR": "10.96.0.7",
    }
    for service in ("MAGNETAR", "MAGNETAR_BROKER", "MAGNETAR_HTTP"):
        linked = {f"{service}_{name}": value for name, value in links.items()}
        assert load(environment=linked) == Config()
    assert not any(SERVICE_LINK.fullmatch(setting.variable) for setting in settings())
    assert load(environment={"MAGNETAR_BROKER_PORT": "7"}).broker.port == 7
    with pytest.raises(ConfigError, match=r"broker\.port = 'tcp:7'"):
        load(environment={"MAGNETAR_BROKER_PORT": "tcp:7"})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(written(tmp_path / "bad.toml", "[[["))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("given", "ms"),
    [("500ms", 500), ("90s", 90_000), ("10 min", 600_000), ("12h", 43_200_000), ("7d", 604_800_000),
     ("-1", -1), ("0", 0), (250, 250)],
)  # fmt: skip
def test_times_may_have_a_unit(given: object, ms: int) -> None:
    assert load(flags={"ledger.retention_ms": given}).ledger.retention_ms == ms


@pytest.mark.parametrize("given", ["7w", "d", "1.5h", "7 d s", "-2"])
def test_times_that_cannot_be(given: str) -> None:
    with pytest.raises(ConfigError, match="7d"):
        load(flags={"ledger.retention_ms": given})


def test_keeping_everything_is_known_for_what_it_is() -> None:
    assert keeps_everything(Config().ledger)
    assert not keeps_everything(load(flags={"ledger.retention_ms": "7d"}).ledger)
    assert not keeps_everything(load(flags={"ledger.retention_bytes": "1GiB"}).ledger)


def test_unsafe_settings_are_named() -> None:
    assert unsafe_settings(Config()) == []
    config = load(
        flags={
            "bookie.journal.sync": False,
            "ledger.ensemble_size": 3,
            "ledger.write_quorum": 3,
            "http.host": "0.0.0.0",
        }
    )
    found = " ".join(unsafe_settings(config))
    assert all(
        name in found for name in ("bookie.journal.sync", "ledger.ack_quorum", "http.host is")
    )


def test_every_setting_explains_itself() -> None:
    found = settings()
    assert len({setting.name for setting in found}) == len(found)
    for setting in found:
        assert setting.meaning
        assert setting.accepted
        assert setting.variable.startswith("MAGNETAR_")
    units = {setting.name: setting.unit for setting in found}
    assert units["bookie.journal.group_wait_us"] == "us"
    assert units["broker.pending_publish_bytes_per_connection"] == "bytes"
    assert units["broker.port"] == ""


def test_listeners_that_others_reach_are_warned_about() -> None:
    def warned(**flags: object) -> str:
        given = {name.replace("__", "."): value for name, value in flags.items()}
        return " ".join(unsafe_settings(load(flags=given)))

    assert warned(broker__host="127.0.0.2", http__host="localhost", kafka__host="::1") == ""
    for name in ("broker.host", "http.host", "tls.host"):
        said = " ".join(unsafe_settings(load(flags={name: "10.0.0.1"})))
        assert f"{name} is 10.0.0.1: anyone who reaches" in said
    assert "kafka.host" in warned(kafka__host="0.0.0.0", kafka__port=9092)
    asked = {"security__authentication": True}
    assert "in the clear" in warned(broker__host="0.0.0.0", **asked)
    assert warned(tls__host="0.0.0.0", **asked) == ""


def test_tls_ports_need_something_to_show() -> None:
    for name in ("broker.tls_port", "http.tls_port"):
        with pytest.raises(ConfigError, match="certificate_file"):
            load(flags={name: 6651})
    with pytest.raises(ConfigError, match="trusted_file"):
        load(flags={"tls.client_certificates": "optional"})


def test_deduplication_needs_ledgers() -> None:
    with pytest.raises(ConfigError, match="do not go together"):
        load(flags={"broker.deduplication": True, "broker.engine": "partition"})
    assert load(flags={"broker.deduplication": True}).broker.deduplication
