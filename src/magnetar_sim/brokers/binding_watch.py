"""Which broker serves which subscription, as the metadata store has it: invariant 17 of
``topic_history``, and the terms of those who serve.

Terms are numbered with those of owners (``bundle_owners``): what was acknowledged in an earlier one
is known in a later one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from magnetar.cluster.brokers.reports import BROKERS
from magnetar.cluster.topic_name import topic_of_log
from magnetar.log.managed.records import decode_cursor, decode_name
from magnetar.log.seam import Binding
from magnetar_sim.brokers.bundle_owners import RECORDS, TOPIC_PARTS, BundleOwners
from magnetar_sim.world.loop import SimProcess, current_process

Served: TypeAlias = tuple[str, str]
"""Topic and subscription."""


class _BoundTo(NamedTuple):
    process: int
    broker_id: str


class BindingWatch:
    """``written`` is told of each change of the metadata, in the context of who makes it."""

    def __init__(
        self,
        number_of: Callable[[SimProcess], int],
        owners: BundleOwners,
        count: Callable[[str], None],
    ) -> None:
        self._number_of = number_of
        self._owners = owners
        self._count = count
        self._registered: dict[str, int] = {}
        """Broker id -> process, of those that have a registration."""
        self._readers: dict[int, None] = {}
        """Processes that were ever bound to anything."""
        self._records: dict[Served, Binding] = {}
        self._bound: dict[Served, _BoundTo] = {}
        self._terms: dict[tuple[int, str, str], int] = {}

    def written(self, path: str, after: bytes | None) -> None:
        process = current_process()
        if path.startswith(f"{BROKERS}/"):
            broker_id = path.removeprefix(f"{BROKERS}/")
            if after is None:
                self._registered.pop(broker_id, None)
            elif process is not None:
                self._registered[broker_id] = self._number_of(process)
        elif path.startswith(RECORDS):
            parts = path.removeprefix(RECORDS).split("/")
            if len(parts) == TOPIC_PARTS + 1:
                topic = str(topic_of_log("/".join(parts[:TOPIC_PARTS])))
                self._cursor_written((topic, decode_name(parts[-1])), after, process)

    def _cursor_written(
        self, served: Served, after: bytes | None, process: SimProcess | None
    ) -> None:
        before = self._records.pop(served, Binding())
        if after is None:
            self._bound.pop(served, None)
            return
        now = self._records[served] = decode_cursor(served[1], after).binding
        if now == before:
            return
        term = self._owners.next_term()
        if now:
            reader = self._registered.get(now.broker_id, -1)
            self._readers[reader] = None
            self._bound[served] = _BoundTo(reader, now.broker_id)
            self._terms[reader, *served] = term
            self._count("bindings")
        else:
            self._bound.pop(served, None)
            self._count("bindings that ended")
            if process is not None:
                self._terms[self._number_of(process), *served] = term

    def term_of(self, process: int, topic: str, subscription: str) -> int:
        """The term in which that process serves the subscription, or did last."""
        own = self._terms.get((process, topic, subscription), 0)
        return max(own, self._owners.term_of(process, topic))

    def wrongly_served(self, process: int, topic: str, subscription: str) -> str | None:
        """Why that process must not send messages of the subscription; None: it may, or does not
        know yet that it has lost everything."""
        bound = self._bound.get((topic, subscription))
        registered = process in self._registered.values()
        if bound is None:
            wrong = process in self._readers and registered
            return "which nobody is bound to" if wrong else None
        if bound.process == process or self._registered.get(bound.broker_id) != bound.process:
            return None
        if registered and (process in self._readers or self._owners.owns(process, topic)):
            return f"which {bound.broker_id} is bound to"
        return None
