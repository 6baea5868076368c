"""Builds the lower half: metadata, bookies, the ledger client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import structlog

from magnetar.app.ending import end_within
from magnetar.app.outside import Outside
from magnetar.app.process import Process
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.cookie import check_cookie
from magnetar.bookie.generations import Generations
from magnetar.bookie.registration import BookieRegistration
from magnetar.bookie.serving.local import LocalBookie
from magnetar.bookie.serving.server import BookieServer
from magnetar.bookie.serving.session import SessionLimits
from magnetar.bookie.space.collector import Collector
from magnetar.config import BookieConfig
from magnetar.env.files.data_dir import metadata_file
from magnetar.env.metadata import MetadataStore
from magnetar.env.network.listening import advertised_host, cannot_listen
from magnetar.env.tasks import TaskScope, ends_role
from magnetar.ledger.bookies import BookieClient
from magnetar.ledger.catalog.metadata import LedgerManager, LivingRange
from magnetar.ledger.connecting import LedgerAccess, connection_options, open_access
from magnetar.ledger.placing.topology import RACK_PROPERTY, ZONE_PROPERTY
from magnetar.model.ids import BookieId
from magnetar.model.space import WaitingSpace
from magnetar.wire.bookie.metadata_service import (
    LACKS_SPACE_PROPERTY,
    REFUSAL_PROPERTY,
    BookieServiceInfo,
)

METADATA_END_S = 3.0

log = structlog.get_logger(__name__)


async def open_metadata(process: Process) -> MetadataStore:
    """The store that ``metadata.url`` says; SQLite in the data directory if it is empty."""
    config = process.config
    store = await process.outside.open_metadata(config, metadata_file(config.data_dir))
    end_within(process.stack, METADATA_END_S, "metadata store", store.close)
    return store


@dataclass(frozen=True)
class Cluster:
    """What all parts of a cluster share."""

    metadata: MetadataStore
    manager: LedgerManager
    instance_id: str

    def living_ledgers(self) -> AsyncGenerator[int, None]:
        """``LedgerManager.living`` of this cluster."""
        return self.manager.living(self.instance_id)

    def living_ranges(self) -> AsyncGenerator[LivingRange, None]:
        """``LedgerManager.living_ranges`` of this cluster."""
        return self.manager.living_ranges(self.instance_id)


async def open_cluster(metadata: MetadataStore, outside: Outside) -> Cluster:
    """The cluster in ``metadata``; a new one is made on the first use."""
    manager = LedgerManager(metadata, new_token=outside.new_token, new_instance_id=outside.new_uuid)
    return Cluster(metadata, manager, await manager.initialize())


class StartedBookie(NamedTuple):
    """``client`` reaches it by calls; ``collect`` has it look for deleted ledgers now."""

    client: LocalBookie
    core: Bookie
    collect: Callable[[], None]


async def start_bookie(
    process: Process,
    cluster: Cluster,
    config: BookieConfig,
    relative_to: Path,
    leave_limbo: bool = False,
) -> StartedBookie:
    """A bookie that serves on TCP and is registered. ``config`` (of this bookie, in place of
    ``process.config.bookie``) names its id and directories; its cookie names them as they lie
    below ``relative_to``. ``leave_limbo``: an operator's word that what it lost has been restored
    from others.

    Ends in the order: out of sight, no more connections, flushed. Raises ``CookieError``,
    ``BookieIOError``, ``StartError``.
    """
    stack, outside = process.stack, process.outside
    bookie_id = BookieId(config.bookie_id)
    known = await check_cookie(
        cluster.metadata,
        cluster.manager.root,
        bookie_id,
        config.ledger_directories,
        cluster.instance_id,
        f"{config.host}:{config.port}",
        journal_directories=config.journal.directories,
        relative_to=relative_to,
        disk=outside.disk,
    )
    generations = Generations(cluster.metadata, bookie_id, config.ledger_directories, outside.disk)
    older = await generations.check(known)
    bookie = outside.make_bookie(config, process.metrics)
    bookie.failed = process.fate.fail
    stack.push_async_callback(bookie.close)
    report = await bookie.start(older)
    await generations.advance()
    if leave_limbo:
        await bookie.leave_limbo()
    elif report.limbo:
        log.warning(
            "this bookie has lost acknowledged entries: it denies nothing and takes no entries of "
            "older ledgers. Auto-recovery gives it what it lacks when all ledgers are checked next "
            "(magnetar recovery check); when none lacks copies any more (magnetar recovery list), "
            "start it once with --leave-limbo. Where no other bookie has copies, what is lost is "
            "lost: --leave-limbo goes on without it",
            bookie=bookie_id,
        )
        bookie.ledgers_are_new_from(await cluster.manager.new_ledger_id())
    server = await _serve_bookie(process, bookie, config)
    host = advertised_host(config.host, config.advertised_host)
    registration = BookieRegistration(
        cluster.metadata,
        bookie_id,
        _service_info(host, server.port, config),
        root=cluster.manager.root,
        session_timeout_ms=process.config.metadata.session_timeout_ms,
        on_lost=process.fate.fail,
        token=f"{outside.new_token():016x}",
    )
    end_within(stack, METADATA_END_S, f"registration of {bookie_id}", registration.close)
    await registration.register(bookie.read_only, _why_read_only(bookie))
    collector = _keep_up(process, cluster, config, bookie, registration, generations)
    if bookie.read_only:
        log.warning("the bookie takes no entries yet", bookie=bookie_id, reason=bookie.refusal)
    return StartedBookie(LocalBookie(bookie_id, bookie), bookie, collector.hurry)


def _service_info(host: str, port: int, config: BookieConfig) -> BookieServiceInfo:
    """Address, and where it stands as far as that is configured."""
    places = ((RACK_PROPERTY, config.rack), (ZONE_PROPERTY, config.zone))
    told = tuple((name, value) for name, value in places if value)
    return replace(BookieServiceInfo.of_address(host, port), properties=told)


def _why_read_only(bookie: Bookie) -> tuple[tuple[str, str], ...]:
    """What its registration tells of it, so that whoever misses it knows the reason."""
    reason = bookie.refusal
    if reason is None:
        return ()
    space = ((LACKS_SPACE_PROPERTY, "true"),) if bookie.lacks_space else ()
    return ((REFUSAL_PROPERTY, reason), *space)


def _keep_up(
    process: Process,
    cluster: Cluster,
    config: BookieConfig,
    bookie: Bookie,
    registration: BookieRegistration,
    generations: Generations,
) -> Collector:
    """What goes on beside serving: the registration says whether the bookie takes entries, and
    ledgers that were deleted are forgotten."""
    scope = TaskScope(f"bookie {config.bookie_id}", ends_role(process.fate.fail))
    process.stack.push_async_callback(scope.close)

    def tell(read_only: bool) -> None:
        why = _why_read_only(bookie)
        scope.spawn(registration.set_read_only(read_only, why), "registration")

    def tell_nobody(_read_only: bool) -> None:
        """The bookie is ending."""

    bookie.read_only_changed = tell
    process.stack.callback(setattr, bookie, "read_only_changed", tell_nobody)
    tell(bookie.read_only)  # it may have changed while it registered
    clock_s = asyncio.get_running_loop().time
    collector = Collector(bookie, cluster.living_ranges, config.collect_grace_ms / 1000, clock_s)
    cluster.manager.watch_deletions(collector.hurry)

    def waiting_space() -> WaitingSpace:
        next_look_ms = process.outside.clock_ms() + round(
            1000 * (collector.next_look_s - clock_s())
        )
        return WaitingSpace(bookie.reclaimable_bytes, collector.waiting, next_look_ms)

    process.waiting_spaces[BookieId(config.bookie_id)] = waiting_space
    process.stack.callback(process.waiting_spaces.pop, BookieId(config.bookie_id))
    scope.spawn(collector.run(config.collect_interval_ms / 1000), "collector")
    scope.spawn(generations.run(bookie.journals), "generations")
    return collector


async def _serve_bookie(process: Process, bookie: Bookie, config: BookieConfig) -> BookieServer:
    limits = SessionLimits(frame_bytes_max=config.entry_bytes_max)
    server = BookieServer(
        bookie,
        config.host,
        config.port,
        limits,
        connections=process.connections,
        failed=process.fate.fail,
    )
    process.stack.push_async_callback(server.close)
    try:
        await server.start()
    except OSError as error:
        raise cannot_listen(config.host, config.port, "bookie.port", error) from error
    return server


def place_bookie(config: BookieConfig, index: int, journal: Path, ledgers: Path) -> BookieConfig:
    """The configuration of bookie ``index`` of a standalone: a name that outlives its port, and
    directories of its own."""
    return replace(
        config,
        bookie_id=config.bookie_id or f"bookie-{index}",
        port=config.port + index if config.port else 0,
        ledger_directories=_of_bookie(config.ledger_directories, index) or (ledgers,),
        journal=replace(
            config.journal,
            directories=_of_bookie(config.journal.directories, index) or (journal,),
        ),
    )


def _of_bookie(directories: tuple[Path, ...], index: int) -> tuple[Path, ...]:
    return tuple(directory / f"bookie-{index}" for directory in directories)


def open_ledgers(
    process: Process, cluster: Cluster, local: Mapping[BookieId, BookieClient]
) -> LedgerAccess:
    """A ledger client; ``local`` are the bookies that it reaches by calls."""
    config, outside = process.config, process.outside
    options = connection_options(config.ledger, config.bookie.entry_bytes_max)
    return open_access(
        process.stack,
        cluster.metadata,
        cluster.manager,
        config.ledger,
        options,
        local,
        outside.clock_s,
        outside.random,
        config.broker.zone,
    )
