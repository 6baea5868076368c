"""Which topics and partitions a read is of: names, a pattern, or partitions one by one. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.model.errors import ConfigError
from magnetar.pipeline.topic_names import full_topic, namespace_of, topic_of


@dataclass(frozen=True)
class Selection:
    """One of the three. ``assigned``: topic and partition numbers."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def namespace(self) -> str:
        """Of a pattern: where its topics are."""
        return namespace_of(self.pattern or "")

    def matching(self, names: Sequence[str]) -> list[str]:
        """Those of a namespace's topics and partitions whose topic matches the pattern."""
        pattern = re.compile(self.pattern or "")
        return sorted(name for name in names if pattern.fullmatch(topic_of(name)))

    def covers(self, partition: str) -> bool:
        """Whether a partition (that may be gone) is, or was, one of these."""
        topic = topic_of(partition)
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return partition in self.topics or topic in self.topics or topic in dict(self.assigned)

    def __str__(self) -> str:
        return self.pattern or ", ".join(self.topics) or ", ".join(dict(self.assigned))


def parse_selection(option: str, text: str) -> Selection:
    """The value of ``topic``, ``topics``, ``subscribe``, ``subscribePattern`` or ``assign``."""
    if option == "assign":
        return Selection(assigned=_assigned(text))
    if option == "subscribePattern":
        return Selection(pattern=_pattern(text.strip()))
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"option {option!r} names no topic")
    return Selection(tuple(dict.fromkeys(full_topic(name) for name in names)))


def _pattern(text: str) -> str:
    """A pattern of full names; the namespace of a shorter one is ``public/default``, or what it
    begins with."""
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option 'subscribePattern': {text!r} is no pattern: {error}") from error
    pattern = full_topic(text)
    if re.escape(namespace_of(pattern)).replace(r"\-", "-") != namespace_of(pattern):
        raise ConfigError(
            f"option 'subscribePattern': the topics of a pattern are in one namespace, and that of "
            f"{text!r} is a pattern itself; write it out (tenant/namespace/PATTERN)"
        )
    return pattern


def _assigned(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    good = (
        isinstance(value, dict)
        and value
        and all(
            isinstance(numbers, list)
            and numbers
            and all(type(n) is int and n >= 0 for n in numbers)
            for numbers in value.values()
        )
    )
    if not good:
        raise ConfigError(
            "option 'assign' takes JSON from topic to a list of partitions, for example "
            f'{{"t": [0, 2]}}; not {text!r}'
        )
    assert isinstance(value, dict)
    return tuple((full_topic(topic), tuple(sorted(set(found)))) for topic, found in value.items())
