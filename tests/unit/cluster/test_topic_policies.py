"""Policies in the metadata store: read once, seen when another process changes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from magnetar.cluster.namespaces import POLICIES, Namespaces
from magnetar.cluster.policies import topic_policies
from magnetar.cluster.policies.policies import Policies, RetentionPolicy
from magnetar.cluster.policies.topic_policies import TopicPolicies
from magnetar.cluster.stored import shared_nodes
from magnetar.cluster.topic_name import parse_topic
from magnetar.env.metadata import SessionState
from magnetar.model.errors import (
    BrokerMetadataError,
    InvalidPolicyError,
    NodeExistsError,
    NotAllowedError,
    TopicNotFoundError,
)
from tests.doubles.memory_metadata import MemoryMetadata

DEFAULT = "public/default"
TOPIC = parse_topic("t")
KEPT = RetentionPolicy(10, -1)


class Site:
    """A store, and two processes over it; what the first was told of."""

    def __init__(self) -> None:
        self.store = MemoryMetadata()
        self.ours, self.theirs = self._process(), self._process()
        self.told: list[str] = []
        self.ours.watch(self.told.append)

    def _process(self) -> TopicPolicies:
        return TopicPolicies(self.store, Namespaces(self.store))


def run(scenario: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        site = Site()
        await Namespaces(site.store).prepare()
        await scenario(site)

    asyncio.run(main())


def test_what_is_in_force_is_read_once() -> None:
    async def scenario(site: Site) -> None:
        assert await site.ours.effective(TOPIC) == Policies()
        for number in range(topic_policies.BUCKETS * 20):
            await site.ours.effective(parse_topic(f"t{number}"))
        reads = site.store.reads
        assert reads <= topic_policies.BUCKETS + 2
        await site.ours.effective(parse_topic("another"))
        assert site.store.reads == reads

    run(scenario)


def test_a_change_by_another_process_is_told_of_and_seen() -> None:
    async def scenario(site: Site) -> None:
        await site.ours.effective(TOPIC)
        await site.theirs.set_namespace(DEFAULT, "message_ttl_s", 5)
        await asyncio.sleep(0)
        assert DEFAULT in site.told
        assert await site.ours.effective(TOPIC) == Policies(message_ttl_s=5)
        site.told.clear()
        await site.theirs.set_topic(TOPIC, "message_ttl_s", 7)
        await asyncio.sleep(0)
        assert site.told == [DEFAULT]
        assert (await site.ours.effective(TOPIC)).message_ttl_s == 7
        assert (await site.ours.of_namespace(DEFAULT)).message_ttl_s == 5
        await site.theirs.set_topic(TOPIC, "message_ttl_s", None)
        await asyncio.sleep(0)
        assert (await site.ours.effective(TOPIC)).message_ttl_s == 5

    run(scenario)


def test_a_lost_session_tells_of_everything() -> None:
    """What changes meanwhile is told by nobody."""

    async def scenario(site: Site) -> None:
        await site.ours.effective(TOPIC)
        site.told.clear()
        site.store.end_session(SessionState.SUSPENDED)
        await asyncio.sleep(0)
        assert DEFAULT in site.told

    run(scenario)


def test_ones_own_change_is_seen_at_once() -> None:
    async def scenario(site: Site) -> None:
        await site.ours.effective(TOPIC)
        await site.ours.set_topic(TOPIC, "retention", KEPT)
        assert await site.ours.of_topic(TOPIC) == Policies(retention=KEPT)
        await site.ours.set_namespace(DEFAULT, "retention", RetentionPolicy(0, 0))
        assert (await site.ours.effective(parse_topic("u"))).retention == RetentionPolicy(0, 0)
        assert (await site.ours.effective(TOPIC)).retention == KEPT

    run(scenario)


def test_a_change_is_of_what_the_store_has() -> None:
    """What another process has just set stays, whatever is in memory here."""

    def minutes(said: RetentionPolicy | None) -> RetentionPolicy:
        return RetentionPolicy(5, said.megabytes if said is not None else -1)

    def megabytes(said: RetentionPolicy | None) -> RetentionPolicy:
        return RetentionPolicy(said.minutes if said is not None else -1, 7)

    async def scenario(site: Site) -> None:
        assert await site.ours.of_topic(TOPIC) == Policies()
        await asyncio.gather(
            site.ours.change_topic(TOPIC, "retention", minutes),
            site.theirs.change_topic(TOPIC, "retention", megabytes),
        )
        await asyncio.sleep(0)
        assert (await site.ours.of_topic(TOPIC)).retention == RetentionPolicy(5, 7)
        await site.ours.change_topic(TOPIC, "retention", lambda _: None)
        assert await site.ours.of_topic(TOPIC) == Policies()

    run(scenario)


def test_a_topic_and_what_it_says_are_one_write() -> None:
    """Of many who make it at once one has its way, and the others leave nothing."""

    async def scenario(site: Site) -> None:
        path = "/made"
        ours = {"retention": lambda _: KEPT, "engine": lambda _: "partition"}
        theirs = {"message_ttl_s": lambda _: 5, "engine": lambda _: "ledger"}
        await site.ours.set_topic(TOPIC, "deduplication", False)
        outcomes = await asyncio.gather(
            site.ours.make_with(TOPIC, ours, path, b"ours"),
            site.theirs.make_with(TOPIC, theirs, path, b"theirs"),
            return_exceptions=True,
        )
        assert sum(isinstance(each, NodeExistsError) for each in outcomes) == 1
        first, made = outcomes[0] is None, (await site.store.get(path)).value
        assert made == (b"ours" if first else b"theirs")
        assert await site.theirs.of_topic(TOPIC) == (
            Policies(deduplication=False, retention=KEPT, engine="partition")
            if first
            else Policies(deduplication=False, message_ttl_s=5, engine="ledger")
        )

    run(scenario)


def test_a_topic_is_made_however_often_its_node_is_changed_meanwhile() -> None:
    """Topics share a node: what the others say stays."""

    async def scenario(site: Site) -> None:
        names = [parse_topic(f"t{number}") for number in range(topic_policies.BUCKETS * 3)]
        changes = {"message_ttl_s": lambda _: 5}
        await asyncio.gather(
            *(site.theirs.set_topic(each, "message_ttl_s", 7) for each in names[::2]),
            *(
                site.ours.make_with(each, changes, f"/made/{each.local}", b"")
                for each in names[1::2]
            ),
        )
        said = [(await site.ours.of_topic(each)).message_ttl_s for each in names]
        assert said == [7, 5] * (len(names) // 2)
        assert len(await site.store.children("/made")) == len(names) // 2

    run(scenario)


def test_partitions_have_their_topics_policies_and_namespaces_their_own() -> None:
    async def scenario(site: Site) -> None:
        await site.ours.set_topic(TOPIC.of_partition(3), "retention", KEPT)
        assert (await site.ours.of_topic(TOPIC.of_partition(0))).retention == KEPT
        assert (await site.ours.of_topic(TOPIC)).retention == KEPT
        other = parse_topic("persistent://public/other/t")
        assert await site.ours.of_topic(other) == Policies()
        with pytest.raises(TopicNotFoundError):
            await site.ours.effective(other)

    run(scenario)


def test_a_topic_made_anew_has_none() -> None:
    async def scenario(site: Site) -> None:
        await site.ours.set_topic(TOPIC, "retention", KEPT)
        await site.ours.forget_topic(TOPIC)
        assert await site.ours.of_topic(TOPIC) == Policies()
        await site.ours.forget_topic(TOPIC)

    run(scenario)


def test_changes_at_the_same_time_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_policies, "BUCKETS", 1)

    async def scenario(site: Site) -> None:
        names = [parse_topic(f"t{n}") for n in range(20)]
        async with asyncio.TaskGroup() as group:
            for number, name in enumerate(names):
                process = site.ours if number % 2 else site.theirs
                group.create_task(process.set_topic(name, "message_ttl_s", number))
        await asyncio.sleep(0)
        found = [(await site.ours.of_topic(name)).message_ttl_s for name in names]
        assert found == list(range(20))

    run(scenario)


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_nodes, "NODE_BYTES_MAX", 60)

    async def scenario(site: Site) -> None:
        await site.ours.set_topic(TOPIC, "message_ttl_s", 7)
        with pytest.raises(NotAllowedError, match="say it for the namespace"):
            await site.ours.set_topic(TOPIC, "retention", KEPT)
        assert await site.ours.of_topic(TOPIC) == Policies(message_ttl_s=7)

    run(scenario)


@pytest.mark.parametrize(
    "value", [b"[1]", b"{", b'{"t": 5}', b'{"t": {"message_ttl_in_seconds": -1}}']
)
def test_a_node_of_topics_that_cannot_be_read_is_named(value: bytes) -> None:
    async def scenario(site: Site) -> None:
        await site.ours.set_topic(TOPIC, "message_ttl_s", 7)
        path = next(path for path in site.store.nodes if path.startswith(topic_policies.ROOT + "/"))
        path = max((p for p in site.store.nodes if p.startswith(path)), key=len)
        await site.store.put(path, value, -1)
        await asyncio.sleep(0)
        with pytest.raises(BrokerMetadataError, match="topic-policies"):
            await site.ours.effective(TOPIC)

    run(scenario)


def test_what_could_not_be_read_again_is_not_written() -> None:
    async def scenario(site: Site) -> None:
        await site.ours.set_topic(TOPIC, "retention", KEPT)
        beyond = RetentionPolicy(2**40, -1)
        with pytest.raises(InvalidPolicyError, match="retentionTimeInMinutes: 1099511627776"):
            await site.ours.set_topic(TOPIC, "retention", beyond)
        with pytest.raises(InvalidPolicyError, match="retentionTimeInMinutes"):
            await site.ours.set_namespace(DEFAULT, "retention", beyond)
        assert await site.ours.effective(TOPIC) == Policies(retention=KEPT)

    run(scenario)


def test_what_cannot_be_read_of_one_topic_is_no_matter_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value that cannot be read was written by another release: the topic can be set right, or
    deleted."""
    monkeypatch.setattr(topic_policies, "BUCKETS", 1)

    async def scenario(site: Site) -> None:
        bad, gone, other = parse_topic("bad"), parse_topic("gone"), parse_topic("other")
        await site.ours.set_topic(other, "message_ttl_s", 7)
        value = b'{"bad": {"message_ttl_in_seconds": -1}, "gone": {"engine": "tape"}, "other": {}}'
        await site.store.put(topic_policies.TopicPolicies.path_of(other), value, -1)
        await asyncio.sleep(0)
        assert await site.ours.effective(other) == Policies()
        with pytest.raises(BrokerMetadataError, match="of topic bad: messageTTL: -1"):
            await site.ours.effective(bad)
        await site.ours.set_topic(bad, "message_ttl_s", 5)
        assert await site.ours.effective(bad) == Policies(message_ttl_s=5)
        await site.ours.forget_topic(gone)
        assert await site.ours.effective(gone) == Policies()

    run(scenario)


def test_a_node_that_cannot_be_read_keeps_no_topic() -> None:
    """A topic that had policies in it, or could have, was deleted but for its name, for ever."""

    async def scenario(site: Site) -> None:
        await site.ours.set_topic(TOPIC, "message_ttl_s", 7)
        path = topic_policies.TopicPolicies.path_of(TOPIC)
        await site.store.put(path, b'{"t": {"mess', -1)
        await asyncio.sleep(0)
        with pytest.raises(BrokerMetadataError, match=path):
            await site.ours.effective(TOPIC)
        await site.ours.forget_topic(TOPIC)
        assert (await site.store.get(path)).value == b'{"t": {"mess', "of other topics, too"

    run(scenario)


def test_a_namespaces_node_that_cannot_be_read_is_named() -> None:
    async def scenario(site: Site) -> None:
        value = b'{"persistence": {"bookkeeperEnsemble": 0}}'
        await site.store.put(f"{POLICIES}/{DEFAULT}", value, -1)
        with pytest.raises(BrokerMetadataError, match=r"public/default.*bookkeeperEnsemble"):
            await site.ours.effective(TOPIC)

    run(scenario)
