"""Compaction of topics by the broker that owns them.

A key costs some 200 bytes of memory here, and each entry is read twice.

What is read is the compacted view itself, up to where the log reaches when it begins: what survived
the last time, and what came since. Which messages stay ``log.survivors`` decides; that what is read
and what takes its place fit together is the log's business (``log.seam.KeyCompaction``).

One compaction of a topic at a time, ``AT_ONCE`` of a broker; others wait. It works in slices of
``STEP_BYTES``, between which everybody else has a turn.

A topic whose policy has a threshold is compacted when so many bytes of its log lie behind the
horizon (``look``). After one that failed as many more must come: what cannot be compacted is not
read again and again. Why: docs/adr/0149-compaction-by-a-threshold.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeVar

import structlog

from magnetar.env.tasks import TaskScope
from magnetar.log.seam import LogStats, Survivor, WritableLog
from magnetar.log.surviving import survivor
from magnetar.log.survivors import Survivors
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError, MagnetarError, NotAllowedError, ProtocolError
from magnetar.model.ids import EARLIEST, Position
from magnetar.model.keyed import KeyedEntry
from magnetar.topics.reading_on import entries_until
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.topic import Topic

log = structlog.get_logger(__name__)

T = TypeVar("T")

AT_ONCE: Final = 2
STEP_ENTRIES: Final = 256
STEP_BYTES: Final = 256 << 10
MESSAGES_PER_TURN: Final = 1000
"""Of the loop: some 8 ms."""
REMEMBERED_MAX: Final = 10_000
"""Outcomes that are told when they are asked for."""


class CompactFormat(Protocol):
    """One protocol's way to store keys. Raises ``ProtocolError`` for bytes that are not of it."""

    def is_large(self, payload: memoryview) -> bool:
        """By what it says of itself: to take it apart stops a loop for more than some ms."""
        ...

    def keyed(self, payload: memoryview) -> KeyedEntry: ...

    def without_others(self, payload: memoryview, kept: Container[int]) -> bytes:
        """The batch, with a broker's header before it as in ``payload``, without all messages but
        those of these indexes; these keep their places."""
        ...


class CompactionStatus(Enum):
    """As Pulsar's REST has it."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True)
class CompactionOutcome:
    """``error``: why the last one failed."""

    status: CompactionStatus
    error: str = ""


class TopicCompactions:
    """The compactions of a broker."""

    def __init__(self, entry_format: CompactFormat, scope: TaskScope) -> None:
        self._format = entry_format
        self._scope = scope
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._outcomes: dict[str, CompactionOutcome] = {}
        self._failed_at: dict[str, Position] = {}
        """By topic: up to where its log reached when compaction failed."""

    def outcome(self, topic: Topic) -> CompactionOutcome:
        """Of the last one that was begun here."""
        found = self._outcomes.get(str(topic.name))
        if found is not None:
            return found
        done = topic.log.compaction.stats is not None
        return CompactionOutcome(CompactionStatus.SUCCESS if done else CompactionStatus.NOT_RUN)

    def begin(self, topic: Topic) -> None:
        """Raises ``NotAllowedError`` if one is under way, or the log is a partition."""
        name = str(topic.name)
        if not topic.log.stats().on_ledgers:
            raise NotAllowedError(
                f"topic {name} is kept on a partition, which has no compacted view beside it: set "
                "its cleanup.policy to compact (Kafka's configuration), or use a topic on ledgers"
            )
        if self.outcome(topic).status is CompactionStatus.RUNNING:
            raise NotAllowedError(f"topic {name} is being compacted already")
        self._tell(name, CompactionOutcome(CompactionStatus.RUNNING))
        self._scope.spawn(self._run(topic), f"compact {name}")

    def look(self, topic: SubscribableTopic) -> None:
        """Compact it if its policy says so by now."""
        threshold = topic.policy.compaction_threshold_bytes
        if not threshold or not isinstance(topic, Topic) or topic.closed:
            return
        name, stats = str(topic.name), topic.log.stats()
        if not stats.on_ledgers or self.outcome(topic).status is CompactionStatus.RUNNING:
            return
        done, failed = topic.log.compaction.stats, self._failed_at.get(name)
        horizon = EARLIEST if done is None else done.horizon
        if failed is not None:
            horizon = max(horizon, failed)
        if bytes_after(stats, horizon) >= threshold:
            log.info("compacted by its policy", topic=name, threshold_bytes=threshold)
            self.begin(topic)

    def _tell(self, name: str, outcome: CompactionOutcome) -> None:
        self._outcomes.pop(name, None)
        self._outcomes[name] = outcome
        if len(self._outcomes) > REMEMBERED_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    async def _run(self, topic: Topic) -> None:
        name, end = str(topic.name), topic.log.positions.readable
        outcome = CompactionOutcome(CompactionStatus.ERROR, "the broker ended")
        self._failed_at.pop(name, None)
        try:
            with topic.held():
                async with self._turns:
                    await compact(topic.log, self._format)
            outcome = CompactionOutcome(CompactionStatus.SUCCESS)
        except MagnetarError as error:
            log.warning("compaction failed", topic=name, error=str(error))
            outcome = CompactionOutcome(CompactionStatus.ERROR, str(error))
            self._failed_at[name] = end
            if len(self._failed_at) > REMEMBERED_MAX:
                del self._failed_at[next(iter(self._failed_at))]
        finally:
            self._tell(name, outcome)


def bytes_after(stats: LogStats, horizon: Position) -> int:
    """How many bytes of a log lie after that position: of its ledger the mean is taken."""
    found = 0
    for ledger in stats.ledgers:
        entries = ledger.entries
        if ledger.ledger_id == horizon.ledger_id:
            entries = max(0, entries - horizon.entry_id - 1)
        elif ledger.ledger_id < horizon.ledger_id:
            continue
        found += ledger.stored_bytes * entries // max(1, ledger.entries)
    return found


async def compact(source: WritableLog, entry_format: CompactFormat) -> None:
    """Compact the log up to where it reaches now. Raises ``LogError``, ``LedgerError``,
    ``MetadataError``."""
    horizon, compaction = source.positions.readable, source.compaction
    done = compaction.stats
    if horizon.entry_id < 0 or (done is not None and done.horizon >= horizon):
        return  # nothing came since
    with compaction.reading():
        survivors, turns = Survivors(EARLIEST if done is None else done.horizon), _Turns()
        async for entries in _until(source, horizon):
            for entry in entries:

                def note(entry: Entry = entry) -> int:
                    keyed = _keyed(source, entry, entry_format)
                    survivors.note(entry.position, keyed)
                    return keyed.size

                await turns.next(await _beside(entry_format, entry, note))
        await compaction.replace(horizon, _kept(source, horizon, survivors, entry_format))


def _until(source: WritableLog, horizon: Position) -> AsyncIterator[list[Entry]]:
    """The compacted view, up to ``horizon``."""
    view = source.compaction.view
    return entries_until(view, view.positions.first, horizon, STEP_ENTRIES, STEP_BYTES)


async def _kept(
    source: WritableLog, horizon: Position, survivors: Survivors, entry_format: CompactFormat
) -> AsyncIterator[Sequence[Survivor]]:
    turns = _Turns()
    async for entries in _until(source, horizon):
        found: list[Survivor] = []
        for entry in entries:

            def keep(entry: Entry = entry) -> tuple[int, Survivor | None]:
                keyed = _keyed(source, entry, entry_format)
                kept = survivors.kept(entry.position, keyed)
                if kept is not None and not kept:
                    return keyed.size, None
                payload, without = source.compaction.payload(entry), entry_format.without_others
                return keyed.size, survivor(entry, payload, kept, keyed.size, without)

            messages, left = await _beside(entry_format, entry, keep)
            if left is not None:
                found.append(left)
            await turns.next(messages)
        yield found


async def _beside(entry_format: CompactFormat, entry: Entry, work: Callable[[], T]) -> T:
    """On a thread, what would stop the loop."""
    if entry_format.is_large(entry.payload):
        return await asyncio.to_thread(work)
    return work()


class _Turns:
    """A slice of 256 KiB unpacks to any number of messages: others have their turns in it, too."""

    def __init__(self) -> None:
        self._messages = 0

    async def next(self, messages: int) -> None:
        """After an entry with so many."""
        self._messages += messages
        if self._messages >= MESSAGES_PER_TURN:
            self._messages = 0
            await asyncio.sleep(0)


def _keyed(source: WritableLog, entry: Entry, entry_format: CompactFormat) -> KeyedEntry:
    try:
        return entry_format.keyed(entry.payload)
    except ProtocolError as error:
        raise LogError(
            f"log {source.name} cannot be compacted: its entry {entry.position} is no message of "
            f"Pulsar's clients ({error})"
        ) from error
