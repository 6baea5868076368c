"""Lists of topics, as clients and brokers compare them, and the expressions that choose from them.
Pure.

Facts: a list's hash is the CRC-32C of its names, sorted and joined by commas, its four bytes
written in hexadecimal, the least significant first. Expressions are matched against
``tenant/namespace/topic``, of a partition against the topic that it is of; clients write them with
the domain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from magnetar.model.errors import InvalidTopicNameError

DOMAINS: Final = ("non-persistent", "persistent")
"""The longer one first: it ends as the other does."""


def topics_hash(names: Iterable[str]) -> str:
    """Of names in their order."""
    return crc32c(",".join(names).encode()).to_bytes(4, "little").hex()


def without_domain(expression: str) -> str:
    """The expression for names without ``persistent://``. Raises ``InvalidTopicNameError``."""
    before, separator, rest = expression.partition("://")
    if not separator:
        return expression
    for domain in DOMAINS:
        if before.endswith(domain) and "://" not in rest:
            return before.removesuffix(domain) + rest
    raise InvalidTopicNameError(
        f"the expression {expression[:200]!r} does not name one domain, persistent://, at its front"
    )
