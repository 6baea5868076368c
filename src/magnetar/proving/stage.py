"""A stage: the servers of one cluster, as processes with relays between them, as faults need it.
Which servers these are is a subclass's to say (``magnetar_stage``).

Brokers are numbered from 1 on. Every server is reached at an address that is a relay's, so that
every link between any two can be cut (``network``). Topics are led, and owned, by one broker: the
one that the fault is made for.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, NamedTuple, Self, TypeVar

from magnetar.model.errors import ConfigError, MagnetarError, StartError
from magnetar.proving.client import KafkaProtocol
from magnetar.proving.counting import LaneSpec
from magnetar.proving.network import RelayNetwork
from magnetar.proving.servers import Server
from magnetar.proving.speaking import Address, PartitionView, Protocol, RefusedError

T = TypeVar("T")

SESSION_MS: Final = 4000
BROKERS: Final = 3
WAIT_S: Final = 60.0
NAMES_TRIED: Final = 60


class Settings(NamedTuple):
    """``replica_lag_ms_max``: after which a follower that does not fetch is out of sync;
    ``synced``: whether a message is on disks before it counts. None: as the system is shipped."""

    bookies: int = 3
    quorums: tuple[int, int, int] = (3, 3, 2)
    brokers: int = BROKERS
    replica_lag_ms_max: int | None = None
    synced: bool | None = None


class Stage(ABC):
    """A context manager; all that it has started ends with it."""

    metadata_name: ClassVar[str]
    """Of the server that says who leads, in the network."""
    rebuilt_files: ClassVar[tuple[str, ...]] = ()
    """Ends of names of files that brokers map into memory and make again when they are gone."""
    synced_names: ClassVar[bool] = False
    """Whether its disks have a file system that keeps a file's name from its first sync on."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.network = RelayNetwork()
        self.bookies: list[Server] = []
        self.brokers: list[Server] = []
        self.addresses: list[Address] = []
        """Of brokers, for clients."""
        self.protocol: Protocol = KafkaProtocol()
        self.prepare: Callable[[Server], None] = lambda _server: None
        """Called before a server starts, again too."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @abstractmethod
    def _set_up(self) -> None:
        """Start all servers; what ends them is on ``_stack``. Raises ``StartError``."""

    @abstractmethod
    def _topic(self, spec: LaneSpec) -> tuple[int, Mapping[str, str]]:
        """(replicas, settings) of a lane's topic."""

    def start(self, *servers: Server) -> None:
        """All at once; again too. One that does not come up is started once more, as by whoever
        looks after servers. Raises ``StartError``."""
        for server in servers:
            self._begin(server)
        for server in servers:
            try:
                server.wait_ready()
            except StartError:
                server.kill()
                self._begin(server)
                server.wait_ready()

    def _begin(self, server: Server) -> None:
        self.prepare(server)
        server.begin()
        self.network.name(server.pid, server.name)

    def data_dir(self, server: Server) -> Path:
        """Where all is that it stores."""
        return self.folder / server.name / "data"

    # -- topics -------------------------------------------------------------------------------

    def leader_of(self, number: int) -> Server:
        """The broker of that number among replicas."""
        return self.brokers[number - 1]

    def others(self, leader: int) -> list[str]:
        """The other brokers' names."""
        return [each.name for each in self.brokers if each is not self.leader_of(leader)]

    def create(self, spec: LaneSpec, prefix: str, leader: int | None) -> tuple[str, int]:
        """A topic for a lane, at ``leader`` (None: at whoever gets it); (its name, the leader)."""
        copies, configs = self._topic(spec)
        for number in range(NAMES_TRIED):
            topic = f"{prefix}-{spec.name}-{number}"
            self.protocol.create_topic(self.addresses[0], topic, copies, configs)
            found = self.wait(lambda topic=topic: self._owner(topic), f"an owner of {topic}")  # type: ignore[misc]
            if leader in (None, found):
                return topic, found
        raise ConfigError(f"none of {NAMES_TRIED} topics came to broker {leader}")

    def _owner(self, topic: str) -> int | None:
        found = self.view(topic).leader
        return found if found > 0 else None

    def view(self, topic: str, but: int | None = None) -> PartitionView:
        """As the first broker that answers says it, ``but`` that one. Raises ``OSError``,
        ``RefusedError``."""
        error: Exception = ConfigError("there is no broker to ask")
        for number, address in enumerate(self.addresses, 1):
            if number == but or not self.brokers[number - 1].running:
                continue
            try:
                return self.protocol.look(address, topic)
            except (OSError, RefusedError) as failed:
                error = failed
        raise error

    def wait(self, what: Callable[[], T | None], said: str, within_s: float = WAIT_S) -> T:
        """Until it is something true. Raises ``MagnetarError``."""
        deadline_s = time.monotonic() + within_s
        last: object = None
        while time.monotonic() < deadline_s:
            try:
                found = what()
            except (OSError, MagnetarError) as error:
                last = error
            else:
                if found:
                    return found
                last = found
            time.sleep(0.1)
        raise MagnetarError(f"not in {within_s:g} s: {said} (last: {last})")
