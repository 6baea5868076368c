"""Which jobs there are, and where: a module is imported when its job is asked for."""

from __future__ import annotations

import importlib
from typing import Any, Final

from magnetar.pipeline.jobs.job import Job

JOBS: Final = {
    "audit": "magnetar.pipeline.jobs.audit:AUDIT",
    "erase": "magnetar.pipeline.jobs.erase:ERASE",
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
