"""Decides what an operator is told of a replica whose files lack what they held.

What its error says brings this broker's files back, or goes on without them. Whether that costs
anything depends on the others: where this replica alone counts and leads again with less, they
are cut to what it has.
"""

from __future__ import annotations

from magnetar.log.partition.replication.partition_state import PartitionState


def advice(state: PartitionState, me: int) -> str:
    """``me``: the broker with the damaged replica. Empty: nobody else has one."""
    others = [each for each in state.replicas if each != me]
    if not others:
        return ""
    counted = {each.broker for each in (*state.isr, *state.elr)}
    whole = [each for each in others if each in counted]
    if whole:
        return (
            f"{_named(whole)} all that is committed, and one of them leads: write nothing here, "
            "remove this replica's folder, and it is filled from there"
        )
    return (
        f"{_named(others)} what was stored before they fell behind, and are cut to what is here "
        "when this one leads. If it cannot be restored, write nothing here: stop this broker, "
        "start those with partition.unclean_leader_election=true, and when one of them leads "
        "remove this replica's folder and start this broker again; what they lack is lost"
    )


def _named(brokers: list[int]) -> str:
    names = ", ".join(map(str, brokers))
    return f"broker {names} has" if len(brokers) == 1 else f"brokers {names} have"
