"""Builds auto-recovery: as a role of its own, or beside a bookie."""

from __future__ import annotations

import re

import structlog

from magnetar.app.ending import end_within
from magnetar.app.process import Process
from magnetar.app.storage import METADATA_END_S, Cluster, open_ledgers
from magnetar.bookie.bookie import Bookie
from magnetar.env.tasks import FailurePolicy, TaskScope, ends_role, fails
from magnetar.model.ids import BookieId
from magnetar.repair.autorecovery import AutoRecovery, Surroundings
from magnetar.repair.superfluous import Beside

log = structlog.get_logger(__name__)

_NO_BOOKIE_ID = re.compile(r"[^A-Za-z0-9:_.-]")
"""BookKeeper's tools read a voter's name as the id of a bookie."""


async def start_autorecovery(
    process: Process,
    cluster: Cluster,
    name: str,
    policy: FailurePolicy | None = None,
    beside: Beside | None = None,
) -> AutoRecovery:
    """Runs until the process ends. ``name`` tells people who it is; ``policy``: of a task that
    fails by a defect (else the role ends); ``beside``: the bookie of this process. Raises
    ``MetadataError``."""
    config, outside = process.config, process.outside
    around = Surroundings(
        store=cluster.metadata,
        access=open_ledgers(process, cluster, {}),
        ledger=config.ledger,
        repair=config.repair,
        metrics=process.metrics,
        name=_NO_BOOKIE_ID.sub("_", f"{name}-{outside.new_token():016x}"),
        now_ms=outside.clock_ms,
        random=outside.random,
    )
    recovery = AutoRecovery(around, policy or ends_role(process.fate.fail), beside)
    end_within(process.stack, METADATA_END_S, "auto-recovery", recovery.close)
    await recovery.start()
    return recovery


async def start_beside_bookie(
    process: Process, cluster: Cluster, bookie_id: BookieId, bookie: Bookie
) -> None:
    """As above, and the bookie gives up copies that are superfluous; a defect of it is no reason
    for the bookie to end: what repairs in other processes goes on."""
    scope = TaskScope(f"auto-recovery beside {bookie_id}", ends_role(process.fate.fail))
    process.stack.push_async_callback(scope.close)

    def failed(task: str, error: BaseException) -> None:
        process.metrics.repair_defects_total.inc()
        log.error("auto-recovery ends here; the bookie serves on", task=task, error=repr(error))
        scope.spawn(recovery.close(), "close")

    beside = Beside(bookie_id, bookie)
    recovery = await start_autorecovery(process, cluster, bookie_id, fails(failed), beside)
