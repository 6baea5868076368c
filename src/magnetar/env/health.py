"""What is wrong with this process, part by part, and what to do about it.

``app`` makes one ``Health`` per process; whoever builds a part that can fail adds its check:

    health.add("disks of bookie-0", bookie_disks)        # async def bookie_disks() -> PartHealth

REST (``/health``, Pulsar's ``/admin/v2/brokers/health``) and ``magnetar health`` show the answers.

Rules: a check looks at what its part knows, or asks once; it changes nothing and repeats nothing.
It has ``CHECK_DEADLINE_S`` to answer: silence is a fault of the part, so that a part that hangs
cannot hide the others. All checks run at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import structlog

from magnetar.model.errors import MagnetarError

log = structlog.get_logger(__name__)

CHECK_DEADLINE_S: Final = 5.0


class PartHealth(NamedTuple):
    """One part's answer. ``problem`` says what is wrong, with which object, in numbers;
    ``remedy`` what a person can do about it. Both are empty when the part is well."""

    ok: bool
    problem: str = ""
    remedy: str = ""


WELL: Final = PartHealth(True)

Check: TypeAlias = Callable[[], Awaitable[PartHealth]]


class Health:
    """The checks of a process by the name of their part, in the order in which they were added."""

    def __init__(self, check_deadline_s: float = CHECK_DEADLINE_S) -> None:
        self._checks: dict[str, Check] = {}
        self._check_deadline_s = check_deadline_s

    def add(self, part: str, check: Check) -> Callable[[], None]:
        """``part`` is checked by ``check`` until the returned function is called."""
        assert part not in self._checks, f"{part} has a check already"
        self._checks[part] = check

        def end() -> None:
            self._checks.pop(part, None)

        return end

    async def problem_of(self, part: str) -> str:
        """What is wrong with one part and what to do; empty: nothing, or there is no such part."""
        check = self._checks.get(part)
        if check is None:
            return ""
        found = await self._ask(part, check)
        return "" if found.ok else f"{found.problem}; {found.remedy}"

    async def report(self) -> Mapping[str, PartHealth]:
        """Every part's answer. Raises nothing: a check that fails is its part's fault."""
        parts = list(self._checks.items())
        answers = await asyncio.gather(*(self._ask(part, check) for part, check in parts))
        return {part: answer for (part, _), answer in zip(parts, answers, strict=True)}

    async def _ask(self, part: str, check: Check) -> PartHealth:
        try:
            async with asyncio.timeout(self._check_deadline_s):
                return await check()
        except TimeoutError:
            return PartHealth(
                False,
                f"{part} did not answer within {self._check_deadline_s:g} s",
                "see the log of this process; a disk or a server that it waits for may be stuck",
            )
        except MagnetarError as error:
            return PartHealth(False, str(error), "see the log of this process")
        except Exception as error:  # a fault of the check itself must not hide the other parts
            log.error("health check failed", part=part, error=repr(error), exc_info=error)
            return PartHealth(
                False, f"the check of {part} failed: {error!r}", "see the log of this process"
            )
