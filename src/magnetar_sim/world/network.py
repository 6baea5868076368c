"""The simulated network: connections with TCP's rules between hosts.

Rules:

* Bytes arrive in the order they were sent, whole, after a delay of the link; a chunk may come in
  pieces. Nothing is lost but by a break of the connection.
* A write buffer is bounded as asyncio's: past the high mark the protocol is told to pause.
* A link from one host to another may be blocked (each way by itself): what is sent waits, as TCP
  sends again, and arrives after the link is back, unless the connection breaks before.
* A process that ends normally or is killed closes its connections; one whose power is cut says
  nothing: the peer finds out when it writes after the host is back (or by its own deadlines).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from magnetar_sim.world.loop import SimLoop, SimProcess, current_process, until

HIGH_BYTES = 64 * 1024
LOW_BYTES = 16 * 1024
SPLIT_CHANCE = 0.05
DELAY_S = (0.000_1, 0.002)

Host = str


class Tap(Protocol):
    """Who watches one end of a connection: bytes as its protocol gets and writes them."""

    def received(self, data: bytes) -> None: ...

    def sent(self, data: bytes) -> None: ...

    def ended(self) -> None: ...


class Weather:
    """What the links between hosts are like. A pair that is not named is sound."""

    def __init__(self) -> None:
        self.blocked: dict[tuple[Host, Host], None] = {}
        self.slow: dict[tuple[Host, Host], float] = {}
        self.refused: dict[tuple[Host, Host], None] = {}
        self.hushed: dict[Host, None] = {}

    def is_blocked(self, source: Host, target: Host) -> bool:
        return (source, target) in self.blocked or source in self.hushed or target in self.hushed


def _reset() -> ConnectionResetError:
    return ConnectionResetError(104, "connection reset by peer")


class SimNetwork:
    """All hosts' listeners and connections."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.random = rng
        self.weather = Weather()
        self.bytes_delivered = 0
        self.tap: Callable[[SimServer], Tap | None] = lambda server: None
        """Who watches a connection that a listener accepts."""
        self._listeners: dict[tuple[Host, int], SimServer] = {}
        self._transports: dict[int, SimTransport] = {}
        self._serial = 0

    # -- asyncio's side -----------------------------------------------------------------------

    def listen(self, factory: Callable[[], Any], host: Host, port: int) -> SimServer:
        if (host, port) in self._listeners:
            raise OSError(98, f"{host}:{port} is in use")
        process = current_process()
        assert process is not None, "only processes listen"
        server = SimServer(self, factory, host, port, process)
        self._listeners[host, port] = server
        return server

    async def connect(
        self, factory: Callable[[], Any], host: Host, port: int
    ) -> tuple[asyncio.Transport, Any]:
        process = current_process()
        assert process is not None, "only processes connect"
        here, weather = process.name, self.weather
        await asyncio.sleep(self.delay_s(here, host))
        links = (here, host), (host, here)
        again_s = 0.5 + self.random.random()  # when the SYN is sent again
        await until(lambda: not any(weather.is_blocked(*link) for link in links), again_s)
        server = self._listeners.get((host, port))
        if (here, host) in weather.refused:
            raise ConnectionRefusedError(111, f"{host}:{port} refuses {here}")
        if server is None or not server.process.alive:
            raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
        ours = SimTransport(self, process, server.process)
        theirs = SimTransport(self, server.process, process)
        ours.peer, theirs.peer = theirs, ours
        protocol = factory()
        ours.begin(protocol)
        server.process.call(server.accept, theirs)
        await asyncio.sleep(self.delay_s(host, here))
        return ours, protocol

    def delay_s(self, source: Host, target: Host) -> float:
        low, high = DELAY_S
        delay_s = low + (high - low) * self.random.random()
        slow_s = self.weather.slow.get((source, target))
        return delay_s if slow_s is None else delay_s + slow_s * self.random.random()

    # -- faults -------------------------------------------------------------------------------

    def block(self, source: Host, target: Host) -> None:
        """Nothing arrives from ``source`` at ``target``."""
        self.weather.blocked[source, target] = None

    def unblock(self, source: Host, target: Host) -> None:
        if self.weather.blocked.pop((source, target), self) is None:
            for transport in self._between(source, target):
                transport.flow()

    def hush(self, host: Host) -> None:
        """Nothing arrives at the host or from it, whoever comes; nobody is told."""
        self.weather.hushed[host] = None

    def unhush(self, host: Host) -> None:
        if self.weather.hushed.pop(host, self) is None:
            for transport in list(self._transports.values()):
                if host in (transport.process.name, transport.target.name):
                    transport.flow()

    def slow(self, source: Host, target: Host, delay_s: float) -> None:
        """Up to ``delay_s`` more for what goes from ``source`` to ``target``; 0: none."""
        if delay_s:
            self.weather.slow[source, target] = delay_s
        else:
            self.weather.slow.pop((source, target), None)

    def break_between(self, one: Host, other: Host) -> int:
        """Both ends of every connection learn that it is gone."""
        broken = self._between(one, other) + self._between(other, one)
        for transport in broken:
            transport.lose(_reset())
        return len(broken)

    def process_ended(self, process: SimProcess, silently: bool) -> None:
        """Its listeners are gone, and its connections, which the peers are told of unless the
        power went."""
        for address in [a for a, s in self._listeners.items() if s.process is process]:
            del self._listeners[address]
        for transport in [t for t in self._transports.values() if t.process is process]:
            self.forget(transport)
            transport.lost = True
            transport.end_tap()
            if not silently:
                transport.reset_peer()

    def host_back(self, host: Host) -> None:
        """The host answers again: it knows nothing of connections from before."""
        for transport in list(self._transports.values()):
            if transport.target.name == host and not transport.target.alive:
                transport.lose(_reset())

    def heal(self) -> None:
        self.weather.slow.clear()
        self.weather.refused.clear()
        for host in list(self.weather.hushed):
            self.unhush(host)
        for source, target in list(self.weather.blocked):
            self.unblock(source, target)

    def _between(self, source: Host, target: Host) -> list[SimTransport]:
        return [
            transport
            for transport in self._transports.values()
            if transport.process.name == source and transport.target.name == target
        ]

    # -- for the transports -------------------------------------------------------------------

    def remember(self, transport: SimTransport) -> int:
        self._serial += 1
        self._transports[self._serial] = transport
        return self._serial

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport.serial, None)

    def unlisten(self, server: SimServer) -> None:
        if self._listeners.get((server.host, server.port)) is server:
            del self._listeners[server.host, server.port]


class SimServer:
    """A listener; as much of ``asyncio.Server`` as servers of ours use."""

    def __init__(
        self,
        network: SimNetwork,
        factory: Callable[[], Any],
        host: Host,
        port: int,
        process: SimProcess,
    ) -> None:
        self.host = host
        self.port = port
        self.process = process
        self._network = network
        self._factory = factory
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def accept(self, transport: SimTransport) -> None:
        """In the listening process."""
        if self.process.alive and not transport.lost:
            transport.tap = self._network.tap(self)
            transport.begin(self._factory())

    def close(self) -> None:
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        return


class SimTransport(asyncio.Transport):
    """One end of a connection: what it writes goes to ``target``, the other end's process."""

    def __init__(self, network: SimNetwork, process: SimProcess, target: SimProcess) -> None:
        super().__init__()
        self.process = process
        self.target = target
        self.peer: SimTransport | None = None
        self.protocol: Any = None
        self.lost = False
        """This end is over; its protocol has been told, or will not be."""
        self.tap: Tap | None = None
        self._network = network
        self._loop = network.loop
        self._closing = False
        self._unsent: deque[bytes] = deque()  # waits for a blocked link
        self._unread: deque[bytes] = deque()  # has arrived, waits for the protocol
        self._fin_waits = False
        self._fin_unread = False
        self._pending_bytes = 0
        self._last_s = 0.0
        self._paused_writing = False
        self._reading = True
        self.serial = network.remember(self)

    def begin(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        if self._unread or self._fin_unread:
            self._loop.call_soon(self._read)

    # -- writing ------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.lost or not data:
            return
        if self.tap is not None:
            self.tap.sent(bytes(data))
        self._pending_bytes += len(data)
        self._unsent.append(bytes(data))
        self.flow()
        if self._pending_bytes > HIGH_BYTES and not self._paused_writing:
            self._paused_writing = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def flow(self) -> None:
        """Put what waits on its way, if the link is open."""
        network = self._network
        if network.weather.is_blocked(self.process.name, self.target.name):
            return
        if not self.target.alive or self.peer is None:
            return  # nobody there: it waits for ever, or for the reset
        if self.peer.lost:  # a connection that the other end knows nothing of any more
            self._loop.call_at(self._arrival(), self.lose, _reset(), context=self.process.context)
            return
        while self._unsent:
            for piece in self._pieces(self._unsent.popleft()):
                self._loop.call_at(
                    self._arrival(), self._arrive, piece, context=self.target.context
                )
        if self._fin_waits:
            self._fin_waits = False
            network.forget(self)
            self._loop.call_at(self._arrival(), self._fin, context=self.target.context)

    def _pieces(self, data: bytes) -> tuple[bytes, ...]:
        rng = self._network.random
        if len(data) > 1 and rng.random() < SPLIT_CHANCE:
            cut = rng.randrange(1, len(data))
            return data[:cut], data[cut:]
        return (data,)

    def _arrival(self) -> float:
        delay_s = self._network.delay_s(self.process.name, self.target.name)
        self._last_s = when = max(self._last_s, self._loop.time() + delay_s)
        return when

    def _arrive(self, data: bytes) -> None:
        """In the target's process."""
        peer = self.peer
        assert peer is not None
        if peer.lost:
            return
        peer.received(data)
        if not self.lost:
            self.process.call(self._delivered, len(data))

    def _delivered(self, byte_count: int) -> None:
        self._pending_bytes -= byte_count
        if self.lost:
            return
        if self._paused_writing and self._pending_bytes <= LOW_BYTES:
            self._paused_writing = False
            self.protocol.resume_writing()

    # -- reading ------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        self._unread.append(data)
        self._read()

    def _read(self) -> None:
        while self._unread and self._reading and self.protocol is not None and not self._closing:
            data = self._unread.popleft()
            self._network.bytes_delivered += len(data)
            while data and not self.lost and not self._closing:
                if not self._reading:  # paused by what has been read
                    self._unread.appendleft(data)
                    break
                buffer = self.protocol.get_buffer(-1)
                count = min(len(buffer), len(data))
                buffer[:count] = data[:count]
                if self.tap is not None:
                    self.tap.received(data[:count])
                data = data[count:]
                self.protocol.buffer_updated(count)
        if self._fin_unread and not self._unread and self._reading and self.protocol is not None:
            self._fin_unread = False
            self.protocol.eof_received()
            self.lose(None)

    def _fin(self) -> None:
        """In the target's process: the other end closed in good order."""
        peer = self.peer
        assert peer is not None
        if not peer.lost:
            peer.ended()

    def ended(self) -> None:
        self._fin_unread = True
        self._read()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read)

    def is_reading(self) -> bool:
        return self._reading

    # -- the end ------------------------------------------------------------------------------

    def lose(self, error: Exception | None) -> None:
        """This end is over at once: its protocol hears of it, in its process."""
        self._unsent.clear()
        self._fin_waits = False
        self._network.forget(self)
        self._over(error)

    def _over(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        self.end_tap()
        if self.process.alive and self.protocol is not None:
            self.process.call(self.protocol.connection_lost, error)

    def end_tap(self) -> None:
        if self.tap is not None:
            self.tap.ended()
            self.tap = None

    def reset_peer(self) -> None:
        """The other end learns that the connection is gone, a little later; if the link is
        blocked, when it next writes."""
        peer = self.peer
        if peer is None or peer.lost:
            return
        if not self._network.weather.is_blocked(self.process.name, self.target.name):
            self._loop.call_at(self._arrival(), peer.lose, _reset(), context=peer.process.context)

    def close(self) -> None:
        if self._closing or self.lost:
            return
        self._closing = self._fin_waits = True
        self.flow()
        self._over(None)

    def abort(self) -> None:
        if not self.lost:
            self._closing = True
            self.reset_peer()
            self.lose(None)

    def is_closing(self) -> bool:
        return self._closing or self.lost

    def get_write_buffer_size(self) -> int:
        return self._pending_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return LOW_BYTES, HIGH_BYTES

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The limits are fixed here."""

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.target.name, self.serial
        return default
