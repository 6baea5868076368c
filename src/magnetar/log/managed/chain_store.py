"""The chain of ledgers kept durable: one compare-and-set record per log, and the ledgers that
left the chain deleted after it. Implements ``log.seam.Checkpoints``.

Rules: the record is written before the chain grows and before a ledger is deleted. A ledger that
leaves is named in the record (``deleting``) until it is gone, so a crash in between is finished
at the next opening. A write that loses means that another broker owns the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from magnetar.log.managed.chain import Chain, Front, LedgerInfo
from magnetar.log.managed.ledgers import Ledgers
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import NO_LEDGER, Compacted, HandedCursor, LogRecord
from magnetar.log.managed.stamping import Extent
from magnetar.log.seam import Checkpoint, ReaderHold, StoredAt, TableMark
from magnetar.model.errors import MagnetarError, NoSuchLedgerError

log = structlog.get_logger(__name__)


class ChainStore:
    """Saves ``chain`` in ``node``."""

    def __init__(
        self, name: str, chain: Chain, node: RecordNode[LogRecord], ledgers: Ledgers
    ) -> None:
        self.name = name
        self.chain = chain
        self._node = node
        self._ledgers = ledgers
        self._leaving: dict[int, None] = dict.fromkeys(node.record.deleting)
        self.table: TableMark | None = node.record.table
        """The next ``save`` says so."""
        self._current: Callable[[], Checkpoint | None] = lambda: node.record.checkpoint
        self._holds: Callable[[], tuple[ReaderHold, ...]] = lambda: node.record.holds
        self.compacted = node.record.compacted
        """What compaction has left, as the record says or is about to."""
        self._half_compacted: dict[int, None] = {}
        self.terminated = node.record.terminated
        """Nothing more is appended. The next ``save`` says so; never taken back, for a write that
        failed may have arrived."""

    async def take_over(self) -> None:
        """Write a new epoch, so that a former owner's next write loses."""
        await self._node.update(lambda record: self._now(replace(record, epoch=record.epoch + 1)))

    @property
    def leader_epoch(self) -> int:
        """Of this opening of the log."""
        return self._node.record.leader_epoch

    async def hand_over(self, cursors: tuple[HandedCursor, ...] | None) -> None:
        """Write for the last time, with ``cursors``, all that there are, for the next owner:
        nothing writes them from now on. None: it is to ask for them. Raises as ``save``."""
        await self._node.update(lambda record: replace(self._now(record), handed_over=cursors))

    async def confirm_owned(self) -> None:
        """Raises ``LogFencedError`` when the log has another owner."""
        await self._node.confirm_owned()

    async def save(self, opened: LedgerInfo | None = None) -> None:
        """Write what the chain is now, with ``opened`` as its new last ledger. Raises
        ``LogFencedError`` when the log has another owner."""
        await self._node.update(lambda record: self._now(record, opened))
        if opened is not None:
            self.chain.open_ledger(opened)

    def _now(self, record: LogRecord, opened: LedgerInfo | None = None) -> LogRecord:
        ledgers = (*self.chain.ledgers, *(() if opened is None else (opened,)))
        return replace(
            record,
            ledgers=ledgers,
            trimmed=self.chain.trimmed,
            first_offset=self.chain.first_offset,
            deleting=(*self._leaving, *self._unborn()),
            # With what it is of: what this write trims is counted by the checkpoint in it.
            checkpoint=self.checkpoint,
            holds=self._holds(),
            table=self.table,
            compacted=self.compacted,
            front=self.chain.front,
            terminated=self.terminated,
            handed_over=None,  # whoever writes here owns the log, and its cursors change
        )

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Of this moment: what the next write stores."""
        return self._current()

    @property
    def stored(self) -> Checkpoint | None:
        """What the record says."""
        return self._node.record.checkpoint

    @property
    def stored_table(self) -> TableMark | None:
        """The table that the record names."""
        return self._node.record.table

    @property
    def stored_at(self) -> Mapping[int, StoredAt]:
        """Where the record says that the entries of each ledger lie."""
        return {info.ledger_id: info.stored for info in self._node.record.ledgers}

    @property
    def stored_front(self) -> Front:
        """Where the record says that the log begins."""
        return self._node.record.front

    def keep(self, current: Callable[[], Checkpoint | None]) -> None:
        """Ask ``current`` from now on."""
        self._current = current

    @property
    def stored_holds(self) -> tuple[ReaderHold, ...]:
        """The holds of readers that the record has."""
        return self._node.record.holds

    def keep_holds(self, current: Callable[[], tuple[ReaderHold, ...]]) -> None:
        """Each write of the record stores what ``current`` says from now on."""
        self._holds = current

    # -- compaction ---------------------------------------------------------------------------

    def _unborn(self) -> tuple[int, ...]:
        """Compacted ledgers that are being written: an owner that comes now deletes them."""
        return (*self._half_compacted,)

    async def begin_compacted(self, ledger_id: int) -> None:
        """The ledger is to hold what compaction leaves. Nobody reads it yet. Raises as ``save``."""
        # Named before anything is in it: else nobody would know of it if this process ended.
        self._half_compacted[ledger_id] = None
        await self.save()

    async def end_compacted(self, found: Compacted) -> None:
        """``found`` takes the place of what there was, in one write, and the ledger of that leaves
        with it. Raises as ``save``; then it is in doubt, and the next write says the same."""
        former, self.compacted = self.compacted, found
        self._half_compacted.pop(found.ledger_id, None)
        if former is not None and former.ledger_id not in (NO_LEDGER, found.ledger_id):
            self.leave(former.ledger_id)
        await self.save()

    async def forget_compacted(self, found: Compacted) -> None:
        """Nothing of ``found`` is left: the log stands for itself. Raises as ``save``."""
        if self.compacted is found:
            self.compacted = None
            self.leave(found.ledger_id)
            await self.save()

    def give_up_compacted(self, ledger_id: int) -> None:
        """The ledger will not be used. It is deleted as what has left."""
        if ledger_id in self._half_compacted:
            del self._half_compacted[ledger_id]
            self.leave(ledger_id)

    @property
    def being_compacted(self) -> bool:
        """A ledger for what compaction leaves is being written."""
        return bool(self._half_compacted)

    def leave(self, ledger_id: int) -> None:
        """The ledger is not, or no longer, part of the chain: the next ``save`` says so."""
        self._leaving[ledger_id] = None

    async def discard(self, ledger_id: int) -> None:
        """Delete a new ledger whose ``save`` found another owner: the record was not written, so
        no owner knows of it."""
        try:
            await self._ledgers.delete(ledger_id)
        except MagnetarError as error:
            log.warning("ledger left over", log=self.name, ledger=ledger_id, error=str(error))

    @property
    def created_ms(self) -> int:
        """When the log was made; 0 if that is not known. A log that is deleted and made anew under
        the same name has another one."""
        return self._node.record.created_ms

    @property
    def any_left(self) -> bool:
        """Ledgers that left the chain are not deleted yet."""
        return bool(self._leaving)

    async def delete_left(self) -> None:
        """Delete the ledgers that the record says have left. What fails stays named there."""
        for ledger_id in self._node.record.deleting:
            if ledger_id not in self._leaving:
                continue
            try:
                await self._ledgers.delete(ledger_id)
            except NoSuchLedgerError:
                pass  # gone already
            except MagnetarError as error:
                log.warning(
                    "ledger not deleted yet", log=self.name, ledger=ledger_id, error=str(error)
                )
                continue
            self._leaving.pop(ledger_id, None)

    def close_last(self, now_ms: int, entries: int, stored_bytes: int, extent: Extent) -> None:
        """The chain's open ledger is closed with that many entries; the next ``save`` says so."""
        info = self.chain.close_last(entries, stored_bytes, now_ms, *extent)
        if entries == 0:
            self.leave(info.ledger_id)

    async def mark_deleted(self) -> None:
        """From here on the log is to be deleted, whoever opens it next."""
        await self._node.update(lambda record: replace(record, deleted=True))

    async def delete_log(self) -> None:
        """Delete the ledgers of a log that is marked so, then its node."""
        record = self._node.record
        assert record.deleted
        compacted = record.compacted
        kept = [] if compacted is None or compacted.ledger_id < 0 else [compacted.ledger_id]
        for ledger_id in (*record.deleting, *(info.ledger_id for info in record.ledgers), *kept):
            try:
                await self._ledgers.delete(ledger_id)
            except NoSuchLedgerError:
                continue
        await self._node.delete()
