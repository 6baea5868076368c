"""What is kept of a group of the classic protocol in the coordinator's log: the last rebalance that
was completed, with all of its members, in one record. So it is there whole or not at all.

A record's value is JSON::

    [version, generation, protocol type, protocol, leader, empty since (ms), offers, members]
    an offer:   [[protocol, metadata], ...]
    a member:   [id, instance id or null, client id, host, session ms, rebalance ms,
                 the number of its offer, assignment]

Bytes are in base64. Members mostly offer the same, so each offer is there once. What a member
offers is kept whole, and not only of the protocol that was chosen: one that joins again is compared
with it.

Source: Kafka's GroupMetadataValue, for what is kept. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

VERSION: Final = 0

Offer: TypeAlias = tuple[tuple[str, bytes], ...]
"""Protocols that a member supports, the best first, each with what it says to the leader."""


class ClassicGroupKey(NamedTuple):
    group: str


class ClassicMemberRecord(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocols: Offer
    assignment: bytes


class ClassicGroupRecord(NamedTuple):
    """``empty_since_ms``: when the last member left, if there is none."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    empty_since_ms: int
    members: tuple[ClassicMemberRecord, ...]

    def without_members(self, now_ms: int) -> ClassicGroupRecord:
        """Where they are too many for a record."""
        return self._replace(protocol="", leader="", empty_since_ms=now_ms, members=())


ClassicGroupChange: TypeAlias = tuple[ClassicGroupKey, ClassicGroupRecord | None]


def classic_to_json(record: ClassicGroupRecord) -> list[Any]:
    offers = {offer: number for number, offer in enumerate(_offers(record))}
    members = [
        [*each[:6], offers[each.protocols], _text(each.assignment)] for each in record.members
    ]
    said = [[[name, _text(data)] for name, data in offer] for offer in offers]
    return [VERSION, *record[:5], said, members]


def _offers(record: ClassicGroupRecord) -> list[Offer]:
    return list(dict.fromkeys(each.protocols for each in record.members))


def classic_from_json(value: Sequence[Any]) -> ClassicGroupRecord:
    """Raises ``ValueError``, ``TypeError``."""
    version, *fields = value
    if version != VERSION:
        raise ValueError(
            f"a group's members in version {version}, of a newer release: this one reads {VERSION}"
        )
    generation, protocol_type, protocol, leader, empty_since_ms, said, members, *_ = fields
    offers: list[Offer] = [
        tuple((str(name), _bytes(data)) for name, data in offer) for offer in said
    ]
    return ClassicGroupRecord(
        int(generation),
        str(protocol_type),
        str(protocol),
        str(leader),
        int(empty_since_ms),
        tuple(_member(each, offers) for each in members),
    )


def _member(said: Sequence[Any], offers: Sequence[Offer]) -> ClassicMemberRecord:
    """Raises ``ValueError``, ``TypeError``."""
    member_id, instance_id, client_id, host, session_ms, rebalance_ms, offer, assignment, *_ = said
    if not 0 <= int(offer) < len(offers):
        raise ValueError(f"member {member_id} has offer {offer} of {len(offers)}")
    return ClassicMemberRecord(
        str(member_id),
        None if instance_id is None else str(instance_id),
        str(client_id),
        str(host),
        int(session_ms),
        int(rebalance_ms),
        offers[int(offer)],
        _bytes(assignment),
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    """Raises ``ValueError``, ``TypeError``."""
    return base64.b64decode(text, validate=True)
