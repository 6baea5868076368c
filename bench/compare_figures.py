"""What the rounds of a comparison say, in numbers. Pure.

Each round measures every row once before and once after, one soon after the other, so that what
the machine does meanwhile falls on both. A round's ratio is after / before. A row's figure is the
geometric mean of the ratios, and its noise half of the 95 % confidence interval of that mean
(Student's t over the logarithms): what the rounds themselves show, nothing assumed of the machine.
A ratio is called better or worse only when 1 lies outside of that interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # by degrees of freedom, from 1
_T_MANY = 2.09  # ten and more, rounded up


class Figure(NamedTuple):
    """One row. ``noise`` is a part of the ratio (0.05: the ratio is known to 5 %)."""

    before: float
    after: float
    ratio: float
    noise: float
    lowest: float
    highest: float

    @property
    def verdict(self) -> str:
        if math.isnan(self.noise):
            return "one round"
        if self.ratio * (1 + self.noise) < 1:
            return "better"
        return "worse" if self.ratio / (1 + self.noise) > 1 else "same"


def figure(before: Sequence[float], after: Sequence[float]) -> Figure:
    """Costs of a row, round by round. All are above zero."""
    assert len(before) == len(after) > 0
    logs = [math.log(b / a) for a, b in zip(before, after, strict=True)]
    ratio = math.exp(statistics.fmean(logs))
    noise = math.nan
    if len(logs) > 1:
        freedom = len(logs) - 1
        t = _T_95[freedom - 1] if freedom <= len(_T_95) else _T_MANY
        noise = math.exp(t * statistics.stdev(logs) / math.sqrt(len(logs))) - 1
    medians = statistics.median(before), statistics.median(after)
    return Figure(*medians, ratio, noise, math.exp(min(logs)), math.exp(max(logs)))
