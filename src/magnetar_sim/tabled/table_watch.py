"""What is known of logs with tables, from the metadata store's own writes and the catalog's, and
what must hold of them. Beside the invariants of topics (``topic_history``), which hold as well,
with this: no log begins later than its first entry, whatever retention says, so that readers from
the start, subscriptions that lag and seeks to any id find everything.

1. *Each message once.* Every entry of a ledger that a table has taken is in it with each of its
   messages once, as it was stored, whatever jobs died, slept or raced; and stays.
2. *In the table, or at the bookies.* At every moment a log's record names a place that has each of
   its closed ledgers: what it says is in the table is committed there, whole; what it says is at
   the bookies is there.
3. *Nothing is lost with a ledger.* No ledger is deleted, and none leaves the record, that has a
   confirmed entry, unless the table has it.
4. *Erased is gone.* What was erased from the table, and is nowhere else, is served by nobody who
   begins to read after the owner has been told.
5. *Progress.* After healing every closed ledger comes into its table, and the owner knows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from magnetar.cluster.topic_name import parse_topic
from magnetar.ledger.catalog.metadata import DEFAULT_ROOT
from magnetar.log.managed.records import LogRecord, decode_log, log_path
from magnetar.log.seam import StoredAt
from magnetar.model.ids import Position
from magnetar.pipeline.tables.taking_rules import taken_up_to
from magnetar.wire.bookie.metadata_layout import LedgerLayout, ledger_path
from magnetar.wire.pulsar.broker_metadata import header_bytes
from magnetar_sim.brokers.topic_history import Topic, decoded
from magnetar_sim.tabled.table_jobs import place_of
from magnetar_sim.tabled.warehouse import WHOLE, Row, Warehouse, entries_of


class TableWatch:
    """Of one run. ``has_ledger``: whether the metadata store has it."""

    def __init__(
        self,
        topics: list[str],
        warehouse: Warehouse,
        topic: Callable[[str], Topic],
        has_ledger: Callable[[int], bool],
        broken: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        self._warehouse = warehouse
        self._topic = topic
        self._has_ledger = has_ledger
        self._broken = broken
        self._count = count
        self._paths = {log_path(parse_topic(name).log_name): name for name in topics}
        self._of_table = {place_of(name).table: name for name in topics}
        self._records: dict[str, LogRecord] = {}
        self._ledgers: dict[str, tuple[str, int]] = {}  # path -> whose it is, and its id
        self._rows: dict[str, dict[int, list[Row]]] = {name: {} for name in topics}
        """What each topic's table and its side table have, by ledger."""
        self.erased: dict[str, dict[Position, bool]] = {name: {} for name in topics}
        """Whether the topic's owner was told."""
        warehouse.committed = self._committed

    # -- the catalog --------------------------------------------------------------------------

    def _committed(self, table: str, _before: object) -> None:
        """Invariant 1."""
        topic = self._of_table.get(table.removesuffix("__unfit"))
        if topic is None:
            return
        place, tables = place_of(topic), self._warehouse.tables
        rows: dict[int, list[Row]] = {}
        for name in (place.table, place.side):
            for file in tables[name].files if name in tables else ():
                for row in (row for group in self._warehouse.files[file.path] for row in group):
                    rows.setdefault(row.ledger_id, []).append(row)
        main = tables.get(place.table)
        taken = taken_up_to(None if main is None else main.properties, topic)
        known = self._rows[topic]
        for ledger_id in [each for each in known if each > taken.ledger_id]:
            self._broken(f"{table}: ledger {ledger_id} was in it, and now it ends before that")
        now = {each: found for each, found in rows.items() if each <= taken.ledger_id}
        for ledger_id in known:
            if len(now.get(ledger_id, ())) != len(known[ledger_id]):
                self._broken(f"{table}: ledger {ledger_id} has other rows than before")
        for ledger_id, found in now.items():
            if ledger_id not in known:
                self._check_ledger(topic, ledger_id, found)
        self._rows[topic] = now

    def _check_ledger(self, name: str, ledger_id: int, rows: list[Row]) -> None:
        """All of it, as far as is known."""
        self._count("ledgers that are in a table")
        keys = [row[:3] for row in rows]
        if len(set(keys)) != len(keys):
            self._broken(f"{name}: messages of ledger {ledger_id} are in its table twice")
            return
        entries = entries_of(rows)
        if sorted(entries) != [*range(len(entries))]:
            self._broken(f"{name}: of ledger {ledger_id} entries {sorted(entries)} are there")
        topic = self._topic(name)
        for entry_id, data in entries.items():
            position = Position(ledger_id, entry_id)
            stored = topic.content.get(position)
            found = decoded(memoryview(data)[header_bytes(data) :])
            if stored is not None and found != stored and position not in self.erased[name]:
                self._broken(f"{name}: {position} is {stored}, and in its table {found}")
        late = [
            p for p in topic.receipted if p.ledger_id == ledger_id and p.entry_id not in entries
        ]
        if late:
            self._broken(f"{name}: {late[0]} is confirmed, and not in the table, which has others")

    def in_table(self, topic: str, ledger_id: int, entries: int | None = None) -> bool:
        """All of it."""
        rows = self._rows[topic].get(ledger_id)
        if rows is None:
            return False
        return entries is None or len({row.entry_id for row in rows}) == entries

    # -- the metadata store -------------------------------------------------------------------

    def written(self, path: str, _before: bytes | None, after: bytes | None) -> None:
        """Invariants 2 and 3."""
        topic = self._paths.get(path)
        if topic is not None and after:
            self._record(topic, decode_log(topic, after))
        elif after is None and path in self._ledgers:
            self._ledger_gone(*self._ledgers[path])

    def _record(self, topic: str, record: LogRecord) -> None:
        former, self._records[topic] = self._records.get(topic), record
        there = {info.ledger_id: info for info in record.ledgers}
        for ledger_id in there:
            path = DEFAULT_ROOT + ledger_path(LedgerLayout.HIERARCHICAL, ledger_id)
            self._ledgers.setdefault(path, (topic, ledger_id))
        for info in () if former is None else former.ledgers:
            if info.ledger_id not in there and self._has_confirmed(topic, info.ledger_id):
                self._broken(f"{topic}: ledger {info.ledger_id} has left the log's record")
        for info in record.ledgers:
            if not info.closed:
                continue
            taken = info.stored is not StoredAt.LEDGER
            if taken and not self.in_table(topic, info.ledger_id, info.entries):
                self._broken(
                    f"{topic}: its record says that ledger {info.ledger_id} of {info.entries} "
                    f"entries is in the table, which has {self._has(topic, info.ledger_id)}"
                )
            if info.stored is not StoredAt.TABLE and not self._has_ledger(info.ledger_id):
                self._broken(
                    f"{topic}: its record says that bookies have ledger {info.ledger_id}, which "
                    "was deleted"
                )

    def _has(self, topic: str, ledger_id: int) -> int:
        return len({row.entry_id for row in self._rows[topic].get(ledger_id, ())})

    def _ledger_gone(self, topic: str, ledger_id: int) -> None:
        if not self.in_table(topic, ledger_id):
            if self._has_confirmed(topic, ledger_id):
                self._broken(f"{topic}: ledger {ledger_id} is deleted, and not in the table")
            return
        self._count("ledgers that are in a table only")
        record = self._records[topic]
        for info in record.ledgers:
            if info.ledger_id == ledger_id and info.stored is not StoredAt.TABLE:
                self._broken(f"{topic}: ledger {ledger_id} is deleted before the record says so")

    def _has_confirmed(self, topic: str, ledger_id: int) -> bool:
        return any(position.ledger_id == ledger_id for position in self._topic(topic).receipted)

    # -- erasure ------------------------------------------------------------------------------

    def choose(self, rng: random.Random) -> tuple[str, Position] | None:
        """An entry to erase: one that is in its table."""
        found = [
            (topic, Position(ledger_id, row.entry_id))
            for topic, ledgers in self._rows.items()
            for ledger_id, rows in ledgers.items()
            for row in rows
            if row.at in (WHOLE, 0)
        ]
        return rng.choice(found) if found else None

    def erasing(self, topic: str, position: Position) -> None:
        """From now on it may be gone."""
        self.erased[topic].setdefault(position, False)
        self._topic(topic).erased[position] = None

    def told(self, topic: str, position: Position) -> None:
        """Its owner was told."""
        self.erased[topic][position] = True

    def forbid_erased(self) -> None:
        """Invariant 4: whoever begins to read now is not to get it."""
        for topic, positions in self.erased.items():
            only = self._only_in_table(topic)
            for position, was_told in positions.items():
                if was_told and position.ledger_id in only:
                    self._topic(topic).gone[position] = None
                    self._count("erased entries that nobody may be sent")

    def _only_in_table(self, topic: str) -> Mapping[int, None]:
        record = self._records[topic]
        return {i.ledger_id: None for i in record.ledgers if i.stored is StoredAt.TABLE}

    # -- progress -----------------------------------------------------------------------------

    def behind(self) -> str | None:
        """Invariant 5."""
        for topic, record in self._records.items():
            for info in record.ledgers:
                if info.closed and info.stored is StoredAt.LEDGER:
                    return f"{topic}: ledger {info.ledger_id} is not in its table"
        return None
