"""HTTP of the roles that are no brokers: a bookie, and auto-recovery. They serve it when they are
given a port (``http.port``): health, metrics, and of a bookie its state. The process that has the
bookies of ``standalone --brokers`` always does: health and metrics.

The libraries are REST's own (``admin``), imported on a thread and only where they are wanted.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from typing import Any, Final

from magnetar.app.checks import bookie_check, metadata_check
from magnetar.app.ending import end_within
from magnetar.app.process import Process
from magnetar.app.securing import open_authenticator
from magnetar.app.storage import Cluster, StartedBookie
from magnetar.cluster.security.access import Access
from magnetar.config import Config
from magnetar.env.health import WELL, Check, PartHealth
from magnetar.env.metadata import MetadataStore
from magnetar.env.network.listening import ANY_ADDRESS, advertised_host, bind, host_port, port_of
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.model.bookie_state import BookieState
from magnetar.model.errors import DigestError, MagnetarError, StartError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import DigestType
from magnetar.repair.switches import Switches
from magnetar.wire.bookie.digest import EntryDigest

NO_HTTP: Final = -1
"""``http.port`` of a role that serves none."""
HTTP_END_S: Final = 3.0
SANITY_S: Final = 5.0
SANITY_ENTRIES: Final = 10
MODULES: Final = ("magnetar.admin.api", "magnetar.admin.server", "magnetar.admin.routes.bookie_api")


def bind_http(config: Config) -> socket.socket | None:
    """Before anything else is started, so that a port in use is found out at once; None: no HTTP
    is wanted. Raises ``StartError``."""
    if config.http.port == NO_HTTP:
        return None
    if config.http.tls_port >= 0:
        raise StartError(
            f"http.tls_port = {config.http.tls_port}: only brokers serve HTTP by TLS; leave it out "
            "here, and let nobody but operators reach http.port"
        )
    return bind(config.http.host, config.http.port, "http.port")


async def serve_bookie(
    process: Process, cluster: Cluster, started: StartedBookie, bound: socket.socket
) -> str:
    """Serve until the process ends; returns the URL."""
    registry = BookieRegistry(cluster.metadata, cluster.manager.root)
    process.stack.callback(registry.close)
    queries = _Queries(process, cluster, started, registry)
    process.health.add("metadata", metadata_check(cluster.metadata))
    process.health.add("bookie", bookie_check(started.core))
    process.health.add("registration", _registration_check(registry, started.client.bookie_id))
    return await _serve(process, bound, queries)


async def serve_autorecovery(process: Process, bound: socket.socket) -> str:
    """As above. Its metrics say what it repairs; without the metadata store it repairs nothing, and
    ends when its session does."""
    return await _serve(process, bound)


async def serve_health(process: Process, metadata: MetadataStore, bound: socket.socket) -> str:
    """As above, of the process that has the bookies of several brokers; their checks are added by
    who starts them."""
    process.health.add("metadata", metadata_check(metadata))
    return await _serve(process, bound)


async def _serve(process: Process, bound: socket.socket, queries: Any = None) -> str:
    await asyncio.to_thread(_import)
    from prometheus_client import GCCollector, PlatformCollector, ProcessCollector

    from magnetar.admin import api
    from magnetar.admin.routes import bookie_api
    from magnetar.admin.server import HttpServer

    config, metrics = process.config, process.metrics
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=metrics.registry)
    access = Access.of(open_authenticator(config, process.outside.clock_s), None)
    app = api.create(
        metrics.registry,
        None,
        None,
        None,
        [process.fold_metrics],
        process.health,
        guard=None if access is None else (access, config.security),
    )
    if queries is not None:
        app.include_router(bookie_api.routes(queries))
    most = process.descriptors.http_connections_max
    server = HttpServer(app, bound, connections_max=most)
    end_within(process.stack, HTTP_END_S, "HTTP", server.stop)
    await server.start()
    known_as = config.bookie.advertised_host if config.http.host in ANY_ADDRESS else ""
    return "http://" + host_port(advertised_host(config.http.host, known_as), port_of(bound))


def _import() -> None:
    for name in MODULES:
        importlib.import_module(name)


def _registration_check(registry: BookieRegistry, bookie_id: BookieId) -> Check:
    async def check() -> PartHealth:
        if bookie_id in await registry.all():
            return WELL
        return PartHealth(
            False,
            f"{bookie_id} is not registered: nobody finds it",
            "see that the metadata store is up; it registers again by itself",
        )

    return check


class _Queries:
    """``admin.routes.bookie_api.BookieQueries``."""

    def __init__(
        self, process: Process, cluster: Cluster, started: StartedBookie, registry: BookieRegistry
    ) -> None:
        self.bookie_id = str(started.client.bookie_id)
        self._id = started.client.bookie_id
        self._process = process
        self._cluster = cluster
        self._started = started
        self._registry = registry
        self._switches = Switches(cluster.metadata, cluster.manager.root)
        self._one_sanity = asyncio.Lock()

    async def state(self) -> BookieState:
        bookie, info = self._started.core, self._started.core.info()
        waiting = self._process.waiting_spaces[self._id]()
        return BookieState(
            self.bookie_id,
            running=not self._process.fate.decided,
            registered=self._id in await self._registry.all(),
            read_only=info.read_only,
            refusal=bookie.refusal,
            limbo=info.limbo,
            directories=bookie.directories(),
            failed_directories=info.failed_directories,
            journals=bookie.journals(),
            write_cache_bytes=info.write_cache_bytes,
            read_cache_bytes=info.read_cache_bytes,
            ledgers=len(await bookie.ledgers()),
            deleted_ledgers_held=waiting.ledgers,
            next_look_ms=waiting.next_look_ms,
        )

    async def ledgers(self) -> list[int]:
        return await self._started.core.ledgers()

    def collect(self) -> None:
        self._started.collect()

    async def set_read_only(self, read_only: bool) -> None:
        if read_only:
            await self._switches.hold(self._id)
        else:
            await self._switches.let_go(self._id)
        # At once, and not when the watch tells: whoever has asked reads the answer.
        self._started.core.refuse_writes(read_only or self._id in await self._switches.leaving())

    async def sanity(self) -> bool:
        """In a ledger of its own, which no metadata names: if we end in between, the bookie deletes
        it as it does every ledger that nobody knows."""
        try:
            async with asyncio.timeout(SANITY_S), self._one_sanity:
                return await self._try_out(await self._cluster.manager.new_ledger_id())
        except (TimeoutError, MagnetarError):
            return False

    async def _try_out(self, ledger_id: int) -> bool:
        client = self._started.client
        digest = EntryDigest(DigestType.CRC32C, ledger_id, b"sanity")
        payloads = [b"sanity %d" % number for number in range(SANITY_ENTRIES)]
        entries, _ = digest.build_run(0, -1, 0, payloads)
        added: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = set(range(SANITY_ENTRIES))

        def done(error: MagnetarError | None, entry_ids: Any) -> None:
            left.difference_update(entry_ids)
            if not added.done() and (error is not None or not left):
                added.set_exception(error) if error is not None else added.set_result(None)

        try:
            client.add_entries(ledger_id, digest.master_key, range(len(entries)), entries, 0, done)
            await added
            found = await client.read_batch(ledger_id, 0, len(entries), 1 << 20)
            for entry_id, entry in enumerate(found):
                digest.verify(entry, entry_id)
            return found == entries
        except DigestError:
            return False
        finally:
            await self._started.core.delete_ledger(ledger_id)
