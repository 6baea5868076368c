"""What goes wrong with brokers and their clients, by the seed; beside ``faults``, which sees to the
bookies, to the brokers' ways to them and to the metadata store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar_sim.brokers.brokers import BrokerMachine
from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.world.loop import SimProcess
from magnetar_sim.world.planned_faults import PlannedFaults

LASTS_S = (0.3, 1.5, 5.0)


class BrokenConnection(Protocol):
    """A client's connection to a broker, which faults break."""

    @property
    def transport(self) -> asyncio.Transport | None: ...

    @property
    def gone(self) -> bool: ...

    def abort(self) -> None: ...


class ClientHost(Protocol):
    """A machine with clients of whatever protocol; ``current``: a connection that it uses;
    ``links``: those that it has, or had."""

    @property
    def name(self) -> str: ...

    @property
    def process(self) -> SimProcess: ...

    @property
    def links(self) -> Sequence[BrokenConnection]: ...

    @property
    def current(self) -> BrokenConnection | None: ...


class BrokerFaults(PlannedFaults):
    """Of one run. Every fault ends by itself or when the run heals."""

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        brokers: Sequence[BrokerMachine],
        clients: Sequence[ClientHost],
    ) -> None:
        super().__init__(cluster.loop, cluster.trace, rng, LASTS_S)
        self._cluster = cluster
        self._brokers = brokers
        self._clients = clients

    def plan(self, count: int, begin_s: float, end_s: float) -> None:
        kinds: list[Callable[[], None]] = [
            self._crash, self._crash, self._crash, self._close, self._pause, self._expire,
            self._break, self._break, self._break_all, self._block, self._slow, self._unread,
            self._silent,
        ]  # fmt: skip
        self._plan(kinds, count, begin_s, end_s)

    def _broker(self) -> BrokerMachine:
        """Mostly the one that serves."""
        serving = [each for each in self._brokers if each.topics is not None]
        return self._random.choice(serving or list(self._brokers))

    def _client(self) -> ClientHost:
        return self._random.choice(self._clients)

    # -- brokers ------------------------------------------------------------------------------

    def _crash(self) -> None:
        broker, rng = self._broker(), self._random
        down_s = rng.choice((0.1, 0.5, 4.0)) * rng.uniform(0.5, 1.5)
        (broker.kill if rng.random() < 0.6 else broker.cut_power)(down_s)
        self._cluster.count("brokers that crashed")

    def _close(self) -> None:
        self._broker().close_in_order()

    def _pause(self) -> None:
        self._pause_process(self._broker().process)

    def _expire(self) -> None:
        name = self._broker().name
        self._note(f"the metadata session of {name} expires")
        self._cluster.metadata.expire(name)

    # -- connections --------------------------------------------------------------------------

    def _break(self) -> None:
        client, broker = self._client().name, self._broker().name
        if self._cluster.network.break_between(client, broker):
            self._note(f"the connection of {client} breaks")

    def _break_all(self) -> None:
        self._note("the connections of all clients break")
        for client in self._clients:
            for broker in self._brokers:
                self._cluster.network.break_between(client.name, broker.name)

    def _block(self) -> None:
        """Half-open: one side may be heard, or none."""
        client, broker = self._client().name, self._broker().name
        both = [(client, broker), (broker, client)]
        self._block_links(self._cluster.network, self._random.choice((both, both[:1], both[1:])))

    def _slow(self) -> None:
        client, broker = self._client().name, self._broker().name
        self._part(self._cluster.network, client, broker, self._random.choice((0.02, 0.3)))

    def _unread(self) -> None:
        """A client does not read what it is sent."""
        link = self._client().current
        if link is not None and not link.gone and link.transport is not None:
            link.transport.pause_reading()
            self._after(link.transport.resume_reading)

    def _silent(self) -> None:
        """A client's connection is over for it, and nobody tells the broker."""
        client = self._client()
        network, broker = self._cluster.network, self._broker().name
        network.block(client.name, broker)
        self._at(self._cluster.loop.time() + 3.0, lambda: network.unblock(client.name, broker))
        if client.current is not None:
            client.current.abort()
            self._note(f"{client.name} hangs up, and its broker is not told")
