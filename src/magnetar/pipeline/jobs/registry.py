"""Which jobs there are, and where: a module is imported when its job is asked for."""

from __future__ import annotations

import importlib
from typing import Any, Final

from magnetar.pipeline.jobs.job import Job

JOBS: Final = {
    "aggregate": "magnetar.pipeline.jobs.aggregate:AGGREGATE",
    "audit": "magnetar.pipeline.jobs.audit:AUDIT",
    "backfill": "magnetar.pipeline.jobs.backfill:BACKFILL",
    "compact": "magnetar.pipeline.jobs.compact:COMPACT",
    "detach": "magnetar.pipeline.jobs.detach:DETACH",
    "erase": "magnetar.pipeline.jobs.erase:ERASE",
    "mirror": "magnetar.pipeline.jobs.mirror:MIRROR",
    "redrive": "magnetar.pipeline.jobs.redrive:REDRIVE",
    "table": "magnetar.pipeline.jobs.table:TABLE",
}


def job(name: str) -> Job[Any, Any] | None:
    place = JOBS.get(name)
    if place is None:
        return None
    module, attribute = place.split(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, Job)
    return found
