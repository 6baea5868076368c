"""When a session that is out of sight is taken for lost."""

from __future__ import annotations

import asyncio

from magnetar.env.metadata import SessionState
from magnetar.env.session_guard import SessionGuard
from magnetar_sim.world.virtual_time import run_virtual
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.env.lossy_metadata import LossyStore

TIMEOUT_MS = 9_000


def lost_at(
    silent_s: float, states: dict[float, SessionState], granted_s: float | None = None
) -> list[float]:
    """The times at which ``lost`` was called, where states are told at those times."""

    async def run() -> list[float]:
        loop, found = asyncio.get_running_loop(), list[float]()
        store = LossyStore(MemoryMetadata())
        store.granted = granted_s
        guard = SessionGuard(store, TIMEOUT_MS, lambda why: found.append(loop.time()))
        for at_s, state in states.items():
            await asyncio.sleep(at_s - loop.time())
            store.silent = silent_s
            store.tell_session(state)
        await asyncio.sleep(60)
        guard.close()
        return found

    return run_virtual(run())


def test_silence_counts_from_the_last_request_that_was_heard() -> None:
    # The server counts from second 6; until 15 nobody else gets what rests on the session.
    (at_s,) = lost_at(4.0, {10.0: SessionState.SUSPENDED})
    assert 14.9 < at_s < 15.1


def test_a_silence_that_is_noticed_at_once_has_a_whole_timeout() -> None:
    (at_s,) = lost_at(0.0, {10.0: SessionState.SUSPENDED})
    assert 18.9 < at_s < 19.1


def test_a_third_of_the_timeout_is_left_to_connect_again() -> None:
    # As with a server that grants a longer session than was asked for.
    (at_s,) = lost_at(100.0, {10.0: SessionState.SUSPENDED})
    assert 12.9 < at_s < 13.1
    assert not lost_at(100.0, {10.0: SessionState.SUSPENDED, 12.0: SessionState.CONNECTED})


def test_what_the_store_says_is_told_at_once() -> None:
    (at_s,) = lost_at(4.0, {10.0: SessionState.SUSPENDED, 11.0: SessionState.EXPIRED})
    assert 10.9 < at_s < 11.1


def test_a_shorter_session_that_was_granted_counts() -> None:
    """By ``maxSessionTimeout`` of the ensemble: others have what rests on the session then."""
    (at_s,) = lost_at(1.0, {10.0: SessionState.SUSPENDED}, granted_s=4.0)
    assert 12.9 < at_s < 13.1
    (at_s,) = lost_at(1.0, {10.0: SessionState.SUSPENDED}, granted_s=40.0)
    assert 17.9 < at_s < 18.1
