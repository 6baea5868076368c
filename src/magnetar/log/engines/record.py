"""The record of a log that is on partitions: that it exists, who owns it, and what is kept with it.

Owns the log's node in the metadata store, as ``managed.chain_store`` does for logs on ledgers.
Implements ``log.seam.Checkpoints`` and ``managed.holds.HoldStore``.

Rule: whoever opens the log writes the record first (a new epoch), so that a former owner's next
write loses, and tells it so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import HandedCursor, LogRecord
from magnetar.log.seam import Checkpoint, ReaderHold


class PartitionRecord:
    """See the module's text."""

    def __init__(self, name: str, node: RecordNode[LogRecord]) -> None:
        self.name = name
        self._node = node
        self._current: Callable[[], Checkpoint | None] = lambda: node.record.checkpoint
        self._holds: Callable[[], tuple[ReaderHold, ...]] = lambda: node.record.holds

    @property
    def record(self) -> LogRecord:
        """As it was read or written last."""
        return self._node.record

    def _now(self, record: LogRecord) -> LogRecord:
        return replace(
            record,
            checkpoint=self._current(),
            holds=self._holds(),
            handed_over=None,  # whoever writes here owns the log, and its cursors change
        )

    async def take_over(self) -> None:
        """Raises ``LogFencedError``, ``MetadataError``, as all that write."""
        await self._node.update(lambda record: self._now(replace(record, epoch=record.epoch + 1)))

    async def hand_over(self, cursors: tuple[HandedCursor, ...] | None) -> None:
        """Write for the last time; see ``ChainStore.hand_over``."""
        await self._node.update(lambda record: replace(self._now(record), handed_over=cursors))

    async def confirm_owned(self) -> None:
        """Raises ``LogFencedError`` when the log has another owner."""
        await self._node.confirm_owned()

    async def mark_deleted(self) -> None:
        """From here on the log is to be deleted, whoever opens it next."""
        await self._node.update(lambda record: replace(record, deleted=True))

    # -- checkpoints and holds ----------------------------------------------------------------

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Of this moment."""
        return self._current()

    @property
    def stored(self) -> Checkpoint | None:
        """What the record says."""
        return self._node.record.checkpoint

    def keep(self, current: Callable[[], Checkpoint | None]) -> None:
        """Ask ``current`` from now on."""
        self._current = current

    async def save(self) -> None:
        await self._node.update(self._now)

    @property
    def stored_holds(self) -> tuple[ReaderHold, ...]:
        return self._node.record.holds

    def keep_holds(self, current: Callable[[], tuple[ReaderHold, ...]]) -> None:
        """Each write of the record stores what ``current`` says from now on."""
        self._holds = current
