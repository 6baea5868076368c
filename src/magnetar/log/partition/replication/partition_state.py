"""What the metadata store holds of one partition: who leads it, since when, and who is in sync.

Owns the value and its bytes. Pure. It is changed by compare-and-set only: by the leader (who is in
sync) and by the controller (who leads), by the rules of ``election``.

Invariants (``check``):

* The leader is in sync. In-sync and eligible replicas are different brokers, and are assigned.
* ``leader_epoch`` grows whenever another start of a broker leads, or none.

A replica is named with its broker's *lineage*: a number that its log directory keeps as long as it
holds all that it ever counted as stored (``log_directory``). A broker that comes back with another
one has lost something: it is another replica, which has to catch up first.

Bytes: a JSON object with the names of the fields, members as ``[broker, lineage]``, and ``version``
1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.model.errors import MetadataFormatError

NO_LEADER: Final = -1
NOT_KNOWN: Final = -1
_VERSION: Final = 1


def topic_number(topic_id: str) -> int:
    """63 bits of a topic's id, by which brokers tell makings of a topic apart; 0: unknown."""
    return int(topic_id, 16) & 0x7FFF_FFFF_FFFF_FFFF if topic_id else 0


class Member(NamedTuple):
    """A replica as it is counted on."""

    broker: int
    lineage: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """``replicas``: the brokers that are assigned, the preferred leader first. ``leader_start``
    tells the starts of the leader's process apart: what a process had in memory ends with it.
    ``elr``: replicas that left the in-sync set when it had become too small to commit, and so have
    all that is committed (KIP-966). ``unclean``: see ``election``. ``topic_id``: a UUID in
    hexadecimal digits, of this making of the topic: files of an earlier one of its name are none of
    its own. ``guarded``: its id has a node of its own (``state_store``). ``whole_since``: what
    could be read in that epoch, or in a later one, is not gone since; ``NOT_KNOWN``: there is no
    such epoch, or who stored the state last did not know of this field."""

    replicas: tuple[int, ...]
    min_isr: int
    isr: tuple[Member, ...]
    elr: tuple[Member, ...] = ()
    leader: int = NO_LEADER
    leader_start: int = 0
    leader_epoch: int = 0
    topic_id: str = ""
    unclean: bool = False
    guarded: bool = False
    whole_since: int = NOT_KNOWN

    @property
    def least_in_sync(self) -> int:
        """How many have to be in sync for anything to be committed."""
        return min(self.min_isr, len(self.replicas))

    @property
    def too_few(self) -> bool:
        return len(self.isr) < self.least_in_sync

    def counts_on(self, member: Member) -> bool:
        """Whether what that one has may be all that there is of something committed."""
        return self.replicas == (member.broker,) or member in (*self.isr, *self.elr)

    def check(self) -> None:
        """Raises ``AssertionError`` if an invariant does not hold."""
        brokers = [member.broker for member in (*self.isr, *self.elr)]
        assert len(set(brokers)) == len(brokers), "a broker counts once"
        assert set(brokers) <= set(self.replicas), "only assigned replicas count"
        leads = self.leader == NO_LEADER or self.leader in [each.broker for each in self.isr]
        assert leads, "the leader is in sync"


def encode_state(state: PartitionState) -> bytes:
    fields = {
        "version": _VERSION,
        "replicas": state.replicas,
        "min_isr": state.min_isr,
        "isr": state.isr,
        "elr": state.elr,
        "leader": state.leader,
        "leader_start": state.leader_start,
        "leader_epoch": state.leader_epoch,
        "topic_id": state.topic_id,
        "unclean": state.unclean,
        "guarded": state.guarded,
        "whole_since": state.whole_since,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_state(data: bytes, path: str) -> PartitionState:
    """Raises ``MetadataFormatError``, which names ``path``."""
    try:
        fields = json.loads(data)
        if fields["version"] != _VERSION:
            raise MetadataFormatError(f"{path} is of version {fields['version']}, not {_VERSION}")
        return PartitionState(
            tuple(map(int, fields["replicas"])),
            int(fields["min_isr"]),
            tuple(Member(int(b), int(n)) for b, n in fields["isr"]),
            tuple(Member(int(b), int(n)) for b, n in fields["elr"]),
            int(fields["leader"]),
            int(fields["leader_start"]),
            int(fields["leader_epoch"]),
            str(fields["topic_id"]),
            bool(fields.get("unclean", False)),  # states of before there was such a setting
            bool(fields.get("guarded", False)),  # states of before ids had nodes
            int(fields.get("whole_since", NOT_KNOWN)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataFormatError(f"{path} holds no partition's state: {error!r}") from error
