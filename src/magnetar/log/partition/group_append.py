"""Appending what many have sent in one write: each batch judged by itself, all synced once.

Owns the judgement of a group, and nothing between two of them. Blocking: a job of the partition's
lane.

Rules:

* Batches are whole and their checksums are right: whoever took them from a client has looked, once
  (``wire.kafka.batches.check_produced``); a checksum is not computed again here.
* Each batch has an outcome of its own: what one is refused for does not concern those beside it.
  One that comes twice in a group is judged as it would be in two groups.
* When the disk fails nothing of the group may be taken as stored. When it is full, what was written
  before that counts, and the rest was not appended. ``refusal`` says so: what waits behind the
  group must not be appended without it
  (docs/adr/0199-nothing-is-appended-behind-a-refusal.md).
"""

from __future__ import annotations

import errno
from collections import ChainMap
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from magnetar.log.partition.batch_header import read_header
from magnetar.log.partition.local_log import Appended, LocalLog
from magnetar.log.partition.producer_states import ProducerStates
from magnetar.log.partition.segment import Stored
from magnetar.model.errors import MagnetarError, NoSpaceError
from magnetar.wire.kafka.batches import NO_PRODUCER, producer_of, stamp_in_place

FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))

Outcome: TypeAlias = Appended | MagnetarError


class GroupResult(NamedTuple):
    """``outcomes``: of each batch, in order; then the log's ends after it. ``refusal``: the disk
    was full, and its end was not appended."""

    outcomes: list[Outcome]
    log_end: int
    synced_end: int
    refusal: NoSpaceError | None = None


def append_group(
    source: LocalLog, batches: Sequence[bytearray], leader_epoch: int, now_ms: int
) -> GroupResult:
    """Offset and epoch are written into each batch that is appended. Raises ``OSError``: the disk
    failed, and this replica must end."""
    group = _Group(source, leader_epoch)
    refusal: NoSpaceError | None = None
    for data in batches:
        group.judge(data)
    if group.stored:
        try:
            source.write(group.stored, leader_epoch, now_ms)
        except OSError as error:
            if error.errno not in FULL:
                raise
            refusal = group.not_written(source, error)
    return GroupResult(group.outcomes, source.log_end, source.synced_end, refusal)


class _Group:
    def __init__(self, source: LocalLog, leader_epoch: int) -> None:
        self.outcomes: list[Outcome] = []
        self.stored: list[Stored] = []
        self._source = source
        self._epoch = leader_epoch
        self._end = source.log_end
        self._producers: ProducerStates | None = None
        """As they are once the batches before are in: the log's own learn when they are."""

    def judge(self, data: bytearray) -> None:
        try:
            self.outcomes.append(self._place(data))
        except MagnetarError as error:
            self.outcomes.append(error)

    def _place(self, data: bytearray) -> Appended:
        self._source.check_size(len(data))
        sequenced = producer_of(data) != NO_PRODUCER
        if sequenced:
            kept = self._known().check(read_header(data))
            if kept is not None:
                return Appended(kept.first_offset, kept.last_offset, True, kept.time_ms)
        stamp_in_place(data, self._end, self._epoch)
        placed = read_header(data)
        if sequenced:
            self._known().appended(placed)
        self.stored.append(Stored(placed, (data,)))
        first, self._end = self._end, placed.next_offset
        return Appended(first, self._end - 1)

    def _known(self) -> ProducerStates:
        if self._producers is None:
            known = self._source.producers
            self._producers = ProducerStates(known.end_offset, ChainMap({}, known.producers))
        return self._producers

    def not_written(self, source: LocalLog, error: OSError) -> NoSpaceError:
        why = NoSpaceError(f"the disk of {source.folder} is full ({error}); free some of it")
        self.outcomes = [
            why if isinstance(each, Appended) and each.last_offset >= source.log_end else each
            for each in self.outcomes
        ]
        return why
