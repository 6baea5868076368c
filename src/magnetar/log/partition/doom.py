"""Whose the files of a partition are, and when they go: the rules. Pure.

A partition is *doomed* here when no state in the metadata store claims the files that this broker
has of it: its topic was deleted, or the store was emptied, lost, or is another one. Which of them
it is cannot be told from the missing state, so that nothing is served any more, and nothing goes at
once:

* Files go after a grace, and only if the store answers, is still the one of the cluster that wrote
  them (its INSTANCEID), has the root of all states, still has no state for them, and nothing that
  says that there should be one: whoever deletes a topic notes that first.
* A state that comes back with the same topic id has its files again.
* A state with another topic id is of another topic of that name: it never has the files. They make
  room for it at once, since a name has one making at a time: a state that the cluster's own store
  has made anew says that the former one is over. From any other store it proves nothing, and then
  the new topic is refused here.
* Files that name no topic are nobody's: they are not served to a topic that has an id, and nothing
  that is in them is deleted but by an operator.
* A removal that was begun is finished: what is half there must not come back.

Why: docs/adr/0137-doomed-partitions.md, docs/adr/0169-a-replica-that-failed-is-not-believed.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class HeldFiles:
    """What a partition's directory holds. ``topic_id``: hexadecimal digits; empty: it names none.
    ``removing``: a removal was begun."""

    topic_id: str = ""
    has_records: bool = False
    removing: bool = False


class StoreAnswer(NamedTuple):
    """What the metadata store says, asked for the newest there is. ``cluster``: the id of its
    cluster; empty: it has none. ``rooted``: the root of all states is there. ``topic_id``: of the
    partition's state; None: there is no state. ``noted``: of the topic that it is asked for nothing
    says that it should be there."""

    cluster: str
    rooted: bool
    topic_id: str | None
    noted: bool = True


class Claim(Enum):
    """What is to be done before a partition is opened for a state."""

    SERVE = "the files are the topic's"
    CLEAR = "what is there is worth nothing"
    REPLACE = "they are of another topic of that name"
    REFUSE = "nothing says whose they are"


def claim(held: HeldFiles, topic_id: str) -> Claim:
    """Of a state with ``topic_id``; empty: one that names none."""
    if held.removing:
        return Claim.CLEAR
    if held.topic_id == topic_id:
        return Claim.SERVE
    if not held.has_records:
        return Claim.CLEAR
    return Claim.REPLACE if held.topic_id and topic_id else Claim.REFUSE


def superseded(said: StoreAnswer, cluster: str, topic_id: str) -> bool:
    """Whether the cluster's own store says that the topic with ``topic_id`` is the one of its name:
    files of another one are of a topic that is over."""
    return bool(cluster) and said.cluster == cluster and said.topic_id == topic_id


class Doom(Enum):
    """What becomes of doomed files."""

    WAIT = "the grace is not over"
    KEEP = "it is not certain that the topic was deleted"
    REMOVE = "the topic was deleted"
    CLAIMED = "a state claims them"


@dataclass(frozen=True, slots=True)
class JudgedDoom:
    """``why``: for people; what an operator may do, where that is of use."""

    verdict: Doom
    why: str


def judge(
    held: HeldFiles, said: StoreAnswer | None, cluster: str, doomed_ms: int, grace_ms: int
) -> JudgedDoom:
    """``said`` None: the store does not answer. ``cluster``: whose the files are; empty: unknown.
    ``doomed_ms``: how long they have been doomed."""
    if held.removing:
        return JudgedDoom(Doom.REMOVE, "their removal was begun")
    doubt = _doubt(said, cluster)
    if said is None or doubt:
        return JudgedDoom(Doom.KEEP, doubt)
    if said.topic_id is not None and said.topic_id == held.topic_id:
        return JudgedDoom(Doom.CLAIMED, "their state is there")
    if not held.topic_id and held.has_records:
        return JudgedDoom(
            Doom.KEEP,
            "they name no topic (no partition.metadata); delete them by hand if nobody needs them",
        )
    if said.topic_id is None and not said.noted:
        return JudgedDoom(
            Doom.KEEP,
            f"nobody has noted that topic {held.topic_id} was deleted: restore its state, or "
            f"delete /partition-ids/{held.topic_id}",
        )
    if doomed_ms < grace_ms:
        return JudgedDoom(Doom.WAIT, f"for {grace_ms - doomed_ms} ms more")
    return JudgedDoom(Doom.REMOVE, "the topic was deleted")


def _doubt(said: StoreAnswer | None, cluster: str) -> str:
    """Why nothing follows from what the store lacks; empty: it does."""
    if said is None:
        return "the metadata store does not answer"
    if not cluster:
        return "the cluster has no INSTANCEID, so that its store cannot be told from another"
    if said.cluster != cluster:
        return (
            f"the metadata store is of cluster {said.cluster or '(none: it is empty)'}, and these "
            f"files of {cluster}; restore the store"
        )
    if not said.rooted:
        return "the metadata store has lost the states of all partitions; restore them"
    return ""
