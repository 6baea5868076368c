"""What is said of topics beside their counters. Counters only grow while the topic stays loaded."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.topics.consuming.subscription import Kind

KIND_NAMES: Mapping[Kind, str] = {
    Kind.EXCLUSIVE: "Exclusive",
    Kind.SHARED: "Shared",
    Kind.FAILOVER: "Failover",
    Kind.KEY_SHARED: "Key_Shared",
}
