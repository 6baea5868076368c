"""One page for a person, and the same as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.chaos.whole.checker import Verdict
from tests.chaos.whole.copies import Whole
from tests.chaos.whole.gaps import Gaps


class Run(NamedTuple):
    """``network``: how servers were parted. ``ended``: servers that ended by themselves, and how
    often. ``troubles``: what the harness could not do, or waited for in vain."""

    seed: int
    minutes: float
    servers: str
    network: str
    session_s: float
    faults_planned: int
    gaps: Mapping[str, Gaps]
    met: int
    verdict: Verdict
    ended: Mapping[str, int]
    troubles: Sequence[str]
    left_out: Sequence[str]
    memory_mib: int
    recovery_s: float
    whole: Whole
    folder: str
    repeat: str

    @property
    def faults(self) -> int:
        return sum(each.count for each in self.gaps.values())

    @property
    def good(self) -> bool:
        return self.verdict.good and not self.troubles and self.whole.copies.whole


def as_json(run: Run) -> dict[str, Any]:
    verdict = run.verdict
    return {
        **run._asdict(),
        "gaps": {name: each._asdict() for name, each in run.gaps.items()},
        "whole": {"took_s": run.whole.took_s, **run.whole.copies._asdict()},
        "verdict": {
            "good": run.good,
            "violations": dict(verdict.violations),
            "counts": dict(verdict.counts),
            "examples": list(verdict.examples),
        },
        "faults": run.faults,
    }


def as_text(run: Run) -> str:
    counts, violations = run.verdict.counts, run.verdict.violations
    lines = [
        f"CHAOS, {run.minutes:g} minutes, seed {run.seed}: " + ("PASS" if run.good else "FAIL"),
        "",
        f"servers   {run.servers}",
        f"parted    {run.network}",
        f"sessions  {run.session_s:g} s",
        f"faults    {run.faults} of {run.faults_planned} planned; {run.met} brokers' faults began "
        "during another's",
        f"memory    {run.memory_mib} MiB at most, of all processes together",
        f"at last   all was delivered {run.recovery_s:.1f} s after the last fault",
        f"copies    {run.whole.copies.copies} read of {run.whole.copies.ledgers} ledgers; whole "
        f"{run.whole.took_s:.1f} s after that" + ("" if run.whole.copies.whole else ": NOT WHOLE"),
        "",
        "VERDICT",
        *(f"  {violations[rule]:>9}  {rule}" for rule in violations),
        *(f"  {text}" for text in run.verdict.examples),
        *(f"  trouble: {text}" for text in (*run.troubles, run.whole.trouble) if text),
        "",
        "COUNTED",
        *(f"  {count:>9}  {what}" for what, count in sorted(counts.items())),
        *(f"  {count:>9}  ended by itself: {what}" for what, count in sorted(run.ended.items())),
        "",
        "FAULTS (the longest time that any topic was without an acknowledgement; of faults that",
        "overlap, charged to each)",
        f"  {'count':>5}  {'median':>7}  {'worst':>7}",
        *(
            f"  {each.count:>5}  {each.median_s:>5.1f} s  {each.worst_s:>5.1f} s  {name}"
            for name, each in run.gaps.items()
        ),
        *(f"  not here: {name}" for name in run.left_out),
        "",
        f"histories and logs  {run.folder}",
        f"again               {run.repeat}",
    ]
    return "\n".join(lines) + "\n"
