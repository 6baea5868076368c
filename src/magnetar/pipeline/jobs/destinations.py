"""Where the jobs that copy may write: topics that can be, and that are none of those they read.

A job that writes into what it reads never ends, and makes a message twice with every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Final

from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import MagnetarError, TopicNotFoundError
from magnetar.pipeline.brokers.client import CLIENTS
from magnetar.pipeline.brokers.log_watch import LogWatch, job_watch
from magnetar.pipeline.topic_names import full_topic, topic_of
from magnetar.pipeline.worker_process import PROCESS

TIMEOUT_S: Final = 60.0


def is_one_log(service_url: str, other_url: str, topic: str) -> bool:
    """Whether a topic is the same one at both addresses: that its log was made in the same
    millisecond, and has the same ledgers, is no chance. Raises ``BrokerError``."""
    if other_url == service_url:
        return True
    try:
        with (
            closing(job_watch(service_url, TIMEOUT_S)) as here,
            closing(job_watch(other_url, TIMEOUT_S)) as there,
        ):
            partition = here.partitions(topic)[0]
            extents = [logs.ask(partition).extent for logs in (here, there)]
    except TopicNotFoundError:
        return False
    made = {each.created_ms for each in extents}
    ledgers = {each.end.ledger_id for each in extents}
    return len(made) == len(ledgers) == 1 and made != {0}


def possible(service_url: str) -> Callable[[str | None], str | None]:
    """What Spark runs in a task: the name of a topic, or null for one that cannot be."""
    known: dict[str, bool] = {}  # of a task: each has a copy, as it is pickled with the function

    # Spark pickles this function by value, with every global that it names: so it names one, which
    # is pickled by its name.
    def found(name: str | None) -> str | None:
        return possible_topic(name, service_url, known)

    return found


def possible_topic(name: str | None, service_url: str, known: dict[str, bool]) -> str | None:
    """In the task. Raises ``BrokerError`` while nobody can tell."""
    if name is None:
        return None
    if name not in known:
        PROCESS.prepare()
        logs = LogWatch(CLIENTS.get(service_url, TIMEOUT_S), TIMEOUT_S)
        logs.be_patient()
        known[name] = _can_be(logs, name)
    return name if known[name] else None


def _can_be(logs: LogWatch, name: str) -> bool:
    """Not one whose name is none, nor in a namespace that is not there. (A topic that is not there
    may be made by who writes.)"""
    try:
        topic = parse_topic(full_topic(name))
    except MagnetarError:
        return False
    try:
        logs.topics(topic.namespace)
    except TopicNotFoundError:
        return False
    return True


def topics_of(names: Iterable[str]) -> set[str]:
    """Full names, of partitions those of their topics."""
    return {topic_of(full_topic(name)) for name in names}
