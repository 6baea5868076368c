"""What a bookie's health says, and when it serves HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.app.checks import bookie_check
from magnetar.app.role_http import _registration_check, bind_http
from magnetar.cli.servers import NO_HTTP
from magnetar.config_loading import load
from magnetar.env.network.listening import bind
from magnetar.model.errors import StartError
from magnetar.model.ids import BookieId


def bookie(
    refusal: str | None = None,
    wanted: bool = False,
    failed: tuple[str, ...] = (),
    limbo: bool = False,
    unread: str = "",
) -> Any:
    info = SimpleNamespace(failed_directories=failed, limbo=limbo)

    async def read_failed_again() -> None:
        """Nothing has passed."""

    failures = SimpleNamespace(problem=unread)
    return SimpleNamespace(
        info=lambda: info,
        refusal=refusal,
        writes_refused=wanted,
        read_failures=failures,
        read_failed_again=read_failed_again,
        lacks_space="full" in (refusal or ""),
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (bookie(), ""),
        (bookie(refusal="an operator said so", wanted=True), ""),
        (bookie(refusal="the disk of /d is nearly full"), "nearly full"),
        (bookie(refusal="it failed", failed=("/d1",)), "ledger directories failed: /d1"),
        (bookie(limbo=True), "it has lost entries"),
        (bookie(unread="2 entries of ledgers 1 cannot be read"), "2 entries"),
    ],
)
def test_a_bookie_is_unwell_for_what_nobody_wants(found: Any, words: str) -> None:
    health = asyncio.run(bookie_check(found)())
    assert health.ok is (not words)
    assert words in health.problem
    assert bool(health.remedy) is bool(words)


def test_what_to_do_goes_by_what_it_lacks() -> None:
    full = asyncio.run(bookie_check(bookie(refusal="the disk of /d is nearly full"))())
    broken = asyncio.run(bookie_check(bookie(refusal="journal /j cannot write: EIO"))())
    assert "make room" in full.remedy
    assert "start the bookie again" in broken.remedy
    assert "room" not in broken.remedy


def test_one_that_is_not_registered_is_unwell() -> None:
    class Registry:
        async def all(self) -> dict[BookieId, tuple[str, int]]:
            return {BookieId("b1"): ("127.0.0.1", 1)}

    registry: Any = Registry()
    assert asyncio.run(_registration_check(registry, BookieId("b1"))()).ok
    health = asyncio.run(_registration_check(registry, BookieId("b2"))())
    assert not health.ok
    assert "b2 is not registered" in health.problem


def test_http_is_served_on_a_port_that_was_given_and_else_not() -> None:
    assert bind_http(load(role_defaults=NO_HTTP)) is None
    bound = bind_http(load(role_defaults=NO_HTTP, flags={"http.port": 0}))
    assert bound is not None
    with bound:
        assert bound.getsockname()[0] == "127.0.0.1"


def test_a_broker_cannot_be_without_a_port() -> None:
    with pytest.raises(StartError, match=r"http\.port = -1 is no port"):
        bind("127.0.0.1", -1, "http.port")
