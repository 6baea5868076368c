"""Large bundles are cut before they are given away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.app import handing_over
from magnetar.app.handing_over import cut_large_bundles
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import MetadataUnavailableError
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.cluster.test_sharing import One, run

AT_MOST = 20


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_over, "TOPICS_MAX", AT_MOST)


def topics(count: int) -> list[TopicName]:
    return [parse_topic(f"t{number}") for number in range(count)]


async def served_by(one: One, names: Sequence[TopicName]) -> None:
    for name in names:
        await one.topics.locate(name, authoritative=True)


def test_each_part_has_few_topics_and_all_are_given_away() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        names = topics(300)
        await served_by(a, names)
        assert len(a.topics.owned()) == 4
        await cut_large_bundles(a.topics, names)
        for bundle in a.topics.owned():
            assert sum(bundle.holds(name) for name in names) <= AT_MOST
        for name in names:
            a.topics.check(name)
        await a.topics.drain()
        assert a.topics.owned() == []
        assert not [path for path in store.nodes if path.startswith("/namespace/public/default/")]
        await served_by(b, names)

    run(scenario)


def test_small_bundles_stay_as_they_are() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        names = topics(AT_MOST)
        await served_by(a, names)
        before = a.topics.owned()
        await cut_large_bundles(a.topics, names)
        assert a.topics.owned() == before

    run(scenario)


def test_bundles_of_others_and_namespaces_that_are_gone_do_not_matter() -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        names = topics(300)
        await served_by(b, names)
        gone = [TopicName("public", "gone", f"t{n}", -1) for n in range(300)]
        await cut_large_bundles(a.topics, [*names, *gone])
        assert len(b.topics.owned()) == 4

    run(scenario)


def test_a_namespace_with_many_bundles_is_cut_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_over, "BUNDLES_MAX", 10)
    monkeypatch.setattr(handing_over, "BUNDLES_LEAST_LEFT", 4)

    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        names = topics(300)
        await served_by(a, names)
        await cut_large_bundles(a.topics, names)
        assert len(a.topics.owned()) == 6

    run(scenario)


def test_what_cannot_be_cut_is_given_away_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: MemoryMetadata, a: One, b: One) -> None:
        names = topics(300)
        await served_by(a, names)

        async def fails(*_: object) -> bool:
            raise MetadataUnavailableError("away")

        monkeypatch.setattr(a.topics, "cut", fails)
        await asyncio.wait_for(cut_large_bundles(a.topics, names), 10)
        assert len(a.topics.owned()) == 4

    run(scenario)
