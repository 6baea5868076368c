"""Names of topics: parsing, validation, and the names that follow from them.

A full name is ``persistent://tenant/namespace/local``; ``tenant/namespace/local`` and ``local``
(in ``public/default``) are its short forms. A partition of a partitioned topic is a topic of its
own with ``-partition-<n>`` at the end of the local name. The log of a topic is named
``tenant/namespace/persistent/<local, percent-encoded>``.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from magnetar.model.errors import InvalidTopicNameError, NotAllowedError

DEFAULT_NAMESPACE: Final = "public/default"
KAFKA_GROUPS: Final = "public/kafka-groups"
"""Brokers keep in it what Kafka's clients of all namespaces do as groups, and transactions."""
NAME_BYTES_MAX: Final = 1024
PARTITIONS_MAX: Final = 10_000
"""Of one topic: each is a topic of its own, with a log."""

_PART = re.compile(r"[-=:.\w]+")
_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]{0,5})$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DOTS = (".", "..")
"""Places in a path (of a file, a URL, a metadata store), so never a name."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """A valid name of a persistent topic or of one partition of it.

    ``partition`` is -1 unless the local name ends as a partition's does.
    """

    tenant: str
    namespace_part: str
    local: str
    partition: int

    @property
    def namespace(self) -> str:
        """``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace_part}"

    @property
    def log_name(self) -> str:
        return f"{self.namespace}/persistent/{quote(self.local, safe='')}"

    @property
    def encoded_local(self) -> str:
        """The local name as it stands in metadata paths."""
        return quote(self.local, safe="")

    def of_partition(self, index: int) -> TopicName:
        """The name of partition ``index`` of this (partitioned) topic."""
        assert self.partition < 0, f"{self} is a partition already"
        return TopicName(self.tenant, self.namespace_part, f"{self.local}-partition-{index}", index)

    @property
    def first_logs(self) -> tuple[str, ...]:
        """Where its messages may be, without knowing whether it has partitions: in its own log, or
        in its first partition's among others."""
        own = (self.log_name,)
        return own if self.partition >= 0 else (*own, self.of_partition(0).log_name)

    @property
    def partitioned(self) -> TopicName:
        """The partitioned topic that this partition is of; itself for any other topic."""
        if self.partition < 0:
            return self
        local = _PARTITION.sub("", self.local)
        return TopicName(self.tenant, self.namespace_part, local, -1)

    def __str__(self) -> str:
        return f"persistent://{self.namespace}/{self.local}"


def parse_topic(text: str) -> TopicName:
    """The name that ``text`` says. Raises ``InvalidTopicNameError``, and ``NotAllowedError`` for
    a domain that is not served."""
    if len(text.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise InvalidTopicNameError(
            f"topic name of {len(text)} characters; at most {NAME_BYTES_MAX} bytes are allowed"
        )
    domain, parts = _split(text)
    if domain == "non-persistent":
        raise NotAllowedError(
            f"topic {text}: non-persistent topics are not served here; use persistent://"
        )
    if domain != "persistent":
        raise InvalidTopicNameError(f"topic {text}: unknown domain {domain!r}; use persistent://")
    if len(parts) != 3:
        raise InvalidTopicNameError(
            f"topic {text}: expected persistent://tenant/namespace/topic, the topic without '/'"
        )
    tenant, namespace, local = parts
    _check_parts(text, tenant, namespace)
    if not local or local in _DOTS or _CONTROL.search(local):
        raise InvalidTopicNameError(
            f"topic {text!r}: the topic's own name is empty, '.', '..', or has control characters; "
            "choose another"
        )
    return TopicName(tenant, namespace, local, partition_of(local))


def _split(text: str) -> tuple[str, list[str]]:
    domain, separator, rest = text.partition("://")
    if separator:
        return domain, rest.split("/")
    parts = text.split("/")
    if len(parts) == 1:
        parts = [*DEFAULT_NAMESPACE.split("/"), text]
    return "persistent", parts


def _check_parts(text: str, tenant: str, namespace: str) -> None:
    for what, part in (("tenant", tenant), ("namespace", namespace)):
        if not _PART.fullmatch(part) or part in _DOTS:
            raise InvalidTopicNameError(
                f"{text!r}: {what} {part!r} may have letters, digits and - = : . _ only, and not "
                "be '.' or '..'"
            )


def partition_of(local: str) -> int:
    """The partition index that a local name ends with, -1 if none."""
    found = _PARTITION.search(local)
    return int(found.group(1)) if found and found.start() > 0 else -1


def parse_namespace(text: str) -> str:
    """``tenant/namespace``, checked. Raises ``InvalidTopicNameError``."""
    parts = text.split("/")
    if len(parts) != 2 or len(text.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise InvalidTopicNameError(
            f"namespace {text[:100]!r}: expected tenant/namespace, {NAME_BYTES_MAX} bytes at most"
        )
    _check_parts(text, *parts)
    return text


def parse_tenant(text: str) -> str:
    """A tenant's name, checked. Raises ``InvalidTopicNameError``."""
    parse_namespace(f"{text}/x")
    return text


def topic_of_log(log_name: str) -> TopicName:
    """The topic whose log has that name (the reverse of ``log_name``)."""
    tenant, namespace, _, local = log_name.split("/")
    name = unquote(local)
    return TopicName(tenant, namespace, name, partition_of(name))
