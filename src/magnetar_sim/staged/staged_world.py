"""What is known of queries that write by staged ledgers, from the metadata store itself, and what
must hold of them. Beside the invariants of topics (``topic_history``), which hold as well:

1. *Once.* A batch of a query is committed at most once, batches in order, by the run that began
   last and by none before it.
2. *What was offered.* A commit names one attempt of each task, whole, as it was offered.
3. *Each row once.* Every row of a committed batch is in its topic, at one position; no row of any
   other attempt ever is (from its commit on a row counts as sent, see ``Topic.sent``).
4. *In order.* In each topic the batches of a query stand in their order, and in a batch its parts,
   and in a part its entries.
5. *Said is so.* A driver that is told that its batch is committed was told the truth.
6. *Progress.* After healing every batch is committed and taken in, and no staged ledger that a
   record could name is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.staging.commit_rules import Offer
from magnetar.staging.records import (
    INLINE,
    ROOT,
    Commit,
    QueryRecord,
    Source,
    decode_query,
    query_of,
)
from magnetar_sim.brokers.topic_history import Content, Topic


class Offered(NamedTuple):
    """What one run gave its driver to commit, and what the entries hold: (topic, part) -> them."""

    run: str
    offers: Sequence[Offer]
    contents: Mapping[tuple[str, int], Sequence[Content]]


@dataclass
class Query:
    """One query. ``finished``: the last batch that the engine has noted as done, in a store of its
    own that never fails."""

    name: str
    topics: tuple[str, ...]
    batches: int
    finished: int = -1
    record: QueryRecord | None = None
    runs: list[str] = field(default_factory=list)
    """In the order in which they began, as the metadata store saw it."""
    offered: dict[int, list[Offered]] = field(default_factory=dict)
    decided: dict[int, Offered] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.finished >= self.batches - 1


class StagedWorld:
    """All queries of a run."""

    def __init__(
        self,
        topic: Callable[[str], Topic],
        broken: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        self.queries: dict[str, Query] = {}
        self._topic = topic
        self._broken = broken
        self._count = count

    def add(self, name: str, topics: tuple[str, ...], batches: int) -> Query:
        self.queries[name] = query = Query(name, topics, batches)
        return query

    @property
    def taking_in(self) -> bool:
        """Whether a batch is committed that not every topic has taken in."""
        records = (query.record for query in self.queries.values())
        return any(record is not None and record.commits for record in records)

    def behind(self, batches: int) -> list[list[str]]:
        """For each query the topics for which as many of its batches wait, or more."""
        found = []
        for query in self.queries.values():
            commits = () if query.record is None else query.record.commits
            waiting = Counter(topic for commit in commits for topic in commit.shares)
            found.append([topic for topic in query.topics if waiting[topic] >= batches])
        return found

    # -- the store ----------------------------------------------------------------------------

    def written(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """A node was written."""
        if not path.startswith(f"{ROOT}/") or before == after:
            return
        query = self.queries[query_of(path.removeprefix(f"{ROOT}/"))]
        if after is None:
            self._broken(f"the record of query {query.name} is deleted")
            return
        record, old = decode_query(path, after), query.record
        query.record = record
        if record.run and record.run not in query.runs:
            query.runs.append(record.run)
            self._count("runs that began")
        last = -1 if old is None else old.last_batch
        if record.last_batch < last:
            self._broken(f"{query.name}: the last batch goes back to {record.last_batch}")
        elif record.last_batch > last:
            self._decided(query, record)

    def _decided(self, query: Query, record: QueryRecord) -> None:
        """Invariants 1 and 2."""
        batch = record.last_batch
        if batch in query.decided:
            self._broken(f"{query.name}: batch {batch} is committed again")
            return
        commit = next((each for each in record.commits if each.batch == batch), None)
        chosen = [each for each in query.offered.get(batch, ()) if _is_of(commit, each)]
        by_run = [each for each in chosen if each.run == query.runs[-1]]
        if not by_run:
            runs = ", ".join(each.run for each in chosen) or "nobody"
            self._broken(
                f"{query.name}: batch {batch} is committed as {runs} offered it, and run "
                f"{query.runs[-1]} has begun"
            )
            return
        query.decided[batch] = by_run[0]
        self._count("batches that were committed")
        if commit is not None and any(s.ledger_id != INLINE for s in _sources(commit)):
            self._count("batches with staged ledgers")
        for (topic, _), contents in by_run[0].contents.items():
            for content in contents:
                self._topic(topic).sent(content)

    # -- drivers ------------------------------------------------------------------------------

    def is_offered(self, query: Query, batch: int, offered: Offered) -> None:
        query.offered.setdefault(batch, []).append(offered)

    def is_told(self, query: Query, batch: int) -> None:
        """Invariant 5: a driver was told that the batch is committed."""
        if batch not in query.decided:
            self._broken(f"{query.name}: batch {batch} is said to be committed, and is not")

    # -- the end ------------------------------------------------------------------------------

    def unfinished(self) -> str | None:
        """Invariants 3 and 6."""
        for query in self.queries.values():
            if not query.done:
                return f"{query.name} has finished batch {query.finished} of {query.batches}"
            if query.record is not None and query.record.commits:
                return f"{query.name}: batch {query.record.commits[0].batch} is not taken in"
            if query.record is not None and query.record.garbage:
                return f"{query.name}: ledgers {query.record.garbage} are not deleted"
            missing = self._missing(query)
            if missing is not None:
                return missing
        return None

    def _missing(self, query: Query) -> str | None:
        for name in query.topics:
            topic = self._topic(name)
            for batch, text in self._texts(query, name):
                if text not in topic.where:
                    return f"{name}: {text} of batch {batch} is not there"
        return None

    def check_order(self) -> None:
        """Invariant 4, when nothing is missing."""
        for query in self.queries.values():
            for name in query.topics:
                where, last = self._topic(name).where, None
                for _, text in self._texts(query, name):
                    if last is not None and where[text] < where[last]:
                        self._broken(f"{name}: {text} stands before {last}")
                    last = text

    def _texts(self, query: Query, topic: str) -> Iterable[tuple[int, str]]:
        """What was committed for a topic, in order."""
        for batch in sorted(query.decided):
            contents = query.decided[batch].contents
            for part in sorted(part for name, part in contents if name == topic):
                for content in contents[topic, part]:
                    yield from ((batch, text) for text in content.texts)


def _sources(commit: Commit) -> Iterable[Source]:
    return (source for share in commit.shares.values() for source in share)


def _is_of(commit: Commit | None, offered: Offered) -> bool:
    """Whether the commit is of just what was offered. What was inline may have come into a ledger
    of the driver's."""
    wanted = {
        (topic, offer.part): source
        for offer in offered.offers
        for topic, source in offer.shares.items()
        if source.entries
    }
    if commit is None:
        return not wanted
    named = {
        (topic, source.part): source for topic, share in commit.shares.items() for source in share
    }
    if named.keys() != wanted.keys():
        return False
    for key, source in named.items():
        other = wanted[key]
        spilled = other.ledger_id == INLINE and source.ledger_id != INLINE
        if source.entries != other.entries or not (spilled or source == other):
            return False
    return True
