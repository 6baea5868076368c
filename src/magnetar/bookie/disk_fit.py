"""Sizes that fit the disk: what a bookie keeps for itself is a share of a small disk.

    setting                        at most, of the smallest disk that it lies on    at least
    bookie.write_cache_bytes       1/32 (ledger directories)                        1 MiB
    bookie.journal.file_bytes      1/32 (journals)                                  an entry, 4 KiB
    bookie.journal.recycled_files  one, where the files are smaller than set
    bookie.entry_log_bytes_max     1/8 (ledger directories)                         1 MiB
    bookie.disk_reserve_bytes      1/64 (ledger directories)

What must be free for adds to be taken, the reserve, is twice the write cache and two journal files
(``space/upkeep.py``): what is acknowledged and lies in memory and journal only must find room. So
it is an eighth of a small disk at most (where the least sizes allow), and as it was set from 2 GiB
on, with the sizes that are set by default. Logs are small enough to be closed, and so compacted,
while there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from magnetar.config import BookieConfig, JournalConfig
from magnetar.env.files.disk_space import Space

FLUSHED_PART = 32
LOG_PART = 8
KEPT_PART = 64
LEAST_BYTES = 1 << 20
JOURNAL_SLACK_BYTES = 4096
"""What a journal file has beside one entry."""


def fitted(
    config: BookieConfig, ledger_disks: Sequence[Space], journal_disks: Sequence[Space]
) -> BookieConfig:
    """``config`` with sizes for disks of these sizes; at least one of each kind."""
    total = min(space.total_bytes for space in ledger_disks)
    part = max(total // FLUSHED_PART, LEAST_BYTES)
    return replace(
        config,
        write_cache_bytes=min(config.write_cache_bytes, part),
        entry_log_bytes_max=min(config.entry_log_bytes_max, max(total // LOG_PART, LEAST_BYTES)),
        disk_reserve_bytes=min(config.disk_reserve_bytes, total // KEPT_PART),
        journal=_fitted_journal(config, min(space.total_bytes for space in journal_disks)),
    )


def _fitted_journal(config: BookieConfig, total: int) -> JournalConfig:
    journal = config.journal
    least = config.entry_bytes_max + JOURNAL_SLACK_BYTES
    file_bytes = min(journal.file_bytes, max(total // FLUSHED_PART, least))
    if file_bytes == journal.file_bytes:
        return journal
    kept = min(journal.recycled_files_max, 1)
    return replace(journal, file_bytes=file_bytes, recycled_files_max=kept)
