"""What a process meets outside of itself: disk, metadata, tables, clock, randomness.

Every role is built out of parts and of an ``Outside``, and of nothing else: ``real`` is that of a
running process; the simulator (``magnetar_sim``) brings its own and runs the same roles. Sockets
are not in it: parts listen and connect through the running loop, which is asyncio's own seam for
them.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from magnetar.bookie.bookie import Bookie
from magnetar.config import BookieConfig, Config
from magnetar.env.files.data_dir import DataDir
from magnetar.env.files.descriptors import raise_limit
from magnetar.env.files.disk import Disk, RealDisk
from magnetar.env.metadata import MetadataStore
from magnetar.log.managed.history import ProcessHistory
from magnetar.metrics import Metrics
from magnetar.tables.history import TableHistory

SQLITE_SCHEME = "sqlite:"
SOCKET_SCHEME = "unix:"


@dataclass(frozen=True)
class Outside:
    """See the module's text.

    ``process`` names this process to others, unlike any other. ``open_metadata`` opens the store
    that a configuration names (the second argument: the file of an embedded one, if it names
    none). ``make_bookie`` makes a bookie whose directories lie on ``disk``. ``clock_s`` gives
    seconds since 1970. ``random`` also makes tokens that nobody must guess.
    ``descriptors_max``: files and connections that this process may have open. ``make_history``:
    what reads ledgers that are in tables only. ``lock_directory`` keeps other processes out of a
    directory, for a role, and gives what lets go of it; raises ``StartError``.
    """

    process: str
    disk: Disk
    open_metadata: Callable[[Config, Path], Awaitable[MetadataStore]]
    make_bookie: Callable[[BookieConfig, Metrics], Bookie]
    clock_s: Callable[[], float]
    random: random.Random
    descriptors_max: int
    make_history: Callable[[], ProcessHistory]
    lock_directory: Callable[[Path, str], Callable[[], None]]

    def clock_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.clock_s() * 1000)

    def new_token(self) -> int:
        """63 random bits, never 0: that stands for "none"."""
        return self.random.randrange(1, 2**63)

    def new_uuid(self) -> str:
        """A random one (version 4)."""
        return str(UUID(int=self.random.getrandbits(128), version=4))


def real() -> Outside:
    """The outside of this process: the operating system's files, sockets, clock, randomness."""
    disk = RealDisk()
    return Outside(
        process=f"{socket.gethostname()}, process {os.getpid()}",
        disk=disk,
        open_metadata=_open_metadata,
        make_bookie=lambda config, metrics: Bookie(config, metrics, disk),
        clock_s=time.time,
        random=random.SystemRandom(),
        descriptors_max=raise_limit(),
        make_history=TableHistory,
        lock_directory=lambda path, role: DataDir.open(path, role).close,
    )


async def _open_metadata(config: Config, default_file: Path) -> MetadataStore:
    """Only the client that is wanted is imported: a start pays for what it uses."""
    url = config.metadata.url
    if url.startswith("zk://"):
        from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore

        return await ZooKeeperMetadataStore.open(
            url, session_timeout_ms=config.metadata.session_timeout_ms
        )
    if url.startswith(SOCKET_SCHEME):
        from magnetar.env.metadata_stores.socket_metadata import SocketMetadataStore

        return await SocketMetadataStore.open(
            url, session_timeout_ms=config.metadata.session_timeout_ms
        )
    from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore

    file = Path(url.removeprefix(SQLITE_SCHEME)) if url else default_file
    return await SqliteMetadataStore.open(file)
