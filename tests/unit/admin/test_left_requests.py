"""Requests whose clients have gone: what changes nothing ends, changes go on, so many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from fastapi import FastAPI

from magnetar.admin import server as server_module
from magnetar.admin.server import HttpServer
from magnetar.env.network.listening import bind


class Slow:
    """Each request waits until it is let go; ``ended``: how each came to its end."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.begun = self.under_way = 0
        self.ended: list[str] = []
        self.go = asyncio.Event()
        self.app.add_api_route("/slow", self._answer, methods=["GET", "HEAD", "POST", "DELETE"])

    async def _answer(self) -> str:
        self.begun += 1
        self.under_way += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        else:
            self.ended.append("done")
            return "well"
        finally:
            self.under_way -= 1


class Clients:
    def __init__(self, slow: Slow, url: str) -> None:
        self.slow, self.url = slow, url

    async def leave(self, method: str) -> None:
        """Ask, and hang up when it is under way."""
        before = self.slow.begun
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            asking = asyncio.create_task(client.request(method, "/slow"))
            await until(lambda: self.slow.begun > before)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def ask(self, method: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=30) as client:
            return await client.request(method, "/slow")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 (it announces nothing)
            await asyncio.sleep(0.005)


def serve(scenario: Callable[[Clients], Awaitable[None]]) -> None:
    async def run() -> None:
        slow = Slow()
        server = HttpServer(slow.app, bind("127.0.0.1", 0, "http.port"))
        await server.start()
        try:
            await scenario(Clients(slow, f"http://127.0.0.1:{server.port}"))
        finally:
            slow.go.set()
            await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_changes_nothing_ends_with_its_client(method: str) -> None:
    """It went on to its end: so many as one client cared to begin, and to leave."""

    async def scenario(clients: Clients) -> None:
        slow = clients.slow
        for _ in range(5):
            await clients.leave(method)
        await until(lambda: slow.ended == ["cancelled"] * 5)
        waiting = asyncio.create_task(clients.ask(method))
        await until(lambda: slow.under_way == 1)
        slow.go.set()
        assert (await waiting).status_code == 200, "of one that waits nothing is ended"

    serve(scenario)


def test_a_change_goes_on_and_so_many_of_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LEFT_MAX", 3)

    async def scenario(clients: Clients) -> None:
        slow = clients.slow
        for method in ("POST", "DELETE", "POST"):
            await clients.leave(method)
        refused = await clients.ask("DELETE")
        assert refused.status_code == 503
        assert "3 requests of 127.0.0.1 go on whose clients have gone" in refused.json()["reason"]
        reading = asyncio.create_task(clients.ask("GET"))
        await until(lambda: slow.under_way == 4)
        slow.go.set()
        assert (await reading).status_code == 200
        await until(lambda: slow.under_way == 0)
        assert slow.ended == ["done"] * 4
        assert (await clients.ask("DELETE")).status_code == 200

    serve(scenario)
