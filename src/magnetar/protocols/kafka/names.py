"""Kafka's names of topics, and what they are here.

=============================  ==============================================================
Kafka                          here
=============================  ==============================================================
topic ``t``, partition N       ``persistent://public/default/t-partition-N``
topic ``t``, partition 0       ``persistent://public/default/t``, where ``t`` has no partitions
topic ``a/b/t``                ``persistent://a/b/t`` and its partitions
group, transactional id        of the namespace ``a/b`` if it is ``a/b/...``, else of
                               ``public/default``: permissions are asked there
=============================  ==============================================================

Kafka allows no slash in a name that a client makes, so topics of other namespaces are made by
Pulsar's means, and used by both. What Kafka makes obeys Kafka's rule.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, TopicName, parse_topic
from magnetar.model.errors import InvalidTopicNameError

NAME_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_of(name: str) -> TopicName:
    """Raises ``InvalidTopicNameError``, ``NotAllowedError``."""
    return parse_topic(name)


def kafka_name(topic: TopicName) -> str:
    """The name by which Kafka's clients know a topic, or the one that a partition is of."""
    whole = topic.partitioned
    if whole.namespace == DEFAULT_NAMESPACE:
        return whole.local
    return f"{whole.namespace}/{whole.local}"


def namespace_of(key: str) -> str:
    """The namespace that a group or a transactional id belongs to: ``a/b`` for ``a/b/...``, as with
    topics; else the default one."""
    parts = key.split("/", 2)
    return "/".join(parts[:2]) if len(parts) == 3 and all(parts) else DEFAULT_NAMESPACE


def check_new(name: str) -> TopicName:
    """A name that Kafka's clients may make. Raises ``InvalidTopicNameError``."""
    if len(name) > NAME_MAX or not _LEGAL.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicNameError(
            f"topic {name[:300]!r}: Kafka's names have letters, digits and . _ - only, at most "
            f"{NAME_MAX} of them"
        )
    found = topic_of(name)
    if found.partition >= 0:
        raise InvalidTopicNameError(
            f"topic {name}: a name that ends with -partition-N is a partition's; choose another"
        )
    return found
