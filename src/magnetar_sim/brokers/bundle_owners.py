"""Who owns which bundle, as the metadata store has it, and what must hold of that.

1. *One owner.* A bundle's node is removed by who made it, by a later start of the same broker, or
   with its session: by nobody else.
2. *Only the owner writes.* The record of a topic's log is written by a broker that has made the
   node of the topic's bundle and has not removed it. (One whose session ended may not know yet:
   what it writes then is the logs' to bear.)
3. *Questions take nothing.* This follows: what opens a log writes its record.

How a namespace is cut is what its policies say at that moment.

It also numbers the terms of owners: what one knew is known to those that own the bundle later.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from magnetar.cluster.brokers.reports import OWNERS, owner_path
from magnetar.cluster.bundles import Layout, layout_of
from magnetar.cluster.namespaces import POLICIES
from magnetar.cluster.topic_name import TopicName, parse_topic, topic_of_log
from magnetar_sim.world.loop import SimProcess, current_process

RECORDS = "/managed-ledgers/"
TOPIC_PARTS = 4


class BundleOwners:
    """``written`` is told of each change of the metadata, in the context of who makes it; None: the
    end of a session does. ``brokers``: whose writes are looked at. ``broken`` is told what does not
    hold, ``released`` which topics, by a test of their names, their owner has given away."""

    def __init__(
        self,
        number_of: Callable[[SimProcess], int],
        brokers: Callable[[str], bool],
        broken: Callable[[str], None],
        count: Callable[[str], None],
        released: Callable[[Callable[[str], bool]], None],
    ) -> None:
        self._released = released
        self._number_of = number_of
        self._is_broker = brokers
        self._broken = broken
        self._count = count
        self._owner: dict[str, SimProcess] = {}
        self._terms: dict[tuple[int, str], int] = {}
        """By number of process and path of a bundle's node: the term in which it owned it last, as
        far as it knows; gone when it has given it back itself."""
        self._last_terms: dict[tuple[int, str], int] = {}
        self._term = 0
        self._layouts: dict[str, Layout] = {}
        """By namespace; those that say nothing are not in it."""

    def next_term(self) -> int:
        """Somebody serves something from now on."""
        self._term += 1
        return self._term

    def owns(self, process: int, topic: str) -> bool:
        """Whether that process owns the topic's bundle: it made the node that is there."""
        owner = self._owner.get(self._path_of(parse_topic(topic)))
        return owner is not None and self._number_of(owner) == process

    def owner_of(self, topic: str) -> str | None:
        """The host of the process that made the node of the topic's bundle last; None: nobody."""
        owner = self._owner.get(self._path_of(parse_topic(topic)))
        return None if owner is None else owner.name

    def term_of(self, process: int, topic: str) -> int:
        """The term in which that process serves the topic, or did last."""
        return self._last_terms.get((process, self._path_of(parse_topic(topic))), 0)

    def written(self, path: str, before: bytes | None, after: bytes | None) -> None:
        process = current_process()
        if path.startswith(f"{OWNERS}/") and "/0x" in path:
            if after is None:
                self._removed(path, process)
            elif before is None:
                self._made(path, process)
        elif path.startswith(f"{POLICIES}/") and after is not None:
            self._cut(path.removeprefix(f"{POLICIES}/"), after)
        elif path.startswith(RECORDS) and process is not None and self._is_broker(process.name):
            parts = path.removeprefix(RECORDS).split("/")
            if len(parts) == TOPIC_PARTS:
                self._check_record(topic_of_log("/".join(parts)), process)

    def _made(self, path: str, process: SimProcess | None) -> None:
        assert process is not None
        self._term += 1
        before, self._owner[path] = self._owner.get(path), process
        key = self._number_of(process), path
        self._terms[key] = self._last_terms[key] = self._term
        if before is not None and before is not process:
            self._count("bundles that moved")

    def _removed(self, path: str, process: SimProcess | None) -> None:
        owner = self._owner.get(path)
        if process is None or owner is None:
            return  # with its session
        if owner is process:
            self._terms.pop((self._number_of(process), path), None)
            self._released(lambda topic: self._path_of(parse_topic(topic)) == path)
        elif owner.name != process.name:
            self._broken(f"{process.name} removes {path}, which {owner.name} owns")

    def _check_record(self, name: TopicName, process: SimProcess) -> None:
        if (self._number_of(process), self._path_of(name)) not in self._terms:
            self._broken(f"{process.name} writes the record of {name}, which it does not own")

    def _cut(self, namespace: str, policies: bytes) -> None:
        if "/" not in namespace:
            return  # a tenant
        before = self._layout(namespace)
        self._layouts[namespace] = after = layout_of(namespace, json.loads(policies or b"{}"))
        if after != before:
            self._count("bundles that were cut")
            self._inherit(before, after)

    def _inherit(self, before: Layout, after: Layout) -> None:
        """Who had a bundle that is cut had its parts: the cut may be a later owner's, made after
        the session of the one before, who may still not know that it ended (rule 2)."""
        new = [bundle for bundle in after.bundles() if not before.holds(bundle)]
        for (number, path), term in list(self._terms.items()):
            for old in before.bundles():
                if path != owner_path(old):
                    continue
                for part in new:
                    if old.low <= part.low and part.high <= old.high:
                        self._terms.setdefault((number, owner_path(part)), term)
                        self._last_terms.setdefault((number, owner_path(part)), term)

    def _layout(self, namespace: str) -> Layout:
        return self._layouts.get(namespace) or layout_of(namespace, {})

    def _path_of(self, name: TopicName) -> str:
        """Of the node of the topic's bundle."""
        return owner_path(self._layout(name.namespace).bundle_of(name))
