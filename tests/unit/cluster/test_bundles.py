"""How namespaces are cut, and who gets what nobody owns."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from magnetar.cluster.brokers.reports import (
    BrokerReport,
    BundleOwner,
    decode_owner,
    decode_report,
    encode_owner,
    encode_report,
    worth_telling,
)
from magnetar.cluster.bundles import (
    LAST,
    Bundle,
    Layout,
    even_boundaries,
    hash_of,
    layout_of,
    policy_of,
)
from magnetar.cluster.sharing.placement import MESSAGES_PER_S_OF_A_BUNDLE, BundlePlacement
from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import BrokerMetadataError, NotAllowedError

NAMESPACE = "public/default"


def test_names_and_hashes_are_pulsars() -> None:
    layout = layout_of(NAMESPACE, {})
    assert [each.range_name for each in layout.bundles()] == [
        "0x00000000_0x40000000",
        "0x40000000_0x80000000",
        "0x80000000_0xc0000000",
        "0xc0000000_0xffffffff",
    ]
    # CRC-32 (that of zip files) of the whole name.
    assert hash_of(parse_topic("123456789")) == 0x856C7BF7
    assert str(layout.bundle_of(parse_topic("123456789"))) == (
        "public/default/0x80000000_0xc0000000"
    )


@pytest.mark.parametrize("count", [1, 3, 4, 16, 4096])
def test_each_topic_is_in_one_bundle(count: int) -> None:
    layout = Layout(NAMESPACE, even_boundaries(count))
    bundles = layout.bundles()
    assert len(bundles) == count
    for number in range(200):
        name = parse_topic(f"t-{number}")
        holding = [each for each in bundles if each.holds(name)]
        assert holding == [layout.bundle_of(name)]
        assert not layout.bundle_of(name)._replace(namespace="public/other").holds(name)


def test_ends_of_ranges() -> None:
    layout = Layout(NAMESPACE, (0, 0x40000000, LAST))
    low, high = layout.bundles()

    def at(position: int) -> Bundle:
        index = 0 if position < 0x40000000 else 1
        return layout.bundles()[index]

    assert at(0x3FFFFFFF) == low
    assert at(0x40000000) == high
    assert layout.named("0x40000000_0xffffffff") == high
    assert layout.named("0x40000000_0xfffffffe") is None


def test_a_namespace_says_how_it_is_cut() -> None:
    cut = layout_of(NAMESPACE, {"bundles": {"numBundles": 2}})
    assert cut.boundaries == (0, 0x80000000, LAST)
    assert layout_of(NAMESPACE, {"bundles": policy_of(cut.boundaries)}) == cut
    assert policy_of(cut.boundaries) == {
        "boundaries": ["0x00000000", "0x80000000", "0xffffffff"],
        "numBundles": 2,
    }


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        {"numBundles": 0},
        {"numBundles": 5000},
        {"numBundles": "x"},
        {"boundaries": ["0x00000000"]},
        {"boundaries": ["0x00000000", "0xfffffffe"]},
        {"boundaries": ["0x00000001", "0xffffffff"]},
        {"boundaries": ["0x00000000", "0x80000000", "0x40000000", "0xffffffff"]},
        {"boundaries": ["0x00000000", "0x80000000", "0x80000000", "0xffffffff"]},
        {"boundaries": "all"},
    ],
)
def test_what_is_no_layout_is_an_error_not_a_guess(said: object) -> None:
    with pytest.raises(BrokerMetadataError, match="public/default say"):
        layout_of(NAMESPACE, {"bundles": said})


def test_how_many() -> None:
    with pytest.raises(NotAllowedError, match="between 1 and 4096"):
        even_boundaries(0)


# -- what brokers say ------------------------------------------------------------------------


REPORT = BrokerReport("a:8080", 1, "pulsar://a:6650", "http://a:8080", "1.0", "z")


def test_reports_and_owners_are_read_as_they_were_written() -> None:
    report = replace(REPORT, draining=True, bundles=3, topics=9, messages_in_per_s=1.5)
    assert decode_report("/p", encode_report(report)) == report
    owner = BundleOwner("a:8080", 7, "pulsar://a:6650", "http://a:8080")
    assert decode_owner("/p", encode_owner(owner)) == owner
    assert b'"nativeUrl": "pulsar://a:6650"' in encode_owner(owner)
    assert b'"pulsarServiceUrl": "pulsar://a:6650"' in encode_report(report)


def test_a_report_of_a_broker_that_knows_no_read_only_ones() -> None:
    said = json.loads(encode_report(replace(REPORT, read_only=True)))
    assert said.pop("readOnly") is True
    del said["zone"]
    assert decode_report("/p", json.dumps(said).encode()) == replace(REPORT, zone="")


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"7", b'{"brokerId": "a"}'])
def test_what_others_wrote_is_an_error(value: bytes) -> None:
    with pytest.raises(BrokerMetadataError, match="/namespace/x holds"):
        decode_owner("/namespace/x", value)


def test_reports_are_not_written_for_little() -> None:
    busy = replace(REPORT, topics=10_000, messages_in_per_s=20_000.0)
    assert not worth_telling(busy, replace(busy, topics=10_100, messages_in_per_s=20_300.0))
    assert not worth_telling(REPORT, replace(REPORT, topics=30, messages_out_per_s=90.0))
    assert worth_telling(busy, replace(busy, messages_in_per_s=30_000.0))
    assert worth_telling(busy, replace(busy, bundles=1))
    assert worth_telling(busy, replace(busy, draining=True))


# -- who gets a bundle -----------------------------------------------------------------------


def bundles(count: int) -> list[Bundle]:
    return Layout(NAMESPACE, even_boundaries(count)).bundles()


def three(**changes: object) -> dict[str, BrokerReport]:
    made = {name: replace(REPORT, broker_id=name) for name in ("a", "b", "c")}
    return made | {name: replace(made[name], **about) for name, about in changes.items()}  # type: ignore[arg-type]


def test_a_namespace_that_is_asked_for_at_once_is_spread() -> None:
    placement, reports = BundlePlacement(), three()
    chosen = [placement.choose(each, reports) for each in bundles(12)]
    assert sorted(map(str, chosen)) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4


def test_the_same_bundle_goes_where_it_was_sent_until_that_one_has_reported() -> None:
    placement, reports = BundlePlacement(), three()
    first = bundles(4)[0]
    chosen = placement.choose(first, reports)
    assert chosen is not None
    for other in bundles(4)[1:]:
        placement.choose(other, reports)
    assert placement.choose(first, reports) == chosen
    reported = reports | {chosen: replace(reports[chosen], bundles=9)}
    assert placement.choose(first, reported) != chosen


def test_several_who_choose_at_once_mostly_agree() -> None:
    for each in bundles(20):
        assert BundlePlacement().choose(each, three()) == BundlePlacement().choose(each, three())


def test_the_busy_and_the_draining_get_none() -> None:
    reports = three(
        a={"messages_in_per_s": 3 * MESSAGES_PER_S_OF_A_BUNDLE},
        b={"bundles": 2},
        c={"draining": True},
    )
    placement = BundlePlacement()
    assert [placement.choose(each, reports) for each in bundles(4)].count("c") == 0
    assert BundlePlacement().choose(bundles(1)[0], reports) == "b"
    drained = {name: replace(each, draining=True) for name, each in reports.items()}
    assert BundlePlacement().choose(bundles(1)[0], drained) is None
    assert BundlePlacement().choose(bundles(1)[0], {}) is None


def test_a_read_only_broker_gets_none() -> None:
    reports = three(a={"bundles": 9}, b={"bundles": 9}, c={"read_only": True})
    placement = BundlePlacement()
    assert "c" not in {placement.choose(each, reports) for each in bundles(20)}


def test_a_broker_that_is_gone_is_sent_nothing() -> None:
    placement, reports = BundlePlacement(), three()
    first = bundles(4)[0]
    chosen = placement.choose(first, reports)
    assert chosen is not None
    del reports[chosen]
    assert placement.choose(first, reports) in reports
