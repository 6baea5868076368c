"""Files of a day become one: a quiet topic's, over a day of a clock that is simulated."""

from __future__ import annotations

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.policy import RollRule
from magnetar.pipeline.tables.small_files import SMALL_BYTES, SizedFile, SmallFilesRule

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
MESSAGE_BYTES = 200


class QuietTopic:
    """A message a minute in each partition; ledgers close by age; a job that takes them, and keeps
    up the table's files, comes every ``job_ms``."""

    def __init__(self, partitions: int, job_ms: int) -> None:
        config = LedgerConfig()
        self._roll = RollRule(
            config.ledger_entries_max, config.ledger_bytes_max, config.ledger_age_ms_max
        )
        self._job_ms = job_ms
        self._opened_ms = [partition * MINUTE_MS for partition in range(partitions)]
        self._messages: list[dict[int, int]] = [{} for _ in range(partitions)]  # by day
        self._closed: list[dict[int, int]] = []
        self.files: list[SizedFile] = []
        self.rewritten_bytes = 0
        self.most_of_a_day = 0
        self.commits = 0

    def run(self, days: int) -> None:
        for now_ms in range(0, days * DAY_MS, MINUTE_MS):
            for partition, opened_ms in enumerate(self._opened_ms):
                written = self._messages[partition]
                if self._roll.old(sum(written.values()), now_ms - opened_ms):
                    self._closed.append(written)
                    self._messages[partition], self._opened_ms[partition] = {}, now_ms
                day = now_ms // DAY_MS
                self._messages[partition][day] = self._messages[partition].get(day, 0) + 1
            if now_ms % self._job_ms == 0:
                self._job()

    def _job(self) -> None:
        for ledger in self._closed:
            for day, messages in ledger.items():
                self._add(str(day), messages * MESSAGE_BYTES)
        self.commits += bool(self._closed)
        self._closed = []
        for group in list(SmallFilesRule().groups(self.files)):
            size = sum(each.byte_count for each in group)
            gone = {each.number for each in group}
            self.files = [each for each in self.files if each.number not in gone]
            self._add(group[0].span, size)
            self.rewritten_bytes += size
        days = [each.span for each in self.files]
        self.most_of_a_day = max(map(days.count, days), default=0)

    def _add(self, span: str, size: int) -> None:
        number = max((each.number for each in self.files), default=-1) + 1
        self.files.append(SizedFile(number, span, size))


@pytest.mark.parametrize("job_ms", [MINUTE_MS, 60 * MINUTE_MS, DAY_MS])
@pytest.mark.parametrize("partitions", [1, 16])
def test_a_quiet_topic_has_few_files_of_a_day_however_often_the_job_comes(
    partitions: int, job_ms: int
) -> None:
    topic = QuietTopic(partitions, job_ms)
    topic.run(days=3)
    assert topic.most_of_a_day <= 3
    by_day = [each.span for each in topic.files]
    assert by_day.count("0") <= 3
    stored = sum(each.byte_count for each in topic.files)
    assert stored > 1.8 * partitions * 24 * 60 * MESSAGE_BYTES  # what is open is not there
    assert topic.rewritten_bytes <= partitions * stored + 6 * stored


def test_files_that_are_not_small_and_those_of_other_days_stay() -> None:
    rule = SmallFilesRule()
    small = [SizedFile(n, "a", 10) for n in range(3)]
    assert list(rule.groups(small)) == []
    large = [SizedFile(n, "a", SMALL_BYTES) for n in range(3, 9)]
    other = [SizedFile(9, "b", 10)]
    assert list(rule.groups([*small, *large, *other])) == []
    fourth = SizedFile(10, "a", 10)
    assert list(rule.groups([*small, *large, *other, fourth])) == [[*small, fourth]]


def test_what_is_rewritten_at_once_has_a_bound() -> None:
    rule = SmallFilesRule(small_bytes=10, files_min=2, rewrite_bytes=20)
    files = [SizedFile(n, "a", 9) for n in range(7)]
    assert [len(group) for group in rule.groups(files)] == [3, 3]
