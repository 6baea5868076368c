"""One line an event, from our own logs and from libraries'."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from magnetar import logs
from magnetar.config import LoggingConfig


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    ours = logging.getLogger("magnetar").level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("magnetar").setLevel(ours)
    structlog.reset_defaults()


def output(config: LoggingConfig) -> str:
    stream = io.StringIO()
    logs.configure(config, stream)
    log = structlog.get_logger("magnetar.protocols.pulsar.session")
    log.debug("too fine")
    log.info("connection opened", peer="127.0.0.1:5")
    logging.getLogger("kazoo.client").warning("session %s lost", 7)
    logging.getLogger("kazoo.client").info("chatter")
    return stream.getvalue()


def test_lines_for_people() -> None:
    first, second = output(LoggingConfig()).splitlines()
    assert "connection opened" in first
    assert "[protocols.pulsar.session]" in first
    assert first.endswith("peer=127.0.0.1:5")
    assert "\x1b[" not in first
    assert "session 7 lost" in second
    assert first.index("[protocols") == second.index("[kazoo")  # aligned


def test_a_level_is_kept() -> None:
    assert "too fine" in output(LoggingConfig(level="debug"))
    assert "connection opened" not in output(LoggingConfig(level="warning"))


def test_json_lines() -> None:
    first, second = (json.loads(line) for line in output(LoggingConfig(json=True)).splitlines())
    assert first["event"] == "connection opened"
    assert first["peer"] == "127.0.0.1:5"
    assert first["level"] == "info"
    assert first["logger"] == "magnetar.protocols.pulsar.session"
    assert first["timestamp"].endswith("Z")
    assert second["event"] == "session 7 lost"


def test_an_error_comes_with_its_trace_in_both_forms() -> None:
    for as_json in (False, True):
        stream = io.StringIO()
        logs.configure(LoggingConfig(json=as_json), stream)
        try:
            raise ValueError("of this kind")
        except ValueError as error:
            structlog.get_logger("magnetar.x").error("failed", exc_info=error)
        assert "ValueError: of this kind" in stream.getvalue()
        if as_json:
            json.loads(stream.getvalue())


def test_a_library_leaves_it_to_the_program(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    structlog.reset_defaults()
    logs.leave_to_program()
    log = structlog.get_logger("magnetar.env.metadata_stores.zookeeper_metadata")
    log.info("ZooKeeper session", state="connected")
    log.warning("bookie is gone", bookie="b:1")
    assert capsys.readouterr().out == ""
    assert caplog.messages == ["event='bookie is gone' bookie='b:1'"]
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    logs.leave_to_program()
    assert len(structlog.get_config()["processors"]) == 1, "the program has said what it wants"
