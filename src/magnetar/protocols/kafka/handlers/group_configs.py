"""Configuration of single groups, through Kafka's requests: a resource of its own kind, 32.

What can be set, and what it means: ``group_settings``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.model.errors import InvalidPolicyError
from magnetar.protocols.kafka.group_settings import (
    NAMES,
    NUMBERS,
    TIMES,
    check,
    check_times,
    texts,
)
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.wire.kafka.admin_messages import (
    DescribedConfig,
)

GROUP: Final = 32
"""The kind of resource."""
ID_CHARS_MAX: Final = 1_024
FROM_DEFAULT, FROM_GROUP = 5, 8
STRING, INT = 2, 3


async def describe_group(services: KafkaServices, group_id: str) -> list[DescribedConfig]:
    """Raises ``MetadataError``, ``InvalidPolicyError``."""
    _check_id(group_id)
    said = await services.control.groups.of(group_id)
    return [
        DescribedConfig(
            name,
            value,
            source=FROM_GROUP if name in said else FROM_DEFAULT,
            config_type=INT if name in NUMBERS else STRING,
        )
        for name, value in texts(services.config, said).items()
    ]


async def alter_group(
    services: KafkaServices,
    group_id: str,
    wanted: Mapping[str, str | None],
    *,
    validate_only: bool,
) -> None:
    """None: it is not set any more. Raises ``InvalidPolicyError``, ``NotAllowedError``,
    ``MetadataError``."""
    _check_id(group_id)
    for name, value in wanted.items():
        if value is not None or name not in NAMES:
            check(name, value or "")
    if TIMES.keys() & wanted.keys():
        now = {**await services.control.groups.of(group_id), **wanted}
        said = {name: value for name, value in now.items() if value is not None}
        check_times(services.config, said, wanted)
    if wanted and not validate_only:
        await services.control.groups.change(group_id, wanted)


def _check_id(group_id: str) -> None:
    if not group_id or len(group_id) > ID_CHARS_MAX:
        raise InvalidPolicyError(f"a group's id has 1 to {ID_CHARS_MAX} characters")
