"""Cursors of a managed log: the acknowledgement state joined with its store, and recovery.

What a cursor does is the same wherever it is kept: in a ledger (``CursorStore``), nowhere, as a
reader's (``NullAckStore``), or by another process.

What is read of a damaged one: docs/adr/0233-a-damaged-cursor-goes-on-from-what-can-be-read.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from magnetar.log.ack_store import AckStore
from magnetar.log.acked_cursor import AckedCursor
from magnetar.log.acknowledgements import AckImage, AckState, LedgerChain
from magnetar.log.managed.chain import Chain
from magnetar.log.managed.cursor_format import (
    decode_records,
    readable_images,
    recovery_start,
)
from magnetar.log.managed.cursor_store import CursorStore
from magnetar.log.managed.gone import open_needed
from magnetar.log.managed.ledgers import ChainReader, Ledgers
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import CursorRecord
from magnetar.log.seam import Binding, CursorLending
from magnetar.model.errors import (
    EntryDamagedError,
    LogError,
    MagnetarError,
    NoEntryError,
    ProtocolError,
)
from magnetar.model.ids import Position

log = structlog.get_logger(__name__)

RECOVERY_BATCH_ENTRIES = 1_000
RECOVERY_BATCH_BYTES = 4 << 20
_LOST = (EntryDamagedError, NoEntryError)
_FOR_GOOD = (*_LOST, ProtocolError, type(None))
"""Why a cursor's ledger cannot be read, if that does not pass by itself."""


class ManagedCursor(AckedCursor):
    """Implements ``log.seam.Cursor``."""

    def __init__(
        self,
        name: str,
        chain: Chain,
        state: AckState,
        properties: Mapping[str, str],
        store: AckStore,
        lending: CursorLending | None = None,
    ) -> None:
        super().__init__(name, state, properties, store, lending)
        self._chain = chain

    def _mark_before(self, position: Position) -> Position:
        return self._chain.mark_before(position)

    def backlog_entries(self) -> int:
        after = self._chain.entries_between(self._state.mark_delete, self._chain.confirmed)
        return after - self._state.hole_entries


class ManagedLending:
    """Implements ``log.seam.CursorLending``: of a cursor that ``store`` keeps."""

    def __init__(self, state: AckState, store: CursorStore) -> None:
        self._state = state
        self._store = store
        self.bind = store.bind

    @property
    def binding(self) -> Binding:
        return self._store.binding

    @property
    def term(self) -> int:
        return self._store.term

    @property
    def reset_epoch(self) -> int:
        return self._state.reset_epoch

    def image(self) -> AckImage:
        return self._state.snapshot()

    def merge(self, image: AckImage) -> None:
        if self._state.take_over(image):
            self._store.mark_dirty()


async def stored_state(
    name: str, chain: LedgerChain, record: CursorRecord, ledgers: Ledgers
) -> AckState:
    """The acknowledgements that were stored. Raises as ``stored_images``."""
    return state_of(chain, record, await stored_images(name, record, ledgers))


async def stored_images(name: str, record: CursorRecord, ledgers: Ledgers) -> Sequence[AckImage]:
    """What is stored of the acknowledgements beside the node; none: the node says it all. Fences
    the cursor's ledger, so that a former owner stores nothing more, then reads it. Raises
    ``LogError`` when the ledger is not what a cursor wrote."""
    if record.ledger_id is None:
        return ()
    reader = await open_needed(ledgers, name, record.ledger_id)
    try:
        return await _read_images(name, record.ledger_id, reader)
    except LogError as error:
        if not isinstance(error.__cause__, _FOR_GOOD):
            raise
        if not await ledgers.given_up(record.ledger_id):
            raise LogError(_way_on(name, record.ledger_id, error)) from error.__cause__
        # An operator has given up what nobody can read (``ledger.given_up``), so that the log is
        # opened. What the node says was stored, too, and lies before: nothing is skipped.
        images = await _readable_images(reader)
        if images and images[0].reset_epoch < record.reset_epoch:
            images = []  # of before a reset that the node knows of
        last = max((image.mark_delete for image in images), default=record.mark_delete)
        log.warning(
            "acknowledgements were given up with entries of their ledger: what was acknowledged "
            "since is delivered again",
            cursor=name,
            ledger=record.ledger_id,
            mark_delete=str(last),
            error=str(error),
        )
        return images


def _way_on(name: str, ledger_id: int, error: LogError) -> str:
    log_name, _, subscription = name.rpartition("/")
    return (
        f"the acknowledgements of subscription {subscription!r} of topic {log_name} are damaged: "
        f"{error}. Look for a sound copy: magnetar ledger verify {ledger_id} --repair. What going "
        f"on without would deliver again: magnetar ledger close-at-loss {ledger_id}"
    )


def state_of(chain: LedgerChain, record: CursorRecord, images: Sequence[AckImage]) -> AckState:
    """What ``record`` and ``images`` say, of a log whose last ledger is known by now."""
    if not images:
        return AckState(chain, record.mark_delete, record.reset_epoch)
    # Not at the node's mark-delete: a reset since then may have moved it back.
    state = AckState(chain, images[0].mark_delete, images[0].reset_epoch)
    for image in images:
        state.merge(image)
    return state


async def recover_state(
    name: str,
    chain: LedgerChain,
    node: RecordNode[CursorRecord],
    ledgers: Ledgers,
    confirm_owned: Callable[[], Awaitable[None]],
) -> AckState:
    """The acknowledgements that were stored, and the node taken over.

    Reads what is stored; then asks whether the log is still ours (``confirm_owned`` raises if
    not); then writes the node, so that a former owner cannot move to another ledger.
    """
    state = await stored_state(name, chain, node.record, ledgers)
    # A later owner may have stored what is read here, and of ledgers that our chain does not know
    # nothing is kept: written, that would forget acknowledgements. One who takes the log over from
    # here on reads the same node, and one of the two writes it first.
    await confirm_owned()
    if not node.owned:  # else it was made as it would be written now
        await take_node(node, state)
    return state


async def take_node(node: RecordNode[CursorRecord], state: AckState) -> None:
    """Write the node for the first time. A state that the mark-delete position says wholly goes
    into it, and the ledger with it goes away."""
    await node.update(lambda record: _taken_over(record, state))


def _taken_over(record: CursorRecord, state: AckState) -> CursorRecord:
    record = replace(record, epoch=record.epoch + 1)
    if record.ledger_id is None or not state.simple:
        return record
    return replace(
        record,
        ledger_id=None,
        mark_delete=state.mark_delete,
        reset_epoch=state.reset_epoch,
        deleting=(*record.deleting, record.ledger_id),
    )


async def _readable_images(reader: ChainReader) -> list[AckImage]:
    """Of a ledger that is damaged: what can be read of it. Raises what may pass by itself."""
    records: list[bytes | None] = []
    while len(records) <= reader.last_add_confirmed:
        try:
            some = await reader.read(len(records), RECOVERY_BATCH_ENTRIES, RECOVERY_BATCH_BYTES)
            records += [bytes(entry.payload) for entry in some]
        except _LOST:
            records.append(None)
    return readable_images(records)


async def _read_images(name: str, ledger_id: int, reader: ChainReader) -> list[AckImage]:
    """What the last whole snapshot in a cursor ledger and the deltas after it say."""
    last = reader.last_add_confirmed
    where = f"ledger {ledger_id} of cursor {name}"
    try:
        if last < 0:
            raise LogError(f"{where} is empty; it must start with a snapshot")
        (entry,) = await reader.read(last, 1, RECOVERY_BATCH_BYTES)
        at = recovery_start(last, bytes(entry.payload))
        if at < 0:
            raise LogError(f"{where} holds no whole snapshot")
        records: list[bytes] = []
        while at <= last:
            count = min(RECOVERY_BATCH_ENTRIES, last - at + 1)
            entries = await reader.read(at, count, RECOVERY_BATCH_BYTES)
            records += [bytes(e.payload) for e in entries]
            at += len(entries)
        images = decode_records(records)
    except LogError:
        raise
    except MagnetarError as error:
        raise LogError(f"{where} cannot be read: {error}") from error
    if not images:
        raise LogError(f"{where} holds no whole snapshot")
    return images
