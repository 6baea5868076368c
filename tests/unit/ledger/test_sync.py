"""The synchronous face: its thread, its end, and what other threads see of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.ledger import sync
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.sync import SyncClient
from magnetar.model.errors import LedgerError

TIMEOUT_S = 60.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    async def make() -> str:
        from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore

        store = await SqliteMetadataStore.open(tmp_path / "metadata.sqlite")
        await LedgerManager(store).initialize()
        await store.close()
        return f"sqlite:{tmp_path / 'metadata.sqlite'}"

    return asyncio.run(make())


class Calling(threading.Thread):
    """Calls until that raises."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.told: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            while True:
                self._call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.told = error

    def wait(self) -> Exception | None:
        self.join(TIMEOUT_S)
        assert not self.is_alive(), "a call that nobody answers"
        return self.told


def waits_for_ever(client: SyncClient, began: threading.Event) -> None:
    """As a long ``wait_past`` does."""

    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    client._loop.run(wait())


def test_a_closed_client_says_so(url: str) -> None:
    client = sync.connect(url)
    client.close()
    client.close()
    for call in (client.create, lambda: client.open(0), lambda: client.read_list("a")):
        with pytest.raises(LedgerError, match="client is closed"):
            call()


def test_a_call_under_way_in_another_thread_is_told_of_the_end(url: str) -> None:
    client, began = sync.connect(url), threading.Event()
    waiting = Calling(lambda: waits_for_ever(client, began))
    assert began.wait(TIMEOUT_S)
    client.close()
    told = waiting.wait()
    assert isinstance(told, LedgerError)
    assert "was closed while the call was under way" in str(told)


def test_threads_that_call_while_it_closes_are_all_answered(url: str) -> None:
    for turn in range(20):
        client = sync.connect(url)
        callers = [Calling(lambda client=client: client.read_list("a")) for _ in range(4)]
        time.sleep(0.002 * turn)
        closers = [threading.Thread(target=client.close) for _ in range(2)]
        for closer in closers:
            closer.start()
        told = [caller.wait() for caller in callers]
        assert all(type(error) is LedgerError for error in told), told
        for closer in closers:
            closer.join(TIMEOUT_S)
