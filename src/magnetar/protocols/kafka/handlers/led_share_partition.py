"""One partition that this broker leads, for one share group: the machine
(``shares.share_partition``), the log that it reads, and the state that it has kept.

Rules:

* An acknowledgement is answered when the coordinator has what it says. Those that come while one is
  written are written together with the next.
* Once a write has an outcome that is not known, or another has read the state since, nothing that
  is known here counts any more (``lost``): whoever comes next reads it anew. What was acquired and
  not acknowledged is delivered again then; what was acknowledged never.
* One member reads at a time: two would read the same entries, and one of them for nothing.
* Locks that are over, and sessions that end, are kept too, when there is time: how often a record
  was delivered counts over a crash.

Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from magnetar.model.errors import MagnetarError, NotLeaderError, ServiceNotReadyError
from magnetar.protocols.kafka.coordination.share_states import ShareStates
from magnetar.protocols.kafka.handlers.fetch import FetchedBatches, ReadBounds, read_batches
from magnetar.protocols.kafka.partitions.partition import Partition
from magnetar.protocols.kafka.partitions.transaction_index import Aborted
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.shares.share_partition import (
    Acknowledgement,
    Acquired,
    ReadBatch,
    SharePartition,
)
from magnetar.protocols.kafka.shares.share_records import ShareStateKey, ShareStateRecord
from magnetar.protocols.kafka.shares.share_settings import ShareSettings
from magnetar.wire.kafka.batches import CONTROL, TRANSACTIONAL, BatchHeader, read_batch_header
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.primitives import Buffer

log = structlog.get_logger(__name__)

WRITES_MAX: Final = 6
PAUSE_S: Final = 0.1
"""After a coordinator was not there, and twice as long after each further time."""


class WantedRecords(NamedTuple):
    """``alive``: somebody still waits for them."""

    member: str
    records_max: int
    bytes_max: int
    batch_size: int
    alive: Callable[[], bool]


class SharedRecords(NamedTuple):
    parts: list[Buffer]
    size: int
    acquired: list[Acquired]

    @property
    def number(self) -> int:
        return sum(each.last - each.first + 1 for each in self.acquired)


NO_RECORDS: Final = SharedRecords([], 0, [])


class LedSharePartition:
    """See the module's text. ``partition`` is open here, and ``record`` what was read last."""

    def __init__(
        self,
        services: KafkaServices,
        states: ShareStates,
        key: ShareStateKey,
        partition: Partition,
        record: ShareStateRecord,
        machine: SharePartition,
        settings: ShareSettings,
    ) -> None:
        self.key = key
        self.partition = partition
        self.machine = machine
        self.settings = settings
        self._lost = False
        self._services = services
        self._states = states
        self._record = record
        self._stored = 0
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._watchers: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
        return not self._lost and self.partition.usable

    def _check(self) -> None:
        if not self.usable:
            raise ServiceNotReadyError(
                f"what group {self.key.group} has done with {self.partition.topic.name} is read "
                "again; ask once more"
            )

    def let(self, settings: ShareSettings) -> None:
        """What holds for the group from now on."""
        self.settings, self.machine.limits = settings, settings.limits

    @property
    def is_idle(self) -> bool:
        """Nobody holds a record."""
        return self.machine.next_ms() is None

    # -- who waits ----------------------------------------------------------------------------

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` when there may be more for somebody, until what is returned is
        called."""
        self._watchers[changed] = None
        return lambda: self._watchers.pop(changed, None) and None

    def _wake(self) -> None:
        for changed in list(self._watchers):
            changed()

    # -- fetching -----------------------------------------------------------------------------

    async def fetch(self, wanted: WantedRecords) -> SharedRecords:
        """Raises as reading a log, and ``ServiceNotReadyError``."""
        async with self._reading:
            while wanted.alive():
                self._check()
                self._expire()
                self.partition.touch()
                self.machine.move_start(self.partition.start_offset())
                end_offset = await self._end_offset()
                at = self.machine.next_offset()
                if at is None or at >= end_offset:
                    break
                bounds = ReadBounds(end_offset, wanted.bytes_max)
                batches = await read_batches(self.partition, at, bounds, self._services.conversions)
                aborted = await self._aborted(at, batches)
                if not wanted.alive():
                    break
                self._check()
                found = self._acquire(at, batches.parts, aborted, wanted)
                if found.acquired or self.machine.next_offset() == at:
                    return found
                await asyncio.sleep(0)  # there were none for consumers: others have their turns
        return NO_RECORDS

    async def _end_offset(self) -> int:
        if not self.settings.committed:
            return self.partition.positions.end_offset
        if not self.partition.transactions.known:
            await self.partition.know_transactions()
        return self.partition.stable_offset()

    async def _aborted(self, at: int, batches: FetchedBatches) -> list[Aborted]:
        if not self.settings.committed:
            return []
        return await self.partition.transactions.aborted_in(
            at, batches.transactional, batches.after
        )

    def _acquire(
        self, at: int, parts: Sequence[Buffer], aborted: Sequence[Aborted], wanted: WantedRecords
    ) -> SharedRecords:
        headers = [read_batch_header(part) for part in parts]
        acquired = self.machine.acquire(
            wanted.member,
            at,
            [_read_batch(header, aborted) for header in headers],
            wanted.records_max,
            self._services.steady_ms(),
            wanted.batch_size,
        )
        self._plan()
        told = [
            part
            for part, header in zip(parts, headers, strict=True)
            if any(
                each.first < header.next_offset and each.last >= header.base_offset
                for each in acquired
            )
        ]
        return SharedRecords(told, sum(map(len, told)), acquired)

    # -- what has become of them --------------------------------------------------------------

    async def acknowledge(self, member: str, said: Sequence[Acknowledgement]) -> ErrorCode:
        """Kept when it returns without an error. Raises as ``store``."""
        self._check()
        self._expire()
        error = self.machine.acknowledge(member, said)
        if error is ErrorCode.NONE and said:
            self._plan()
            self._wake()
            await self.store()
        return error

    async def release(self, member: str, *, looked_at: bool) -> None:
        """As ``SharePartition.release``; kept when it returns, if that can be."""
        if self.usable and self.machine.release(member, looked_at=looked_at):
            self._plan()
            self._wake()
            await self._store_quietly()

    def _expire(self) -> None:
        if self.machine.expire(self._services.steady_ms()):
            self._wake()
            if not self._services.scope.closed:
                name = f"share group {self.key.group}"
                self._services.scope.spawn(self._store_quietly(), name)

    def _plan(self) -> None:
        """Have the next lock looked at when it is over."""
        when = self.machine.next_ms()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when is not None and not self._lost:
            wait_s = max(0, when - self._services.steady_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.usable:
            self._expire()
            self._plan()

    # -- what is kept -------------------------------------------------------------------------

    async def store(self) -> None:
        """What the machine says is kept when it returns. Raises ``NotLeaderError``, and what the
        coordinator's log does: nothing that is known here counts any more."""
        wanted = self.machine.version
        async with self._writing:
            if self._stored >= wanted:
                return  # with what came before it
            self._check()
            version = self.machine.version
            self._record = self._record._replace(image=self.machine.image())
            try:
                await self._write()
            except BaseException:
                self.lose()
                raise
            self._stored = version

    async def _write(self) -> None:
        pause_s = PAUSE_S
        for attempt in range(WRITES_MAX):
            try:
                kept = await self._states.write(self.key, self._record)
            except ServiceNotReadyError:  # the coordinator moves: the same again is no harm
                if attempt + 1 == WRITES_MAX:
                    raise
                await asyncio.sleep(pause_s)
                pause_s *= 2
                continue
            if kept.error:
                raise NotLeaderError(f"group {self.key.group}: {kept.error.name}: {kept.why}")
            return

    async def _store_quietly(self) -> None:
        try:
            await self.store()
        except MagnetarError as error:
            log.info("share state not kept", group=self.key.group, error=str(error))

    def lose(self) -> None:
        """Nobody uses it from now on."""
        self._lost = True
        self._plan()
        self._wake()


def _read_batch(header: BatchHeader, aborted: Sequence[Aborted]) -> ReadBatch:
    delivered = not header.attributes & CONTROL
    if header.attributes & TRANSACTIONAL and delivered:
        delivered = not any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset <= each.last_offset
            for each in aborted
        )
    return ReadBatch(header.base_offset, header.next_offset - 1, delivered)
