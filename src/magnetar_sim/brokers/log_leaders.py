"""Who leads which topic's partition, as the metadata store has it: in the place of ``BundleOwners``
where topics are on partitions. Whoever opens such a log writes its record, with an epoch of its
own; bundles say nothing of who that is.

1. *One after the other.* Epochs in a log's record only grow, but for a log that is made anew.

It also numbers the terms of leaders: what one knew is known to those that lead later.
"""

from __future__ import annotations

from magnetar.cluster.topic_name import TopicName, topic_of_log
from magnetar.log.managed.records import decode_log
from magnetar_sim.brokers.bundle_owners import RECORDS, TOPIC_PARTS, BundleOwners
from magnetar_sim.world.loop import current_process


class LogLeaders(BundleOwners):
    """As its base, with a log's record in the place of a bundle's node."""

    def written(self, path: str, before: bytes | None, after: bytes | None) -> None:
        name = path.removeprefix(RECORDS)
        if not path.startswith(RECORDS) or name.count("/") != TOPIC_PARTS - 1:
            return
        if after is None:
            self._owner.pop(path, None)
            return
        topic, process = str(topic_of_log(name)), current_process()
        known = 0 if before is None else decode_log(name, before).epoch
        epoch = decode_log(name, after).epoch
        if epoch < known:
            self._broken(f"the record of {topic} has epoch {epoch} after {known}")
        if epoch <= known or process is None or not self._is_broker(process.name):
            return
        leader, self._owner[path] = self._owner.get(path), process
        self._last_terms[self._number_of(process), path] = self.next_term()
        self._released(lambda each: each == topic)
        if leader is not None and leader is not process:
            self._count("topics that another leads")

    def _path_of(self, name: TopicName) -> str:
        """Of the record of the topic's log."""
        return RECORDS + name.log_name
