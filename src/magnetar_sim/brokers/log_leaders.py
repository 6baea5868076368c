"""Who leads which topic's partition, as the metadata store has it: in the place of ``BundleOwners``
where topics are on partitions. Whoever opens such a log writes its record, with an epoch of its
own; bundles say nothing of who that is.

1. *One after the other.* Epochs in a log's record only grow, but for a log that is made anew.

It also numbers the terms of leaders: what one knew is known to those that lead later.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.cluster.topic_name import topic_of_log
from magnetar.log.managed.records import decode_log
from magnetar_sim.brokers.bundle_owners import RECORDS, TOPIC_PARTS, BundleOwners
from magnetar_sim.world.loop import SimProcess, current_process


class LogLeaders(BundleOwners):
    """See the module's text."""

    def __init__(
        self,
        number_of: Callable[[SimProcess], int],
        brokers: Callable[[str], bool],
        broken: Callable[[str], None],
        count: Callable[[str], None],
        released: Callable[[Callable[[str], bool]], None],
    ) -> None:
        super().__init__(number_of, brokers, broken, count, released)
        self._leader: dict[str, SimProcess] = {}
        self._epochs: dict[str, int] = {}
        self._led_terms: dict[tuple[int, str], int] = {}

    def owns(self, process: int, topic: str) -> bool:
        """Whether that process leads the topic: it opened its log last."""
        leader = self._leader.get(topic)
        return leader is not None and self._number_of(leader) == process

    def owner_of(self, topic: str) -> str | None:
        leader = self._leader.get(topic)
        return None if leader is None else leader.name

    def term_of(self, process: int, topic: str) -> int:
        """The term in which that process leads the topic, or did last."""
        return self._led_terms.get((process, topic), 0)

    def written(self, path: str, before: bytes | None, after: bytes | None) -> None:
        if not path.startswith(RECORDS):
            return
        parts = path.removeprefix(RECORDS).split("/")
        if len(parts) == TOPIC_PARTS:
            self._record_written("/".join(parts), after)

    def _record_written(self, name: str, after: bytes | None) -> None:
        topic, process = str(topic_of_log(name)), current_process()
        if after is None:
            self._leader.pop(topic, None)
            self._epochs.pop(topic, None)
            return
        epoch, known = decode_log(name, after).epoch, self._epochs.get(topic, 0)
        if epoch < known:
            self._broken(f"the record of {topic} has epoch {epoch} after {known}")
        self._epochs[topic] = epoch
        if epoch <= known or process is None or not self._is_broker(process.name):
            return
        leader, self._leader[topic] = self._leader.get(topic), process
        self._led_terms[self._number_of(process), topic] = self.next_term()
        self._released(lambda each: each == topic)
        if leader is not None and leader is not process:
            self._count("topics that another leads")
