"""What ``produce`` and ``consume`` say of a broker's refusal: its own words, not the library's name
of it. The lines are those of the official client 3.13."""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import json
import socket
from typing import Any, cast

import click
import pulsar
import pytest

from magnetar.cli.consume import _line
from magnetar.cli.messages import _advice, check_reachable, last_said
from magnetar.cli.produce import Receipts, _send_all
from magnetar.model.errors import BrokerError

HEAD = "2026-01-01 00:00:00.000 ERROR [140628515505856] ClientConnection:1575 | [a:1 -> b:2] "
MISSING = "namespace acme/prod does not exist; create it first, or use public/default"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            f"Failed partition-metadata lookup req_id: 1 error: TopicNotFound msg: {MISSING}",
            MISSING,
        ),
        ("Failed lookup req_id: 7 error: ServiceNotReady msg: it moves", "it moves"),
        (
            "Received error response from server: NotReady (topic t could not store messages "
            "a moment ago (an ensemble needs 3)) -- req_id: 1",
            "topic t could not store messages a moment ago (an ensemble needs 3)",
        ),
        ("[t, ] Failed to create producer: ProducerBusy producer p is connected", "producer p is"),
        ("[t, s, 0] Failed to create consumer: ResultNotAllowedError", ""),
        ("Connection closed", ""),
    ],
)
def test_the_brokers_reason_is_in_the_clients_log(line: str, said: str) -> None:
    found = last_said(io.StringIO(f"{HEAD}Connected\n{HEAD}{line}\n{HEAD}Closed\n"))
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_the_last_reason_counts() -> None:
    lines = [f"{HEAD}Failed lookup req_id: {n} error: E msg: reason {n}\n" for n in range(3)]
    told = io.StringIO("".join(lines))
    assert last_said(told) == last_said(told) == "reason 2"


def test_one_of_several_addresses_is_enough() -> None:
    """The README gives clients several, and the command line took them for one port."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        here, away = (f"127.0.0.1:{each.getsockname()[1]}" for each in (server, unheard))
        check_reachable(f"pulsar://{here}")
        check_reachable(f"pulsar://{away},{here}")
        check_reachable(f"pulsar://nowhere.invalid:1,{here}/")
        with pytest.raises(BrokerError, match=f"{away}: .*refused.*is a platform running"):
            check_reachable(f"pulsar://{away}")
        with pytest.raises(BrokerError, match="x:port: Port could not be cast"):
            check_reachable("pulsar://x:port")


def test_who_listens_and_does_not_answer_may_speak_otherwise() -> None:
    silent = pulsar.Timeout("TimeOut")
    assert "--tls-trust" in _advice(silent, "pulsar+ssl://a:6651")
    assert "without TLS" in _advice(silent, "pulsar://a:6651")
    assert _advice(pulsar.ProducerBusy("Busy"), "pulsar://a:6651") == ""


def test_bytes_that_are_no_text_can_be_had_back() -> None:
    class Message:
        def __init__(self, body: bytes) -> None:
            self.data = lambda: body

        def __getattr__(self, name: str) -> object:
            return lambda: name

    def told(body: bytes) -> dict[str, str]:
        found = json.loads(_line(cast(pulsar.Message, Message(body)), as_json=True))
        return {name: found[name] for name in found if name.startswith("data")}

    assert told("größe \\xff".encode()) == {"data": "größe \\xff"}
    odd = told(b"a\xff\0b")
    assert base64.b64decode(odd["data_base64"]) == b"a\xff\0b"
    assert odd["data"] == "a\\xff\0b"


class _Producer:
    """Answers at once, as the client's thread does: an exception of the callback goes nowhere."""

    def __init__(self) -> None:
        self.sent = 0

    def send_async(self, message: bytes, callback: Any, **options: object) -> None:
        self.sent += 1
        with contextlib.suppress(Exception):
            callback(pulsar.Result.Ok, f"(1,{self.sent},-1,-1)")


def test_ids_that_nobody_reads_any_more_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """``magnetar produce --print-ids | head -1`` waited for ever for the rest."""

    def echo(text: str) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(click, "echo", echo)
    receipts, producer = Receipts(show_ids=True), _Producer()
    messages = iter([b"one", b"two", b"three"])
    sent = _send_all(cast(Any, producer), messages, None, {}, receipts)
    assert sent == producer.sent == receipts.confirmed == 1
    assert isinstance(receipts.unprinted, BrokenPipeError)
    receipts.wait_for(sent)


@pytest.mark.parametrize(
    ("result", "said", "told"),
    [
        (pulsar.Result.MessageTooBig, "", "MessageTooBig; brokers take no larger one than broker."),
        (pulsar.Result.TopicTerminated, "it ends", "TopicTerminated: it ends"),
    ],
)
def test_refused_messages_are_told_with_what_to_do(result: object, said: str, told: str) -> None:
    receipts = Receipts(show_ids=False)
    receipts.receive(result, None)
    assert receipts.refusal(said).startswith(f"1 messages were refused: {told}")
