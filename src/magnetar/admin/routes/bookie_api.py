"""A bookie over HTTP: its state, and what BookKeeper's operators ask under the same paths.

Of BookKeeper's endpoints (``/heartbeat``, ``/api/v1/bookie/...``) those are here that its
operators' probes and scripts use; answers have its fields. ``state`` has more fields beside them.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse

from magnetar.admin.paths import ID_MAX
from magnetar.admin.views import View
from magnetar.model.bookie_state import BookieState

UNAVAILABLE = 503
LEDGERS_MAX = 10_000


class BookieQueries(Protocol):
    """The bookie of this process."""

    bookie_id: str

    async def state(self) -> BookieState:
        """Raises ``BookieIOError``, ``MetadataError``."""
        ...

    async def ledgers(self) -> list[int]:
        """The ids of those that it holds, ascending."""
        ...

    async def sanity(self) -> bool:
        """Whether entries could be added, read again and deleted just now."""
        ...

    def collect(self) -> None:
        """Look for deleted ledgers now."""
        ...

    async def set_read_only(self, read_only: bool) -> None:
        """An operator's word. Raises ``MetadataError``."""
        ...


class DirectoryView(View):
    path: str
    total_bytes: int
    free_bytes: int
    dead_bytes: int  # in complete entry logs, of what is not live any more
    limbo: bool


class JournalView(View):
    path: str
    file_id: int
    offset: int  # committed up to there
    pending_bytes: int
    problem: str  # empty: none


class BookieStateView(View):
    """The first four as BookKeeper has them."""

    running: bool
    read_only: bool
    shutting_down: bool
    available_for_high_priority_writes: bool
    bookie_id: str
    registered: bool
    refusal: str | None  # why it takes no new entries
    limbo: bool
    ledgers: int
    directories: list[DirectoryView]
    failed_directories: list[str]
    journals: list[JournalView]
    write_cache_bytes: int
    read_cache_bytes: int
    deleted_ledgers_held: int
    next_look_ms: int  # for deleted ledgers, since 1970


class InfoView(View):
    free_space: int
    total_space: int


class SanityView(View):
    passed: bool
    read_only: bool


class ReadOnlyView(View):
    read_only: bool


def routes(bookie: BookieQueries) -> APIRouter:
    """All of it."""
    router = APIRouter(tags=["bookie"])

    @router.get("/heartbeat", response_class=PlainTextResponse)
    async def heartbeat() -> str:
        """The process answers."""
        return "OK\n"

    @router.get("/api/v1/bookie/state")
    async def state() -> BookieStateView:
        """All that a bookie says of itself."""
        return _state_view(await bookie.state())

    @router.get("/api/v1/bookie/info")
    async def info() -> InfoView:
        """Of the disks of the ledger directories, together."""
        directories = (await bookie.state()).directories
        free = sum(each.free_bytes for each in directories)
        return InfoView(free_space=free, total_space=sum(each.total_bytes for each in directories))

    @router.get("/api/v1/bookie/is_ready", response_class=PlainTextResponse)
    async def is_ready() -> Response:
        """``OK`` when it serves and is registered."""
        found = await bookie.state()
        if found.running and found.registered:
            return PlainTextResponse("OK")
        return PlainTextResponse("the bookie is not registered", UNAVAILABLE)

    @router.get("/api/v1/bookie/ledgers")
    async def ledgers(
        after: Annotated[int, Query(ge=-1, le=ID_MAX)] = -1,
        limit: Annotated[int, Query(ge=1, le=LEDGERS_MAX)] = 1000,
    ) -> list[int]:
        """The ledgers that it holds, with ids above ``after``, at most ``limit``."""
        return [each for each in await bookie.ledgers() if each > after][:limit]

    _add_actions(router, bookie)
    return router


def _add_actions(router: APIRouter, bookie: BookieQueries) -> None:
    @router.get("/api/v1/bookie/sanity")
    async def sanity() -> SanityView:
        """Adds entries, reads them again, deletes them; not if it takes none."""
        read_only = (await bookie.state()).read_only
        passed = False if read_only else await bookie.sanity()
        return SanityView(passed=passed, read_only=read_only)

    @router.get("/api/v1/bookie/gc")
    async def is_collecting() -> dict[str, str]:
        """BookKeeper's question; a look is never under way for long here."""
        return {"is_in_force_gc": "false"}

    @router.put("/api/v1/bookie/gc")
    async def collect() -> str:
        """Look for deleted ledgers now."""
        bookie.collect()
        return f"Triggered GC on BookieServer: {bookie.bookie_id}"

    @router.get("/api/v1/bookie/state/readonly")
    async def is_read_only() -> ReadOnlyView:
        return ReadOnlyView(read_only=(await bookie.state()).read_only)

    @router.put("/api/v1/bookie/state/readonly")
    async def set_read_only(wanted: ReadOnlyView) -> ReadOnlyView:
        """Take no new entries, or take them again; also after a restart."""
        await bookie.set_read_only(wanted.read_only)
        return ReadOnlyView(read_only=(await bookie.state()).read_only)


def _state_view(found: BookieState) -> BookieStateView:
    return BookieStateView(
        running=found.running,
        read_only=found.read_only,
        shutting_down=not found.running,
        available_for_high_priority_writes=found.running,
        bookie_id=found.bookie_id,
        registered=found.registered,
        refusal=found.refusal,
        limbo=found.limbo,
        ledgers=found.ledgers,
        directories=[DirectoryView(**each._asdict()) for each in found.directories],
        failed_directories=list(found.failed_directories),
        journals=[JournalView(**each._asdict()) for each in found.journals],
        write_cache_bytes=found.write_cache_bytes,
        read_cache_bytes=found.read_cache_bytes,
        deleted_ledgers_held=found.deleted_ledgers_held,
        next_look_ms=found.next_look_ms,
    )
