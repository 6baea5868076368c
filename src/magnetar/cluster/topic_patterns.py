"""Regular expressions for names of topics, by the rules of RE2, as brokers of Pulsar and Kafka's
coordinators take them.

A search takes time linear in the name's length, whatever the expression; its size and the memory
for it are bounded. The whole name must match.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import re2

from magnetar.model.errors import InvalidTopicNameError

PATTERN_CHARS_MAX: Final = 4096
PATTERN_MEMORY_BYTES_MAX: Final = 1 << 20


class TopicPattern:
    """Raises ``InvalidTopicNameError`` for what is no expression, or too large a one."""

    def __init__(
        self,
        text: str,
        chars_max: int = PATTERN_CHARS_MAX,
        memory_bytes_max: int = PATTERN_MEMORY_BYTES_MAX,
    ) -> None:
        if len(text) > chars_max:
            raise InvalidTopicNameError(
                f"the regular expression has {len(text)} characters; {chars_max} at most are taken"
            )
        options = re2.Options()
        options.max_mem = memory_bytes_max
        options.never_capture = True
        options.log_errors = False
        try:
            self._compiled = re2.compile(text, options)
        except re2.error as error:
            why = error.args[0] if error.args else error
            said = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
            raise InvalidTopicNameError(
                f"{text[:200]!r} is no regular expression by RE2's rules: {said}"
            ) from error

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None

    def matching(self, names: Iterable[str]) -> list[str]:
        return list(filter(self.matches, names))
