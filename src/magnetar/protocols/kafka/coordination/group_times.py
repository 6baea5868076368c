"""How long members of a group are waited for, and how often they are to be heard of: as is set for
the group (``group_settings``), as far as that is known.
"""

from __future__ import annotations

import structlog

from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.coordination.live_groups import LiveConsumerGroup, LiveShareGroup
from magnetar.protocols.kafka.group_settings import told_times
from magnetar.protocols.kafka.lookups import in_time
from magnetar.protocols.kafka.services import KafkaServices

log = structlog.get_logger(__name__)


async def learn_times(
    services: KafkaServices, live: LiveConsumerGroup | LiveShareGroup, kind: str
) -> bool:
    """For heartbeats from now on; as before while the store does not say. ``kind``: as of
    ``told_times``. True: sessions have another length."""
    group_id = live.group.group_id
    try:
        said = await in_time(services.control.groups.of(group_id))
    except MagnetarError as error:
        log.debug("settings not looked up", group=group_id, error=str(error))
        return False
    former_ms = live.group.session_ms
    live.group.session_ms, live.heartbeat_ms = told_times(services.config, said, kind)
    return live.group.session_ms != former_ms
