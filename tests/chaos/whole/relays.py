"""Where namespaces are not allowed: servers behind relays on loopback addresses, which go silent.

A server listens on an address of its own and tells others that of its relay; to each ZooKeeper
every server has a relay for itself. So a server can be cut off from all who call it, and from
ZooKeepers that it calls. Nobody can tell who calls a bookie or a broker, so kinds of fault that
part two of them are left out of a plan, and full disks are too; the report says so. Of ZooKeeper
only those who use it are parted, not its members from each other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tests.chaos.whole.network import CLIENTS
from tests.scenarios.link import carry

WAIT_S: Final = 30.0


class Relay:
    """From one address to another. Silent, it keeps connections open and takes new ones."""

    def __init__(self, at: tuple[str, int], to: tuple[str, int]) -> None:
        self._at, self._to = at, to
        self._open = asyncio.Event()
        self._cuts = 0

    async def start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._relay, *self._at)

    def cut(self, by: int) -> None:
        """One cut more, or one less. In the loop's thread."""
        self._cuts += by
        (self._open.clear if self._cuts else self._open.set)()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()  # or a dead server would answer for one that is cut off
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.close()
            return
        await carry((reader, writer), (far_reader, far_writer), self._open)


class Relays:
    """As ``network.Namespaces``. ``ports``: host -> where it serves; ``common``: hosts that each
    host reaches by a relay of its own."""

    description: Final = "relays that go silent: namespaces are not allowed here"

    def __init__(self, ports: Mapping[str, Sequence[int]], common: Sequence[str]) -> None:
        self._numbers = {host: number for number, host in enumerate(ports, 11)}
        self._common = common
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._relays: dict[tuple[str, str], list[Relay]] = {}
        for host, each in ports.items():
            for caller in (*ports, CLIENTS) if host in common else ("",):
                self._relays[caller, host] = [
                    Relay(self.reached(caller, host, port), (self.address(host), port))
                    for port in each
                ]

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(WAIT_S)

    async def _start(self) -> None:
        for relays in self._relays.values():
            for relay in relays:
                await relay.start()

    @property
    def hosts(self) -> list[str]:
        return [CLIENTS, *self._numbers]

    def address(self, host: str) -> str:
        return "127.0.0.1" if host == CLIENTS else f"127.0.7.{self._numbers[host]}"

    def told(self, host: str) -> str:
        return f"127.0.8.{self._numbers[host]}"

    def reached(self, caller: str, host: str, port: int) -> tuple[str, int]:
        if host not in self._common:
            return self.told(host), port
        return f"127.0.9.{self._numbers.get(caller, 1)}", port + self._common.index(host)

    def command(self, _host: str, command: Sequence[str]) -> list[str]:
        return list(command)

    def cut(self, host: str, others: Iterable[str], both: bool = True) -> Callable[[], None]:
        """From everybody, or from some of the common hosts. Raises ``ValueError`` for others."""
        parted = {each for each in others if each != host}
        everybody = parted | {host} >= set(self._numbers)
        if not (both and (everybody or parted <= set(self._common))):
            raise ValueError(f"relays cannot part {host} from {', '.join(sorted(parted))} alone")
        found = [
            relay
            for (caller, target), relays in self._relays.items()
            if (target == host and everybody) or (caller == host and target in parted)
            for relay in relays
        ]
        self._change(found, 1)
        return lambda: self._change(found, -1)

    def _change(self, relays: Sequence[Relay], by: int) -> None:
        for relay in relays:
            self._loop.call_soon_threadsafe(relay.cut, by)

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    async def _end(self) -> None:
        relaying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in relaying:
            task.cancel()
        await asyncio.gather(*relaying, return_exceptions=True)
