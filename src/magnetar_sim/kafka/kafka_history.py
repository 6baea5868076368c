"""What must hold of Kafka's clients and brokers, whatever fails: records and transactions.

*Shown* is what any reader has been sent; *committed* what one with read_committed gives to its
application. Whatever fails:

1. At one offset of a partition all readers are shown the same record, byte for byte, of the same
   producer; and something that a client has written there.
2. A record that is acknowledged is at the offset that was said, and nowhere else; nothing that an
   idempotent producer has written is twice in a partition.
3. Of one producer the records of a partition are in its order; without transactions nothing that
   it sent before is missing between them.
4. What a reader is sent next follows what it was sent last, without a hole; what it was shown once
   is not out of range later.
5. Nothing of a transaction is committed before its producer has asked for that, and never if it
   has asked otherwise, or could not ask. What is not of a transaction, always.
6. Once another producer has begun with a transactional id, what a former one sends first after
   that gets into no partition, and its outcome is not taken.
7. Nobody is told ``OUT_OF_ORDER_SEQUENCE_NUMBER`` who has everything acknowledged that came before,
   and nobody is fenced without another producer of its id or a time-out.

When all faults are over, soon:

8. Every batch has its answer, and every transaction its outcome in every partition: what is stable
   is all there is.
9. What is acknowledged is there, in every partition whole transactions or nothing of them: the
   committed view is what is of no transaction and what is of those that were committed.

Of groups: ``group_history``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar_sim.kafka.kafka_client import Place

QUICK: Final = 0.1


@dataclass(eq=False, slots=True)
class Transaction:
    """``asked``: the outcome that its producer has asked for, perhaps without having heard;
    ``outcome``: that it was told."""

    name: str
    asked: bool | None = None
    outcome: bool | None = None
    records: list[Written] = field(default_factory=list)

    def __str__(self) -> str:
        return f"transaction {self.name}"


@dataclass(eq=False, slots=True)
class Written:
    """A record that a client has given to be stored. ``offset``: what was acknowledged; ``barred``:
    its producer had been replaced when it was sent first."""

    value: bytes
    place: Place
    writer: str
    number: int
    transaction: Transaction | None = None
    offset: int = -1
    barred: bool = False

    def __str__(self) -> str:
        return f"{self.value[:40].decode()} in {self.place[0]}-{self.place[1]}"


class Shown(NamedTuple):
    """What is at an offset. ``value``: of a marker, whether it commits."""

    value: bytes
    producer_id: int
    producer_epoch: int
    attributes: int
    time_ms: int


class KafkaHistory:
    """Is told what happens; ``broken`` is told what must not."""

    def __init__(self, broken: Callable[[str], None], count: Callable[[str], None]) -> None:
        self.broken = broken
        self.count = count
        self.written: dict[bytes, Written] = {}
        self.transactions: list[Transaction] = []
        self.acknowledged = 0
        self.healed = False
        """All faults are over: nobody is told to abort, or to be slow, any more."""
        self._shown: dict[Place, dict[int, Shown]] = {}
        self._found: dict[bytes, int] = {}
        self._acknowledged_to: dict[Place, int] = {}
        self._at: dict[tuple[Place, int], Written] = {}

    def think_s(self, usual_s: float) -> float:
        """For what an application is given: in the end it is quick, so that it comes to an end."""
        return usual_s * QUICK if self.healed else usual_s

    # -- producers ----------------------------------------------------------------------------

    def write(
        self,
        place: Place,
        writer: str,
        number: int,
        padding: int,
        transaction: Transaction | None = None,
    ) -> Written:
        """Of every value there is one. ``number``: of the writer's records in the partition."""
        value = f"{writer} {place[0]}-{place[1]} {number} ".encode()
        made = Written(value + b"." * padding, place, writer, number, transaction)
        assert made.value not in self.written, made
        return self.keep(made)

    def keep(self, made: Written) -> Written:
        self.written[made.value] = made
        if made.transaction is not None:
            made.transaction.records.append(made)
        return made

    def begin(self, name: str) -> Transaction:
        made = Transaction(name)
        self.transactions.append(made)
        return made

    def acknowledge(self, records: Sequence[Written], base_offset: int, by: str) -> None:
        for offset, record in enumerate(records, base_offset):
            if record.offset >= 0 and record.offset != offset:
                self.broken(f"{by}: {record} is at {offset}, and was at {record.offset}")
            record.offset = offset
            self.acknowledged += 1
            other = self._at.setdefault((record.place, offset), record)
            if other is not record:
                self.broken(f"{by}: {record} and {other} are both at {offset}")
            found = self._found.get(record.value)
            if found is not None and found != offset:
                self.broken(f"{by}: {record} is at {offset}, and was read at {found}")
        end = base_offset + len(records)
        place = records[0].place
        self._acknowledged_to[place] = max(end, self._acknowledged_to.get(place, 0))

    def end_known(self, place: Place) -> int:
        """Behind what is acknowledged."""
        return self._acknowledged_to.get(place, 0)

    # -- readers ------------------------------------------------------------------------------

    def show(self, place: Place, offset: int, shown: Shown, by: str) -> Written | None:
        """A reader is sent it; returns what was written, None for a marker."""
        known = self._shown.setdefault(place, {}).setdefault(offset, shown)
        where = f"{place[0]}-{place[1]} at {offset}"
        if known != shown:
            self.broken(f"{by} is shown {shown} in {where}, where others saw {known}")
        if shown.value in MARKERS:
            return None
        record = self.written.get(shown.value)
        if record is None or record.place != place:
            self.broken(f"{by} is shown {shown.value[:40]!r} in {where}, which nobody wrote there")
            return None
        first = self._found.setdefault(shown.value, offset)
        if first != offset:
            self.broken(f"{record} is at {first} and at {offset}")
        if record.offset >= 0 and record.offset != offset:
            self.broken(f"{record} is at {offset}, and was acknowledged at {record.offset}")
        if record.barred:
            self.broken(f"{record} at {offset} was sent by a producer that had been replaced")
        return record

    def commit(self, record: Written, by: str) -> None:
        """A reader with read_committed gives it to its application."""
        transaction = record.transaction
        if transaction is None:
            return
        if not transaction.asked or transaction.outcome is False:
            what = "was aborted" if transaction.outcome is False else "is open, or was left open"
            self.broken(f"{by} is shown {record} as committed, and {transaction} {what}")

    # -- the end ------------------------------------------------------------------------------

    def ended(self, place: Place, log: Sequence[int], committed: Sequence[Written]) -> None:
        """``log``: all offsets of the partition; ``committed``: what is shown in the end."""
        self._check_acknowledged(place, log)
        self._check_order(place, log)
        shown = set(map(id, committed))
        for record in self.written.values():
            if record.place != place:
                continue
            wanted = self._is_committed(record)
            if wanted is not None and wanted != (id(record) in shown):
                said = "is not shown" if wanted else "is shown"
                self.broken(f"in the end {record} ({record.transaction}) {said} as committed")

    def _is_committed(self, record: Written) -> bool | None:
        """None: it is not known whether it is to be."""
        transaction = record.transaction
        if transaction is None:
            return record.value in self._found
        if transaction.outcome is not None or not transaction.asked:
            return bool(transaction.outcome)
        return None

    def _check_acknowledged(self, place: Place, log: Sequence[int]) -> None:
        offsets = set(log)
        for record in self.written.values():
            if record.place != place or record.offset < 0:
                continue
            if record.offset not in offsets or self._found.get(record.value) != record.offset:
                self.broken(f"{record} was acknowledged at {record.offset}, and is gone")

    def _check_order(self, place: Place, log: Sequence[int]) -> None:
        last: dict[str, Written] = {}
        shown = self._shown.get(place, {})
        for offset in log:
            record = self.written.get(shown[offset].value)
            if record is None:
                continue
            before = last.get(record.writer)
            number = -1 if before is None else before.number
            if record.number <= number:
                self.broken(f"{record} at {offset} comes after {before}")
            elif record.transaction is None and record.number != number + 1:
                self.broken(f"{record} at {offset} comes next after {before}")
            last[record.writer] = record

    def check_whole(self, committed: Mapping[Place, Sequence[Written]]) -> None:
        """Transactions are there in every partition, or in none."""
        shown = {id(record) for records in committed.values() for record in records}
        for transaction in self.transactions:
            there = [id(record) in shown for record in transaction.records]
            if any(there) and not all(there):
                missing = transaction.records[there.index(False)]
                self.broken(f"of {transaction} a part is committed, and {missing} is not")


COMMIT, ABORT = b"commit marker", b"abort marker"
MARKERS = (COMMIT, ABORT)
