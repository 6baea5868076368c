"""The seam between brokers and log engines.

A *log* is one topic partition: an ordered series of entries with positions, and named *cursors*
over it. Engines: ``log.managed`` (a chain of ledgers); later ``log.partition`` (Kafka's ISR).
Brokers import this module and nothing below it.

Parts, each with one test that every engine passes (``tests/unit/log/contract``), none with more
than ten methods (``tests/tidy``):

=================  ============================================================================
``LogStore``       the logs of a process: open, follow, exists, delete, names
``ReadableLog``    what anybody may do with a log who can reach its entries
``WritableLog``    ... and its one owner
``Positions``      ``log.positions``: the order of positions, and the log's two ends
``Cursors``        ``log.cursors``: open, delete, list
``Checkpoints``    ``log.checkpoints``: what its feeder knows, kept with the log's record
``KeyCompaction``  ``log.compaction``: the log with what compaction has left of its older part
``Holds``          ``log.holds``: readers, whose ledgers are not deleted meanwhile
``LogEnd``         ``log.end``: whether more comes
``Termination``    ``log.termination``: nothing more comes
``TabledLedgers``  ``log.tabled``: ledgers that are in a table, where bookies need not keep them
``Cursor``         one of them; what it says is kept in an ``AckStore`` (``log.ack_store``)
``CursorLending``  ``cursor.lending``: what is done with a cursor whose subscription another
                   broker serves
``CursorNote``     ``cursor.noted``: what its reader keeps with a cursor
``FollowedCursors``  ``followed.cursors``: cursors over a log that another process owns
=================  ============================================================================

Rules:

* An entry is readable when it is confirmed: it and all before it are durable at the ack quorum.
  Only readable entries are ever read, and ``positions.readable``, the last of them, never moves
  back.
* The log itself says that it grew (``watch_readable``), once per turn of the loop: whoever
  appends need not know who reads.
* ``append`` takes buffers that are valid during the call only; the engine copies each payload
  once, into the entry that the journal and the tail cache share.
* Outcomes of appends come in the order of the appends.
* Positions are those of ``model.ids.Position``; the *next* position of a position may be in a
  later ledger, so only the log can step (``positions``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from magnetar.log.ack_store import AckStore
from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.log.policy import LogPolicy
from magnetar.log.sequences import KnownProducer
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError, LogFencedError, MagnetarError
from magnetar.model.ids import EARLIEST, Position

Buffer: TypeAlias = bytes | bytearray | memoryview


class Stamp:
    """Says that the payload is a record batch of Kafka's (``wire.kafka.batches``), into which the
    log is to write the offset of its first message and the log's ``epoch``; has both from the
    append's answer on. ``repeated_ms``: of one that the log has already, which it was found to
    repeat, the greatest time; else -1."""

    __slots__ = ("base_offset", "leader_epoch", "repeated_ms")

    def __init__(self) -> None:
        self.base_offset = -1
        self.leader_epoch = -1
        self.repeated_ms = -1


class Content(NamedTuple):
    """What the payloads of an append hold, one number each: messages (1 or more), and the time
    that the producer says it published them (milliseconds since 1970; 0: it does not say). An
    append with a ``stamp`` has one payload. ``awaits_all`` False: its outcome may be told as soon
    as the owner's own copy is stored, and what it holds may then be lost with the owner. Engines
    that have no such copy tell it as always; nobody reads it sooner for that."""

    messages: Sequence[int]
    publish_times_ms: Sequence[int]
    stamp: Stamp | None = None
    awaits_all: bool = True


class Run(NamedTuple):
    """Where consecutive payloads of an append lie: ``entries`` ids from ``first_entry_id`` on."""

    ledger_id: int
    first_entry_id: int
    entries: int


AppendDone: TypeAlias = Callable[[MagnetarError | None, Sequence[Run]], None]
"""``done(error, runs)``, once per ``append``: ``runs`` say where its payloads lie, in order; one
run, or several where the log changed ledgers in the middle. With ``error`` set the append failed:
``runs`` cover the leading payloads that are confirmed all the same, and the rest may or may not be
in the log. Called on the loop, never from inside ``append``. A log goes on after an error: whoever
has more under way behind a failed append must refuse it until the failed one was sent again, or
the order is lost."""


class Checkpoint(NamedTuple):
    """What whoever feeds a log out of another store knows of it: ``state`` (a few kilobytes at
    most) counts everything up to ``position``, inclusive."""

    position: Position
    state: bytes


class StoredAt(IntEnum):
    """Where the entries of a ledger lie."""

    LEDGER = 0  # at the bookies
    BOTH = 1  # there, and in the log's table
    TABLE = 2  # in the table only


class TableMark(NamedTuple):
    """The table that takes a log's closed ledgers. ``where``: as whoever fills it names it, for
    whoever reads it. A ledger that is in it stays at the bookies for ``kept_ms``, and while the log
    has at most ``kept_bytes`` there; -1 is no bound, and both: as long as retention says."""

    where: str
    kept_ms: int = -1
    kept_bytes: int = -1


class TakenLedger(NamedTuple):
    """A ledger that is in the table: how much of it, to be held against the log."""

    ledger_id: int
    entries: int
    messages: int


class LedgerStats(NamedTuple):
    """A ledger of a log. ``state``: "open" or "closed". No message of it was published before
    ``least_ms`` or after ``greatest_ms``, by its producer's clock; 0: not known. ``messages``: of a
    closed one."""

    ledger_id: int
    entries: int
    stored_bytes: int
    state: str
    least_ms: int = 0
    greatest_ms: int = 0
    stored: StoredAt = StoredAt.LEDGER
    messages: int = 0


class ReaderHold(NamedTuple):
    """Until then (wall clock, milliseconds since 1970) the reader needs the log from that ledger
    on."""

    holder: str
    ledger_id: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class LogStats:
    """What a log holds, for people and metrics."""

    name: str
    entries: int
    stored_bytes: int
    ledgers: tuple[LedgerStats, ...]
    readable: Position
    cursors: Mapping[str, Position]  # name -> mark-delete position
    trimmed: Position = EARLIEST  # the last entry that was deleted from the front
    created_ms: int = 0  # tells a log from one made anew under its name; 0: not known
    holds: tuple[ReaderHold, ...] = ()
    frees_later: bool = False
    """Left open, it would delete something by itself as time passes: retention lets it go later
    than now. While it is closed nobody does that."""
    table: TableMark | None = None
    awaiting_table: tuple[int, ...] = ()
    """Ledgers that bookies keep only because they are not in the table yet."""
    on_ledgers: bool = True
    """Its ledgers are on bookies, and entries are numbered from 0 without gaps in each."""


class Binding(NamedTuple):
    """Who serves a cursor's subscription in the place of the log's owner: that start of that
    broker, at that URL. ``epoch`` grows with every binding and with the end of each. Without a
    ``broker_id`` it is the owner itself."""

    epoch: int = 0
    broker_id: str = ""
    start: int = 0
    service_url: str = ""

    def __bool__(self) -> bool:
        return bool(self.broker_id)


class CursorLending(Protocol):
    """A durable cursor, as it is lent to another broker: who has it, and what it acknowledges."""

    @property
    def binding(self) -> Binding:
        """As it was stored last; what a former owner stored included."""
        ...

    @property
    def term(self) -> int:
        """Another one when an owner opens the cursor, unless the last one stored all and handed it
        over: what is not stored is of one term."""
        ...

    async def bind(self, binding: Binding) -> None:
        """Durable when it returns; in doubt when it raises. Raises ``LogError``,
        ``MetadataError``."""
        ...

    @property
    def reset_epoch(self) -> int:
        """How often the cursor was reset."""
        ...

    def image(self) -> AckImage:
        """All that is acknowledged."""
        ...

    def merge(self, image: AckImage) -> None:
        """What ``image`` says is acknowledged, to be stored like everything that is. It may come
        twice, late and out of order (``acknowledgements``). Raises ``NotAllowedError`` for what the
        log does not hold."""
        ...


class CursorNote(Protocol):
    """What whoever reads a log by a durable cursor knows of all up to its mark-delete position, as
    bytes (a megabyte at most): stored with that position, in one. What lies behind the stored one
    stays where it was written, also of a log with a table: out of that a message may be erased, and
    then it tells its reader nothing."""

    @property
    def value(self) -> bytes:
        """Empty: nothing is noted. It may say nothing of entries before the mark-delete position
        that others have deleted (``LogFront``)."""
        ...

    def take(self, position: Position, value: bytes) -> None:
        """Everything up to ``position`` is acknowledged, and ``value`` says what is to be known of
        it; stored as acknowledgements are. ``value`` is not empty."""
        ...


class Cursor(Protocol):
    """A named, durable place in a log and everything acknowledged after it.

    ``acknowledge*`` change memory at once and are stored within ``cursor_flush_interval_ms``;
    ``wait_stored`` waits until all that was acknowledged before the call is durable.
    """

    name: str
    durable: bool
    properties: Mapping[str, str]
    lending: CursorLending | None
    """None where nothing is stored here: a reader's, or one that this process has been lent."""
    noted: CursorNote | None
    """None where nothing is stored."""

    @property
    def mark_delete(self) -> Position:
        """The last position up to which (inclusive) everything is acknowledged."""
        ...

    def acknowledge(self, positions: Sequence[Position]) -> None:
        """Individually acknowledge whole entries; already acknowledged ones are no error."""
        ...

    def acknowledge_batch(
        self, position: Position, batch_size: int, ack_set: Sequence[int]
    ) -> bool:
        """Acknowledge messages of a batch entry. ``ack_set`` is Pulsar's: 64-bit words (signed or
        not), little end first, bit 1 = *not* acknowledged; it is intersected with what is
        stored. Returns True when the whole entry is now acknowledged."""
        ...

    def acknowledge_cumulative(self, position: Position) -> None:
        """Acknowledge everything up to and including ``position``."""
        ...

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool: ...

    def unacknowledged(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those of ``entries`` that are not wholly acknowledged, in order (one pass)."""
        ...

    def ack_set(self, position: Position) -> list[int] | None:
        """The stored ack set of a partly acknowledged batch entry, in signed words as the wire
        has them, else None."""
        ...

    def backlog_entries(self) -> int:
        """Entries after the mark-delete position that are not acknowledged."""
        ...

    async def reset(self, position: Position) -> None:
        """Durably forget everything acknowledged from ``position`` on, so that ``position`` is
        the next to read (seek)."""
        ...

    async def wait_stored(self) -> None: ...


class Cursors(Protocol):
    """The cursors of one log."""

    async def open(
        self, name: str, start: Position, properties: Mapping[str, str] | None = None
    ) -> Cursor:
        """The durable cursor of that name, created so that ``start`` is the next to read
        (``EARLIEST`` and ``LATEST`` allowed) if there is none; durable when it returns."""
        ...

    def reader(self, name: str, start: Position) -> Cursor:
        """A cursor in memory only, for readers."""
        ...

    async def delete(self, name: str) -> None:
        """For good, when it returns. When it raises the cursor goes on; ``wait_stored`` then
        waits until that is certain. Raises ``CursorNotFoundError``."""
        ...

    def durable(self) -> Mapping[str, Cursor]:
        """The durable cursors by name."""
        ...


class FollowedCursors(Protocol):
    """Cursors over a log that another process owns."""

    def reader(self, name: str, start: Position) -> Cursor:
        """A cursor in memory only, for readers."""
        ...

    async def lent(
        self,
        name: str,
        image: AckImage,
        properties: Mapping[str, str],
        keep: Callable[[AckState], AckStore],
    ) -> Cursor:
        """A cursor of which all that is in ``image`` is acknowledged, and which is kept as ``keep``
        says. Waits until the log is seen as far as ``image`` reaches, as long as it takes. Raises
        ``LogClosedError``."""
        ...


class Checkpoints(Protocol):
    """The checkpoint of one log, kept in the log's own record: each write of the record (a ledger
    comes, goes, or changes owners) stores the one of that moment. So what a later owner must read
    to know all that its feeder knew lies between the stored position and the readable end.

    What lies after the checkpoint's position is not deleted, whatever retention says.
    """

    @property
    def stored(self) -> Checkpoint | None:
        """What the record says: the former owner's until this one has written it. None: the log
        is fed by nobody."""
        ...

    def keep(self, current: Callable[[], Checkpoint | None]) -> None:
        """From now on ``current()`` is the checkpoint; it is asked at each write of the record,
        and by what deletes."""
        ...

    async def save(self) -> None:
        """Write the record now. Raises ``LogFencedError``, ``MetadataError``."""
        ...


class Holds(Protocol):
    """Holds of readers on one log: what lies after a hold's begin is not deleted, whatever
    retention says, until the hold ends. (The log as a whole may be.)"""

    async def take(self, holder: str, ledger_id: int, for_ms: int) -> None:
        """``holder`` needs the log from that ledger on, for so long at least, also if another
        process owns it then; at most for twice as long. Asking again replaces what was asked
        before. Raises ``NotAllowedError`` for more or longer holds than there may be,
        ``LogFencedError``, ``LogClosedError``, ``MetadataError``."""
        ...

    async def release(self, holder: str) -> None:
        """It needs nothing any more, whoever owns the log next. Raises ``LogFencedError``,
        ``MetadataError``."""
        ...

    def all(self) -> tuple[ReaderHold, ...]:
        """Those that have not ended, by name."""
        ...


class TableLag(NamedTuple):
    """How far a table is behind its log: closed ledgers that are not in it, and when the first of
    them was closed (0: there is none). ``problem``: why its job could not fill it, as it told the
    log's owner last; empty: it could, or nothing was told here."""

    ledgers: int
    stored_bytes: int
    closed_ms: int
    problem: str


class TabledLedgers(Protocol):
    """What of one log lies in a table. While the log has one, no ledger leaves the log, and none is
    deleted at the bookies that is not in it. What is only there is read from there: positions and
    cursors are as before."""

    @property
    def mark(self) -> TableMark | None:
        """The log's table, as the record has it."""
        ...

    @property
    def lag(self) -> TableLag | None:
        """None: the log has no table."""
        ...

    def note_problem(self, where: str, problem: str) -> None:
        """What keeps the job from filling the table; empty: nothing any more. It is not stored:
        the job says it again. Raises ``NotAllowedError``."""
        ...

    async def attach(self, mark: TableMark) -> None:
        """The log has this table, from now on. Raises ``NotAllowedError`` if it has another,
        ``LogFencedError``, ``LogClosedError``, ``MetadataError``."""
        ...

    async def take(self, where: str, taken: Sequence[TakenLedger]) -> None:
        """These ledgers are in the table, whole and for good. Again is no error. Raises
        ``NotAllowedError``, and marks none, where one is not what the log says it is, or the log
        has another table; and as ``attach``."""
        ...

    def rewritten(self, where: str) -> None:
        """What is in the table is not what it was: it is read anew. Raises ``NotAllowedError``."""
        ...

    async def forget(self, where: str, ledger_id: int, *, lost: bool = False) -> None:
        """Ledgers up to this one are in the table no more: those that are nowhere else leave the
        log. ``lost``: whether anybody needs them or not. Raises as ``take``, and
        ``NotAllowedError`` for what who reads compacted has nowhere else (``KeyCompaction``)."""
        ...

    async def detach(self, where: str) -> None:
        """The log has no table any more; retention alone says what stays. Raises
        ``NotAllowedError`` while some ledger is in the table only, and as ``take``."""
        ...


class Survivor(NamedTuple):
    """An entry that compaction leaves. ``payload``: header and all (``KeyCompaction.payload``).
    ``kept``: the messages of a batch that are left, in Pulsar's ack sets; empty: all."""

    position: Position
    payload: Buffer
    kept: Sequence[int]


class CompactedStats(NamedTuple):
    """What the last compaction has left. ``ledger_id`` -1: nothing. Times in milliseconds since
    1970."""

    ledger_id: int
    horizon: Position
    entries: int
    stored_bytes: int
    finished_ms: int


class CompactedElsewhere(NamedTuple):
    """What another process has left of a log up to ``horizon``, in a ledger that it was given
    (``KeyCompaction.begin_elsewhere``) and has closed; -1: nothing was left. ``last``: the position
    of the last survivor."""

    ledger_id: int
    horizon: Position
    entries: int
    last: Position = EARLIEST


class KeyCompaction(Protocol):
    """What compaction has left of one log, up to a horizon, and the log read with it."""

    view: ReadableLog
    """What survived up to the horizon, under the positions that it had, and then the log. Whole
    batches are given; ``Entry.kept`` says what is left of one. Nothing else is its own: its stats,
    and the counts of its positions, are the log's."""

    @property
    def stats(self) -> CompactedStats | None:
        """None: the log was never compacted."""
        ...

    def payload(self, entry: Entry) -> Buffer:
        """What is kept of an entry that was read, as ``Survivor`` has it."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """As long as the ``with`` lasts nothing of the view is trimmed: whoever compacts reads it
        twice. Raises ``NotAllowedError`` if somebody does already."""
        ...

    async def replace(
        self, horizon: Position, survivors: AsyncIterator[Sequence[Survivor]]
    ) -> None:
        """``survivors``, ascending, take the place of what the view has up to ``horizon``: of all
        of that, whoever compacted before. Durable when it returns; when it raises the view is what
        it was, or this. To be called ``reading``. Raises ``LogError``, ``LedgerError``,
        ``MetadataError``, and ``NotAllowedError`` where another process was done first."""
        ...

    async def begin_elsewhere(self, holder: str) -> int:
        """A new ledger for what another process leaves of the log, which it reads under the hold of
        that name (``Holds``): it goes again when the hold ends, or is begun anew. One such process
        at a time. Raises ``NotAllowedError``, ``LogError``, ``LedgerError``, ``MetadataError``."""
        ...

    async def take(
        self, holder: str, base: CompactedStats | None, found: CompactedElsewhere
    ) -> None:
        """``found`` takes the place of ``base``, from which it was made, as by ``replace``. Again
        is no error. Raises ``NotAllowedError``, and changes nothing, if something else is in that
        place by now, or the ledger is not as it is said to be; and as ``replace``."""
        ...

    def give_up(self, holder: str) -> None:
        """Nothing will come of what that holder has begun. Nothing to give up is no error."""
        ...


class Positions(Protocol):
    """The order of one log's positions. Positions that the log does not hold (trimmed, not
    appended yet) are allowed everywhere."""

    @property
    def first(self) -> Position:
        """The first position that the log still holds (or will hold next, when empty)."""
        ...

    @property
    def readable(self) -> Position:
        """The last position that may be read; (ledger, -1) while the current ledger is empty and
        the log holds nothing before it."""
        ...

    @property
    def held(self) -> Position:
        """The last position that the log is known to hold: ``readable``, or past it while not all
        that it held when it was opened can be read (``Opening``). A former owner has delivered
        that, perhaps, so that it is acknowledged."""
        ...

    def next_position(self, position: Position) -> Position:
        """The position after ``position``: its successor in the ledger, or the first of the next
        ledger. Positions before the log's start give ``first``; from ``readable`` it is the
        place of the next append as far as known."""
        ...

    def previous_position(self, position: Position) -> Position:
        """The position before ``position``; the place before ``first`` from there on back."""
        ...

    def entries_between(self, after: Position, last: Position) -> int:
        """How many entries lie in (after, last]."""
        ...

    def messages_between(self, after: Position, last: Position) -> int:
        """How many messages lie in (after, last]. Exact from one ledger's end to another's, to
        the readable end, and where all entries of a ledger hold equally many; elsewhere the
        ledger's mean is taken. ``offset_of`` is exact."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset of the next message: those that are readable end before it."""
        ...

    async def offset_of(self, position: Position) -> int:
        """The offset of the first message of the entry at ``position``, or of the first entry
        after it: messages of a log are numbered from 0 without a gap, in order. ``end_offset``
        past the readable end. Raises as ``ReadableLog.read``."""
        ...

    async def position_of(self, offset: int) -> Position:
        """The entry that holds the message of that offset; ``first`` if it was trimmed, the place
        after the readable end if it is not there yet. Raises as ``ReadableLog.read``."""
        ...


class LogEnd(Protocol):
    """Whether more comes."""

    @property
    def terminated(self) -> bool:
        """Nothing more is appended to the log, whoever opens it: ``positions.readable`` is its last
        entry. ``watch_readable`` tells of that, too."""
        ...


class Termination(LogEnd, Protocol):
    """The end of a log, for its one owner."""

    async def terminate(self, check: Callable[[], Awaitable[None]]) -> None:
        """Nothing is appended any more, by nobody: stored when it returns. What was appended before
        has its outcome by then; what comes during it waits, and is refused with
        ``LogTerminatedError``. ``check``: awaited when nothing is under way any more; what it
        raises is raised, and the log goes on. Again is no error. One call at a time. Raises
        ``NotAllowedError`` for a log that cannot, and ``LogError``, ``LedgerError``,
        ``MetadataError``: then it is in doubt, and the log takes nothing before it is stored."""
        ...


class ReadableLog(Protocol):
    """One topic partition's log, to be read; whoever writes it may be elsewhere."""

    name: str
    positions: Positions
    end: LogEnd

    def watch_readable(self, grown: Callable[[], None]) -> Callable[[], None]:
        """Call ``grown`` whenever ``positions.readable`` has moved, by whatever means: on the
        loop, once per turn in which it did, after the outcomes of that turn's appends. Returns
        what ends the watch."""
        ...

    def read_cached(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry] | None:
        """Readable entries from ``start`` on, out of memory: at least one (if ``max_entries``
        > 0) or an empty list when ``start`` is past the readable end; None when ``start`` is not
        in memory, or the log is closed, and ``read`` is needed. (Whoever looks for what is there
        must not take a closed log for one that ends.)"""
        ...

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """As ``read_cached`` from wherever the entries lie, and out of memory where they are there:
        only who may not wait, or not often, asks ``read_cached`` first. Steps over trimmed ledgers.
        Raises ``LogClosedError``, ``LedgerError``, ``NoEntryError``."""
        ...

    async def first_at(self, time_ms: int) -> Position:
        """The smallest position whose entry was published at ``time_ms`` (milliseconds since
        1970) or later, by its producer's clock: of several producers the clocks differ, so later
        entries may have been published earlier. If there is none the place after the readable end,
        as it was when the search began: what comes meanwhile lies at that place or behind it, so
        that nobody who skips what is before it skips that. Raises as ``read``."""
        ...

    def stats(self) -> LogStats: ...

    async def close(self) -> None:
        """End what this process does for the log. Idempotent. Later reads raise
        ``LogClosedError``."""
        ...


class FollowedReadableLog(ReadableLog, Protocol):
    """A log that another process owns, followed by this one."""

    cursors: FollowedCursors

    async def wait_seen(self, position: Position) -> None:
        """Until the log is seen up to ``position``, as long as it takes. Raises ``LogError`` when
        nothing more will be seen of it."""
        ...

    def told_end(self, last: Position) -> None:
        """The log's owner says that it may be read up to ``last``. Else that is seen somewhat
        later."""
        ...

    def watch_ended(self, ended: Callable[[LogError], None]) -> None:
        """Call ``ended`` on the loop, once, when nothing more will be seen of the log: it was
        deleted, or following it has failed. Not when it is closed here."""
        ...


class LogFront(Protocol):
    """Where a log begins, for readers by offsets."""

    @property
    def offset(self) -> int:
        """The first one that they are to see: it may lie within the first entry, if records were
        deleted up to there. 0: with the first entry."""
        ...

    async def delete_before(self, offset: int) -> int:
        """What is before ``offset`` (-1: before the end of what can be read) is gone for good, for
        all readers and subscriptions, but for what shares an entry with a record that is not; the
        first offset that is left. Raises ``OffsetOutOfRangeError``; ``NotAllowedError``: this log
        cannot."""
        ...


class LogEpochs(Protocol):
    """Which epoch wrote what, for readers that have read from a former owner."""

    @property
    def whole_since(self) -> int:
        """Nothing that could be read in this epoch, or in a later one, is gone since: only a reader
        that names an earlier epoch has to find out first."""
        ...

    async def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that wrote something and is not later than ``epoch``, and up to which
        offset what readers were given in it is there: one that is past it has read what is gone.
        From ``whole_since`` on that is the log's end, wherever the epoch's own batches end. (-1,
        -1): there is none. Raises ``LogError``."""
        ...


class Opening(Protocol):
    """What a log held when it was opened."""

    @property
    def end_offset(self) -> int:
        """What it held lies before it: past the readable end, while not all of it can be read."""
        ...

    async def wait_whole(self) -> None:
        """Until all of it can be read. Whoever replays it to know what was done waits for that
        first: a replica may have been elected before it could know that the last of its log is
        committed. Raises ``LogError`` if that does not come soon."""
        ...


class LogProducers(Protocol):
    """The idempotent producers and transactions of a log that ``owns_sequences``."""

    def knows(self, producer_id: int) -> bool:
        """Whether something of that producer is in the log: as it is now, without what is under
        way."""
        ...

    async def known(self) -> Sequence[KnownProducer]:
        """Raises ``LogError``."""
        ...


class WritableLog(ReadableLog, Protocol):
    """A log open for appending by this process, which owns it."""

    cursors: Cursors
    checkpoints: Checkpoints
    compaction: KeyCompaction
    holds: Holds
    tabled: TabledLedgers
    front: LogFront
    epochs: LogEpochs
    opening: Opening
    termination: Termination
    epoch: int
    """Of this opening: greater than that of every earlier one."""
    followable: bool
    """Whether read-only brokers can follow it (``LogStore.follow``)."""
    owns_sequences: bool
    """It holds record batches against the sequences of their idempotent producers itself, and
    answers a repeated one as it did the first time."""
    producers: LogProducers | None
    """None: it knows nothing of producers."""

    def append(
        self, payloads: Sequence[Buffer], done: AppendDone, content: Content | None = None
    ) -> None:
        """Append in order; see ``AppendDone``. Without ``content`` every payload is one message,
        published now. Never blocks, never raises for the world's faults. The caller bounds what
        is pending (``pending_bytes``)."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet confirmed."""
        ...

    def set_policy(self, policy: LogPolicy) -> None:
        """From now on; how ledgers are replicated counts from the next one on. What retention
        no longer keeps is deleted soon."""
        ...

    def watch_lost(self, lost: Callable[[LogFencedError], None]) -> None:
        """Call ``lost`` on the loop, once, when another broker turns out to own the log (soon, if
        that is so already). Nothing more is stored here then."""
        ...

    async def close(self) -> None:
        """Finish what is pending, store the cursors, close the ledger. Later appends fail with
        ``LogClosedError``, as reads do."""
        ...


class KnownLog(NamedTuple):
    """What is stored of a log, whoever has it open. ``created_ms``: as in ``LogStats``;
    ``last_epoch``: the ``epoch`` of its last opening, -1: it is not on ledgers."""

    created_ms: int
    last_epoch: int


class LogStore(Protocol):
    """All logs of an engine, by name (``tenant/namespace/persistent/topic``)."""

    @property
    def policy(self) -> LogPolicy:
        """Of a log that is opened without one."""
        ...

    async def open(
        self,
        name: str,
        policy: LogPolicy | None = None,
        *,
        create: bool = True,
        guard: Callable[[], Awaitable[None]] | None = None,
        permit: Callable[[], Awaitable[None]] | None = None,
    ) -> WritableLog:
        """Open for appending, under the process's policy if none is given, and take over from any
        other writer (fences and recovers its last ledger). A log that does not exist is created,
        or, without ``create``, ``NoSuchLogError`` is raised. ``guard``: awaited before anything is
        changed or fenced; ``permit``: before the log is created, if it is not there; what they
        raise is raised. One caller at a time per name."""
        ...

    async def follow(self, name: str) -> FollowedReadableLog:
        """The log as its owner, whoever that is, lets it grow: changes of ledgers, trimming and
        other owners included. Never fences, creates or writes anything; the readable end trails
        the owner's, and ``stats`` knows of no cursors. Once per name, until it is closed. Raises
        ``NoSuchLogError``. When the log is deleted, its watchers are called once more, and
        reads raise ``NoSuchLogError``, also if it is made anew."""
        ...

    async def exists(self, name: str) -> bool: ...

    async def stored(self, name: str) -> KnownLog:
        """Raises ``NoSuchLogError``, ``MetadataError``."""
        ...

    async def ledger_bytes(self, name: str) -> int | None:
        """What the log's ledgers hold, of one copy, whoever has it open; that of an open ledger of
        another broker counts when it is closed. None: there is no such log, or it is not on
        ledgers. Raises ``MetadataError``."""
        ...

    async def delete(self, name: str) -> None:
        """Delete the log, its cursors and its ledgers. It must not be open."""
        ...

    async def check_space(self, name: str) -> None:
        """Raises ``NoSpaceError`` if the next append to the log would be refused for want of
        space, as far as is known without trying, and nothing else."""
        ...

    async def names(self, prefix: str, known: Container[str] = ()) -> list[str]:
        """The names of all logs below ``prefix``, sorted. Of those in ``known`` the record is not
        read: one that is being deleted is named until its node has gone."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class ForgottenPrefixes(Protocol):
    """What a ``LogStore`` can do beside: keep nothing for names that there will be no logs of."""

    async def forget_prefix(self, prefix: str) -> None:
        """There is no log below ``prefix`` (``tenant/namespace/domain``): what was kept to find
        them goes. Fine if there are some again. Raises ``MetadataError``."""
        ...


@runtime_checkable
class WatchedNames(Protocol):
    """What a ``LogStore`` can do beside: tell when there are other logs. Those of this package
    can."""

    def watch_names(self, prefix: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` on the loop after a log below ``prefix`` (``tenant/namespace/domain``)
        was made or deleted, by whoever; calls may be merged. Returns the function that ends it."""
        ...
