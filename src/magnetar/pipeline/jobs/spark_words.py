"""What Spark says when it fails, in one line for people.

Its exceptions are texts of many lines, with plans and Java's stack. Somewhere in them may stand
what one of ours has said in a task or a source: that is the reason then. Spark's and Py4J's
exceptions are known by where they come from, so that nothing of them is imported here. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from magnetar.model.errors import ConfigError, JobError, MagnetarError

OURS: Final = re.compile(r"magnetar\.model\.errors\.(\w+): (.+)")
THEIRS: Final = ("pyspark", "py4j")
ASKED_WRONGLY: Final = ("AnalysisException", "ParseException", "IllegalArgumentException")
CALLING: Final = "An error occurred while calling"
"""So Py4J begins; what has failed stands in the next line."""


def is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in THEIRS


def asked_wrongly(error: BaseException) -> bool:
    """Whether what was asked cannot be: of Spark, as a column that is not there, or words that are
    no SQL; or of ours, who say so themselves."""
    ours = OURS.search(str(error))
    if ours is not None:
        return ours[1] == ConfigError.__name__
    return type(error).__name__ in ASKED_WRONGLY


def failure(error: BaseException, what: str) -> MagnetarError:
    """The error of ours that says in one line that ``what`` is not done, and why."""
    kind = ConfigError if asked_wrongly(error) else JobError
    return kind(f"{what}: {reason(error)}")


def reason(error: BaseException) -> str:
    text = str(error)
    ours = OURS.search(text)
    if ours is not None:
        return ours[2].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(CALLING):
        return lines[1].removeprefix(":").strip()
    return lines[0] if lines else "no reason given"
